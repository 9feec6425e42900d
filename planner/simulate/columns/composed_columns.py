"""Columns that are composed of cells (cells.py) of which everything is trained: a round ends with the last of them.

That is so in `sync`, in `predict` and in every long round. Where a round trains some of what its cells take, more is to
be decided (cell_columns.py).

All rounds of a column are composed anew when it is simulated further, so that each cell weighs the same. Its `first`
rounds are those that it had when it was that long: columns of unlike length are compared on the same draws.

A round waits for the last of its cells, and has the sums of all of them. Which cells a composed round has is drawn
from those that were simulated, as cards are: every cell is in as many rounds as every other one, so means over rounds
are means over cells, and the distribution of a round's seconds is that of the longest of so many cells. Composed rounds
share cells, so they tell less than as many simulated ones would; what the mean of a log is off by knows of that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ...choose.candidates.round_kinds import LongKey, ShortKey
from ...costs.update_costs import TrainCost
from ..streamed_updates import Window
from .cells import Cell, scaled
from .column_setting import Setting
from .round_log import SUMS, RoundLog, standard_error
from .whole_columns import LongColumn, ShortColumn, long_rounds

# -- rounds from cells -------------------------------------------------------------------------------------------------


Picks = NDArray[np.int64]


@dataclass
class ComposedLog(RoundLog):
    """Rounds composed of cells.

    Attributes:
        cells: each as a round of its own.
        cells_per_round: no whole number where the engines do not divide.
        refill_s: of each round the seconds that a refill took, 0 without one.
    """

    cells: RoundLog = field(default_factory=lambda: RoundLog(0.0))
    cells_per_round: float = 1.0
    refill_s: list[float] = field(default_factory=list)

    def step_error(self, train: TrainCost) -> float:
        """Standard error of the mean step, seconds.

        Of composed rounds as many are independent as their cells fill. Where these are few, cells are taken for rounds,
        which scatter more: each with the update of a whole round.
        """
        cells, cells_per_round = self.cells, self.cells_per_round
        if len(cells) >= 2 * cells_per_round:
            refills = self.refill_s or [0.0] * len(self)
            steps = [step - refill for step, refill in zip(self.step_s(train), refills, strict=True)]
            shared = math.sqrt(max(1.0, cells_per_round * len(self) / len(cells)))
        else:
            update = self.update_of(train)
            updates = [
                update.update_s(cells_per_round * t, cells_per_round * q)
                for t, q in zip(cells.tokens, cells.squares, strict=True)
            ]
            steps = [a + b + c for a, b, c in zip(cells.rollout_s, cells.reward_s, updates, strict=True)]
            shared = 1.0
        return math.hypot(shared * standard_error(steps), standard_error(self.refill_s))

    def excess_error(self) -> float:
        """Standard error of the mean excess, tokens."""
        return self.cells_per_round * standard_error(self.cells.excess)

    def leak_error(self) -> float:
        """Standard error of the mean leak, tokens."""
        return self.cells_per_round * standard_error(self.cells.leak)


def deal(cells: int, count: int, rounds: int) -> Picks:
    """Which `count` of so many simulated cells each composed round has; shape (rounds, count).

    The same numbers give the same cells, so that columns are compared on the same draws.
    """
    wanted = rounds * count
    rng = np.random.default_rng([count, cells])
    decks = [rng.permutation(cells) for _ in range(-(-wanted // cells))]
    picks: Picks = np.concatenate(decks)[:wanted].reshape(rounds, count)
    return picks


def sums_of(log: RoundLog, picks: Picks) -> dict[str, NDArray[np.float64]]:
    """Of each composed round, the sums over its cells; shape (rounds,)."""
    return {name: np.array(getattr(log, name), dtype=np.float64)[picks].sum(axis=1) for name in SUMS}


def latest_s(log: RoundLog, picks: Picks) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(last token, last reward) of each composed round; seconds, shape (rounds,)."""
    rollout = np.array(log.rollout_s)
    ends = rollout + np.array(log.reward_s)
    return rollout[picks].max(axis=1), ends[picks].max(axis=1)


