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
from typing import Any, NamedTuple

from ...plans.schema.levers import EngineLayout
from ...plans.schema.predicted import PredictedPhases
from ...rounds.round_spec import UNBIASED
from ..costs.update_costs import TrainCost
from ..lengths.draws import Draws
from ..simulate.columns.round_log import RoundLog, mean
from ..simulate.columns.step_noise import Mixture, spread_of, step_deviations
from .candidate_search import Search
from .candidates.round_kinds import LongKey, ShortKey
from .cycle_cost import Column, Cycle

# A schedule's kinds of round with their simulated rounds and updates, and the seconds of its mean and p95 step.


class ScheduledRounds(NamedTuple):
    """One kind of round of a schedule.

    Attributes:
        share: of the steps.
        log: its simulated rounds.
        train: the layout of its update.
        switch_s: seconds of changing engines and shards to it and back.
    """

    share: float
    key: ShortKey | LongKey
    log: RoundLog
    train: TrainCost
    switch_s: float

    @property
    def layout(self) -> EngineLayout:
        """Its engines."""
        return self.key.layout

    def step_s(self) -> list[float]:
        """Seconds of each round's step."""
        return [seconds + self.switch_s for seconds in self.log.step_s(self.train)]


def scheduled_rounds(search: Search, cycle: Cycle) -> list[ScheduledRounds]:
    """The schedule's kinds of round, short first."""
    share, trains = cycle.long_share(), search.space.train
    short = cycle.short.key
    log = search.short[short].log
    rounds = [ScheduledRounds(1.0 - share, short, log, log.update_of(trains[cycle.train]), 0.0)]
    if cycle.long is not None:
        long = cycle.long.key
        log = search.long[long].log
        rounds.append(ScheduledRounds(share, long, log, log.update_of(trains[cycle.long_train]), cycle.switch_s))
    return rounds


def mean_phases(rounds: Sequence[ScheduledRounds]) -> PredictedPhases:
    """Seconds of the mean step by phase."""
    return PredictedPhases(
        rollout=sum(kind.share * mean(kind.log.rollout_s) for kind in rounds),
        reward_exposed=sum(kind.share * mean(kind.log.reward_s) for kind in rounds),
        train=sum(kind.share * kind.log.train_s(kind.train) for kind in rounds),
        sync=sum(kind.share * (kind.log.sync_of(kind.train) + kind.switch_s) for kind in rounds),
    )


def step_mixture(search: Search, rounds: Sequence[ScheduledRounds]) -> Mixture:
    """Whole steps of kinds of round: for each its share, its simulated steps' seconds, and their scatter."""
    noise = search.setting.noise
    return [
        (
            kind.share,
            kind.step_s(),
            step_deviations(kind.log, kind.train, noise(kind.layout, kind.train), kind.switch_s),
        )
        for kind in rounds
    ]


# Schedules whose steps are looked at one by one when no limit can be kept: those with the fewest slow steps.
_CALMEST = 200


def least_p95(search: Search, cycles: Sequence[Cycle]) -> float:
    """The lowest p95 of a step, seconds, among the simulated schedules with the fewest slow steps."""
    calmest = sorted(cycles, key=lambda c: (c.slow_share(), c.cost(search.limits), c.name))[:_CALMEST]
    return min(step_p95(search, cycle) for cycle in calmest)


def step_p95(search: Search, cycle: Cycle) -> float:
    """p95 of a step of a simulated schedule, seconds."""
    return spread_of(step_mixture(search, scheduled_rounds(search, cycle))).p95


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

    def corrected(self, columns: Sequence[Column[Any]]) -> list[Column[Any]]:
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
