"""The state of a run by its trace, and its incidents.

A run that ends writes an `end` event, also when it fails. A run that was killed writes none: only the time since the
last line of its trace distinguishes it from a run that still goes on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from statistics import fmean
from typing import Any, Literal

import msgspec
from msgspec import structs

from ..plans.phrases.numbers import count, seconds
from .run_log import RunLog
from .trace_events import MOST, Evaluation, Step, StepEvent

QUIET_S, QUIET_STEPS = 30.0, 3.0
"""Seconds, and times a run's longest step, after which a trace that nobody wrote to is quiet."""

State = Literal["finished", "stopped", "failed", "running", "died", "open"]


def run_state(
    events: Sequence[dict[str, Any]],
    steps: Sequence[StepEvent],
    written_s: float | None,
    now_s: float,
    driven: bool | None = None,
) -> dict[str, Any]:
    """`state`, `state_text` (a sentence), `steps_wanted`, `longest_step_s`, `written_at`, `quiet_s`.

    `open` is a run that still goes on or was killed; where somebody looked whether it has a driver (`driven`), it is
    `running` or `died`. For such a run, `written_at` is the time in UTC at which the
    trace was last written, and `quiet_s` the seconds since then; for a run that ended both are None, so that its report
    stays the same. `written_s`, `now_s`: seconds since 1970.
    """
    starts_and_ends = [event for event in events if event["event"] in ("run", "resume", "end")]
    last = starts_and_ends[-1] if starts_and_ends else None
    wanted = next((int(e["steps"]) for e in reversed(starts_and_ends) if isinstance(e.get("steps"), int)), None)
    done = steps[-1].step if steps else 0
    progress = f"{done} of {wanted} steps" if wanted is not None and wanted >= done else f"{done} steps"
    drained = any(event["event"] == "drain" for event in events)
    if wanted is not None and done > wanted and drained:
        progress = f"{count(wanted, 'step')} and {count(done - wanted, 'step')} that trained deferred prompts"
    if not steps:
        progress = "no step was finished" + (f" of {wanted}" if wanted is not None else "")
    longest_s = max((float(step.total_s) for step in steps), default=None)
    result: dict[str, Any] = {"steps_wanted": wanted, "longest_step_s": longest_s, "written_at": None, "quiet_s": None}
    source = next((event["imported"] for event in events if isinstance(event.get("imported"), str)), None)
    if source is not None:
        return {"state": "finished", "state_text": f"imported from {source}: {progress}", **result}
    if last is not None and last["event"] == "end":
        if last.get("finished"):
            return {"state": "finished", "state_text": f"finished: {progress}", **result}
        if last.get("reason"):
            return {"state": "failed", "state_text": f"failed after {progress}: {last['reason']}", **result}
        return {"state": "stopped", "state_text": f"stopped by a signal, with a checkpoint: {progress}", **result}
    state: State = "open" if driven is None else "running" if driven else "died"
    text = f"{'running or died' if state == 'open' else state}: {progress}"
    if last is None:
        text += "; it has not begun to train"
    if written_s is not None:
        result |= {"written_at": utc(written_s), "quiet_s": max(0.0, now_s - written_s)}
    if written_s is not None and state != "running":
        text += f"; the trace was last written {result['written_at']}"
        if longest_s is not None:
            text += f", its longest step took {longest_s:.3g} s"
    return {"state": state, "state_text": text, **result}


def is_quiet(state: Mapping[str, Any]) -> bool:
    """Whether the trace of a run that has not ended (`run_state`) was not written for so long that it may have died."""
    return (state["quiet_s"] or 0.0) > max(QUIET_S, QUIET_STEPS * (state["longest_step_s"] or 0.0))


def utc(time_s: float) -> str:
    """A time, in seconds since 1970, as `2026-01-31 12:00:00 UTC`."""
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def ago(seconds: float) -> str:
    """A duration in one unit: `119 s`, `2 minutes`."""
    for unit, size in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}s"
    return f"{seconds:.0f} s"


