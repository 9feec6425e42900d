"""`rlplan solve JOB --profile P`"""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from ..plans.job import Job
    from ..plans.plan import Plan
    from ..profiles.lengths import LengthTrace
    from ..profiles.schema import Profile

_OF_JOBS = ("seconds", "usd")
_OF_GROUPS = ("usd_per_hour", "usd_per_unit")


@click.command("solve")
@click.argument("job_path", metavar="JOB", type=click.Path(path_type=Path))
@click.option("--profile", "profile_path", type=click.Path(path_type=Path), help="Default: profile.yaml beside JOB.")
@click.option(
    "--trace",
    "trace_path",
    type=click.Path(path_type=Path),
    help="Length trace (JSONL). Default: the profile's; a shipped profile has none.",
)
@click.option("--cluster", "cluster_path", type=click.Path(path_type=Path), help="Default: cluster.yaml beside JOB.")
@click.option("--out", "-o", type=click.Path(path_type=Path), help="Default: plan.yaml beside JOB.")
@click.option(
    "--mode",
    type=click.Choice(["sync", "race", "defer", "exact", "predict"]),
    help="Force a mode. Default: the best.",
)
@click.option(
    "--bias-budget",
    type=click.FloatRange(0, 1, max_open=True),
    help="Allowed |1 - trained/unconditioned mean length|. Default: 0, or no bound if --mode is given.",
)
@click.option(
    "--objective",
    type=click.Choice([*_OF_JOBS, *_OF_GROUPS]),
    help="What a trained sample shall cost least of: seconds (default) or usd, for which a plan may take fewer nodes. "
    "For a workload: usd_per_hour, or usd_per_unit of training. Default: as in its rules.",
)
@click.option(
    "--max-nodes",
    type=click.IntRange(min=0),
    help="Limit of the integer program's search; not seconds, so that it cuts alike everywhere. Default: 200000.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the simulation.")
@click.option("--force", is_flag=True, help="Use a profile of another machine or job.")
@click.option(
    "--from",
    "previous_path",
    type=click.Path(path_type=Path),
    help="For a workload: the running plan; its jobs move only where that pays.",
)
@click.option("--no-moves", is_flag=True, help="With --from: running jobs stay where they are.")
@click.option("--json", "as_json", is_flag=True, help="Print a summary as one JSON line.")
def solve_command(
    job_path: Path,
    profile_path: Path | None,
    trace_path: Path | None,
    cluster_path: Path | None,
    out: Path | None,
    mode: Any,
    bias_budget: float | None,
    objective: Any,
    max_nodes: int | None,
    seed: int,
    force: bool,
    previous_path: Path | None,
    no_moves: bool,
    as_json: bool,
) -> int:
    """Simulate candidate rounds of JOB, choose by integer program, and write the plan.

    JOB is a job.yaml or the folder that holds it; or a workload.yaml, many jobs that share a cluster: then the plan
    says which of them form groups on which nodes (default: groups.yaml beside it), and of the options only --out,
    --objective, --from, --no-moves and --json apply.

    The same inputs give the same plan, byte for byte, but for its `volatile` block.
    """
    from ..plans.errors import InputError
    from ..plans.groups_plan import document_kind
    from .options import refuse_options_but
    from .paths import job_file
    from .solve_groups import solve_groups_command

    job_path = job_file(job_path)
    if document_kind(job_path) == "rlplan_workload":
        refuse_options_but("a workload", "out", "objective", "previous_path", "no_moves", "as_json")
        if no_moves and previous_path is None:
            raise InputError("--no-moves needs --from: without a running plan nothing can move")
        if objective in _OF_JOBS:
            raise InputError(
                f"--objective {objective} is for a job; for a workload it is one of {', '.join(_OF_GROUPS)}"
            )
        return solve_groups_command(job_path, out, previous_path, not no_moves, as_json, objective)
    if objective in _OF_GROUPS:
        raise InputError(f"--objective {objective} is for a workload; for a job it is one of {', '.join(_OF_JOBS)}")
    if previous_path is not None or no_moves:
        raise InputError("--from and --no-moves are for a workload; a job is solved anew, see rlplan tune for a run's")

    from ..planner.highs import MAX_NODES
    from ..planner.solve import solve
    from ..plans.cluster import load_cluster
    from ..plans.data import enough_prompts
    from ..plans.editor import write_document
    from ..plans.job import job_paths, load_job
    from ..plans.origin import InputFile, Inputs, ProfileFile
    from ..plans.yaml_io import WRITTEN_DIGITS, load, sha256_file
    from ..profiles.fitness import unfit
    from ..profiles.schema import Profile
    from .paths import check_target, job_inputs, trace_inputs
    from .progress import share

    profile_path = profile_path or job_path.with_name("profile.yaml")
    cluster_path = cluster_path or job_path.with_name("cluster.yaml")
    out = out or job_path.with_name("plan.yaml")
    job, cluster, profile = load_job(job_path), load_cluster(cluster_path), load(profile_path, Profile)
    inputs_of = [*job_inputs(job, job_path), *trace_inputs(profile, profile_path, trace_path)]
    check_target(out, job_path, cluster_path, profile_path, *inputs_of)
    prompts = enough_prompts(job, job_paths(job, job_path).data)
    pools = [pool for _, pool in sorted(cluster.pools.items())]
    for fault in unfit(profile, job, job_paths(job, job_path), pools):
        if not (force and fault.forcible):
            remedy = f"{fault.remedy}, or use --force" if fault.forcible else fault.remedy
            raise InputError(f"{fault.what}; {remedy}", str(profile_path))
    _model_is_known(job, profile)
    lengths_path, trace = _lengths(profile, profile_path, trace_path)

    def named(path: Path) -> dict[str, str]:
        relative = os.path.relpath(path.resolve(), out.resolve().parent)
        return {"path": Path(relative).as_posix(), "sha256": sha256_file(path)}

    inputs = Inputs(
        cluster=InputFile(**named(cluster_path)),
        job=InputFile(**named(job_path)),
        profile=ProfileFile(**named(profile_path), provenance=profile.provenance),
        lengths=InputFile(**named(lengths_path)),
    )
    with share("solve") as update:
        plan = solve(
            cluster,
            job,
            profile,
            trace,
            inputs,
            mode=mode,
            bias_budget=bias_budget,
            objective=objective or "seconds",
            seed=seed,
            max_nodes=MAX_NODES if max_nodes is None else max_nodes,
            progress=update,
            prompts=prompts,
        )
    write_document(plan, out, WRITTEN_DIGITS)
    click.echo(json.dumps(plan_summary(plan, out)) if as_json else plan_text(plan, out))
    return 0


