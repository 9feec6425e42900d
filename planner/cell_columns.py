"""Columns of large rounds, composed of cells (cells.py): who is trained is decided over all cells of a round together.

- `sync`, `predict` and every long round train all that they take: a round ends with the last of its cells.
- `race` and `defer` train the first P groups to finish, whichever cells they are in: cells run to their ends, and the
  composed round ends when the P-th of all their groups is ready.
- `exact` trains the first P accepted draws of the row. The draws that count are the first so many of the row, of each
  cell its part: a cell ends when its own are classified, a round with the last of its cells. Where all draws of the row
  have too few accepted ones, the round goes on with a refill, which is a smaller round of the same kind on engines that
  are idle again.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .candidates import LongKey, ShortKey
from .cells import Cell, Cost, cell_of, on_engines, scaled
from .columns import LongColumn, ShortColumn, play_column
from .composed_log import ComposedLog, Picks, compose, deal, latest_s, sums_of
from .costs import LayoutKey
from .draws import Numbers, prompt_name
from .play import Luck, Played
from .refills import accepted_share
from .round_log import RoundLog, trained_draws
from .setting import Setting


def short_column(setting: Setting, key: ShortKey) -> ShortColumn:
    """A kind of short round, simulated as its size has it."""
    cell = cell_of(setting, key)
    return ShortColumn(setting, key) if cell.trained <= cell.most and cell.whole else _column_of(setting, key, cell)


def _column_of(setting: Setting, key: ShortKey, cell: Cell) -> ShortColumn:
    if cell.whole or key.mode in ("sync", "predict"):
        return ComposedShort(setting, key, cell)
    return ComposedExact(setting, key, cell) if key.mode == "exact" else ComposedRace(setting, key, cell)


def long_column(setting: Setting, key: LongKey) -> LongColumn:
    """A kind of long round, simulated as its size has it."""
    cell = cell_of(setting, key)
    if cell.trained <= cell.most and cell.whole:
        return LongColumn(setting, key)
    return ComposedLong(setting, key, cell)


class ComposedShort(ShortColumn):
    """Short rounds that end with the last of their cells; or whole ones, of which a few serve for many."""

    def __init__(self, setting: Setting, key: ShortKey, cell: Cell) -> None:
        super().__init__(setting, key)
        self._cell = cell
        self._cells = self._make_cells(*((setting, key) if cell.whole else scaled(setting, key, cell)))
        self._composed = ComposedLog(self.log.sync_s, cells=self._cells.log, parts=cell.parts)
        self.log = self._composed

    def _make_cells(self, setting: Setting, key: ShortKey) -> ShortColumn:
        return ShortColumn(setting, key)

    def extend(self, rounds: int) -> None:
        """Simulate cells until `rounds` rounds can be composed; those that were composed before stay as they are."""
        first = len(self.log)
        if first >= rounds:
            return
        self._cells.extend(self._cell.simulated(rounds))
        self._compose(deal(len(self._cells.log), self._cell.count, first, rounds))
        self.deferred_prompts = self._put_off()

    def _compose(self, picks: Picks) -> None:
        trained = 1 if self._cell.whole else self._cell.count * self._cell.trained / self._setting.target
        compose(self._composed, picks, 1 / trained)

    def _put_off(self) -> list[str]:
        return self._cells.deferred_prompts


class ComposedLong(LongColumn):
    """Long rounds that end with the last of their cells."""

    def __init__(self, setting: Setting, key: LongKey, cell: Cell) -> None:
        super().__init__(setting, key)
        self._cell = cell
        self._cells = LongColumn(*((setting, key) if cell.whole else scaled(setting, key, cell)))
        self._composed = ComposedLog(self.log.sync_s, cells=self._cells.log, parts=cell.parts)
        self.log = self._composed

    def extend(self, rounds: int, pool: Sequence[str]) -> None:
        """As of ShortColumn; `pool`: as of LongColumn."""
        first = len(self.log)
        if first >= rounds:
            return
        self._cells.extend(self._cell.simulated(rounds), pool)
        trained = 1 if self._cell.whole else self._cell.count * self._cell.trained / self._setting.target
        compose(self._composed, deal(len(self._cells.log), self._cell.count, first, rounds), 1 / trained)


# -- race, defer -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Finishers:
    """The groups of a cell that ran to its end, by draw: when each was ready, seconds; its tokens; its prompt."""

    ready_s: NDArray[np.float64]
    tokens: NDArray[np.int64]
    squares: NDArray[np.int64]
    excess: NDArray[np.int64]
    numbers: Numbers
    decode_end_s: float


class RaceCells(ShortColumn):
    """Cells of `race` and `defer` in which every group runs until its samples to train are rewarded.

    The log has them as rounds of their own, which stop when as many groups are ready as a cell trains.
    """

    def __init__(self, setting: Setting, key: ShortKey) -> None:
        super().__init__(setting, key)
        self._setup = dataclasses.replace(self._setup, target=key.prompts)
        self.finishers: list[Finishers] = []

    def _record(self, numbers: Numbers, luck: Luck, played: Played, firsts: Numbers, put_off: int) -> None:
        trained = trained_draws(self._setup, luck, played, firsts)
        found = Finishers(
            played.ready_s[trained.draws],
            trained.tokens,
            trained.squares,
            trained.excess,
            numbers[trained.draws],
            played.times.decode_end_s,
        )
        self.finishers.append(found)
        _add_race(self.log, [found], self._setting.target, self.key, 1.0, played.times.preemptions)


class ComposedRace(ComposedShort):
    """`race` and `defer`: the first P groups of all cells are trained, the others are put off."""

    _cells: RaceCells

    def _make_cells(self, setting: Setting, key: ShortKey) -> ShortColumn:
        return RaceCells(setting, key)

    def _rank(self, groups: int) -> int:
        """Of so many groups how many are trained."""
        return max(1, min(groups, round(groups * self._setting.target / self.key.prompts)))

    def _compose(self, picks: Picks) -> None:
        preemptions = self._cells.log.preemptions / len(self._cells.log) * self._cell.parts
        for chosen in picks:
            some = [self._cells.finishers[cell] for cell in chosen]
            trained = self._rank(sum(len(one.ready_s) for one in some))
            scale = self._setting.target / trained
            _add_race(self._composed, some, trained, self.key, scale, preemptions)

    def _put_off(self) -> list[str]:
        every = self._cells.finishers
        ready = np.concatenate([one.ready_s for one in every])
        last_s = _nth(ready, self._rank(len(ready)))
        return [prompt_name(int(n), 0) for one in every for n in one.numbers[one.ready_s > last_s]]


def _nth(values: NDArray[np.float64], nth: int) -> float:
    return float(np.partition(values, nth - 1)[nth - 1])


def _add_race(
    log: RoundLog, cells: Sequence[Finishers], target: int, key: ShortKey, scale: float, preemptions: float
) -> None:
    """Add the round of these cells that trains the first `target` groups to finish."""
    ready = np.concatenate([one.ready_s for one in cells])
    end_s = _nth(ready, target)
    trained = ready <= end_s

    def total(values: list[NDArray[np.int64]]) -> int:
        return round(scale * float(np.concatenate(values)[trained].sum()))

    # What still decodes when the last group is ready is aborted then.
    rollout_s = min(end_s, max(one.decode_end_s for one in cells))
    log.rollout_s.append(rollout_s)
    log.reward_s.append(end_s - rollout_s)
    log.tokens.append(total([one.tokens for one in cells]))
    log.squares.append(total([one.squares for one in cells]))
    log.excess.append(total([one.excess for one in cells]))
    log.groups.append(round(scale * target))
    log.settled.append(round(scale * target))
    log.deferred.append(round(scale * (len(ready) - target)))
    log.leak.append(0)
    log.issued.append(round(scale * len(ready) * key.samples))
    log.decoded.append(0)
    log.preemptions += round(preemptions)


REFILLS = 8
"""Refills of a row that are simulated at first."""


# -- exact -------------------------------------------------------------------------------------------------------------


class ExactCells(ShortColumn):
    """Cells of `exact`, each with its part of the row, of which the first `counting` draws count.

    Attributes:
        accepted: by cell, how many of all its draws may be trained.
    """

    def __init__(self, setting: Setting, key: ShortKey, counting: int) -> None:
        super().__init__(setting, key)
        self.accepted: list[int] = []
        self._counting = counting

    def _play_one(self) -> tuple[Numbers, Luck, Played]:
        places, luck = self._luck(self.key.prompts)
        accepted = self._accepted(luck)
        self.accepted.append(int(accepted.sum()))
        # The draws that count are classified when the last accepted one among them is. Where all of the row count, no
        # number of accepted draws ends the round before.
        counting = self._counting < len(places)
        target = max(1, int(accepted[: self._counting].sum())) if counting else len(places)
        luck, setup = dataclasses.replace(luck, more=False), dataclasses.replace(self._setup, target=target)
        return places, luck, play_column(self._setting, self.key, setup, luck)

    def _accepted(self, luck: Luck) -> NDArray[np.bool_]:
        size = self._setting.group_size
        accepted: NDArray[np.bool_] = luck.lengths[:, :size].max(axis=1) <= self.key.cutoff
        if self._setting.dynamic_sampling:
            rewards = np.broadcast_to(luck.rewards, luck.lengths.shape)[:, :size]
            accepted = accepted & (rewards != rewards[:, :1]).any(axis=1)
        return accepted


class ComposedExact(ComposedShort):
    """`exact`: the first P accepted draws of the row are trained, the long ones before them put off."""

    _cells: ExactCells

    def __init__(self, setting: Setting, key: ShortKey, cell: Cell) -> None:
        self._share = accepted_share(setting.draws.model, key, setting.group_size, setting.dynamic_sampling)
        super().__init__(setting, key, cell)
        self._refill: ShortColumn | None = None
        self._refills = 0

    def _make_cells(self, setting: Setting, key: ShortKey) -> ShortColumn:
        counting = self._setting.target / self._share / self.key.prompts * key.prompts
        return ExactCells(setting, key, min(key.prompts, round(counting)))

    def _compose(self, picks: Picks) -> None:
        cells, target = self._cells.log, self._setting.target
        rollout, ends = latest_s(cells, picks)
        sums = sums_of(cells, picks)
        issued = self._cell.count * self._cells.key.prompts
        accepted = np.array(self._cells.accepted)[picks].sum(axis=1) * self.key.prompts / issued
        preemptions = cells.preemptions / len(cells) * self._cell.parts
        for place in range(len(picks)):
            trained = min(float(target), round(float(accepted[place])))
            scale = trained / max(1.0, float(sums["groups"][place]))
            mine = {name: scale * float(values[place]) for name, values in sums.items()}
            rollout_s, end_s = float(rollout[place]), float(ends[place])
            if trained < target:
                log, at = self._refilled()
                # Dynamic sampling walks on by rewards, else the row is walked as it is decoded.
                begin_s = end_s if self._setting.dynamic_sampling else rollout_s
                scale = (target - trained) / max(1, log.groups[at])
                mine = {name: value + scale * getattr(log, name)[at] for name, value in mine.items()}
                rollout_s, end_s = (
                    begin_s + log.rollout_s[at],
                    max(end_s, begin_s + log.rollout_s[at] + log.reward_s[at]),
                )
            self._composed.add(rollout_s, end_s, mine, preemptions)

    def _refilled(self) -> tuple[RoundLog, int]:
        """(a log, the place in it of the next refill)."""
        if self._refill is None:
            self._refill = self._make_refill()
        place, self._refills = self._refills, self._refills + 1
        if place >= len(self._refill.log):
            self._refill.extend(max(REFILLS, 2 * place))
        return self._refill.log, place

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
        layout = LayoutKey(key.layout.tp, engines)

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
        return short_column(setting, key._replace(prompts=prompts, layout=layout))
