"""The uncertainty of the difference of two predictions.

A plan states relative standard deviations of its mean seconds (`predicted.error`), and for each independent source of
error how far one deviation of it moves the logarithm of the seconds (`parts`, `prompts`). Two plans of one profile are
priced by the same costs, whatever these are off by; two plans of one length trace wait for the same responses. So the
error of their difference is paired. With seconds s1, s2 and a source that moves their logarithms by a and b,

    sd(s2 - s1)^2 = sum over sources of (b s2 - a s1)^2        sd(ln(s2 / s1))^2 = sum over sources of (b - a)^2

- Costs and what is assumed: the sources are `parts`; a source that only one of the plans has moves only that one.
- Prompts in place of the trace's: both plans were simulated with the same sets of prompts, on two independent sets of
  draws. The mean product of the two differences over the sets is the variance that prompts cause. Where a plan states a
  larger error of its lengths than these sets show (of a trace of few prompts), the paired one is larger by as much.
- Sampling: two simulations are independent, unless decisions and predicted steps are the same.

Errors of different profiles, or of different lengths, do not cancel: they combine by hypot, as do those of older plans
that state no parts; of these, plans with the same layouts (costs) and the same mode (lengths) have one error in common.

A difference is certain from CERTAIN deviations on (change.py). Prices are exact, so USD per sample have the error of
the seconds per sample. A plan states no error for percentiles, single phases, lengths, memory and the plain synchronous
plan (so for the speed-up over it); these differences are shown without an error.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ..phrases.numbers import percent
from ..schema.plan import Plan
from ..schema.predicted import PredictedError
from .change import CERTAIN, finite, same

Pairing = Literal["paired", "common", "independent"]
"""Errors of two plans of the same inputs by source; the same, as a whole (older plans); of other inputs."""


@dataclass(frozen=True)
class Errors:
    """Relative errors of two plans' mean seconds, and which of these errors both plans have in common.

    Attributes:
        old, new: as the plans state them.
        costs: how the errors of costs belong together.
        lengths: how those of lengths do.
        one_simulation: whether decisions and predicted steps are the same.
        reason: why errors that could be paired are not; "" if there is nothing to say.
    """

    old: PredictedError
    new: PredictedError
    costs: Pairing
    lengths: Pairing
    one_simulation: bool
    reason: str = ""

    def sigma(self, old: float, new: float) -> float | None:
        """One standard deviation of `new - old`, two means in seconds or in proportion to them."""
        return finite(math.hypot(*self._deviations(old, new)))

    def ratio_sigma(self, old: float, new: float) -> float | None:
        """One standard deviation of `new / old`; None if `old` is 0."""
        return finite(new / old * math.hypot(*self._deviations(1.0, 1.0))) if old else None

    def sentence(self) -> str:
        """The sentence that explains each ±."""
        deviations = self._deviations(1.0, 1.0)
        of = [
            f"{name} {percent(deviation)}"
            for name, deviation in zip(("costs", "lengths", "simulation"), deviations, strict=True)
            if deviation
        ]
        text = f"± is one standard deviation of the difference ({', '.join(of)}), which is certain from {CERTAIN:g} on"
        shared = [name for name in ("costs", "lengths") if getattr(self, name) != "independent"]
        if shared:
            text += f"; the plans rest on the same {' and '.join(shared)}, and the errors that they share cancel"
        return text + (f"; {self.reason}" if self.reason else "")

    def as_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return {
            **{side: error.model_dump(exclude={"prompts"}) for side, error in (("old", self.old), ("new", self.new))},
            "costs": self.costs,
            "lengths": self.lengths,
            "one_simulation": self.one_simulation,
            "reason": self.reason or None,
        }

    def _deviations(self, old: float, new: float) -> tuple[float, float, float]:
        """Standard deviations of `new - old` by costs, by lengths and by simulation; with 1 and 1, of their logarithms'
        difference."""
        costs = _combined(self.costs, self.old.of_costs, self.new.of_costs, old, new)
        lengths = _combined(self.lengths, self.old.of_lengths, self.new.of_lengths, old, new)
        if self.costs == "paired":
            costs = self._of_parts(old, new, of_lengths=False)
        if self.lengths == "paired":
            lengths = math.hypot(self._of_parts(old, new, of_lengths=True), self._of_prompts(old, new))
        alike: Pairing = "common" if self.one_simulation else "independent"
        return costs, lengths, _combined(alike, self.old.sampling, self.new.sampling, old, new)

    def _of_parts(self, old: float, new: float, of_lengths: bool) -> float:
        a, b = self.old.parts, self.new.parts
        sources = {source for source in (*a, *b) if source.startswith("lengths-") == of_lengths}
        return math.hypot(*(b.get(source, 0.0) * new - a.get(source, 0.0) * old for source in sorted(sources)))

    def _of_prompts(self, old: float, new: float) -> float:
        pairs = zip(self.old.prompts, self.new.prompts, strict=True)
        moved = [[b * new - a * old for a, b in zip(*columns, strict=True)] for columns in pairs]
        stated = [(each.lengths, _shared(each.prompts)) for each in (self.old, self.new)]
        return _shared(moved) * max([1.0, *(lengths / seen for lengths, seen in stated if seen > 0)])


def _shared(columns: Sequence[Sequence[float]]) -> float:
    """Deviation from 0 that two columns have in common (root of a mean square); 0 where chance alone makes them
    differ."""
    return math.sqrt(max(0.0, statistics.fmean(math.prod(pair) for pair in zip(*columns, strict=True))))


def _combined(pairing: Pairing, a: float, b: float, old: float, new: float) -> float:
    return max(a, b) * abs(new - old) if pairing == "common" else math.hypot(a * old, b * new)


def errors_of(old: Plan, new: Plan) -> Errors:
    """The errors of two plans, and which of them are common."""
    costs, lengths = same_costs(old, new), same_lengths(old, new)
    a, b = old.predicted.error, new.predicted.error
    by_source = bool(a.parts and b.parts)
    by_prompts = all(len(each.prompts) == 2 for each in (a, b)) and len({len(c) for c in a.prompts + b.prompts}) == 1
    alike = _layouts(old) == _layouts(new), old.job.bias.mode == new.job.bias.mode
    pairings: list[Pairing] = [
        "independent" if not shared else "paired" if stated else "common" if whole else "independent"
        for shared, stated, whole in ((costs, by_source, alike[0]), (lengths, by_source and by_prompts, alike[1]))
    ]
    other = [name for name, shared in (("profiles", costs), ("lengths", lengths)) if not shared]
    reasons = [f"their {' and '.join(other)} differ, so these errors do not cancel"] if other else []
    if (costs and not by_source) or (lengths and not (by_source and by_prompts)):
        reasons.append("a plan of an older rlplan states no errors by source, so few cancel; solve or refresh it again")
    one_simulation = costs and lengths and same(_simulated(old), _simulated(new))
    return Errors(a, b, pairings[0], pairings[1], one_simulation, "; ".join(reasons))


def errors_at_once(old: PredictedError, new: PredictedError) -> Errors:
    """The errors of two plans' decisions that were simulated at once, with the same inputs and draws: `old.sampling` is
    that of the ratio."""
    paired: Pairing = "paired" if len(old.prompts) == len(new.prompts) == 2 and new.parts else "common"
    return Errors(old, new.model_copy(update={"sampling": 0.0}), paired, paired, False)


def same_costs(old: Plan, new: Plan) -> bool:
    """Whether two plans are priced by one profile and one table of reward seconds."""
    a, b = old.inputs, new.inputs
    read = [each.solver_read.profile if each.solver_read is not None else None for each in (a, b)]
    same_profile = a.profile.sha256 == b.profile.sha256 or (read[0] is not None and read[0] == read[1])
    return same_profile and a.rewards == b.rewards


def same_lengths(old: Plan, new: Plan) -> bool:
    """Whether two plans were simulated with the lengths of one trace."""
    return old.inputs.lengths.sha256 == new.inputs.lengths.sha256


def same_basis(old: Plan, new: Plan) -> bool:
    """Whether two plans' predictions rest on the same costs and lengths; a job or a cluster that differs is what a plan
    is asked for, and no other estimate of the same thing."""
    return same_costs(old, new) and same_lengths(old, new)


def _layouts(plan: Plan) -> tuple[set[str], set[str], Any]:
    """The layouts that select entries of the profile: engines, trainers and judge, over all kinds of round."""
    rounds = [kind for _, kind in plan.job.rounds.kinds]
    engines = {f"{kind.rollout.pool} {kind.rollout.engines} {kind.rollout.tp} {kind.rollout.drafts}" for kind in rounds}
    trainers = {f"{kind.train} {kind.hand_over}" for kind in rounds}
    return engines, trainers, plan.job.reward.judge


def _simulated(plan: Plan) -> dict[str, Any]:
    """The decisions, and the predicted steps of their simulation."""
    steps = plan.predicted.model_dump(mode="json", include={"step_s", "seconds_per_sample", "phases_s", "rounds"})
    return {**steps, "job": plan.job.model_dump(mode="json", exclude={"why"})}
