"""How many of a run's steps lie below the p50 and p95 that its plan predicts: half, and 95 %, if the plan is right.

A share is to be read with its count: of n steps of a right plan, a share q lies below the q-quantile give or take
sqrt(q (1 - q) / n), and what is off in all steps of a run alike (`predicted.error`) moves them all to one side.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..plans.schema.predicted import Predicted, Quantiles


def coverage(steps: Sequence[dict[str, Any]], predicted: Predicted) -> dict[str, dict[str, Any]]:
    """By kind of round, and `all`; kinds without a step, or that the plan does not predict, are left out.

    Of each: `steps`, and of `step_s` and `rollout_s` (`all`: of `step_s`) how many are `below_p50` and `below_p95`, or
    at it, and the shares of the steps that they are.
    """
    kinds = {"short": predicted.rounds.short, "long": predicted.rounds.long}
    found: dict[str, dict[str, Any]] = {}
    for kind, expected in kinds.items():
        own = [step for step in steps if step["kind"] == kind]
        if own and expected is not None:
            found[kind] = {
                "steps": len(own),
                "step_s": _below([step["total_s"] for step in own], expected.step_s),
                "rollout_s": _below([step["rollout_s"] for step in own], expected.rollout_s),
            }
    if found:
        every = [step["total_s"] for step in steps]
        found["all"] = {"steps": len(every), "step_s": _below(every, predicted.step_s)}
    return found


def _below(seconds: Sequence[float], expected: Quantiles) -> dict[str, float]:
    counts = {name: sum(value <= level for value in seconds) for name, level in
              (("p50", expected.p50), ("p95", expected.p95))}  # fmt: skip
    return {f"below_{name}": count for name, count in counts.items()} | {
        f"share_below_{name}": count / len(seconds) for name, count in counts.items()
    }