def evaluations(events: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A run's evaluations by step, each as its event has it; of weights that were evaluated twice the later one."""
    by_step = {event["step"]: event for event in events if event["event"] == "evaluation"}
    return [structs.asdict(msgspec.convert(event, Evaluation, str_keys=True)) for _, event in sorted(by_step.items())]


def evaluation_text(evaluation: Mapping[str, Any]) -> str:
    """An evaluation (trace_events.Evaluation, as a mapping) in one line."""

    def figure(value: float | None, error: float | None) -> str:
        return "unknown" if value is None else f"{value:.3f}" + ("" if error is None else f" ± {error:.3f}")

    passes = "".join(f", pass@{k} {figure(*chance)}" for k, chance in evaluation["pass_at"].items())
    failed = f"; {count(evaluation['failed'], 'prompt')} could not be scored" if evaluation["failed"] else ""
    return (
        f"evaluation after {count(evaluation['step'], 'step')}: reward {figure(*evaluation['reward'])}{passes} "
        f"({count(evaluation['prompts'], 'prompt')} x {evaluation['samples']}, {evaluation['mean_tokens']:.0f} tokens, "
        f"{seconds(evaluation['seconds'])}){failed}"
    )


def plan_changes(log: RunLog) -> list[dict[str, Any]]:
    """The plans by which a run went on: `from_step` is the first step of each, `plan` its path from the run's folder,
    `owed` prompts that it trained first, `changes` its decisions that differ; `step_s_before`, `step_s_after` are mean
    seconds of the steps of the plan before and of this one, NaN where it took none."""
    events, rows, before = log.plan_changes, list[dict[str, Any]](), 0
    for number, event in enumerate(events):
        at, end = int(event["step"]), events[number + 1]["step"] if number + 1 < len(events) else math.inf
        rows.append(
            {
                "from_step": at + 1,
                **{key: event.get(key) for key in ("plan", "owed", "changes")},
                "step_s_before": _mean_s([step for step in log.steps if before < step.step <= at]),
                "step_s_after": _mean_s([step for step in log.steps if at < step.step <= end]),
            }
        )
        before = at
    return rows


def _mean_s(steps: Sequence[StepEvent]) -> float:
    return fmean(step.total_s for step in steps) if steps else math.nan


def plan_text(event: Mapping[str, Any]) -> str:
    """What the event `plan` says: from which step on a run goes by another plan, and what that changes."""
    changes = [change for change in event.get("changes") or () if isinstance(change, Mapping)]
    told = [f"{each.get('key')} {each.get('old')} -> {each.get('new')}" for each in changes[:3]]
    more = f" and {count(len(changes) - 3, 'other decision')}" if len(changes) > 3 else ""
    owed = event.get("owed")
    first = ""
    if isinstance(owed, int) and owed > 0:
        first = f"; {count(owed, 'prompt')} that the old plan deferred trained first"
    step = event.get("step")
    since = f"from step {step + 1} on" if isinstance(step, int) else "from here on"
    return f"{since} by {event.get('plan', 'another plan')}: {', '.join(told) or 'the same decisions'}{more}{first}"


def drift_text(planned: float, measured: float, rounds: float) -> str:
    """What the event `drift` says, with its remedy."""
    return (
        f"short rounds are planned to be {planned:.0%} of the steps, and are {measured:.0%} by the last "
        f"{count(rounds, 'short round')}: lengths have drifted, and the plan's cutoff is no longer the best; plan "
        "again from this run (rlplan tune)"
    )


def incidents(events: Sequence[dict[str, Any]], steps: Sequence[StepEvent]) -> list[dict[str, Any]]:
    """Faults and interruptions of a run by time: `t_s` (seconds since the first start), `step`, `kind`, `text`.

    Kinds: restart, node, resume, plan, sandbox, checkpoint, failed prompt, lost, unscored, drift, skipped,
    log-probs, run failed, stopped, not a number, conservation, off-policy, checksum, timeouts, exhausted.
    """
    by_time = [(float(event["t_s"]), _of_event(event)) for event in events]
    by_time += [
        (float(step.t_s), _of_step(step, earlier)) for step, earlier in zip(steps, [None, *steps], strict=False)
    ]
    rows: list[dict[str, Any]] = [
        {"t_s": t_s, "step": step, "kind": kind, "text": text}
        for t_s, items in sorted(by_time, key=lambda item: item[0])
        for step, kind, text in items
    ]
    ended = 0
    ends = sorted((float(step.t_s), step.step) for step in steps)
    for row in rows:
        if row["step"] is None:  # then it is the step after the last one that had ended
            while ended < len(ends) and ends[ended][0] <= row["t_s"]:
                ended += 1
            row["step"] = (ends[ended - 1][1] if ended else 0) + 1
    return rows


Incident = tuple[int | None, str, str]
"""(step, if the event names one; kind; text)"""


def _of_event(event: dict[str, Any]) -> list[Incident]:
    step = event.get("step")
    if not isinstance(step, int) or not 0 <= step <= MOST:
        step = None
    match event["event"]:
        case "restart":
            return [
                (step, "restart", f"{event.get('whom', 'an actor')} was replaced: {event.get('reason', 'unknown')}")
            ]
        case "node_draining":
            left_s = event.get("left_s")
            when = f"in {left_s:.0f} s" if isinstance(left_s, int | float) else "soon"
            return [(step, "node", f"node {event.get('node')} ({event.get('address')}) is to be taken away {when}")]
        case "node_lost":
            text = f"node {event.get('node')} ({event.get('address')}) was lost or left, with all that ran there"
            return [(step, "node", text)]
        case "node_excluded":
            text = f"node {event.get('node')} ({event.get('address')}) was excluded: {event.get('reason')}"
            return [(step, "node", text)]
        case "node_readmitted":
            return [(step, "node", f"node {event.get('address')}, excluded before, may be taken again")]
        case "engine_given_up":
            return [(step, "restart", f"{event.get('whom')} was given up: {event.get('reason')}")]
        case "node_back":
            return [(step, "node", f"{event.get('address')} came in place of node {event.get('node')}, or is back")]
        case "resume":
            return [(step, "resume", f"taken up again after step {step}")]
        case "plan":
            return [(step, "plan", plan_text(event))]
        case "plan_refused":
            return [(step, "plan", f"{event.get('plan')} was not applied: {event.get('reason')}")]
        case "sandbox_lacks":
            return [(step, "sandbox", str(event.get("reason")).removeprefix("sandbox: "))]
        case "checkpoint_failed":
            return [(step, "checkpoint", f"no checkpoint of step {step}: {event.get('reason')}")]
        case "model_failed":
            return [(step, "checkpoint", f"no model of step {step}: {event.get('reason')}")]
        case "checkpoint_damaged":
            return [(None, "checkpoint", f"{event.get('checkpoint')} was set aside: {event.get('reason')}")]
        case "failed":
            return [(step, "failed prompt", f"{event.get('prompt')}: {event.get('reason')}")]
        case "drift":
            figures = [event.get(key) for key in ("planned", "measured", "rounds")]
            known = [figure for figure in figures if isinstance(figure, int | float)]
            return [(step, "drift", drift_text(*known) if len(known) == 3 else "lengths have drifted")]
        case "skipped":
            return [(step, "skipped", f"no weight was changed, {event.get('groups')} groups taught nothing: "
                     f"{event.get('reason')}")]  # fmt: skip
        case "logprobs":
            return [(step, "log-probs", str(event.get("reason")))]
        case "lost":
            return [(step, "lost", f"vLLM ended {count(event.get('samples', 1), 'sample')} with {event.get('reason')}; "
                     "drawn again")]  # fmt: skip
        case "unscored":
            outcome, samples = event.get("outcome", "unknown"), event.get("samples", 1)
            return [(step, "unscored", f"{outcome} of {count(samples, 'sample')}, the first: {event.get('reason')}")]
        case "end" if event.get("reason"):
            return [(step, "run failed", str(event["reason"]))]
        case "end" if not event.get("finished"):
            return [(step, "stopped", "ended by a signal" + (f" after step {step}" if step else ""))]
    return []


def _of_step(step: Step, earlier: Step | None) -> list[Incident]:
    """Incidents of a step; `earlier` is the step before it, None for the first."""
    number = step.step
    incidents: list[Incident] = [(number, "restart", str(reason)) for reason in step.restarts]
    incidents += [(number, "conservation", str(violation)) for violation in step.conservation_violations]
    for figure, kind, text in (
        (step.on_policy_violations, "off-policy", "trained samples not decoded by the weights that they train"),
        (step.checksum_mismatches, "checksum", "engines that received other weights than the trainer sent"),
        (step.exhausted, "exhausted", "deferred prompts trained on their last allowed draw, since no draw was long"),
    ):
        if figure:
            incidents.append((number, kind, f"{text}: {figure}"))
    if names := sorted(_not_finite(step) - (_not_finite(earlier) if earlier else set())):
        incidents.append((number, "not a number", f"from this step on: {', '.join(names)}; training may have diverged"))
    counts, before = step.timeouts or {}, (earlier and earlier.timeouts) or {}
    new = {key: counts.get(key, 0) - before.get(key, 0) for key in ("timeouts", "cut", "executions")}
    if new["timeouts"] > 0:
        incidents.append((
            number, "timeouts",
            f"{new['timeouts']} of {new['executions']} rewards timed out"
            + (f", {new['cut']} of them by a deadline that adapts" if new["cut"] > 0 else ""),
        ))  # fmt: skip
    return incidents


def _not_finite(step: Step) -> set[str]:
    """Names of the metrics that are NaN or infinite; none for a skipped step, which has an event of its own."""
    if step.metrics.get("skipped"):
        return set()
    measured = {"reward_mean": step.reward_mean, **step.metrics}
    return {name for name, value in measured.items() if not math.isfinite(value)}
