"""A run's steps as columns, their seconds as quantiles and beside those that its plan predicts, and what checkpoints,
waits and missing engines took of them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from ..plans.schema.predicted import Predicted, Quantiles
from .trace_events import Step, StepEvent

PHASES_S = ("sync_s", "rollout_s", "reward_exposed_s", "train_s", "other_s")
_SERIES = (
    "step", "t_s", "kind", "total_s", *PHASES_S, "reward_mean", "trained_samples", "trained_tokens", "max_tokens",
    "median_tokens", "decoded_tokens", "deferred",
)  # fmt: skip


def series(steps: Sequence[StepEvent]) -> dict[str, list[Any]]:
    """Columns of the steps; None where a trace of an earlier version lacks a value."""
    return {name: [getattr(step, name) for step in steps] for name in _SERIES}


def quantile(values: Sequence[float], level: float) -> float:
    """The least value that is not exceeded by at least a share `level` of the values."""
    return sorted(values)[place_of(len(values), level)]


def place_of(count: int, level: float) -> int:
    """The place of a quantile among `count` values in order."""
    return max(0, math.ceil(level * count - 1e-9) - 1)


def spreads(steps: Sequence[Step]) -> dict[str, dict[str, float]]:
    """p50, p95 and mean seconds of the whole step (`step_s`) and of each phase, over the steps."""
    by_duration: dict[str, dict[str, float]] = {}
    for key in ("total_s", *PHASES_S):
        values = [float(seconds) for step in steps if (seconds := getattr(step, key)) is not None]
        if values:
            by_duration["step_s" if key == "total_s" else key] = {
                "p50": quantile(values, 0.5),
                "p95": quantile(values, 0.95),
                "mean": statistics.fmean(values),
            }
    return by_duration


class SettledRound(Protocol):
    """A round of a run or of a simulation, as far as it tells whom it settled."""

    @property
    def kind(self) -> str: ...
    @property
    def waits(self) -> Sequence[int]: ...
    @property
    def ages(self) -> Sequence[int]: ...


def waits(steps: Iterable[SettledRound]) -> dict[str, float] | None:
    """How long deferred prompts waited, in long rounds; None if no long round settled any.

    Returns `prompts`, that long rounds settled; `mean` and `longest` of their waits; `long_rounds`, and `by_queue` of
    these.
    """
    long = [step for step in steps if step.kind == "long"]
    waited = [int(wait) for step in long for wait in step.waits]
    if not waited:
        return None
    by_queue = sum(bool(step.ages) for step in long)
    mean, longest = statistics.fmean(waited), max(waited)
    return {"prompts": len(waited), "mean": mean, "longest": longest, "long_rounds": len(long), "by_queue": by_queue}


def coverage(steps: Sequence[Step], predicted: Predicted) -> dict[str, dict[str, Any]]:
    """Steps at or below the predicted p50 and p95, by kind of round and for `all` steps: half, and 95 %, if the plan
    is right.

    Each entry has `steps`, and for `step_s` and `rollout_s` (`all`: only `step_s`) the counts `below_p50` and
    `below_p95` with their shares of the steps. A kind of round that did not run or is not predicted has no entry.

    Read a share with its count: if the plan is right, the share of n steps below the q-quantile is q with a standard
    deviation of sqrt(q (1 - q) / n). An error that all steps of a run have in common (`predicted.error`) moves all of
    them to one side.
    """
    kinds = {"short": predicted.rounds.short, "long": predicted.rounds.long}
    by_kind: dict[str, dict[str, Any]] = {}
    for kind, expected in kinds.items():
        steps_of_kind = [step for step in steps if step.kind == kind]
        if steps_of_kind and expected is not None:
            by_kind[kind] = {
                "steps": len(steps_of_kind),
                "step_s": _below([step.total_s for step in steps_of_kind], expected.step_s),
                "rollout_s": _below([step.rollout_s for step in steps_of_kind], expected.rollout_s),
            }
    if by_kind:
        seconds = [step.total_s for step in steps]
        by_kind["all"] = {"steps": len(seconds), "step_s": _below(seconds, predicted.step_s)}
    return by_kind


def _below(seconds: Sequence[float], expected: Quantiles) -> dict[str, float]:
    counts = {name: sum(value <= level for value in seconds) for name, level in
              (("p50", expected.p50), ("p95", expected.p95))}  # fmt: skip
    return {f"below_{name}": count for name, count in counts.items()} | {
        f"share_below_{name}": count / len(seconds) for name, count in counts.items()
    }


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


def missing_engines(steps: Sequence[Step]) -> dict[str, float | None] | None:
    """What it cost a run that engines were missing when rounds began; None if none were.

    Returns `steps`, that began so; `engine_steps`, the missing engines summed over these; `of_engine_steps`, the plan's
    engines summed over all steps; `cost_s`, by how much those steps were longer than the median of steps of their kind
    that had all engines, None where no kind has such a step to compare with.
    """
    counted = [step for step in steps if _is_count(step.engines) and _is_count(step.engines_missing)]
    fewer = [step for step in counted if step.engines_missing]
    if not fewer:
        return None
    whole: dict[str, list[float]] = {}
    for step in counted:
        if not step.engines_missing:
            whole.setdefault(step.kind, []).append(float(step.total_s))
    excess = [float(s.total_s) - statistics.median(whole[s.kind]) for s in fewer if s.kind in whole]
    return {
        "steps": len(fewer),
        "engine_steps": sum(step.engines_missing for step in fewer),
        "of_engine_steps": sum(step.engines + step.engines_missing for step in counted),
        "cost_s": sum(excess) if len(excess) == len(fewer) else None,
    }


def _is_count(value: object) -> bool:
    return isinstance(value, int) and 0 <= value < 1e9


def _measured(event: dict[str, Any]) -> bool:
    """Whether a checkpoint's event has all of its costs; those of earlier versions have none."""
    values = [event.get(key) for key in ("stage_s", "write_s", "bytes")]
    return all(isinstance(value, int | float) and 0 <= value < 1e18 for value in values)
