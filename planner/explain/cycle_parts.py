"""A chosen cycle taken apart: its kinds of round with their simulated rounds and their updates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

from ...plans.schema.predicted import PredictedPhases
from ...plans.schema.sections.layouts import EngineLayout
from ..choose.candidate_search import Search
from ..choose.candidates import LongKey, ShortKey
from ..choose.cycle_cost import Cycle
from ..costs.phase_costs import TrainCost
from ..simulate.columns.round_log import RoundLog, mean


class Part(NamedTuple):
    """One kind of round of a cycle: its share of the steps, its rounds, its update, seconds of changing to it."""

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


def parts_of(search: Search, cycle: Cycle) -> list[Part]:
    """The cycle's kinds of round, short first."""
    share, trains = cycle.long_share(), search.space.train
    short = cast(ShortKey, cycle.short.key)
    found = [Part(1.0 - share, short, search.short[short].log, trains[cycle.train], 0.0)]
    if cycle.long is not None:
        long = cast(LongKey, cycle.long.key)
        found.append(Part(share, long, search.long[long].log, trains[cycle.long_train], cycle.switch_s))
    return found


def mean_phases(parts: Sequence[Part]) -> PredictedPhases:
    """Where the mean step goes."""
    return PredictedPhases(
        rollout=sum(part.share * mean(part.log.rollout_s) for part in parts),
        reward_exposed=sum(part.share * mean(part.log.reward_s) for part in parts),
        train=sum(part.share * part.log.train_s(part.train) for part in parts),
        sync=sum(part.share * (part.log.sync_s + part.switch_s) for part in parts),
    )
