"""`rlplan simulate PLAN`"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..plans.phrases.numbers import count, digits, percent, ratio, usd
from ..plans.schema.limits import MOST_SIMULATED, MOST_STEPS
from ..plans.yaml.errors import InputError
from .main import EXIT_FAILED
from .shared.given_lengths import lengths_option
from .shared.job_timeline import TIMELINE_STEPS
from .shared.options import Finite, force_option

if TYPE_CHECKING:
    from ..plans.schema.plan import Plan
    from ..profiles.length_trace import LengthTrace


@click.command("simulate")
@click.argument("plan_path", metavar="PLAN", type=click.Path(path_type=Path))
@click.option("--profile", "profile_path", type=click.Path(path_type=Path), help="Another profile than the plan's.")
@click.option(
    "--trace", "trace_path", type=click.Path(path_type=Path), help="Another length trace, or the folder of a run."
)
@lengths_option
@click.option(
    "--set", "assignments", multiple=True, metavar="PATH=VALUE", help="Change a value first; can be repeated."
)
@click.option("--steps", type=click.IntRange(1, MOST_STEPS), default=200, show_default=True, help="Steps to simulate.")
@click.option(
    "--prompts", type=click.IntRange(1, 10**7), help="Prompts of an epoch. Default: the job's data, else 4096."
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the simulation.")
@click.option("--drift", type=Finite(-1, 1), default=0.0, help="Growth of log lengths per step. Default: 0.")
@click.option("--switch-s", type=Finite(0, 1e6), default=0.0, help="Seconds to change between layouts. Default: 0.")
@click.option(
    "--timeline",
    type=click.Path(path_type=Path),
    help=f"Write the first {TIMELINE_STEPS} steps as Chrome trace JSON, for ui.perfetto.dev; -: standard output.",
)
@force_option
@click.option("--json", "as_json", is_flag=True, help="Print everything as one JSON line.")
def simulate_command(
    plan_path: Path,
    profile_path: Path | None,
    trace_path: Path | None,
    lengths_word: str | None,
    assignments: tuple[str, ...],
    steps: int,
    prompts: int | None,
    seed: int,
    drift: float,
    switch_s: float,
    timeline: Path | None,
    overwrite: bool,
    as_json: bool,
) -> int:
    """Simulate a run of PLAN as it is written, or as it would be if some values were others. Nothing is solved.

    --set takes any value of plan, job, cluster or profile by its dotted path; list items go by number.

    A plan of groups is simulated with the phases that its workload has now: which jobs keep their bounds.

    The run begins with an empty queue of deferred prompts; its figures stand beside what the plan predicts of the
    steady state. A plan whose inputs have changed is simulated with a warning.

    Findings of `rlplan check` in the plan as it is simulated, such as too little memory, are printed; then the figures
    are those of an impossible run, and the exit code is 1.
    """
    from ..plans.schema.groups_plan import document_kind
    from .many_jobs.simulate_groups import simulate_groups_command
    from .shared.options import refuse_options_but

    if document_kind(plan_path) == "rlplan_groups":
        refuse_options_but("a plan of groups", "as_json")
        return simulate_groups_command(plan_path, as_json)

    from ..planner.costs.job_pools import pools_of_plan
    from ..planner.costs.memory_bars import WEIGHT_BYTES
    from ..planner.costs.round_costs import nodes_of
    from ..planner.simulate.run_summary import BusyMeter, summarize
    from ..planner.simulate.run_timeline import Timeline
    from ..planner.simulate.whole_run import simulate_plan
    from ..planner.what_if import change, load_documents
    from ..plans.yaml.yaml_io import STDOUT, atomic_write
    from .shared.findings import simulated_findings, tell
    from .shared.job_timeline import compact, epoch_prompts
    from .shared.paths import check_stdout, check_target, need, plan_inputs

    check_stdout(timeline, "--timeline", as_json)
    if timeline is not None:
        read = (*plan_inputs(plan_path), *(path for path in (profile_path, trace_path) if path))
        check_target(timeline, *read, kind="timeline", force=overwrite)
    if profile_path is not None:
        need(profile_path, "rlplan profile writes one; without --profile the plan's own is taken")
    trace = _trace(trace_path, lengths_word)
    documents, notes = change(load_documents(plan_path, profile_path, trace), assignments)
    for note in notes:
        click.echo(f"note: {note}", err=True)
    plan, job = documents.plan, documents.job
    if plan.job.bias.mode == "predict":
        click.echo(
            "note: simulated from an epoch on that has a history, as the plan predicts; a run's first one is plain",
            err=True,
        )
    pools = pools_of_plan(plan.job, documents.cluster)
    assert pools is not None, "the plan fits the cluster"
    nodes = nodes_of(plan.job, documents.profile, pools, WEIGHT_BYTES[job.model.dtype])
    target = plan.job.issue.prompts_per_step
    if prompts is not None and prompts < target:
        raise InputError(f"--prompts {prompts}: an epoch is at least one step of {target} prompts")
    epoch_size = prompts or epoch_prompts(documents, plan_path)
    _must_end(plan, steps)
    drawn = Timeline(TIMELINE_STEPS) if timeline is not None else None
    meter = BusyMeter(drawn)
    run = simulate_plan(
        plan,
        job,
        documents.profile,
        documents.trace,
        steps=steps,
        prompts=epoch_size,
        seed=seed,
        drift_per_step=drift,
        switch_s=switch_s,
        watch=meter,
        cluster=documents.cluster,
    )
    findings = simulated_findings(plan_path, documents, bool(assignments or profile_path or trace))
    tell(findings)
    result = {"plan": str(plan_path), "set": list(assignments), **summarize(run, meter, plan, pools, nodes)}
    result["findings"] = [finding.data() for finding in findings]
    if drawn is not None and timeline is not None:
        atomic_write(timeline, compact(drawn.document()))
        result["timeline"] = str(timeline)
    if as_json:
        click.echo(json.dumps(result))
    else:
        _show(result, timeline == STDOUT)
    return EXIT_FAILED if any(not finding.warning for finding in findings) else 0


def _must_end(plan: Plan, steps: int) -> None:
    """Raise InputError for a run of more than MOST_SIMULATED samples: simulating it would take too long."""
    issue = plan.job.rounds.short.issue
    samples = issue.prompts * issue.samples
    if steps * samples > MOST_SIMULATED:
        raise InputError(
            f"--steps {steps}: with {samples} samples a step these are {steps * samples:,} samples, and at most "
            f"{MOST_SIMULATED:,} are simulated; write at most {max(1, MOST_SIMULATED // samples)} steps"
        )


def _trace(path: Path | None, word: str | None) -> LengthTrace | None:
    """Lengths from a trace, from the folder of a run, or from the tables that ship (`word`); None without options."""
    from ..planner.lengths.table_lengths import named_lengths
    from ..planner.tune.executed_run import load_run
    from ..planner.tune.run_lengths import run_lengths
    from ..profiles.length_trace import read_lengths

    if word is not None:
        if path is not None:
            raise InputError("--trace and --lengths both say how long responses are; give one of them")
        return named_lengths(word)[0]
    if path is None:
        return None
    folder = os.path.isdir(path)  # noqa: PTH112 (pathlib raises for what can be no path)
    return run_lengths(load_run(path)) if folder else read_lengths(path)


def _show(result: dict[str, Any], aside: bool) -> None:
    """Print the result; `aside`: to standard error, because the timeline goes to standard output."""
    from rich.console import Console
    from rich.table import Table

    from ..plans.phrases.phase_names import PHASE_NAMES

    console = Console(stderr=aside)
    predicted = result["predicted"]
    for kind in ("all", "short", "long"):
        part = result[kind]
        if part is None or (kind == "short" and result["long"] is None):
            continue
        title = (
            f"{result['mode']}: {part['steps']} {'' if kind == 'all' else kind + ' '}steps ({percent(part['share'])})"
        )
        table = Table(title=title, title_justify="left")
        for column in ("seconds", "p50", "p95", "mean", "plan's mean"):
            table.add_column(column, justify="left" if column == "seconds" else "right")
        for phase, value in part["phases_s"].items():
            if phase == "switch" and not value["mean"]:
                continue
            expected = predicted["phases_s"].get(phase) if kind == "all" else None
            if kind != "all" and phase == "rollout" and predicted[kind]:
                expected = predicted[kind]["rollout_s"]["mean"]
            table.add_row(PHASE_NAMES[phase], *_numbers(value), "" if expected is None else digits(expected))
        whole = predicted["step_s"]["mean"] if kind == "all" else predicted[kind] and predicted[kind]["step_s"]["mean"]
        table.add_section()
        table.add_row("step", *_numbers(part["step_s"]), digits(whole) if whole else "")
        console.print(table)
        tokens = part["tokens"]
        console.print(
            f"  accelerators idle {percent(part['bubble'])} of the time; {tokens['decoded']:,} tokens decoded, "
            f"{tokens['trained']:,} of them trained, {percent(tokens['wasted'] / max(1, tokens['decoded']))} wasted; "
            f"{count(part['preemptions'], 'preemption')}",
            highlight=False,
            soft_wrap=True,
        )
    console.print(
        f"{digits(1000 * result['seconds_per_sample'])} ms a trained sample (plan: "
        f"{digits(1000 * predicted['seconds_per_sample'])} ms); 1000 samples take "
        f"{digits(result['accelerator_s_per_1k_samples'])} accelerator-seconds and "
        f"{usd(result['usd_per_1k_samples'])} USD on {count(result['nodes'], 'node')}; "
        f"trained / unconditioned mean length {ratio(result['length_ratio'])} "
        f"(plan: {ratio(predicted['length_ratio'])}); "
        f"{count(result['epochs'], 'epoch')}, at whose end {count(result['owed_prompts'], 'prompt')} were deferred and "
        f"trained in {count(result['settling_steps'], 'more step')}",
        highlight=False,
        soft_wrap=True,
    )
    if "timeline" in result and not aside:
        console.print(f"timeline: {result['timeline']}; open it at ui.perfetto.dev", highlight=False, soft_wrap=True)


def _numbers(spread: dict[str, float]) -> list[str]:
    return [digits(spread[name]) for name in ("p50", "p95", "mean")]
