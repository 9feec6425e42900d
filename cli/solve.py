"""`rlplan solve JOB --profile P` and `rlplan solve WORKLOAD`: co-execution groups for many jobs."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..plans.phrases.numbers import count, digits
from ..plans.schema import MODES
from ..plans.yaml.errors import InputError
from .shared.options import OVERWRITE, Finite, Objectives, for_option, lengths_option, refuse_options_but, trace_option

if TYPE_CHECKING:
    from ..planner.groups.inputs.workload_jobs import Problem
    from ..plans.schema.groups_plan import GroupsPlan
    from ..plans.schema.workload import Objective


_OF_FRONTIERS = (
    "frontier", "profile", "trace", "lengths", "cluster", "mode", "bias_budget", "made_for", "seed", "force", "as_json",
)  # fmt: skip
_OF_GROUPS = ("usd_per_hour", "usd_per_unit")


@click.command("solve", cls=Objectives)
@click.argument("job_path", metavar="JOB", type=click.Path(path_type=Path))
@click.option("--profile", type=click.Path(path_type=Path), help="Default: profile.yaml beside JOB.")
@trace_option
@lengths_option
@click.option("--cluster", type=click.Path(path_type=Path), help="Default: cluster.yaml beside JOB.")
@click.option("--out", "-o", type=click.Path(path_type=Path), help="Default: plan.yaml beside JOB; -: standard output.")
@click.option(
    "--mode",
    type=click.Choice(MODES),
    help="Force a mode. Default: the best.",
)
@click.option(
    "--plain",
    is_flag=True,
    help="Plan plain synchronous rounds without any lever (drafts, streaming, balance), as a baseline to measure.",
)
@click.option(
    "--bias-budget",
    type=Finite(0, 1, max_open=True),
    help="Allowed |1 - trained/unconditioned mean length|. Default: 0, or no bound if --mode is given.",
)
@click.option(
    "--objective",
    metavar="seconds|usd|usd-within SECONDS",
    help="What a trained sample shall cost least of: seconds; usd, for which a plan may take fewer nodes; or usd among "
    "plans whose mean step is within SECONDS. Default: the job's objective, else seconds. For a workload: "
    "usd_per_hour, or usd_per_unit of training. Default: as in its rules.",
)
@for_option
@click.option(
    "--max-nodes",
    type=click.IntRange(0, 2**31 - 1),
    help="Limit of the integer program's search; not seconds, so that it cuts alike everywhere. Default: 200000.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the simulation.")
@click.option("--force", is_flag=True, help=f"Use a profile of another machine or job; {OVERWRITE}.")
@click.option(
    "--from",
    "previous_path",
    type=click.Path(path_type=Path),
    help="For a workload: the running plan; its jobs move only where that pays.",
)
@click.option("--no-moves", is_flag=True, help="With --from: running jobs stay where they are.")
@click.option(
    "--frontier",
    type=click.Choice(["nodes"]),
    help="Write no plan; print the fastest schedule on each number of nodes: seconds, USD, and what binds.",
)
@click.option("--json", "as_json", is_flag=True, help="Print a summary as one JSON line.")
def solve_command(
    job_path: Path,
    out: Path | None,
    objective: Any,
    made_for: str,
    force: bool,
    previous_path: Path | None,
    no_moves: bool,
    frontier: str | None,
    as_json: bool,
    **options: Any,
) -> int:
    """Simulate candidate rounds of JOB, choose by integer program, and write the plan.

    JOB is a job.yaml or the folder that holds it; or a workload.yaml, many jobs that share a cluster: then the plan
    says which of them form groups on which nodes (default: groups.yaml beside it), and of the options only --out,
    --objective, --from, --no-moves and --json apply.

    The same inputs give the same plan, byte for byte, but for its `volatile` block.
    """
    from ..api.input_paths import job_file, need_job
    from ..plans.yaml.yaml_io import document_kind

    job_path = job_file(job_path)
    need_job(job_path)
    if document_kind(job_path) == "rlplan_workload":
        refuse_options_but("a workload", "out", "objective", "previous_path", "no_moves", "force", "as_json")
        return _solve_workload(job_path, out, previous_path, not no_moves, as_json, objective, force)
    if objective in _OF_GROUPS:
        raise InputError(
            f"--objective {objective} is for a workload; for a job it is seconds, usd or usd-within SECONDS"
        )
    if previous_path is not None or no_moves:
        raise InputError("--from and --no-moves are for a workload; a job is solved anew, see rlplan tune for a run's")

    if frontier is not None:
        refuse_options_but("--frontier", *_OF_FRONTIERS)
        return _frontier(job_path, made_for == "any", force, as_json, options)
    return _solve_job(job_path, out, as_json, objective=objective, for_any=made_for == "any", force=force, **options)


def _solve_job(job_path: Path, out: Path | None, as_json: bool, **options: Any) -> int:
    """Solve the job at `job_path` and write its plan; `options`: of api/solve_job.py's `solve`."""
    from ..api.solve_job import solve
    from .screens.solved import plan_summary, plan_text
    from .shared.findings import suspicious_costs
    from .shared.output import check_stdout, share, tell

    out = out or job_path.with_name("plan.yaml")
    check_stdout(out, "--out", as_json)
    with share("solve") as update:
        plan = solve(job_path, out=out, progress=update, **options)
    suspicious = suspicious_costs(plan, out)
    text = "\n".join([plan_text(plan, out), *(f"note: the profile: {noted}" for noted in suspicious)])
    tell(json.dumps({**plan_summary(plan, out), "suspicious": suspicious}) if as_json else text, out)
    return 0


