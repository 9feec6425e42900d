"""How many of a run's steps lie below the p50 and p95 that its plan predicts: half, and 95 %, if the plan is right.

Read a share with its count: if the plan is right, the share of n steps below the q-quantile is q with a standard
deviation of sqrt(q (1 - q) / n). An error that all steps of a run have in common (`predicted.error`) moves all of them
to one side.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..plans.schema.predicted import Predicted, Quantiles


def coverage(steps: Sequence[dict[str, Any]], predicted: Predicted) -> dict[str, dict[str, Any]]:
    """Steps at or below the predicted p50 and p95, by kind of round and for `all` steps.

    Each entry has `steps`, and for `step_s` and `rollout_s` (`all`: only `step_s`) the counts `below_p50` and
    `below_p95` with their shares of the steps. A kind of round that did not run or is not predicted has no entry.
    """
    kinds = {"short": predicted.rounds.short, "long": predicted.rounds.long}
    by_kind: dict[str, dict[str, Any]] = {}
    for kind, expected in kinds.items():
        steps_of_kind = [step for step in steps if step["kind"] == kind]
        if steps_of_kind and expected is not None:
            by_kind[kind] = {
                "steps": len(steps_of_kind),
                "step_s": _below([step["total_s"] for step in steps_of_kind], expected.step_s),
                "rollout_s": _below([step["rollout_s"] for step in steps_of_kind], expected.rollout_s),
            }
    if by_kind:
        seconds = [step["total_s"] for step in steps]
        by_kind["all"] = {"steps": len(seconds), "step_s": _below(seconds, predicted.step_s)}
    return by_kind


def _below(seconds: Sequence[float], expected: Quantiles) -> dict[str, float]:
    counts = {name: sum(value <= level for value in seconds) for name, level in
              (("p50", expected.p50), ("p95", expected.p95))}  # fmt: skip
    return {f"below_{name}": count for name, count in counts.items()} | {
        f"share_below_{name}": count / len(seconds) for name, count in counts.items()
    }