def _model_is_known(job: Job, profile: Profile) -> None:
    """Warn where nothing tells whether a derived profile is of the job's model."""
    from ..profiles.architecture import architecture_of

    law = profile.train_law
    if profile.provenance != "measured" and law is not None and architecture_of(job.model.path) is None:
        warnings.warn(
            f"cannot tell from its name whether {job.model.path} is {law.model}, which the profile is of", stacklevel=2
        )


def _lengths(profile: Profile, profile_path: Path, trace_path: Path | None) -> tuple[Path, LengthTrace]:
    """The length trace that is given, else the profile's, and where it is."""
    from ..plans.errors import InputError
    from ..plans.yaml_io import sha256_file
    from ..profiles.lengths import read_lengths

    if trace_path is not None:
        return trace_path, read_lengths(trace_path)
    if profile.lengths is None:
        raise InputError("holds no length trace; give one with --trace", str(profile_path))
    path = profile_path.with_name(profile.lengths.path)
    if sha256_file(path) != profile.lengths.sha256:
        raise InputError("is not the length trace that the profile names (digest differs); profile again", str(path))
    return path, read_lengths(path, cap_tokens=profile.lengths.cap_tokens)


def plan_summary(plan: Plan, out: Path) -> dict[str, Any]:
    """A plan of one job as figures."""
    predicted = plan.predicted
    return {
        "plan": str(out),
        "mode": plan.job.bias.mode,
        "forced_mode": plan.solver.forced_mode,
        "step_s": predicted.step_s.mean,
        "baseline_step_s": predicted.baseline.step_s.mean,
        "speedup": predicted.baseline.seconds_per_sample / predicted.seconds_per_sample,
        "baseline_nodes": predicted.baseline.nodes,
        "baseline_keeps_slo": predicted.baseline.keeps_slo,
        "length_basis": None if predicted.length_basis is None else predicted.length_basis.model_dump(),
        "length_ratio": predicted.length_ratio,
        "gap": plan.solver.gap,
        "status": plan.solver.status,
        "objective": plan.solver.objective,
        "bound": plan.solver.bound,
        "bias_budget": plan.job.bias.budget,
        "usd_per_1k_samples": predicted.usd_per_1k_samples,
        "nodes": predicted.nodes,
        "front": [point.model_dump() for point in predicted.front],
        "solved_at": plan.volatile.solved_at,
        "candidates": plan.solver.candidates,
        "solve_s": plan.volatile.solve_s,
    }


def plan_text(plan: Plan, out: Path) -> str:
    """A plan of one job in words."""
    predicted, rounds = plan.predicted, plan.job.rounds
    speedup = predicted.baseline.seconds_per_sample / predicted.seconds_per_sample
    nodes = predicted.baseline.nodes
    where = f" on {nodes} node{'s' * (nodes != 1)}" if nodes is not None else ""
    where += " (which breaks slo.step_p95_s)" if predicted.baseline.keeps_slo is False else ""
    lines = [
        f"{plan.job.bias.mode}: {predicted.step_s.mean:.2f} s a step (p95 {predicted.step_s.p95:.2f}, "
        f"error +-{predicted.error.total:.1%}), "
        f"{speedup:.2f}x the plain synchronous {predicted.baseline.step_s.mean:.2f} s{where} -> {out}",
        f"trained / unconditioned mean length {predicted.length_ratio:.3f}; "
        f"{plan.solver.status}, gap {plan.solver.gap:.2%}, {plan.solver.candidates} candidates, {plan.solver.name}",
    ]
    for kind, part, expected in (
        ("short", rounds.short, predicted.rounds.short),
        ("long", rounds.long, predicted.rounds.long),
    ):
        if part is not None and expected is not None:
            lines.append(
                f"{kind} rounds ({expected.share:.0%} of steps, {expected.step_s.mean:.2f} s): "
                f"{part.issue.prompts} prompts x {part.issue.samples} samples on {part.rollout.engines} engine(s) of "
                f"TP {part.rollout.tp}, micro-batches of {part.train.micro_batch_tokens} tokens"
            )
    basis = predicted.length_basis
    if basis is not None and basis.extrapolated:
        lines.append(f"note: {basis.words(speedup)}")
    lines.append(f"see it: rlplan show {out}")
    return "\n".join(lines)
