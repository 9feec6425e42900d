"""The samples of one step as columns: a run of 1,000 steps has millions of samples, which as objects fill a host.

A column of numbers is an array of the smallest type that holds all of its values exactly; one of texts, or one that
lacks values, has each different value once and an array of their places; of a constant column one value is kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from .trace_events import LONGEST_S, RewardPart, Sample

Array = NDArray[Any]
T = TypeVar("T", bound=Struct)


class _Coded:
    """A column of values that are not all numbers."""

    def __init__(self, values: Sequence[Any]) -> None:
        places: dict[Any, int] = {}
        codes = [places.setdefault(value, len(places)) for value in values]
        self.values: tuple[Any, ...] = tuple(places)
        self.codes = _smallest(np.array(codes, dtype=np.int64))

    def tolist(self) -> list[Any]:
        return [self.values[code] for code in self.codes.tolist()]


class _Parts:
    """A column of rewards by part: a table for each part, with the rows that have it."""

    def __init__(self, values: Sequence[dict[str, RewardPart]]) -> None:
        self._size = len(values)
        self.tables: dict[str, tuple[Array, Columns[RewardPart]]] = {}
        for name in dict.fromkeys(name for parts in values for name in parts):
            rows = [row for row, parts in enumerate(values) if name in parts]
            self.tables[name] = (_smallest(np.array(rows)), Columns(RewardPart, [values[row][name] for row in rows]))

    def tolist(self) -> list[dict[str, RewardPart]]:
        found: list[dict[str, RewardPart]] = [{} for _ in range(self._size)]
        for name, (rows, parts) in self.tables.items():
            for row, part in zip(rows.tolist(), parts, strict=True):
                found[row][name] = part
        return found


class Columns(Generic[T]):
    """Rows of one type by column. Iterating makes the rows anew, one by one."""

    def __init__(self, kind: type[T], rows: Sequence[T]) -> None:
        self._kind, self._size = kind, len(rows)
        self._columns = {name: _column([getattr(row, name) for row in rows]) for name in kind.__struct_fields__}

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[T]:
        columns = [column.tolist() for column in self._columns.values()]
        return (self._kind(*values) for values in zip(*columns, strict=True))

    def __getitem__(self, name: str) -> Array:
        """A column as an array; missing numbers are NaN."""
        column = self._columns[name]
        if isinstance(column, np.ndarray):
            return column
        values = column.tolist()
        return np.array(values, dtype=None if any(isinstance(each, str) for each in values) else np.float64)


class Samples(Columns[Sample]):
    """The samples of one step that ended, in the order of the trace."""

    def __init__(self, rows: Sequence[Sample]) -> None:
        super().__init__(Sample, rows)

    def fates(self) -> dict[str | None, NDArray[np.bool_]]:
        """By fate, which samples had it."""
        column = self._columns["fate"]
        assert isinstance(column, _Coded)
        return {fate: column.codes == code for code, fate in enumerate(column.values)}

    @property
    def trained(self) -> NDArray[np.bool_]:
        """Which samples were trained."""
        return self.fates().get("trained", np.zeros(len(self), dtype=bool))

    @property
    def timed(self) -> NDArray[np.bool_]:
        """Which samples say when they were decoded, in seconds that can be."""
        begin, end = self["issued_s"], self["finished_s"]
        timed: NDArray[np.bool_] = (begin >= 0) & (begin <= end) & (end <= LONGEST_S)
        return timed

    def by_prompt(self, rows: NDArray[np.bool_]) -> dict[str, tuple[int, int]]:
        """(tokens, samples) of each prompt, over some of the samples."""
        column = self._columns["prompt"]
        assert isinstance(column, _Coded)
        codes, size = column.codes[rows], len(column.values)
        tokens = np.bincount(codes, self["tokens"][rows], size)
        counts = np.bincount(codes, minlength=size)
        return {
            prompt: (int(total), int(count))
            for prompt, total, count in zip(column.values, tokens.tolist(), counts.tolist(), strict=True)
            if count
        }

    def parts(self) -> dict[str, tuple[Array, Columns[RewardPart]]]:
        """By name of a reward's part: the numbers of the samples that have it, and what it gave them."""
        column = self._columns["reward_parts"]
        return column.tables if isinstance(column, _Parts) else {}


def _column(values: list[Any]) -> Array | _Coded | _Parts:
    if values and isinstance(values[0], dict):
        return _Parts(values)
    if not values or not all(isinstance(value, int | float) for value in values):
        return _Coded(values)
    return _smallest(np.array(values))


def _smallest(values: Array) -> Array:
    """The same numbers in the smallest type that holds them; a constant takes the memory of one."""
    if not len(values):
        return values
    if np.issubdtype(values.dtype, np.floating):
        with np.errstate(over="ignore"):
            narrow = values.astype(np.float32)
        values = narrow if np.array_equal(narrow, values) else values
    elif values.dtype != np.bool_:
        values = values.astype(np.result_type(np.min_scalar_type(values.min()), np.min_scalar_type(values.max())))
    return np.broadcast_to(values[:1].copy(), values.shape) if (values == values[0]).all() else values
