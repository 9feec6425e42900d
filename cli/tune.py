"""`rlplan tune RUN`: a new plan from what a run measured, which may be given to the run while it goes on, or a workload
with the switches of a run of groups."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..plans.phrases.numbers import MATTERS, count, deviation, deviation_text, percent, seconds, times
from ..plans.phrases.sentences import PHASE_NAMES, one_line
from ..plans.yaml.errors import Infeasible, InputError, RunFailed
from .shared.options import force_option

if TYPE_CHECKING:
    from ..planner.groups.inputs.measured_phases import MeasuredSwitch
    from ..planner.tune.executed_run import ExecutedRun
    from ..planner.tune.tune import Tuned
    from ..planner.what_if import Documents

LOOK_S = 1.0
"""How often a run's trace is read for steps that have ended."""


@click.command("tune")
@click.argument("run_path", metavar="RUN", type=click.Path(path_type=Path))
@click.option(
    "--plan",
    "plan_path",
    type=click.Path(path_type=Path),
    help="The plan that RUN executed, where its trace does not lead to it, or the one in force since.",
)
@click.option(
    "--out", "-o", type=click.Path(path_type=Path), help="Where a new plan goes. Default: PLAN.tuned.yaml beside PLAN."
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the simulation.")
@click.option(
    "--last",
    type=click.IntRange(min=1),
    default=None,
    metavar="STEPS",
    help="Only the last so many steps count. Default: all steps since the machine's speed changed for the last time.",
)
@click.option(
    "--apply",
    "applies",
    is_flag=True,
    help="Give the new plan to RUN, which goes on by it from its next step on; asks first, unless --yes or the tune "
    "section of rlplan.policy.yaml says otherwise.",
)
@click.option("--yes", is_flag=True, help="With --apply: do not ask.")
@click.option(
    "--every",
    type=click.IntRange(min=1),
    default=None,
    metavar="STEPS",
    help="With --apply: again after every so many steps, until RUN ends.",
)
@force_option
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON line.")
def tune_command(
    run_path: Path,
    plan_path: Path | None,
    out: Path | None,
    seed: int,
    last: int | None,
    applies: bool,
    yes: bool,
    every: int | None,
    overwrite: bool,
    as_json: bool,
) -> int:
    """Refit costs and lengths from RUN, the --out of `rlplan execute`, and solve again.

    Prints for each phase what was predicted, what was measured and why they differ. If the new plan gains more than
    the error that the run shows, it is written, with the refitted profile and lengths beside it (decision: change);
    otherwise nothing is written (decision: keep). A plan that an earlier tune wrote to --out is the plan in force, so
    tuning twice from one run changes nothing the second time.

    With --apply the run takes the new plan at the end of its step (see `rlplan apply`); the divisors of its loss stay,
    so that the size of its updates does. Where the plan in force is still the best and its predictions are wrong, it is
    predicted anew (decision: predict) and the run goes on by that.

    Of a run of co-execution groups (with --plan groups.yaml) the seconds of each job's switches are taken: where they
    differ from the plan's, a workload with `warm_s` as measured is written, for `rlplan solve WORKLOAD --from PLAN`.
    """
    from ..traces.groups.groups_folder import group_folders

    if (yes or every is not None) and not applies:
        raise InputError("--yes and --every are for --apply; add it, or leave them out")
    if group_folders(run_path):
        if applies:
            raise InputError("is a run of groups; change it with rlplan apply", str(run_path))
        return _tune_groups(run_path, plan_path, out, overwrite, as_json)

    if every is not None:
        if out is not None:
            raise InputError("--out is for one plan, and --every writes several; leave it out", str(out))
        assert tune_command.callback is not None
        once = partial(
            tune_command.callback, run_path, plan_path, None, seed, last, True, yes, None, overwrite, as_json
        )
        return _tune_until_end(run_path, every, once)

    from ..api.input_paths import check_target, plan_inputs
    from ..api.job_timeline import data_prompts
    from ..planner.tune.executed_run import load_executed
    from ..planner.tune.tune import tune
    from ..planner.what_if import load_documents
    from ..plans.yaml.yaml_io import sha256_file
    from ..traces.run_log import PLAN_COPY
    from .shared.output import must_be_file, share

    run = load_executed(run_path)
    executed_path = _executed(run, plan_path)
    if applies and sha256_file(executed_path) != sha256_file(run.plan_copy):
        raise InputError(
            f"is not the plan that {run_path} goes by (a copy is {PLAN_COPY} in it); put that back, or tune without "
            "--apply",
            str(executed_path),
        )
    force_path = plan_path or executed_path
    out = out or _tuned_name(force_path)
    inputs = plan_inputs(executed_path)
    check_target(out, force_path, *inputs, kind="plan", force=overwrite)
    must_be_file(out, "the refitted profile and lengths are written beside the plan")
    profile_path, lengths_path = _beside(out)
    check_target(profile_path, *inputs, kind="profile", force=overwrite)
    check_target(lengths_path, *inputs, kind="lengths", force=overwrite)
    if not applies and out.exists() and _follows(out, executed_path):
        force_path = out
    executed = load_documents(executed_path)
    force = executed if force_path == executed_path else load_documents(force_path)
    with share("tune") as update:
        prompts = data_prompts(force, force_path)
        tuned = tune(run, executed, force, seed=seed, progress=update, prompts=prompts, last=last, predict_kept=applies)
    if applies:
        tuned = _for_running(tuned, force)
    written = tuned.change or tuned.kept is not None
    if written:
        _write(tuned, force, force_path, out)
    result = _result(tuned, run, force_path, out if written else None)
    if applies:
        result["applied"] = _applied(run_path, out, tuned, yes, as_json) if written else None
    click.echo(json.dumps(result) if as_json else _text(result))
    return 0


def _tune_until_end(run_path: Path, every: int, once: Callable[[], int]) -> int:
    """Tune after every so many steps of a run, until it ends. Raises InputError if its trace cannot be read."""
    from ..traces.run_log import TRACE, TraceTail, driver_runs
    from ..traces.trace import TraceError

    tail = TraceTail(run_path / TRACE)

    def done() -> int:
        try:
            tail.more()
        except TraceError as error:
            raise InputError(str(error)) from None
        return tail.log.steps[-1].step if tail.log.steps else 0

    at = done()
    while driver_runs(run_path):
        if (step := done()) >= at + every:
            try:
                once()
            except (InputError, RunFailed, Infeasible) as failure:
                click.echo(f"not tuned after step {step}: {failure}", err=True)
            at = done()
        time.sleep(LOOK_S)
    return 0


def _for_running(tuned: Tuned, force: Documents) -> Tuned:
    """What is to be applied: the new plan with the divisors of the run's loss, which set the size of its updates; or
    the plan in force predicted anew, where its predictions are off by more than the error of what was measured."""
    from ..plans.facts.digest import job_decisions

    kept, predicted = tuned.kept, force.plan.predicted.seconds_per_sample
    if kept is not None and abs(kept.predicted.seconds_per_sample / predicted - 1.0) <= tuned.error:
        kept = None
    old = force.plan.job.loss
    if kept is not None:
        same = kept.job.model_copy(update={"loss": old})
        kept = kept.model_copy(update={"job": same, "decisions_sha256": job_decisions(same)})
    loss = tuned.plan.job.loss.model_copy(update={"samples": old.samples, "tokens": old.tokens})
    job = tuned.plan.job.model_copy(update={"loss": loss})
    plan = tuned.plan.model_copy(update={"job": job, "decisions_sha256": job_decisions(job)})
    return replace(tuned, plan=plan if tuned.change or kept is None else kept, kept=kept)


def _applied(run_path: Path, out: Path, tuned: Tuned, yes: bool, as_json: bool) -> dict[str, Any]:
    """Give the run the plan in `out`, if a person or the policy allows it; `state` and, unless applied, `reason`."""
    from ..traces.run_log import driver_runs
    from .apply import apply_to_run

    if not driver_runs(run_path):
        takes = f"rlplan execute {out} --out {run_path} --resume"
        return {"state": "not applied", "reason": f"the run has ended; to continue it by the plan: {takes}"}
    if not yes and (reason := _must_ask(out, tuned)) is not None:
        asked = not as_json and sys.stdin.isatty()
        if not asked or not click.confirm(f"{out}: {reason}; apply it now?", err=True):
            return {"state": "not applied", "reason": f"{reason}; rlplan apply {out} --out {run_path} applies it"}
    return apply_to_run(out, run_path)


def _must_ask(out: Path, tuned: Tuned) -> str | None:
    """Why a person must say yes to the plan in `out`; None: the policy allows it."""
    from ..plans.schema.site_rules import find_site_rules, load_site_rules
    from .shared.findings import reports

    path = find_site_rules(out)
    policy = None if path is None else load_site_rules(path)
    if policy is None or policy.rules.tune is None:
        return f"{'no rlplan.policy.yaml' if policy is None else policy.path + ' has no tune section, which'} allows it"
    limits = policy.rules.tune
    if limits.apply == "ask":
        return f"{policy.path}:{policy.document.line_of(('tune', 'apply'))} has apply: ask"
    if tuned.change and tuned.gain < limits.at_least:
        line = policy.document.line_of(("tune", "at_least"))
        return f"it gains {percent(tuned.gain)}; {policy.path}:{line} has at_least: {limits.at_least:g}"
    findings = [finding for report in reports([out]) for finding in report.findings if not finding.warning]
    return f"rlplan check has {count(len(findings), 'finding')}: {findings[0].text}" if findings else None


def _executed(run: ExecutedRun, plan_path: Path | None) -> Path:
    """The plan file from which the inputs of the run's plan can be read."""
    from ..plans.check.plan_check import input_path

    named = None if run.plan_path is None else _short(run.plan_path.resolve())
    for path in (named, run.plan_copy, plan_path):
        if path is not None and path.is_file() and input_path(run.plan.inputs.job, path).is_file():
            return path
    raise InputError(
        "does not lead to the job, profile and lengths of its plan; give the plan that was executed with --plan",
        str(run.home),
    )


def _short(path: Path) -> Path:
    """`path` relative to the current folder, if it lies below it."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def _tuned_name(plan_path: Path) -> Path:
    """Default name of the new plan: plan.yaml -> plan.tuned.yaml -> plan.tuned2.yaml -> …"""
    match = re.fullmatch(r"(.+)\.tuned(\d*)", plan_path.stem)
    if match is None:
        return plan_path.with_name(f"{plan_path.stem}.tuned.yaml")
    return plan_path.with_name(f"{match[1]}.tuned{int(match[2] or 1) + 1}.yaml")


def _beside(out: Path) -> tuple[Path, Path]:
    """Paths of the refitted profile and lengths beside a new plan."""
    return out.with_name(f"{out.stem}.profile.yaml"), out.with_name(f"{out.stem}.lengths.jsonl")


def _follows(out: Path, executed: Path) -> bool:
    """Whether `out` is a plan that an earlier tune wrote for the same job."""
    from ..plans.check.plan_check import input_path
    from ..plans.schema.plan import load_plan

    try:
        new, old = load_plan(out), load_plan(executed)
    except InputError:
        return False
    return (
        new.inputs.of_same_job(old.inputs)
        and input_path(new.inputs.profile, out).resolve() == _beside(out)[0].resolve()
    )


def _write(tuned: Tuned, force: Documents, force_path: Path, out: Path) -> None:
    """Write lengths, profile and plan, in this order: a crash leaves no plan without its inputs."""
    from ..api.given_documents import inputs_of, lengths_input
    from ..planner.lengths.table_lengths import TableTrace, scaled_lengths
    from ..plans.check.plan_check import input_path
    from ..plans.yaml.yaml_io import WRITTEN_DIGITS, write_document
    from ..profiles.length_trace import read_lengths, write_profile_lengths

    profile_path, lengths_path = _beside(out)
    trace, old = tuned.trace, force.plan.inputs

    if isinstance(trace, TableTrace) and trace.scale is not None:
        # The run measured only one factor on the table's lengths: the plan still names the table.
        of_profile, of_plan = tuned.profile.lengths, scaled_lengths(old.lengths, trace.scale)
        if of_profile is not None:
            # The plan in force was not solved from the profile's own lengths: they stay as they are.
            profile_lengths = input_path(old.profile, force_path).with_name(of_profile.path)
            of_profile = write_profile_lengths(lengths_path, read_lengths(profile_lengths, of_profile.cap_tokens))
    else:
        of_profile = write_profile_lengths(lengths_path, trace)
        of_plan = lengths_input(lengths_path, out)
    write_document(tuned.profile.model_copy(update={"lengths": of_profile}), profile_path, WRITTEN_DIGITS)
    cluster_path, job_path = input_path(old.cluster, force_path), input_path(old.job, force_path)
    inputs = inputs_of(out, cluster_path, job_path, profile_path, tuned.profile, of_plan)
    inputs = inputs.model_copy(update={"rewards": tuned.plan.inputs.rewards})
    write_document(tuned.plan.model_copy(update={"inputs": inputs}), out, WRITTEN_DIGITS)


def _result(tuned: Tuned, run: ExecutedRun, force_path: Path, out: Path | None) -> dict[str, Any]:
    costs, predicted = tuned.costs, run.plan.predicted
    return {
        "decision": "change" if tuned.change else "predict" if tuned.kept is not None else "keep",
        "since_step": tuned.since_step,
        "gain": tuned.gain,
        "error": tuned.error,
        "errors": tuned.errors,
        "phases": {
            name: {"predicted": p.predicted_s, "measured": p.measured_s, "why": p.why, "parts_s": p.parts_s}
            for name, p in tuned.phases.items()
        },
        "step_s": {"predicted": predicted.step_s.mean, "measured": tuned.step_s},
        "seconds_per_sample": {"predicted": predicted.seconds_per_sample, "measured": tuned.seconds_per_sample},
        "factors": {
            "lengths": tuned.length_factor,
            "rollout": {f"{e} x tp {t}": line.factor for (t, e), line in costs.rollout.items()},
            "train": costs.train.factor if costs.train else 1.0,
            "sync": {f"{e} x tp {t}": line.factor for (t, e), line in costs.sync.items()},
            "reward": costs.reward.factor if costs.reward else 1.0,
        },
        "not_run": list(tuned.not_run),
        "objective": tuned.plan.solver.objective,
        "forced_mode": tuned.plan.solver.forced_mode,
        "in_force": str(force_path),
        "plan": None if out is None else str(out),
    }


def _text(result: dict[str, Any]) -> str:
    lines = [f"{'phase, seconds':20}{'predicted':>10}{'measured':>10}{'deviation':>11}"]
    step = {**result["step_s"], "why": "mean of the cycle, with a long round for deferred prompts that are not trained"}
    for name, phase in {**result["phases"], "step": step}.items():
        little = abs(phase["measured"] - phase["predicted"]) < MATTERS * step["measured"]
        off = "" if little else deviation_text(deviation(phase["measured"], phase["predicted"]))
        lines.append(
            f"{PHASE_NAMES[name]:20}{phase['predicted']:10.3f}{phase['measured']:10.3f}{off:>11}   {phase['why']}"
        )
    if result["since_step"] is not None:
        lines.append(f"only steps since {result['since_step']} count")
    factors = result["factors"]
    refitted = {
        "lengths": factors["lengths"],
        **{f"rollout on {layout}": factor for layout, factor in factors["rollout"].items()},
        "training": factors["train"],
        "rewards": factors["reward"],
    }
    told = [f"{name} {times(factor)}" for name, factor in refitted.items() if abs(factor - 1.0) >= MATTERS]
    lines.append(f"refitted, as a multiple of the profile: {', '.join(told) or 'nothing by 1% or more'}")
    if result["errors"]["transfer"]:
        lines.append(
            f"not run, and priced with a part of these factors: {'; '.join(result['not_run'])}; error of that: "
            f"{percent(result['errors']['transfer'])} of a step"
        )
    largest = max(result["errors"], key=lambda name: result["errors"][name])
    reason = {
        "costs": "of the refitted costs on steps left out",
        "run": "of the refitted model on the run as a whole",
        "simulation": "of the simulated gain",
        "transfer": "of layouts and updates that the run did not use",
        "least": "below which a change is not worth a review",
    }[largest]
    unit = "USD" if result["objective"] == "usd_per_sample" else "time"
    best = f"the best {result['forced_mode']} plan" if result["forced_mode"] else "the best plan"
    less = "less" if result["gain"] >= 0 else "more"
    gain = f"{best} now takes {percent(abs(result['gain']))} {less} {unit} than {result['in_force']}"
    target = f" -> {result['plan']}" if result["plan"] else ""
    if result["decision"] == "predict":
        target = f"; it stays, and {result['plan']} has it as it is predicted now"
    lines.append(f"{result['decision']}: {gain}; the error of that is {percent(result['error'])} ({reason}){target}")
    if applied := result.get("applied"):
        since = f": the run goes by it from step {applied['from_step']} on" if "from_step" in applied else ""
        lines.append(f"{applied['state']}{since or ': ' + applied.get('reason', 'the run has this plan already')}")
    return "\n".join(lines)


def _tune_groups(run: Path, plan_path: Path | None, out: Path | None, overwrite: bool, as_json: bool) -> int:
    """Compare the switches of a run with those of its plan, and write a workload where they differ."""
    from ..api.input_paths import check_target
    from ..planner.groups.inputs.measured_phases import measured_switches, tuned_workload
    from ..plans.check.plan_check import input_path
    from ..plans.schema.groups_plan import load_groups_plan
    from ..plans.yaml.yaml_io import atomic_write, place_schema, sha256_file
    from ..traces.groups.group_journal import GROUPS_COPY
    from .shared.output import must_be_file

    if plan_path is None:
        raise InputError("is a run of groups; name the plan that it runs with --plan groups.yaml", str(run))
    plan, copy = load_groups_plan(plan_path), run / GROUPS_COPY
    if not copy.is_file() or sha256_file(copy) != sha256_file(plan_path):
        raise InputError(
            f"runs another plan of groups than {plan_path} is now (a copy is {GROUPS_COPY} in it)", str(run)
        )
    workload = input_path(plan.inputs.workload, plan_path)
    out = out or workload.with_name(f"{workload.stem}.tuned.yaml")
    if out.resolve().parent != workload.resolve().parent:
        raise InputError(f"must be in the folder of {workload}, whose paths are relative to it", str(out))
    must_be_file(out, "a workload is written there")
    check_target(out, workload, plan_path, kind="document", force=overwrite)
    switches = measured_switches(run, plan)
    changes = [switch for switch in switches if switch.changes]
    if changes:
        atomic_write(out, tuned_workload(workload, changes))
        place_schema(out.parent, "workload")
    result = {
        "decision": "change" if changes else "keep",
        "switches": [asdict(switch) for switch in switches],
        "workload": str(out) if changes else None,
    }
    click.echo(json.dumps(result) if as_json else _switches_text(switches, plan_path, out if changes else None))
    return 0


def _switches_text(switches: list[MeasuredSwitch], plan_path: Path, out: Path | None) -> str:
    wide = max(len(one_line(switch.job)) for switch in switches) + 2
    lines = [f"{'switch of':{wide + 9}}{'planned':>10}{'measured':>10}{'error':>10}"]
    for switch in switches:
        figures = (switch.planned_s, switch.measured_s, switch.error_s)
        cells = "".join(f"{seconds(figure):>10}" for figure in figures)
        kept = "" if switch.changes else "   kept"
        lines.append(f"{one_line(switch.job):{wide}}{switch.phase:9}{cells}   of {count(switch.turns, 'turn')}{kept}")
    if out is None:
        return "\n".join([*lines, "keep: no switch differs by more than its error, and by what groups would show"])
    return "\n".join([*lines, f"change: -> {out}; rlplan solve {out} --from {plan_path} says what to move"])
