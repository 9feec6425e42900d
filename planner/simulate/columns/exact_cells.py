"""Short rounds of `exact` by cells: the first P accepted draws of the row are trained.

The draws that count are the first so many of the row, of each cell its part: a cell ends when its own are classified, a
round with the last of its cells. Where all draws of the row have too few accepted ones, the round goes on with a
refill, which is a smaller round of the same kind on engines that are idle again.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ....plans.schema.levers import EngineLayout
from ...choose.candidates.prompt_supply import accepted_share
from ...choose.candidates.round_kinds import ShortKey
from ...lengths.draws import Numbers
from ..round_arrays import RoundDraws, SimulatedRound
from .cells import Cell, Cost, on_engines
from .column_setting import Setting
from .composed_columns import ComposedShort
from .composed_log import ComposedLog, Picks, latest_s, sums_of
from .round_log import RoundLog
from .whole_columns import ShortColumn, simulate_column_round

ColumnOf = Callable[[Setting, ShortKey], ShortColumn]

REFILLS = 8
"""Refills of a row that are simulated at first."""


class ExactCells(ShortColumn):
    """Cells of `exact`, each with its part of the row, of which the first `counting` draws count.

    Attributes:
        accepted: by cell, how many of all its draws may be trained.
    """

    def __init__(self, setting: Setting, key: ShortKey, counting: int) -> None:
        super().__init__(setting, key)
        self.accepted: list[int] = []
        self._counting = counting

    def _simulate_next(self) -> tuple[Numbers, RoundDraws, SimulatedRound]:
        places, round_draws = self._draw_round(self.key.prompts)
        accepted = self._accepted(round_draws)
        self.accepted.append(int(accepted.sum()))
        # The draws that count are classified when the last accepted one among them is. Where all of the row count, no
        # number of accepted draws ends the round before.
        counting = self._counting < len(places)
        target = max(1, int(accepted[: self._counting].sum())) if counting else len(places)
        round_draws, round_kind = (
            dataclasses.replace(round_draws, more=False),
            dataclasses.replace(self._round_kind, target=target),
        )
        return places, round_draws, simulate_column_round(self._setting, self.key, round_kind, round_draws)

    def _accepted(self, round_draws: RoundDraws) -> NDArray[np.bool_]:
        size = self._setting.group_size
        assert self.key.cutoff_tokens is not None, "mode exact has one"
        accepted: NDArray[np.bool_] = round_draws.lengths[:, :size].max(axis=1) <= self.key.cutoff_tokens
        if self._setting.dynamic_sampling:
            rewards = np.broadcast_to(round_draws.rewards, round_draws.lengths.shape)[:, :size]
            accepted = accepted & (rewards != rewards[:, :1]).any(axis=1)
        return accepted


class ComposedExact(ComposedShort):
    """`exact`: the first P accepted draws of the row are trained, the long ones before them put off.

    `column_of`: makes the column of a refill.
    """

    _cells: ExactCells

    def __init__(self, setting: Setting, key: ShortKey, cell: Cell, column_of: ColumnOf) -> None:
        self._column_of = column_of
        self._share = accepted_share(
            setting.draws.model, key.cutoff_tokens, setting.group_size, setting.dynamic_sampling
        )
        super().__init__(setting, key, cell)
        self._refill: ShortColumn | None = None

    def _make_cells(self, setting: Setting, key: ShortKey) -> ShortColumn:
        counting = self._setting.target / self._share / self.key.prompts * key.prompts
        return ExactCells(setting, key, min(key.prompts, round(counting)))

    def _compose(self, log: ComposedLog, picks: Picks) -> None:
        cells, target = self._cells.log, self._setting.target
        rollout, ends = latest_s(cells, picks)
        sums = sums_of(cells, picks)
        issued = self._cell.count * self._cells.key.prompts
        accepted = np.array(self._cells.accepted)[picks].sum(axis=1) * self.key.prompts / issued
        preemptions = cells.preemptions / len(cells) * self._cell.cells_per_round
        refills = 0
        for place in range(len(picks)):
            trained = min(float(target), round(float(accepted[place])))
            scale = trained / max(1.0, float(sums["groups"][place]))
            mine = {name: scale * float(values[place]) for name, values in sums.items()}
            rollout_s, end_s, refill_s = float(rollout[place]), float(ends[place]), 0.0
            if trained < target:
                refill, index = self._refilled(refills), refills
                refills += 1
                # Dynamic sampling walks on by rewards, else the row is walked as it is decoded.
                begin_s = end_s if self._setting.dynamic_sampling else rollout_s
                scale = (target - trained) / max(1, refill.groups[index])
                mine = {name: value + scale * getattr(refill, name)[index] for name, value in mine.items()}
                rollout_s = begin_s + refill.rollout_s[index]
                end_s = max(end_s, rollout_s + refill.reward_s[index])
                refill_s = refill.rollout_s[index] + refill.reward_s[index]
            log.refill_s.append(refill_s)
            log.add(rollout_s, end_s, mine, preemptions)

    def _refilled(self, place: int) -> RoundLog:
        """Refills, of which there are more than `place`; the same ones whatever else was simulated."""
        if self._refill is None:
            self._refill = self._make_refill()
        rounds = REFILLS
        while rounds <= place:
            rounds *= 2
        self._refill.extend(rounds)
        return self._refill.first(rounds)

    def _make_refill(self) -> ShortColumn:
        """Rounds that train what a row has too few accepted draws for: as many as it lacks in the mean, or, where rows
        seldom lack any, by as many as their number scatters."""
        key, target = self.key, self._setting.target
        missing = max(
            target - self._share * key.prompts, math.sqrt(key.prompts * self._share * (1 - self._share)) / 2, 1
        )
        missing = min(math.ceil(missing), target - 1)
        prompts = math.ceil(missing * max(1.0, key.prompts / target))
        engines = min(key.layout.engines, prompts * key.samples)
        layout = EngineLayout(key.layout.tp, engines)

        def idle(cost: Cost) -> Cost:
            return dataclasses.replace(on_engines(cost, engines), round_s=0)

        setting = dataclasses.replace(
            self._setting,
            target=missing,
            decode={layout: idle(self._setting.decode[key.layout])},
            drafted={
                (layout, tokens): idle(cost) for (of, tokens), cost in self._setting.drafted.items() if of == key.layout
            },
        )
        return self._column_of(setting, key._replace(prompts=prompts, layout=layout))
