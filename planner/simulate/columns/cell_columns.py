"""The column that simulates a kind of round: by whole rounds, or large rounds by cells.

`race`, `defer`: the first P groups to finish are trained, whichever cells they are in. Cells run to their ends, and the
composed round ends when the P-th of all their groups is ready. Until then nothing of a cell depends on the others.

Short rounds of `exact`: the draws that count are the first so many of the row, of each cell its part. A cell ends when
its own are classified, a round with the last of its cells. Where all draws of the row have too few accepted ones, the
round goes on with a refill, which is a smaller round of the same kind on engines that are idle again.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ....plans.schema.levers import EngineLayout
from ...choose.candidates.candidate_rounds import accepted_share
from ...choose.candidates.round_kinds import LongKey, ShortKey
from ...lengths.draws import Numbers, prompt_name
from ..round_arrays import RoundDraws, SimulatedRound
from .cells import Cell, cell_of, with_engines
from .column_setting import Setting
from .composed_columns import ComposedLog, ComposedLong, ComposedShort, Picks, latest_s, sums_of
from .round_log import RoundLog, trained_draws
from .whole_columns import LongColumn, ShortColumn, long_rounds, simulate_column_round

# -- race, defer -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Finishers:
    """The groups of a cell that ran to its end, by draw: when each was ready, seconds; its tokens; its samples that
    reached the cap; its prompt."""

    ready_s: NDArray[np.float64]
    tokens: NDArray[np.int64]
    squares: NDArray[np.int64]
    excess: NDArray[np.int64]
    cut: NDArray[np.int64]
    numbers: Numbers
    decode_end_s: float


class RaceCells(ShortColumn):
    """Cells of `race` and `defer` in which every group runs until its samples to train are rewarded.

    The log has them as rounds of their own, which stop when as many groups are ready as a cell trains.
    """

    def __init__(self, setting: Setting, key: ShortKey) -> None:
        super().__init__(setting, key)
        self._round_kind = dataclasses.replace(self._round_kind, target=key.prompts)
        self.finishers: list[Finishers] = []

    def _record(
        self, numbers: Numbers, round_draws: RoundDraws, simulated: SimulatedRound, firsts: Numbers, put_off: int
    ) -> None:
        trained = trained_draws(self._round_kind, round_draws, simulated, firsts)
        record = Finishers(
            simulated.ready_s[trained.draws],
            trained.tokens,
            trained.squares,
            trained.excess,
            trained.cut,
            numbers[trained.draws],
            simulated.times.decode_end_s,
        )
        self.finishers.append(record)
        _add_race(self.log, [record], self._setting.target, self.key, 1.0, simulated.times.preemptions)


class ComposedRace(ComposedShort):
    """`race` and `defer`: the first P groups of all cells are trained, the others are put off."""

    _cells: RaceCells

    def _make_cells(self, setting: Setting, key: ShortKey) -> ShortColumn:
        return RaceCells(setting, key)

    def _rank(self, groups: int) -> int:
        """How many of `groups` groups are trained."""
        return max(1, min(groups, round(groups * self._setting.target / self.key.prompts)))

    def _compose(self, log: ComposedLog, picks: Picks) -> None:
        preemptions = self._cells.log.preemptions / len(self._cells.log) * self._cell.cells_per_round
        for chosen in picks:
            members = [self._cells.finishers[cell] for cell in chosen]
            trained = self._rank(sum(len(member.ready_s) for member in members))
            scale = self._setting.target / trained
            _add_race(log, members, trained, self.key, scale, preemptions)

    def _put_off(self) -> list[str]:
        every = self._cells.finishers
        ready = np.concatenate([member.ready_s for member in every])
        last_s = _nth(ready, self._rank(len(ready)))
        return [prompt_name(int(n), 0) for member in every for n in member.numbers[member.ready_s > last_s]]


def _nth(values: NDArray[np.float64], nth: int) -> float:
    return float(np.partition(values, nth - 1)[nth - 1])


def _add_race(
    log: RoundLog, cells: Sequence[Finishers], target: int, key: ShortKey, scale: float, preemptions: float
) -> None:
    """Add the round of these cells that trains the first `target` groups to finish."""
    ready = np.concatenate([finishers.ready_s for finishers in cells])
    end_s = _nth(ready, target)
    trained = ready <= end_s

    def total(values: list[NDArray[np.int64]]) -> float:
        return scale * float(np.concatenate(values)[trained].sum())

    # Samples that still decode when the last group is ready are aborted then.
    rollout_s = min(end_s, max(finishers.decode_end_s for finishers in cells))
    # Where each sample was stopped is known of the cells' own ends only, and with it what was decoded in vain.
    sums = {"groups": scale * target, "settled": scale * target, "deferred": scale * (len(ready) - target)}
    sums |= {"leak": 0, "issued": scale * len(ready) * key.samples, "decoded": 0, "kept": 0}
    sums |= {name: total([getattr(each, name) for each in cells]) for name in ("tokens", "squares", "excess", "cut")}
    log.add(rollout_s, end_s, sums, preemptions)


# -- exact -------------------------------------------------------------------------------------------------------------


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
        setting = with_engines(dataclasses.replace(self._setting, target=missing), key.layout, engines, round_s=0)
        return self._column_of(setting, key._replace(prompts=prompts, layout=layout))


def short_column(setting: Setting, key: ShortKey) -> ShortColumn:
    """The column of a kind of short round, by cells if the rounds are large."""
    cell = cell_of(setting, key)
    return ShortColumn(setting, key) if cell.trained <= cell.most and cell.whole else _column_of(setting, key, cell)


def _column_of(setting: Setting, key: ShortKey, cell: Cell) -> ShortColumn:
    if cell.whole or key.mode in ("sync", "predict"):
        return ComposedShort(setting, key, cell)
    if key.mode == "exact":
        return ComposedExact(setting, key, cell, short_column)
    return ComposedRace(setting, key, cell)


def long_column(setting: Setting, key: LongKey) -> LongColumn:
    """The column of a kind of long round, by cells if the rounds are large."""
    cell = cell_of(setting, key)
    if cell.trained <= cell.most and cell.whole:
        return long_rounds(setting, key)
    return ComposedLong(setting, key, cell)
