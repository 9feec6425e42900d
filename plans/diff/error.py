"""How uncertain the difference of two predictions is.

`predicted.error` of a plan is one relative standard deviation of its seconds: of the profile's costs on what they were
not fitted on, and of the simulation. Two plans e1, e2 with seconds s1, s2 are combined in one of two ways:

- Same profile (same digest) and the same layouts: both are priced by the same coefficients, so a cost that is 5 % off
  is 5 % off in both. The true seconds are s1 (1 + x) and s2 (1 + x) with one x, and their difference has the standard
  deviation max(e1, e2) |s2 - s1|: the error scales the difference and never turns its sign.
- Else nothing is known to be common, and the two errors are taken as independent: hypot(e1 s1, e2 s2).

The error is stated of the mean; p50, p95, single phases, and the speed-up are taken to have the same relative one.
Prices are exact, so USD per sample have the error of the seconds per sample. Lengths and memory have none that is
stated.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ..plan import Plan
from .change import finite


@dataclass(frozen=True)
class Errors:
    """Relative errors of two plans' seconds, and whether they are one and the same."""

    old: float
    new: float
    common: bool

    def sigma(self, old: float, new: float) -> float | None:
        """One standard deviation of `new - old`, two predictions in seconds or in proportion to them."""
        if self.common:
            return finite(max(self.old, self.new) * abs(new - old))
        return finite(math.hypot(self.old * old, self.new * new))

    def words(self) -> str:
        """What stands behind each ±."""
        if not self.old and not self.new:
            return "the plans state no error of their seconds"
        if self.common:
            return (
                f"± is one standard deviation: {percent(max(self.old, self.new))} of the difference, since both plans "
                "are priced by the same profile and layouts, and their errors are common"
            )
        return (
            f"± is one standard deviation: the errors of both plans ({percent(self.old)} and {percent(self.new)} of "
            "their seconds) taken as independent"
        )


def percent(share: float) -> str:
    """A share as a reader wants it: `5%`, `0.04%`."""
    return f"{100 * share:.2g}%" if abs(share) < 0.1 else f"{100 * share:.3g}%"


def errors_of(old: Plan, new: Plan) -> Errors:
    """How the errors of two plans combine."""
    profile = old.inputs.profile.sha256 == new.inputs.profile.sha256
    return Errors(old.predicted.error, new.predicted.error, profile and _layouts(old) == _layouts(new))


def _layouts(plan: Plan) -> tuple[set[str], set[str], Any]:
    """What the profile's entries are chosen by: layouts of engines and of trainers, over all kinds of round."""
    rounds = [kind for kind in (plan.job.rounds.short, plan.job.rounds.long) if kind is not None]
    engines = {f"{kind.rollout.pool} {kind.rollout.engines} {kind.rollout.tp} {kind.rollout.drafts}" for kind in rounds}
    trainers = {f"{kind.train} {kind.hand_over}" for kind in rounds}
    return engines, trainers, plan.job.reward.judge
