"""Attribution of a run's phases: from the plan's prediction to the observed mean, one cause after the other.

Each cause is what changes when one more thing is taken as the run had it: the share of long rounds, then the lengths
(the run's rounds replayed at the profile's costs), then the speed, then the overhead of a round; what is left is not
explained by the model, and what only the steps after a start or a restart took is told apart. The parts sum to
measured minus predicted. All means are over the cycle (traces/cycle_means.py), as those of `rlplan report`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ...plans.schema.levers import EngineLayout
from ...plans.schema.predicted import Predicted
from ...traces.cycle_means import CycleMeans
from .executed_run import ExecutedRun, Replayed
from .refit import FittedLine, Priced, Refit

# A phase that is off by less than this share of itself, or of the step, is as predicted.
NEAR, NEAR_STEP = 0.05, 0.01
PROFILED = FittedLine(0.0, 1.0, 0.0, 0.0, 0)
"""The line of what the run tells nothing about."""


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
    causes = _Causes(run, replays, priced, refitted)
    return {
        "rollout": causes.rollout(),
        "reward_exposed": causes.reward_exposed(),
        "train": causes.train(),
        "sync": causes.sync(),
    }


class _Causes:
    """The causes of each phase, as means over the warm steps, in which each long round counts with its part of those
    that the run owes."""

    def __init__(self, run: ExecutedRun, replays: Sequence[Replayed], priced: Priced, refitted: Refit) -> None:
        self._predicted, self._over, self._priced, self._refitted = run.plan.predicted, run.over_cycle, priced, refitted
        self._warm = [r for r in replays if r.step.warm] or list(replays)
        weight = self._over.long_weight
        self._weights = [weight if r.step.kind == "long" and r.step.trained_samples else 1.0 for r in self._warm]

    def _mean(self, seconds: Callable[[Replayed], float]) -> float:
        values = map(seconds, self._warm)
        return math.fsum(w * v for w, v in zip(self._weights, values, strict=True)) / math.fsum(self._weights)

    def _phase(self, key: str, chain: list[tuple[str, float]], factors: Mapping[Any, FittedLine]) -> PhaseCauses:
        named = {str(what): line.factor for what, line in factors.items()}
        return _phase(self._predicted.step_s.mean, self._over, key, chain, _factors(named))

    def _line(self, item: Replayed, of: Mapping[EngineLayout, FittedLine]) -> FittedLine:
        return of[self._priced.of(item.step.kind).decode.key]

    def _mixed(self, phase: int, otherwise: float) -> float:
        """What the plan predicts of a phase, with the run's share of long rounds."""
        kinds, share = _by_kind(self._predicted), self._over.long_share
        return (1.0 - share) * kinds["short"][phase] + share * kinds["long"][phase] if "long" in kinds else otherwise

    def rollout(self) -> PhaseCauses:
        """Decoding, at the profile's costs and at those of the run."""
        expected, lines = self._predicted.phases_s.rollout, self._refitted.rollout

        def decoding(item: Replayed, *, overhead: bool) -> float:
            base_s, line = self._priced.of(item.step.kind).decode.round_s, self._line(item, lines)
            return (line.overhead if overhead else base_s) + line.factor * (item.times.decode_end_s - base_s)

        chain = [
            ("", expected),
            ("share of long rounds", self._mixed(0, expected)),
            ("lengths", self._mean(lambda r: r.times.decode_end_s)),
            ("decode speed", self._mean(partial(decoding, overhead=False))),
            ("overhead of a round", self._mean(partial(decoding, overhead=True))),
            ("not explained", self._mean(lambda r: r.step.round_s)),
        ]
        return self._phase("rollout_s", chain, lines)

    def reward_exposed(self) -> PhaseCauses:
        """Rewards that were waited for."""
        line = self._refitted.reward or PROFILED
        chain = [
            ("", self._predicted.phases_s.reward_exposed),
            ("lengths", self._mean(lambda r: r.times.reward_exposed_s)),
            ("reward latency", line.factor * self._mean(lambda r: r.times.reward_exposed_s)),
            ("not explained", self._mean(lambda r: r.step.reward_exposed_s)),
        ]
        return self._phase("reward_exposed_s", chain, {"a reward": line})

    def train(self) -> PhaseCauses:
        """Updates, at the profile's costs and at those of the run."""
        expected = self._predicted.phases_s.train

        def update(item: Replayed, *, overhead: bool) -> float:
            train = self._priced.of(item.step.kind).train
            line = self._refitted.updates.get(train, replace(PROFILED, overhead=train.step_s))
            return (line.overhead if overhead else train.step_s) + line.factor * (item.update_s - train.step_s)

        chain = [
            ("", expected),
            ("share of long rounds", self._mixed(1, expected)),
            ("lengths", self._mean(lambda r: r.update_s)),
            ("training speed", self._mean(partial(update, overhead=False))),
            ("overhead of an update", self._mean(partial(update, overhead=True))),
            ("not explained", self._mean(lambda r: r.step.train_s)),
        ]
        return self._phase("train_s", chain, {"a token": self._refitted.train or PROFILED})

    def sync(self) -> PhaseCauses:
        """Weights on their way to the engines."""
        lines = self._refitted.sync
        chain = [
            ("", self._predicted.phases_s.sync),
            ("share of long rounds", self._mean(lambda r: r.sync_s)),
            ("weight transfer speed", self._mean(lambda r: self._line(r, lines).factor * r.sync_s)),
            ("not explained", self._mean(lambda r: r.step.sync_s)),
        ]
        return self._phase("sync_s", chain, lines)


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
