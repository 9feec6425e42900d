"""The uncertainty of the difference of two predictions.

A plan states relative standard deviations of its mean seconds: c of the profile's costs, l of the length trace, and m
of the simulation (`predicted.error`). The error of assumed reward times is in c, the error of assumed lengths in l.
With the seconds s1, s2 of two plans, d = s2 - s1 and r = s2 / s1, by the delta method:

- Costs, same profile (by digest) and same layouts: both plans have the same error x, the true seconds are s1 (1 + x)
  and s2 (1 + x). The ratio is certain and the difference scales: sd(d) = c |d| with c = max(c1, c2), sd(r) = 0.
- Costs, otherwise: the errors are taken as independent: sd(d) = hypot(c1 s1, c2 s2), sd(r) = r hypot(c1, c2).
- Lengths, same length trace (by digest) and same mode: both plans have the same error, as with costs, since all rounds
  of a mode wait for the same long responses: sd(d) = l |d| with l = max(l1, l2), sd(r) = 0. (The error comes from the
  choice of the trace's prompts, and from responses longer than any in the trace.)
- Lengths, otherwise: the errors are taken as independent.
- Sampling: two simulations are independent: sd(d) = hypot(m1 s1, m2 s2), sd(r) = r hypot(m1, m2). If decisions and
  predicted steps are the same, it is one simulation with one error: sd(d) = max(m1, m2) |d|, sd(r) = 0.

Costs, lengths and sampling are independent of each other and combine by hypot. A difference is within the error if
|r - 1| is less than sd(r). Prices are exact, so USD per sample have the error of the seconds per sample.

The errors are of the mean. A plan states no error for percentiles, single phases, lengths, memory and the plain
synchronous plan (so for the speed-up over it); these differences are shown without an error.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ..phrases.numbers import percent
from ..schema.plan import Plan
from ..schema.predicted import PredictedError
from .change import finite, same


@dataclass(frozen=True)
class Errors:
    """Relative errors of two plans' mean seconds, and which of these errors both plans have in common.

    Attributes:
        old, new: as the plans state them.
        common_costs: whether both use one profile with the same layouts.
        one_simulation: whether decisions and predicted steps are the same.
        common_lengths: whether both use the lengths of one trace, in one mode.
    """

    old: PredictedError
    new: PredictedError
    common_costs: bool
    one_simulation: bool
    common_lengths: bool = False

    def sigma(self, old: float, new: float) -> float | None:
        """One standard deviation of `new - old`, two means in seconds or in proportion to them."""
        deviations = (
            max(a, b) * abs(new - old) if common else math.hypot(a * old, b * new) for a, b, common in self._sources()
        )
        return finite(math.hypot(*deviations))

    def ratio_sigma(self, old: float, new: float) -> float | None:
        """One standard deviation of `new / old`; None if `old` is 0."""
        if not old:
            return None
        return finite(
            new / old * math.hypot(*(0.0 if common else math.hypot(a, b) for a, b, common in self._sources()))
        )

    def sentence(self) -> str:
        """The sentence that explains each ±."""
        costs, lengths, sampling = (
            " and ".join(dict.fromkeys(map(percent, (old, new)))) for old, new, _ in self._sources()
        )
        sources = [(f"the profile's costs ({costs})", self.common_costs)]
        if self.old.of_lengths or self.new.of_lengths:
            sources.append((f"the lengths ({lengths})", self.common_lengths))
        own = [text for text, shared in sources if not shared] + [f"the simulations ({sampling})"]
        common = [text for text, shared in sources if shared]
        explanation = f"± is one standard deviation, of {' and of '.join(own)}"
        explanation += ", taken as independent" if len(own) > 1 else ""
        if common:
            explanation += (
                f"; the error of {' and of '.join(common)} is common to both plans and leaves percentages as they are"
            )
        return explanation

    def as_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return {
            "old": self.old.model_dump(), "new": self.new.model_dump(), "common_costs": self.common_costs,
            "common_lengths": self.common_lengths, "one_simulation": self.one_simulation,
        }  # fmt: skip

    def _sources(self) -> tuple[tuple[float, float, bool], ...]:
        return (
            (self.old.of_costs, self.new.of_costs, self.common_costs),
            (self.old.of_lengths, self.new.of_lengths, self.common_lengths),
            (self.old.sampling, self.new.sampling, self.one_simulation),
        )


def errors_of(old: Plan, new: Plan) -> Errors:
    """The errors of two plans, and which of them are common."""
    profile = old.inputs.profile.sha256 == new.inputs.profile.sha256 and old.inputs.rewards == new.inputs.rewards
    common_costs = profile and _layouts(old) == _layouts(new)
    lengths = old.inputs.lengths.sha256 == new.inputs.lengths.sha256 and old.job.bias.mode == new.job.bias.mode
    one_simulation = common_costs and lengths and same(_simulated(old), _simulated(new))
    return Errors(old.predicted.error, new.predicted.error, common_costs, one_simulation, lengths)


def _layouts(plan: Plan) -> tuple[set[str], set[str], Any]:
    """The layouts that select entries of the profile: engines, trainers and judge, over all kinds of round."""
    rounds = [kind for kind in (plan.job.rounds.short, plan.job.rounds.long) if kind is not None]
    engines = {f"{kind.rollout.pool} {kind.rollout.engines} {kind.rollout.tp} {kind.rollout.drafts}" for kind in rounds}
    trainers = {f"{kind.train} {kind.hand_over}" for kind in rounds}
    return engines, trainers, plan.job.reward.judge


def _simulated(plan: Plan) -> dict[str, Any]:
    """The decisions, and the predicted steps of their simulation."""
    steps = plan.predicted.model_dump(mode="json", include={"step_s", "seconds_per_sample", "phases_s", "rounds"})
    return {**steps, "job": plan.job.model_dump(mode="json", exclude={"why"})}
