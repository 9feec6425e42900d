"""The column that simulates a kind of round: by whole rounds, or large rounds by cells."""

from __future__ import annotations

from ...choose.candidates.round_kinds import LongKey, ShortKey
from .cells import Cell, cell_of
from .column_setting import Setting
from .composed_columns import ComposedLong, ComposedShort
from .exact_cells import ComposedExact
from .race_cells import ComposedRace
from .whole_columns import LongColumn, ShortColumn, long_rounds


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
