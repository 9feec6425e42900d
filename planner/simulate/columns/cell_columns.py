"""Which column simulates a kind of round: whole rounds, or, where they are large, rounds composed of cells."""

from __future__ import annotations

from ...choose.candidates.round_kinds import LongKey, ShortKey
from .cells import Cell, cell_of
from .column_setting import Setting
from .composed_columns import ComposedLong, ComposedShort
from .exact_cells import ComposedExact
from .race_cells import ComposedRace
from .whole_columns import LongColumn, ShortColumn


def short_column(setting: Setting, key: ShortKey) -> ShortColumn:
    """A kind of short round, simulated as its size has it."""
    cell = cell_of(setting, key)
    return ShortColumn(setting, key) if cell.trained <= cell.most and cell.whole else _column_of(setting, key, cell)


def _column_of(setting: Setting, key: ShortKey, cell: Cell) -> ShortColumn:
    if cell.whole or key.mode in ("sync", "predict"):
        return ComposedShort(setting, key, cell)
    if key.mode == "exact":
        return ComposedExact(setting, key, cell, short_column)
    return ComposedRace(setting, key, cell)


def long_column(setting: Setting, key: LongKey) -> LongColumn:
    """A kind of long round, simulated as its size has it."""
    cell = cell_of(setting, key)
    if cell.trained <= cell.most and cell.whole:
        return LongColumn(setting, key)
    return ComposedLong(setting, key, cell)
