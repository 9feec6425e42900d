"""Columns that are composed of cells (cells.py) of which everything is trained: a round ends with the last of them.

That is so in `sync`, in `predict` and in every long round. Where a round trains some of what its cells take, more is to
be decided (race_cells.py, exact_cells.py).

All rounds of a column are composed anew when it is simulated further, so that each cell weighs the same. Its `first`
rounds are those that it had when it was that long: columns of unlike length are compared on the same draws.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...choose.candidates.round_kinds import LongKey, ShortKey
from .cells import Cell, scaled
from .column_setting import Setting
from .composed_log import ComposedLog, Picks, compose, deal
from .round_log import RoundLog
from .whole_columns import LongColumn, ShortColumn, long_rounds


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
