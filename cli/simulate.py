"""`rlplan simulate PLAN` and `rlplan simulate GROUPS`, with the phases that the workload has now."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import click

from ..api.job_timeline import TIMELINE_STEPS
from ..plans.phrases.numbers import count, digits, percent, ratio, usd
from ..plans.phrases.sentences import PHASE_NAMES
from ..plans.schema.base import MOST_STEPS
from .main import EXIT_FAILED
from .screens.report_text import waits_text
from .shared.options import Finite, force_option, lengths_option, refuse_options_but


@click.command("simulate")
@click.argument("plan_path", metavar="PLAN", type=click.Path(path_type=Path))
@click.option("--profile", type=click.Path(path_type=Path), help="Another profile than the plan's.")
@click.option("--trace", type=click.Path(path_type=Path), help="Another length trace, or the folder of a run.")
@lengths_option
@click.option("--set", multiple=True, metavar="PATH=VALUE", help="Change a value first; can be repeated.")
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
    timeline: Path | None,
    overwrite: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Simulate a run of PLAN as it is written, or as it would be if some values were others. Nothing is solved.

    --set takes any value of plan, job, cluster or profile by its dotted path; list items go by number.

    A plan of groups is simulated with the phases that its workload has now: which jobs keep their bounds.

    The run begins with an empty queue of deferred prompts; its figures stand beside what the plan predicts of the
    steady state. A plan whose inputs have changed is simulated with a warning.

    Findings of `rlplan check` in the plan as it is simulated are printed, and the exit code is 1. Of a finding such as
    too little memory the figures are those of an impossible run. The site's policy holds too: of changed values it
    judges the seconds, prices, bias and cut samples that are simulated.
    """
    from ..plans.yaml.yaml_io import document_kind

    if document_kind(plan_path) == "rlplan_groups":
        refuse_options_but("a plan of groups", "as_json")
        return _simulate_groups(plan_path, as_json)

    from ..api.simulate_run import simulate
    from ..plans.yaml.yaml_io import STDOUT
    from .shared.findings import tell
    from .shared.output import check_stdout

    check_stdout(timeline, "--timeline", as_json)
    run = simulate(plan_path, timeline=timeline, force=overwrite, **options)
    for note in run.notes:
        click.echo(f"note: {note}", err=True)
    tell(run.findings)
    if as_json:
        click.echo(json.dumps(run.as_dict()))
    else:
        _show(run.as_dict(), timeline == STDOUT)
    return 0 if run.ok else EXIT_FAILED


def _show(result: dict[str, Any], aside: bool) -> None:
    """Print the result; `aside`: to standard error, because the timeline goes to standard output."""
    from rich.console import Console
    from rich.table import Table

    console = Console(stderr=aside)
    say = partial(console.print, highlight=False, soft_wrap=True)
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
        planned = predicted if kind == "all" else predicted[kind]
        for phase, value in part["phases_s"].items():
            if phase != "switch" or value["mean"]:
                table.add_row(PHASE_NAMES[phase], *_numbers(value), digits(planned["phases_s"][phase]))
        table.add_section()
        table.add_row("step", *_numbers(part["step_s"]), digits(planned["step_s"]["mean"]))
        console.print(table)
        tokens = part["tokens"]
        say(
            f"  accelerators idle {percent(part['bubble'])} of the time; {tokens['decoded']:,} tokens decoded, "
            f"{tokens['trained']:,} of them trained, {percent(tokens['wasted'] / max(1, tokens['decoded']))} wasted; "
            f"{count(part['preemptions'], 'preemption')}"
        )
    settling = f", then {count(result['settling_steps'], 'more step')} for prompts still deferred"
    say(
        f"{digits(1000 * result['seconds_per_sample'])} ms a trained sample (plan: "
        f"{digits(1000 * predicted['seconds_per_sample'])} ms); 1000 samples take "
        f"{digits(result['accelerator_s_per_1k_samples'])} accelerator-seconds and "
        f"{usd(result['usd_per_1k_samples'])} USD on {count(result['nodes'], 'node')}; "
        f"trained / unconditioned mean length {ratio(result['length_ratio'])} "
        f"(plan: {ratio(predicted['length_ratio'])}), {percent(result['cut_share'])} of the trained samples cut at the "
        f"cap (plan: {percent(predicted['cut_share'])}); "
        f"{count(result['epochs'], 'epoch')}{settling if result['owed_prompts'] else ''}"
    )
    if (waited := result["waits"]) is not None:
        say(waits_text(waited))
    if "timeline" in result and not aside:
        say(f"timeline: {result['timeline']}; open it at ui.perfetto.dev")