def compose(log: ComposedLog, picks: Picks, scale: float) -> None:
    """Add rounds that wait for all their cells; `scale`: of a round's sums over those of its cells."""
    cells = log.cells
    rollout, ends = latest_s(cells, picks)
    sums = sums_of(cells, picks)
    preemptions = cells.preemptions / max(1, len(cells)) * picks.shape[1] * scale
    for place in range(len(picks)):
        log.add(
            float(rollout[place]),
            float(ends[place]),
            {name: scale * float(values[place]) for name, values in sums.items()},
            preemptions,
        )
        if cells.windows:
            log.windows.append(
                _window([cells.windows[k] for k in picks[place]], float(ends[place]), scale, log.cells_per_round)
            )


def _window(windows: Sequence[Window], end_s: float, scale: float, cells_per_round: float) -> Window:
    """The window in which the freed engines of a composed round train.

    The decision to free engines is one of all cells together: it is made if most of them make it, when they do in the
    mean. Groups are bundled, as many in a bundle as a round has cells, which is as fine as a cell's groups are.
    """
    freed = [window.freed_s for window in windows if window.freed_s is not None]
    groups = sorted(group for window in windows for group in window.groups)
    size = len(windows)
    bundles = []
    for start in range(0, len(groups), size):
        bundle = groups[start : start + size]
        tokens, squares = (round(scale * sum(group[k] for group in bundle)) for k in (1, 2))
        bundles.append((bundle[-1][0], tokens, squares))
    return Window(
        freed_s=sum(freed) / len(freed) if 2 * len(freed) > size else None,
        end_s=end_s,
        groups=tuple(bundles),
        staying=round(cells_per_round * windows[0].staying),
    )


class _Composed:
    """Base class of columns of composed short rounds and of composed long rounds."""

    log: RoundLog
    _setting: Setting
    _cell: Cell
    _cells: ShortColumn | LongColumn
    _logs: dict[int, ComposedLog]

    def first(self, rounds: int) -> RoundLog:
        """The log that this column had when it had `rounds` rounds, however far it was simulated since."""
        if rounds not in self._logs:
            cells, each = self._cells.log, self._cell.cells_per_round
            log = ComposedLog(self.log.sync_s, cost=self.log.cost, cells=cells, cells_per_round=each)
            self._compose(log, deal(self._cell.simulated(rounds), self._cell.count, rounds))
            self._logs[rounds] = log
        return self._logs[rounds]

    def _compose(self, log: ComposedLog, picks: Picks) -> None:
        """Add a round to `log` for each row of `picks`, which holds the numbers of its cells."""
        compose(log, picks, self._cell.scale(self._setting.target))


class ComposedShort(_Composed, ShortColumn):
    """Short rounds that end with the last of their cells; or whole ones, of which a few serve for many."""

    _cells: ShortColumn

    def __init__(self, setting: Setting, key: ShortKey, cell: Cell) -> None:
        super().__init__(setting, key)
        self._cell = cell
        self._cells = self._make_cells(*((setting, key) if cell.whole else scaled(setting, key, cell)))
        self._logs = {}

    def _make_cells(self, setting: Setting, key: ShortKey) -> ShortColumn:
        return ShortColumn(setting, key)

    def extend(self, rounds: int) -> None:
        """Simulate cells until `rounds` rounds can be composed, and compose all of them anew."""
        if len(self.log) >= rounds:
            return
        self._cells.extend(self._cell.simulated(rounds))
        self.log = self.first(rounds)
        self.deferred_prompts = self._put_off()

    def _put_off(self) -> list[str]:
        """Names of the prompts that the simulated cells deferred."""
        return self._cells.deferred_prompts


class ComposedLong(_Composed, LongColumn):
    """Long rounds that end with the last of their cells."""

    _cells: LongColumn

    def __init__(self, setting: Setting, key: LongKey, cell: Cell) -> None:
        super().__init__(setting, key)
        self._cell = cell
        self._cells = long_rounds(*((setting, key) if cell.whole else scaled(setting, key, cell)))
        self._logs = {}

    def extend(self, rounds: int, pool: Sequence[str]) -> None:
        """Simulate cells until `rounds` rounds can be composed, and compose all of them anew; `pool`: as of
        LongColumn."""
        if len(self.log) >= rounds:
            return
        self._cells.extend(self._cell.simulated(rounds), pool)
        self.log = self.first(rounds)
