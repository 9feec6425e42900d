"""Puts the result of the GPU check together, from what `rlplan report --json` and the traces say."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .weight_slots import failed_slots, runs_with_others, untried_slots

Lines = list[tuple[int, dict[str, Any]]]

REPORTED = (
    "steps", "step_s", "step_s_predicted", "prediction_error", "phases_s", "speedup", "speedup_predicted",
    "logprob_max_abs_diff", "logprob_mean_abs_diff", "logprob_p99_abs_diff", "logprob_beyond_share",
    "on_policy_violations", "conservation_violations", "checksum_mismatches", "skipped_steps", "restarts",
    "trained_mean_tokens", "incidents",
)  # fmt: skip
"""Figures of a run that are taken over from its report, where it has them."""


def trace_lines(path: Path) -> Lines:
    """The events of a trace, each with the bytes of the file up to its end; a torn last line is left out."""
    lines: Lines = []
    end = 0
    for line in path.read_bytes().splitlines(keepends=True):
        end += len(line)
        if line.endswith(b"\n"):
            lines.append((end, json.loads(line)))
    return lines


def weights_figures(lines: Lines) -> dict[str, Any]:
    """How weights went to the engines in a run's steps: ways and slots with their counts, bytes, and the median of the
    seconds; and, where they could not go on the way that was wanted, why."""
    steps = [event for _, event in lines if event["event"] == "step"]
    ways = [str(step.get("weights_way", "")) for step in steps]
    slots = [name for step in steps if (name := str(step.get("weights_slots", "")))]
    why = [str(event["reason"]) for _, event in lines if event["event"] == "weights"]
    return {
        "ways": {way: ways.count(way) for way in sorted(set(ways))},
        "slots": {name: slots.count(name) for name in sorted(set(slots))},
        "bytes": max((int(step.get("weights_bytes", 0)) for step in steps), default=0),
        "sync_s": statistics.median(float(step["sync_s"]) for step in steps) if steps else None,
        **({"reasons": why} if why else {}),
    }


def run_figures(report: Mapping[str, Any], traces: Mapping[str, Lines]) -> dict[str, dict[str, Any]]:
    """Of each run of a report: its figures beside what was predicted, and how its weights went."""
    return {
        name: {key: detail[key] for key in REPORTED if key in detail}
        | {"weights": weights_figures(traces.get(name, []))}
        for name, detail in report["runs"].items()
    }


def assembled(
    machine: Mapping[str, Any],
    shapes: Mapping[str, Any],
    untried: Mapping[str, str],
    slots: Mapping[str, Any] | None = None,
    wanted: str | None = None,
    group: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The whole result, of which `slots` is that of transfers between plain processes, `wanted` the slots that were
    asked for, and `group` that of jobs that run as one. `ok`: at least one shape was tried, no part failed, and no run
    broke an invariant."""
    tried = {**shapes, **({} if group is None else {"groups": group})}
    failed = failed_slots(slots or {}) + [
        f"{name} {part}"
        for name, shape in tried.items()
        for part, outcome in shape["parts"].items()
        if not outcome["ok"]
    ]
    broken = [
        f"{name} {run}: {key}"
        for name, shape in tried.items()
        for run, figures in shape.get("runs", {}).items()
        for key in ("on_policy_violations", "conservation_violations", "checksum_mismatches")
        if figures.get(key)
    ]
    broken += runs_with_others(wanted, shapes)
    return {
        "machine": dict(machine),
        "weights": dict(slots or {}),
        "shapes": dict(shapes),
        **({} if group is None else {"groups": dict(group)}),
        "untried": dict(untried),
        "failed": failed,
        "broken": broken,
        "ok": bool(shapes) and not failed and not broken,
    }


def untried_ways(kind: str, ways: Sequence[str], slots: Mapping[str, Any], used: Sequence[str]) -> dict[str, str]:
    """What the check has not tried of how weights can travel, with the reason. `ways`: those that runs used, as are the
    slots `used`; `slots`: what became of transfers between plain processes."""
    untried = untried_slots(kind, slots, used)
    if kind == "cpu":
        untried["sleep"] = "engines on a CPU hold no device memory that sleep could free; needs --device cuda"
    for way in ("broadcast", "file"):
        if ways and way not in ways:
            untried[f"weights by {way}"] = "no run of the check used it"
    return untried
