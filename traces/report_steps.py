"""A run's steps as columns, their seconds as quantiles, and what its checkpoints took of them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

PHASES_S = ("sync_s", "rollout_s", "reward_exposed_s", "train_s", "other_s")
_SERIES = (
    "step", "t_s", "kind", "total_s", *PHASES_S, "reward_mean", "trained_samples", "max_tokens", "median_tokens",
    "decoded_tokens", "deferred",
)  # fmt: skip


def series(steps: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    """Columns of the steps; None where a trace of an earlier version lacks a value."""
    return {name: [step.get(name) for step in steps] for name in _SERIES}


def quantile(values: Sequence[float], level: float) -> float:
    """The least value that is not exceeded by at least a share `level` of the values."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(level * len(ordered) - 1e-9) - 1)]


def spreads(steps: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """p50, p95 and mean seconds of the whole step (`step_s`) and of each phase, over the steps."""
    by_duration: dict[str, dict[str, float]] = {}
    for key in ("total_s", *PHASES_S):
        values = [float(step[key]) for step in steps if step.get(key) is not None]
        if values:
            by_duration["step_s" if key == "total_s" else key] = {
                "p50": quantile(values, 0.5),
                "p95": quantile(values, 0.95),
                "mean": statistics.fmean(values),
            }
    return by_duration


def waits(steps: Sequence[dict[str, Any]]) -> dict[str, float] | None:
    """How long deferred prompts waited, in long rounds; None if no long round settled any.

    Returns `prompts`, that long rounds settled; `mean` and `longest` of their waits; `long_rounds`, and `by_queue` of
    these.
    """
    long = [step for step in steps if step["kind"] == "long"]
    waited = [int(wait) for step in long for wait in step.get("waits") or ()]
    if not waited:
        return None
    by_queue = sum(bool(step.get("ages")) for step in long)
    mean, longest = statistics.fmean(waited), max(waited)
    return {"prompts": len(waited), "mean": mean, "longest": longest, "long_rounds": len(long), "by_queue": by_queue}


def checkpoint_costs(events: Sequence[dict[str, Any]], steps: int) -> dict[str, float] | None:
    """What the checkpoints between a run's steps cost it; None if there are none, or the trace has no seconds of them.

    Returns `count`; `stood_s_per_step`, the seconds for which training stood still, over all steps; `write_s`, the mean
    seconds of writing one beside training; `bytes` of the latest. The first checkpoint comes before the first step and
    is not counted.
    """
    costs = [
        tuple(float(event[key]) for key in ("stage_s", "write_s", "bytes"))
        for event in events
        if event["event"] == "checkpoint" and event.get("step") and _measured(event)
    ]
    if not costs or not steps:
        return None
    staged, written, sizes = zip(*costs, strict=True)
    return {
        "count": len(costs),
        "stood_s_per_step": sum(staged) / steps,
        "write_s": statistics.fmean(written),
        "bytes": sizes[-1],
    }


def missing_engines(steps: Sequence[dict[str, Any]]) -> dict[str, float | None] | None:
    """What it cost a run that engines were missing when rounds began; None if none were.

    Returns `steps`, that began so; `engine_steps`, the missing engines summed over these; `of_engine_steps`, the plan's
    engines summed over all steps; `cost_s`, by how much those steps were longer than the median of steps of their kind
    that had all engines, None where no kind has such a step to compare with.
    """
    counted = [step for step in steps if _is_count(step.get("engines")) and _is_count(step.get("engines_missing"))]
    fewer = [step for step in counted if step["engines_missing"]]
    if not fewer:
        return None
    whole: dict[str, list[float]] = {}
    for step in counted:
        if not step["engines_missing"]:
            whole.setdefault(step["kind"], []).append(float(step["total_s"]))
    excess = [float(s["total_s"]) - statistics.median(whole[s["kind"]]) for s in fewer if s["kind"] in whole]
    return {
        "steps": len(fewer),
        "engine_steps": sum(step["engines_missing"] for step in fewer),
        "of_engine_steps": sum(step["engines"] + step["engines_missing"] for step in counted),
        "cost_s": sum(excess) if len(excess) == len(fewer) else None,
    }


def _is_count(value: object) -> bool:
    return isinstance(value, int) and 0 <= value < 1e9


def _measured(event: dict[str, Any]) -> bool:
    """Whether a checkpoint's event has all of its costs; those of earlier versions have none."""
    values = [event.get(key) for key in ("stage_s", "write_s", "bytes")]
    return all(isinstance(value, int | float) and 0 <= value < 1e18 for value in values)
