"""How a run stands, as far as its trace tells, and what went wrong in it.

A run that ends writes an `end` event, also when it fails. One that was killed writes none, and then nothing in the
folder tells it from one that still goes on, except how long the trace has not grown.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Literal

from .run_log import MOST

State = Literal["finished", "stopped", "failed", "open"]


def run_state(
    events: Sequence[dict[str, Any]], steps: Sequence[dict[str, Any]], written_s: float | None, now_s: float
) -> dict[str, Any]:
    """`state`, `state_text` (a sentence), `steps_wanted`, `longest_step_s`, `written_at`, `quiet_s`.

    `open` is one that still goes on or was killed. `written_at` is when the trace was last written, in UTC, and
    `quiet_s` how many seconds ago that is, both of an open run only: of one that ended the report stays the same. The
    sentence holds no time that passes. `written_s`, `now_s`: seconds since 1970.
    """
    turns = [event for event in events if event["event"] in ("run", "resume", "end")]
    last = turns[-1] if turns else None
    wanted = next((int(e["steps"]) for e in reversed(turns) if isinstance(e.get("steps"), int)), None)
    done = int(steps[-1]["step"]) if steps else 0
    of = f"{done} of {wanted} steps" if wanted is not None and wanted >= done else f"{done} steps"
    if not steps:
        of = "no step was finished" + (f" of {wanted}" if wanted is not None else "")
    longest = max((float(step["total_s"]) for step in steps), default=None)
    known: dict[str, Any] = {"steps_wanted": wanted, "longest_step_s": longest, "written_at": None, "quiet_s": None}
    if last is not None and last["event"] == "end":
        if last.get("finished"):
            return {"state": "finished", "state_text": f"finished: {of}", **known}
        if last.get("reason"):
            return {"state": "failed", "state_text": f"failed after {of}: {last['reason']}", **known}
        return {"state": "stopped", "state_text": f"stopped by a signal, with a checkpoint: {of}", **known}
    text = f"running or died: {of}"
    if last is None:
        text += "; it has not begun to train"
    if written_s is not None:
        known |= {"written_at": utc(written_s), "quiet_s": max(0.0, now_s - written_s)}
        text += f"; the trace was last written {known['written_at']}"
        if longest is not None:
            text += f", its longest step took {longest:.3g} s"
    return {"state": "open", "state_text": text, **known}


def utc(at_s: float) -> str:
    """A moment, seconds since 1970, as people read it."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def ago(seconds: float) -> str:
    """A stretch of time in one unit."""
    for unit, size in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}s"
    return f"{seconds:.0f} s"


def incidents(events: Sequence[dict[str, Any]], steps: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What did not go as it should, by time: `t_s` (seconds since the first start), `step`, `kind`, `text`.

    Kinds: restart, resume, checkpoint, failed prompt, unscored, skipped, run failed, stopped, note, not a number,
    conservation,
    off-policy, checksum, timeouts, exhausted.
    """
    found = [(float(event["t_s"]), _of_event(event)) for event in events]
    found += [(float(step.get("t_s", 0.0)), _of_step(step, earlier)) for step, earlier in _with_earlier(steps)]
    rows: list[dict[str, Any]] = [
        {"t_s": t_s, "step": step, "kind": kind, "text": text}
        for t_s, items in sorted(found, key=lambda item: item[0])
        for step, kind, text in items
    ]
    at = 0
    ends = sorted((float(step.get("t_s", 0.0)), int(step["step"])) for step in steps if "step" in step)
    for row in rows:
        if row["step"] is None:  # the step that was being made
            while at < len(ends) and ends[at][0] <= row["t_s"]:
                at += 1
            row["step"] = (ends[at - 1][1] if at else 0) + 1
    return rows


Found = tuple[int | None, str, str]


def _of_event(event: dict[str, Any]) -> list[Found]:
    step = event.get("step")
    if not isinstance(step, int) or not 0 <= step <= MOST:
        step = None
    match event["event"]:
        case "restart":
            return [
                (step, "restart", f"{event.get('whom', 'an actor')} was replaced: {event.get('reason', 'unknown')}")
            ]
        case "resume":
            return [(step, "resume", f"taken up again after step {step}")]
        case "checkpoint_failed":
            return [(step, "checkpoint", f"no checkpoint of step {step}: {event.get('reason')}")]
        case "checkpoint_damaged":
            return [(None, "checkpoint", f"{event.get('checkpoint')} was set aside: {event.get('reason')}")]
        case "failed":
            return [(step, "failed prompt", f"{event.get('prompt')}: {event.get('reason')}")]
        case "skipped":
            return [(step, "skipped", f"no weight was changed, {event.get('groups')} groups taught nothing: "
                     f"{event.get('reason')}")]  # fmt: skip
        case "unscored":
            outcome, samples = event.get("outcome", "unknown"), event.get("samples", 1)
            return [(step, "unscored", f"{outcome} of {samples} sample(s), the first: {event.get('reason')}")]
        case "note":
            return [(step, "note", str(event.get("text", "")))]
        case "end" if event.get("reason"):
            return [(step, "run failed", str(event["reason"]))]
        case "end" if not event.get("finished"):
            return [(step, "stopped", "ended by a signal" + (f" after step {step}" if step else ""))]
    return []


def _of_step(step: dict[str, Any], earlier: dict[str, Any]) -> list[Found]:
    number = step.get("step")
    found: list[Found] = [(number, "restart", str(what)) for what in step.get("restarts", ())]
    found += [(number, "conservation", str(what)) for what in step.get("conservation_violations", ())]
    for key, kind, text in (
        ("on_policy_violations", "off-policy", "trained samples were not decoded by the weights that they train"),
        ("checksum_mismatches", "checksum", "engines received other weights than the trainer sent"),
        ("exhausted", "exhausted", "prompts drew no long response within the bound on draws"),
    ):
        if step.get(key):
            found.append((number, kind, f"{step[key]} {text}"))
    if lost := sorted(_no_numbers(step) - _no_numbers(earlier)):
        found.append((number, "not a number", f"from this step on: {', '.join(lost)}; training may have diverged"))
    counts, before = step.get("timeouts") or {}, earlier.get("timeouts") or {}
    new = {key: counts.get(key, 0) - before.get(key, 0) for key in ("timeouts", "cut", "executions")}
    if new["timeouts"] > 0:
        found.append((
            number, "timeouts",
            f"{new['timeouts']} of {new['executions']} rewards timed out"
            + (f", {new['cut']} of them by a deadline that adapts" if new["cut"] > 0 else ""),
        ))  # fmt: skip
    return found


def _no_numbers(step: dict[str, Any]) -> set[str]:
    """What training measured and is NaN or infinite; of a step that was skipped for it, its own event speaks."""
    if step.get("metrics", {}).get("skipped"):
        return set()
    measured = {"reward_mean": step.get("reward_mean", 0.0), **step.get("metrics", {})}
    return {name for name, value in measured.items() if not math.isfinite(value)}


def _with_earlier(steps: Sequence[dict[str, Any]]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    return list(zip(steps, [{}, *steps], strict=False))
