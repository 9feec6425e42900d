"""Attribution of a run's phases: from the plan's prediction to the observed mean, one cause after the other.

Each cause is what changes when one more thing is taken as the run had it: the share of long rounds, then the lengths
(the run's rounds replayed at the profile's costs), then the speed, then the overhead of a round; what is left is not
explained by the model, and what only the steps after a start or a restart took is told apart. The parts sum to
measured minus predicted. All means are over the cycle (traces/cycle_means.py), as those of `rlplan report`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ...plans.schema.levers import EngineLayout
from ...plans.schema.predicted import Predicted
from ...traces.cycle_means import CycleMeans
from .executed_run import ExecutedRun, Replayed
from .refit import FittedLine, Priced, Refit

# A phase that is off by less than this share of itself, or of the step, is as predicted.
NEAR, NEAR_STEP = 0.05, 0.01


@dataclass(frozen=True, slots=True)
class PhaseCauses:
    """One phase: mean seconds of a step, and for each cause the seconds that it added."""

    predicted_s: float
    measured_s: float
    parts_s: dict[str, float]
    why: str


def phases(run: ExecutedRun, replays: Sequence[Replayed], priced: Priced, refitted: Refit) -> dict[str, PhaseCauses]:
    """The phases of a step over the cycle; waits around a round (`other_s` of the trace) belong to its rollout.

    Args:
        replays: of the run, by the profile that its plan was solved from, priced as in `priced`.
        refitted: that profile, refitted to the run.
    """
    predicted, warm = run.plan.predicted, [r for r in replays if r.step.warm] or list(replays)
    step_s, over = predicted.step_s.mean, run.over_cycle

    def lines(item: Replayed, of: dict[EngineLayout, FittedLine]) -> FittedLine:
        return of[priced.of(item.step.kind).decode.key]

    def at_speed(item: Replayed) -> float:
        base_s = priced.of(item.step.kind).decode.round_s
        return base_s + lines(item, refitted.rollout).factor * (item.times.decode_end_s - base_s)

    def at_cost(item: Replayed) -> float:
        base_s = priced.of(item.step.kind).decode.round_s
        line = lines(item, refitted.rollout)
        return line.overhead + line.factor * (item.times.decode_end_s - base_s)

    reward = refitted.reward.factor if refitted.reward else 1.0
    kinds = _by_kind(predicted)
    share = over.long_share
    weights = [over.long_weight if item.step.kind == "long" and item.step.trained_samples else 1.0 for item in warm]

    def mean(values: Iterable[float]) -> float:
        """Over the warm steps, each long round with its part of those that the run owes."""
        return math.fsum(w * v for w, v in zip(weights, values, strict=True)) / math.fsum(weights)

    def update_s(item: Replayed, whole: bool) -> float:
        base_s = priced.of(item.step.kind).train.step_s
        line = refitted.updates.get(priced.of(item.step.kind).train, FittedLine(base_s, 1.0, 0.0, 0.0, 0))
        return (line.overhead if whole else base_s) + line.factor * (item.update_s - base_s)

    def mixed(phase: int, otherwise: float) -> float:
        if "long" not in kinds:
            return otherwise
        return (1.0 - share) * kinds["short"][phase] + share * kinds["long"][phase]

    expected = predicted.phases_s
    return {
        "rollout": _phase(
            step_s,
            over,
            "rollout_s",
            [
                ("", expected.rollout),
                ("share of long rounds", mixed(0, expected.rollout)),
                ("lengths", mean(r.times.decode_end_s for r in warm)),
                ("decode speed", mean(at_speed(r) for r in warm)),
                ("overhead of a round", mean(at_cost(r) for r in warm)),
                ("not explained", mean(r.step.round_s for r in warm)),
            ],
            _factors({str(layout): line.factor for layout, line in refitted.rollout.items()}),
        ),
        "reward_exposed": _phase(
            step_s,
            over,
            "reward_exposed_s",
            [
                ("", expected.reward_exposed),
                ("lengths", mean(r.times.reward_exposed_s for r in warm)),
                ("reward latency", reward * mean(r.times.reward_exposed_s for r in warm)),
                ("not explained", mean(r.step.reward_exposed_s for r in warm)),
            ],
            _factors({"a reward": reward}),
        ),
        "train": _phase(
            step_s,
            over,
            "train_s",
            [
                ("", expected.train),
                ("share of long rounds", mixed(1, expected.train)),
                ("lengths", mean(r.update_s for r in warm)),
                ("training speed", mean(update_s(r, whole=False) for r in warm)),
                ("overhead of an update", mean(update_s(r, whole=True) for r in warm)),
                ("not explained", mean(r.step.train_s for r in warm)),
            ],
            _factors({"a token": refitted.train.factor if refitted.train else 1.0}),
        ),
        "sync": _phase(
            step_s,
            over,
            "sync_s",
            [
                ("", expected.sync),
                ("share of long rounds", mean(r.sync_s for r in warm)),
                ("weight transfer speed", mean(lines(r, refitted.sync).factor * r.sync_s for r in warm)),
                ("not explained", mean(r.step.sync_s for r in warm)),
            ],
            _factors({str(layout): line.factor for layout, line in refitted.sync.items()}),
        ),
    }  # fmt: skip


def _by_kind(predicted: Predicted) -> dict[str, tuple[float, float]]:
    """(rollout, train) of each kind of round; what a plan does not say of a kind is as in the mean step."""
    rest_s = predicted.phases_s.reward_exposed + predicted.phases_s.sync
    rounds = {"short": predicted.rounds.short, "long": predicted.rounds.long}
    return {
        kind: (part.rollout_s.mean, max(0.0, part.step_s.mean - part.rollout_s.mean - rest_s))
        for kind, part in rounds.items()
        if part is not None
    }


def _phase(step_s: float, over: CycleMeans, key: str, chain: list[tuple[str, float]], factors: str) -> PhaseCauses:
    predicted_s, measured_s = chain[0][1], over.seconds(key)
    chain = [*chain, ("start-up and restarts", over.measured_seconds(key))]
    if over.expected_s(key):
        chain.append(("the plan's long round, which is owed", measured_s))
    seconds_by_cause = {name: value - before for (_, before), (name, value) in itertools.pairwise(chain)}
    off = measured_s - predicted_s
    if abs(off) <= max(NEAR * predicted_s, NEAR_STEP * step_s):
        return PhaseCauses(predicted_s, measured_s, seconds_by_cause, "as predicted")
    cause = max(seconds_by_cause, key=lambda name: seconds_by_cause[name] * math.copysign(1.0, off))
    detail = f" ({factors})" if cause.endswith(("speed", "latency")) else ""
    return PhaseCauses(
        predicted_s,
        measured_s,
        seconds_by_cause,
        f"mostly {cause}: {seconds_by_cause[cause]:+.3g} s of {off:+.3g} s{detail}",
    )


def _factors(factors: dict[str, float]) -> str:
    return ", ".join(f"{name} takes {factor:.2f}x the profile's time" for name, factor in sorted(factors.items()))
