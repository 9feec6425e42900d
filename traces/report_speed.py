"""How fast a run's machine was beside when it was profiled, so that a slower machine is told from a wrong prediction.

`rlplan execute` measures decode steps and an update anew (event `speed`). Decoding, and the weights and rewards beside
it, are expected to take the profile's seconds times the factor of decoding; training, times that of the update.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from typing import Any

from ..plans.phrases.numbers import deviation
from ..plans.schema.predicted import PredictedPhases
from .report_runs import RunTrace

PHASES = ("rollout", "train")

Factors = Mapping[str, float]
"""By phase of PHASES: seconds now over those when it was profiled."""


def speed_factors(run: RunTrace) -> dict[str, float] | None:
    """The mean over the run's measurements; None without any."""
    found = [event for event in run.events if event["event"] == "speed" and all(map(_factor, map(event.get, PHASES)))]
    return {phase: statistics.fmean(event[phase] for event in found) for phase in PHASES} if found else None


def _factor(value: object) -> bool:
    return isinstance(value, int | float) and 0 < value < 1e9


def speed_report(run: RunTrace, step_s: float, phases_s: Mapping[str, float]) -> dict[str, Any]:
    """`machine_factor`, by which the predicted step is longer on the machine as it was during the run; `model_error`,
    by how much the measured step is longer than that, with its standard error by chance (the lengths of so few rounds,
    and of so few responses as the plan's lengths are from; None: of too few rounds to tell); the same by phase. All
    None where nothing was measured."""
    factors, predicted = speed_factors(run), run.plan.predicted
    if factors is None:
        return dict.fromkeys(("machine_factor", "model_error", "model_error_standard_error", "machine"))
    factor = _expected_s(predicted.phases_s, factors) / _expected_s(predicted.phases_s, dict.fromkeys(PHASES, 1.0))
    planned_s = {"rollout": predicted.phases_s.rollout, "train": predicted.phases_s.train}
    error, chance = deviation(step_s, factor * predicted.step_s.mean), run.means.chance("total_s")
    of_lengths = predicted.error.lengths, predicted.error.assumed_lengths
    return {
        "machine_factor": factor,
        "model_error": error,
        "model_error_standard_error": None if chance is None else (1.0 + error) * math.hypot(chance, *of_lengths),
        "machine": {
            phase: {
                "factor": factors[phase],
                "model_error": deviation(phases_s[phase], factors[phase] * planned_s[phase]),
            }
            for phase in planned_s
        },
    }


def _expected_s(phases: PredictedPhases, factors: Factors) -> float:
    """Seconds of a step with each phase as many times as long."""
    return factors["rollout"] * (phases.rollout + phases.sync + phases.reward_exposed) + factors["train"] * phases.train
