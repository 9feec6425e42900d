"""Holdout rounds, which no choice was made on: what the predictions of a plan and of its baseline are read from.

The schedule that does best on some rounds owes part of that to the rounds, the more so the more schedules there were
(the winner's curse). So the chosen schedule and the baseline are simulated again, by more rounds than decided between
the last candidates, with draws that no candidate has seen; both on the same. A limit that the chosen one kept by chance
alone shows then: its columns take what the holdout rounds say of that limit, and the program is solved again.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..choose.candidate_search import UNBIASED, Search
from ..choose.cycle_cost import Column, Cycle
from ..lengths.draws import Draws
from ..simulate.columns.round_log import mean
from .scheduled_rounds import scheduled_rounds

_SEED = 1_000_003
"""Added to the solve's seed."""

LONGER = 3
"""Times as many rounds as decided between the last candidates, which need means alone: a plan tells a p95, too, which
lies in the upper half of the long rounds (of 64 it was 503 s, where 300 steps of a run gave 522)."""


@dataclass(frozen=True)
class Holdout:
    """`search` holds the holdout rounds; `cycle` and `baseline` are the chosen schedule and the baseline by them."""

    search: Search
    cycle: Cycle
    baseline: Cycle

    @property
    def keeps_the_limits(self) -> bool:
        """Whether the chosen schedule keeps the SLO, the bound on the mean step and the bias budget on the holdout
        rounds, too."""
        limits = self.search.limits
        if {"slo", "within"} & set(self.cycle.violations(limits)):
            return False
        if math.isinf(limits.bias_budget) or self.cycle.short.deferral.mode in UNBIASED:
            return True
        return abs(1.0 - self.search.measured_ratio(self.cycle)[0]) <= limits.bias_budget + 1e-9

    @property
    def loses_to_plain(self) -> bool:
        """Whether plain rounds that keep the SLO train a sample in less time than the chosen schedule does."""
        limits, (mine, plain) = self.search.limits, self.seconds
        return mine > plain and "slo" not in self.baseline.violations(limits)

    @property
    def seconds(self) -> tuple[float, float]:
        """Seconds of a trained sample of the chosen schedule, and of the baseline."""
        size = self.search.limits.group_size
        return self.cycle.seconds_per_sample(size), self.baseline.seconds_per_sample(size)

    def corrected(self, columns: Sequence[Column]) -> list[Column]:
        """The columns, those of the chosen schedule with what the holdout rounds say of its limits."""
        chosen = {column.name: column for column in (self.cycle.short, self.cycle.long) if column is not None}
        return [
            dataclasses.replace(
                c,
                slow=new.slow,
                excess_tokens=new.excess_tokens,
                excess_error=new.excess_error,
                step_s=c.step_s if self.search.limits.within_s is None else new.step_s,
            )
            if (new := chosen.get(c.name)) is not None
            else c
            for c in columns
        ]


def simulate_holdout(search: Search, cycle: Cycle, baseline: Cycle, rounds: tuple[int, int] | None = None) -> Holdout:
    """The chosen schedule and the baseline, simulated on other draws than those of `search`.

    `rounds`: short and long ones; None: `LONGER` times those that decided between the last candidates.
    """
    draws, last = search.setting.draws, search.passes[-1]
    again = search.anew([cycle, baseline], Draws(draws.model, draws.seed + _SEED, draws.width))
    short, long = rounds or (LONGER * last.short_rounds, LONGER * last.long_rounds)
    return Holdout(again, *(again.simulate(each, short, long) for each in (cycle, baseline)))


def first_epoch_s(holdout: Holdout) -> float | None:
    """Mean seconds of a step of the chosen schedule in the first epoch, when drafts have no earlier responses to come
    from; None if it does not draft. On the holdout's draws."""
    search, cycle = holdout.search, holdout.cycle
    if not any(column.key.draft_tokens for column in (cycle.short, cycle.long) if column is not None):
        return None
    last = search.passes[-1]
    limits, setting = search.limits, search.setting.in_first_epoch()
    again = Search(setting, search.anew([cycle], setting.draws).space, limits, None, search.mode, search.passes)
    early = again.simulate(cycle, last.short_rounds, last.long_rounds)
    return sum(kind.share * mean(kind.step_s()) for kind in scheduled_rounds(again, early))
