"""`rlplan simulate PLAN`"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .job_timeline import TIMELINE_STEPS

if TYPE_CHECKING:
    from ..profiles.lengths import LengthTrace


@click.command("simulate")
@click.argument("plan_path", metavar="PLAN", type=click.Path(path_type=Path))
@click.option("--profile", "profile_path", type=click.Path(path_type=Path), help="Another profile than the plan's.")
@click.option(
    "--trace", "trace_path", type=click.Path(path_type=Path), help="Another length trace, or the folder of a run."
)
@click.option(
    "--set", "assignments", multiple=True, metavar="PATH=VALUE", help="Change a value first; can be repeated."
)
@click.option("--steps", type=click.IntRange(min=1), default=200, show_default=True, help="Steps to simulate.")
@click.option("--prompts", type=click.IntRange(min=1), help="Prompts of an epoch. Default: the job's data, else 4096.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the simulation.")
@click.option("--drift", type=click.FloatRange(-1, 1), default=0.0, help="Growth of log lengths per step. Default: 0.")
@click.option(
    "--switch-s", type=click.FloatRange(min=0), default=0.0, help="Seconds to change between layouts. Default: 0."
)
@click.option(
    "--timeline",
    type=click.Path(path_type=Path),
    help=f"Write the first {TIMELINE_STEPS} steps as Chrome trace JSON, for ui.perfetto.dev.",
)
@click.option("--json", "as_json", is_flag=True, help="Print everything as one JSON line.")
def simulate_command(
    plan_path: Path,
    profile_path: Path | None,
    trace_path: Path | None,
    assignments: tuple[str, ...],
    steps: int,
    prompts: int | None,
    seed: int,
    drift: float,
    switch_s: float,
    timeline: Path | None,
    as_json: bool,
) -> int:
    """Simulate a run of PLAN as it is written, or as it would be if some values were others. Nothing is solved.

    --set takes any value of plan, job, cluster or profile by its dotted path; list items go by number.

    A plan of groups is simulated with the phases that its workload has now: who keeps the bound, who does not.

    The run begins with an empty queue of deferred prompts; its figures stand beside what the plan predicts of the
    steady state. A plan whose inputs have changed is simulated with a warning.
    """
    from ..plans.groups_plan import document_kind
    from .options import refuse_options_but
    from .simulate_groups import simulate_groups_command

    if document_kind(plan_path) == "rlplan_groups":
        refuse_options_but("a plan of groups", "as_json")
        return simulate_groups_command(plan_path, as_json)

    from ..planner.kinds import nodes_of
    from ..planner.run_simulator import simulate_plan
    from ..planner.run_summary import BusyMeter, summarize
    from ..planner.timeline import Timeline
    from ..planner.what_if import change, load_documents
    from ..plans.errors import InputError
    from ..plans.yaml_io import atomic_write
    from .job_timeline import compact, epoch_prompts
    from .paths import check_target, plan_inputs

    if timeline is not None:
        check_target(timeline, *plan_inputs(plan_path), *(path for path in (profile_path, trace_path) if path))
    trace = None if trace_path is None else _trace(trace_path)
    documents, notes = change(load_documents(plan_path, profile_path, trace), assignments)
    for note in notes:
        click.echo(f"note: {note}", err=True)
    plan, job = documents.plan, documents.job
    if plan.job.bias.mode == "predict":
        click.echo(
            "note: simulated from an epoch on that has a history, as the plan predicts; a run's first one is plain",
            err=True,
        )
    pool = documents.cluster.pools[plan.job.rounds.short.rollout.pool]
    nodes = nodes_of(plan.job, documents.profile, pool)
    target = plan.job.issue.prompts_per_step
    if prompts is not None and prompts < target:
        raise InputError(f"--prompts {prompts}: an epoch is at least one step of {target} prompts")
    count = prompts or epoch_prompts(documents, plan_path)
    drawn = Timeline(TIMELINE_STEPS) if timeline is not None else None
    meter = BusyMeter(drawn)
    run = simulate_plan(
        plan,
        job,
        documents.profile,
        documents.trace,
        steps=steps,
        prompts=count,
        seed=seed,
        drift_per_step=drift,
        switch_s=switch_s,
        watch=meter,
    )
    result = {"plan": str(plan_path), "set": list(assignments), **summarize(run, meter, plan, pool, nodes)}
    if drawn is not None and timeline is not None:
        atomic_write(timeline, compact(drawn.document()))
        result["timeline"] = str(timeline)
    if as_json:
        click.echo(json.dumps(result))
    else:
        _show(result)
    return 0


def _trace(path: Path) -> LengthTrace:
    """A length trace, or what the run in a folder tells about lengths."""
    from ..planner.measured import load_run
    from ..planner.run_lengths import run_lengths
    from ..profiles.lengths import read_lengths

    return run_lengths(load_run(path)) if path.is_dir() else read_lengths(path)


def _show(result: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    from ..plans.phase_words import PHASE_WORDS

    console = Console()
    predicted = result["predicted"]
    for kind in ("all", "short", "long"):
        part = result[kind]
        if part is None or (kind == "short" and result["long"] is None):
            continue
        title = f"{result['mode']}: {part['steps']} {'' if kind == 'all' else kind + ' '}steps ({part['share']:.0%})"
        table = Table(title=title, title_justify="left")
        for column in ("seconds", "p50", "p95", "mean", "plan's mean"):
            table.add_column(column, justify="left" if column == "seconds" else "right")
        for phase, value in part["phases_s"].items():
            if phase == "switch" and not value["mean"]:
                continue
            expected = predicted["phases_s"].get(phase) if kind == "all" else None
            if kind != "all" and phase == "rollout" and predicted[kind]:
                expected = predicted[kind]["rollout_s"]["mean"]
            table.add_row(PHASE_WORDS[phase], *_numbers(value), "" if expected is None else f"{expected:.3f}")
        whole = predicted["step_s"]["mean"] if kind == "all" else predicted[kind] and predicted[kind]["step_s"]["mean"]
        table.add_section()
        table.add_row("step", *_numbers(part["step_s"]), f"{whole:.3f}" if whole else "")
        console.print(table)
        tokens = part["tokens"]
        console.print(
            f"  bubble {part['bubble']:.1%}; tokens decoded {tokens['decoded']}, trained {tokens['trained']}, wasted "
            f"{tokens['wasted'] / max(1, tokens['decoded']):.1%}; {part['preemptions']} preemptions",
            highlight=False,
            soft_wrap=True,
        )
    console.print(
        f"{1000 * result['seconds_per_sample']:.2f} ms per trained sample (plan: "
        f"{1000 * predicted['seconds_per_sample']:.2f}), {result['accelerator_s_per_1k_samples']:.1f} accelerator-"
        f"seconds and {result['usd_per_1k_samples']:.4g} USD per 1000 on {result['nodes']} node(s); "
        f"trained / unconditioned mean length {result['length_ratio']:.3f} (plan: {predicted['length_ratio']:.3f}); "
        f"{result['epochs']} epoch(s), "
        f"{result['owed_prompts']} prompts owed at the end, settled in {result['settling_steps']} more steps",
        highlight=False,
        soft_wrap=True,
    )
    if "timeline" in result:
        console.print(f"timeline: {result['timeline']}; open it at ui.perfetto.dev", highlight=False, soft_wrap=True)


def _numbers(spread: dict[str, float]) -> list[str]:
    return [f"{spread[name]:.3f}" for name in ("p50", "p95", "mean")]