def _frontier(job_path: Path, for_any: bool, force: bool, as_json: bool, options: dict[str, Any]) -> int:
    """Print the front of nodes."""
    from dataclasses import asdict

    from rich.console import Console

    from ..api.solve_job import front_of_nodes
    from .main import EXIT_INFEASIBLE
    from .screens.bars import table
    from .shared.output import share

    with share("solve") as update:
        points = front_of_nodes(job_path, update, for_any=for_any, force=force, **options)
    planned = [point for point in points if point.seconds_per_sample is not None]
    cheapest = min(planned, key=lambda point: point.usd_per_1k_samples or 0.0, default=None)
    if as_json:
        figures = {"frontier": [asdict(point) for point in points], "cheapest": cheapest and cheapest.nodes}
        click.echo(json.dumps(figures))
        return 0 if planned else EXIT_INFEASIBLE
    apart = any(point.train_nodes for point in points)
    drawn = table(["pool", ">nodes", *([">trainers"] if apart else []), "mode", ">s/step", ">USD/1k", "binds"])
    for point in points:
        step_s, usd = ("" if value is None else digits(value) for value in (point.step_s, point.usd_per_1k_samples))
        mark = f"{usd}*" if point is cheapest else usd
        trainers = [str(point.train_nodes or 0)] if apart else []
        binds = point.binds or point.reason
        drawn.add_row(point.pool, str(point.nodes), *trainers, point.mode or "no plan", step_s, mark, binds)
    Console(highlight=False).print(drawn)
    click.echo("* cheapest; of a few simulated rounds each. A plan: rlplan solve --objective usd-within SECONDS")
    return 0 if planned else EXIT_INFEASIBLE


def _solve_workload(
    path: Path,
    out: Path | None,
    previous_path: Path | None,
    moving: bool,
    as_json: bool,
    objective: Objective | None,
    force: bool,
) -> int:
    """Solve the workload at `path` and write the plan of groups.

    `objective` replaces that of the workload's rules; `force` allows `out` to be a file that rlplan did not write.
    """
    from ..api.input_paths import accelerators_must_be_known, check_target
    from ..api.plan_points import LEAST_GAIN, plan_near_cheapest, plan_neighbours
    from ..planner.groups.inputs.running_plan import solved_from
    from ..planner.groups.inputs.workload_jobs import problem_of
    from ..planner.groups.solve_workload import solve_workload
    from ..plans.schema.groups_plan import load_groups_plan
    from ..plans.schema.workload import load_workload
    from ..plans.yaml.yaml_io import WRITTEN_DIGITS, write_document
    from .screens.groups_screen import summary
    from .shared.output import check_stdout, steps, tell

    if not moving and previous_path is None:
        raise InputError("--no-moves needs --from: without a running plan nothing can move")
    if objective not in (None, *_OF_GROUPS):
        raise InputError(f"--objective {objective} is for a job; for a workload it is one of {', '.join(_OF_GROUPS)}")
    out = out or path.with_name("groups.yaml")
    workload, cluster = load_workload(path)
    accelerators_must_be_known(cluster, path.parent / workload.cluster)
    if objective is not None:
        workload = workload.model_copy(update={"rules": workload.rules.model_copy(update={"objective": objective})})
    check_stdout(out, "--out", as_json)
    with steps("planning jobs") as notify:
        plan_near_cheapest(path, workload, cluster, notify)
    problem = problem_of(workload, path, cluster)
    previous = None if previous_path is None else (load_groups_plan(previous_path), previous_path)
    files = [path, path.parent / workload.cluster, *problem.read.values(), *([previous_path] if previous_path else [])]
    check_target(out, *files, kind="plan", force=force)
    with steps("solving") as notify:

        def solved(problem: Problem) -> GroupsPlan:
            inputs = solved_from(path, workload, problem, previous_path, out)
            return solve_workload(workload, problem, inputs, previous, moving, notify)

        plan = solved(problem)
        while plan_neighbours(path, workload, cluster, plan, notify):
            wider = solved(problem_of(workload, path, cluster))
            if wider.predicted.plan.usd_per_hour >= plan.predicted.plan.usd_per_hour * (1 - LEAST_GAIN):
                break
            plan = wider
    write_document(plan, out, WRITTEN_DIGITS)
    for _, name, member in sorted(plan.members, key=lambda item: item[1]):
        if not member.slowdown.keeps:
            warnings.warn(f"{name} does not keep its bound of {member.slowdown.slo:g}x where it runs", stacklevel=1)
    tell(json.dumps(summary(plan, out)) if as_json else _groups_text(plan, out), out)
    return 0


def _groups_text(plan: GroupsPlan, out: Path) -> str:
    from ..plans.facts.plan_text import groups_status
    from .screens.groups_screen import costs_text, groups_text, moves_text
    from .shared.output import see_it

    head = (
        f"{len(plan.members)} jobs in {count(len(plan.groups), 'group')} -> {out}\n"
        f"{groups_status(plan)} ({plan.solver.name})"
    )
    return "\n".join([head, costs_text(plan), *groups_text(plan), *moves_text(plan), *see_it(out)])
