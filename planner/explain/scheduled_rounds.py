"""A schedule's kinds of round with their simulated rounds and updates, and the seconds of its mean and p95 step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

from ...plans.schema.levers import EngineLayout
from ...plans.schema.predicted import PredictedPhases
from ..choose.candidate_search import Search
from ..choose.candidates.round_kinds import LongKey, ShortKey
from ..choose.cycle_cost import Cycle
from ..costs.update_costs import TrainCost
from ..simulate.columns.round_log import RoundLog, mean
from ..simulate.columns.step_noise import Mixture, spread_of, step_deviations


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
    short = cast(ShortKey, cycle.short.key)
    log = search.short[short].log
    rounds = [ScheduledRounds(1.0 - share, short, log, log.update_of(trains[cycle.train]), 0.0)]
    if cycle.long is not None:
        long = cast(LongKey, cycle.long.key)
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
