"""Columns that are composed of cells (cells.py) of which everything is trained: a round ends with the last of them.

That is so in `sync`, in `predict` and in every long round. Where a round trains some of what its cells take, more is to
be decided (race_cells.py, exact_cells.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from .candidates import LongKey, ShortKey
from .cells import Cell, scaled
from .columns import LongColumn, ShortColumn
from .composed_log import ComposedLog, Picks, compose, deal
from .setting import Setting


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