def _numbers(spread: dict[str, float]) -> list[str]:
    return [digits(spread[name]) for name in ("p50", "p95", "mean")]


def _simulate_groups(plan_path: Path, as_json: bool) -> int:
    """Simulate the groups of the plan with the phases that its workload has now; nothing is solved. Exit code 1 where
    the plan breaks the site's policy."""
    from ..planner.groups.inputs.running_plan import running_state
    from ..planner.groups.inputs.workload_jobs import problem_of
    from ..planner.groups.simulate.slowdowns import bounds_kept, slowdowns
    from ..plans.check.plan_check import changed_inputs, input_path
    from ..plans.check.rules import RULES
    from ..plans.schema.groups_plan import load_groups_plan
    from ..plans.schema.workload import load_workload
    from .shared.findings import reports, tell

    plan = load_groups_plan(plan_path)
    for name in changed_inputs(plan, plan_path):
        click.echo(f"note: {name} has changed since the plan was solved", err=True)
    workload_path = input_path(plan.inputs.workload, plan_path)
    workload, cluster = load_workload(workload_path)
    problem = problem_of(workload, workload_path, cluster)
    state = running_state(plan, plan_path, problem.jobs, problem.node_types)
    rows: dict[str, dict[str, Any]] = {}
    for key, group in state.groups.items():
        simulated = slowdowns(group, state.jobs, problem.rules)
        kept = bounds_kept(group, state.jobs, simulated, problem.rules)
        for name, now in simulated.items():
            planned = plan.groups[key].jobs[name].slowdown
            rows[name] = {
                "group": key,
                "planned_mean": planned.mean,
                "planned_p95": planned.p95,
                "mean": now.mean,
                "p50": now.p50,
                "p95": now.p95,
                "slo": problem.jobs[name].slo,
                "keeps": kept[name],
            }
    waiting = sorted(set(problem.jobs) - set(rows))
    # Other findings are of the workload as it was: what a changed one does to the jobs is what is simulated.
    findings = [f for report in reports([plan_path]) for f in report.findings if RULES[f.rule].family == "policy"]
    tell(findings)
    result: dict[str, Any] = {"plan": str(plan_path), "jobs": dict(sorted(rows.items())), "not_placed": waiting}
    result["findings"] = [finding.data() for finding in findings]
    click.echo(json.dumps(result) if as_json else _slowdowns_text(result))
    return EXIT_FAILED if findings else 0


def _slowdowns_text(result: dict[str, Any]) -> str:
    wide = max([8, *map(len, result["jobs"]), *map(len, result["not_placed"])]) + 2
    lines = [
        f"{'slowdown':{wide}}{'':6}{'planned':>16}{'now':>24}",
        f"{'job':{wide}}{'group':6}{'mean':>8}{'p95':>8}{'mean':>8}{'p50':>8}{'p95':>8}{'at most':>9}",
    ]
    for name, row in result["jobs"].items():
        lines.append(
            f"{name:{wide}}{row['group']:6}{row['planned_mean']:8.3f}{row['planned_p95']:8.3f}"
            f"{row['mean']:8.3f}{row['p50']:8.3f}{row['p95']:8.3f}{row['slo']:9.3f}"
            + ("" if row["keeps"] else "  breaks its bound")
        )
    lines += [f"{name:{wide}}has no place in the plan; rlplan solve --from it" for name in result["not_placed"]]
    return "\n".join(lines)
