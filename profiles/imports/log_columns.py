"""Rows of another tool's table: CSV, JSON Lines, a JSON array or Parquet, gzipped or not, columns named by the user.

A reader asks for the fields that it knows by their names; `--column FIELD=NAME` says which column holds a field, and
without that a column of the field's own name, or of a usual one, is taken, whatever its capitals, spaces and
underscores; `--column FIELD=` leaves the field out. JSON rows may nest: `stats.tokens`.
"""

from __future__ import annotations

import csv
import io
import itertools
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...plans.files.row_files import PARQUET_MAGIC, decoded, json_rows, parquet_rows, unpacked
from ...plans.yaml.errors import InputError

MOST_BYTES = 1 << 30
"""A larger table, unpacked, is refused: it would not be a sample of anything, and memory ends."""


class TableRow(dict[str, Any]):
    """{field: value} of a row.

    Attributes:
        columns: {field: the column that it was taken from}.
        needed: the fields that cannot be left out.
    """

    columns: Mapping[str, str]
    needed: frozenset[str]

    def fault(self, name: str, why: str, path: Path, line: int, remedy: str = "correct the row") -> InputError:
        """The error of a value, with its column, which may have been recognised by itself, and a way out."""
        column = self.columns[name]
        shown = name if column == name else f"{name} (column {column!r})"
        further = f", name another column (--column {name}=NAME), or leave {name} out (--column {name}=)"
        return InputError(f"{shown} {why}; {remedy}{'' if name in self.needed else further}", str(path), line)


_TRUE = ("true", "yes", "pass", "passed", "correct", "right", "t", "y")
_FALSE = ("false", "no", "fail", "failed", "incorrect", "wrong", "f", "n")


@dataclass(frozen=True)
class Field:
    """A field that a reader looks up in a table.

    Attributes:
        name: as in `--column NAME=...`.
        usual: names of columns that are taken for it by default.
        needed: whether a table without it is refused.
    """

    name: str
    usual: tuple[str, ...] = ()
    needed: bool = False


def assignments(given: Sequence[str], fields: Sequence[Field]) -> dict[str, str]:
    """{field: column} of the `--column FIELD=NAME` options; "" for a field that is left out. Raises InputError for an
    unknown field, one twice, and a needed one that is left out."""
    names = {field.name: field.needed for field in fields}
    columns: dict[str, str] = {}
    for text in given:
        name, equals, column = text.partition("=")
        if not equals or name not in names:
            raise InputError(f"--column {text[:120]}: write FIELD=COLUMN, with a field of {', '.join(sorted(names))}")
        if not column and names[name]:
            raise InputError(f"--column {text[:120]}: {name} is needed; write --column {name}=COLUMN")
        if name in columns:
            raise InputError(f"--column {text[:120]}: {name} is already column {columns[name]!r}; give it once")
        columns[name] = column
    return columns


def read_rows(path: Path, fields: Sequence[Field], requested: Mapping[str, str]) -> Iterator[tuple[int, TableRow]]:
    """(line, {field: value}) of each row; fields that the table lacks are left out. Empty cells are None.

    Raises InputError, with the line where one is at fault, for a file that cannot be read, a table without a needed
    column, or a column that was asked for and is not there.
    """
    columns: dict[str, str] | None = None
    needed = frozenset(field.name for field in fields if field.needed)
    known: set[str] = set()
    for line, row in _table(path):
        if columns is None:
            columns, known = _columns(row, fields, requested, path, line), set(row)
        elif not known.issuperset(row):  # rows of JSON need not have the same keys
            left = [field for field in fields if field.name not in columns and field.name not in requested]
            columns |= _columns(row, left, {}, path, line)
            known |= row.keys()
        found = TableRow((name, _value(row, column)) for name, column in columns.items())
        found.columns, found.needed = columns, needed
        yield line, found
    if columns is None:
        raise InputError("has no rows; name a table with one row for each sample", str(path))


def number(row: TableRow, name: str, path: Path, line: int, default: float | None = None) -> float:
    """A finite number of a row. Raises InputError for anything else, or for an empty one without a default."""
    value = row.get(name)
    if value is None or value == "":
        if default is not None:
            return default
        raise row.fault(name, "is empty", path, line, "fill it in or remove the row")
    # 0,5 as spreadsheets write it in half of Europe; 1,234 may be 1234 as well.
    if isinstance(value, str) and re.fullmatch(r"\s*-?(0,\d+|\d+,(\d{1,2}|\d{4,}))\s*", value):
        value = value.replace(",", ".")
    try:
        parsed = float(value)
    except (TypeError, ValueError):
        commas = isinstance(value, str) and re.fullmatch(r"\s*-?\d+(,\d{3})+\s*", value)
        remedy = "write it without the comma, or with a point" if commas else "correct the row"
        raise row.fault(name, f"must be a number, not {str(value)[:80]!r}", path, line, remedy) from None
    if not math.isfinite(parsed):
        raise row.fault(name, f"must be finite, not {repr(value)[:80]}", path, line)
    return parsed


def score(row: TableRow, name: str, path: Path, line: int, default: float | None) -> float:
    """A number, or 1 for `true`, `passed` and the like, 0 for their contraries."""
    value = row.get(name)
    word = value.strip().lower() if isinstance(value, str) else value
    return 1.0 if word in _TRUE else 0.0 if word in _FALSE else number(row, name, path, line, default)


def truth(row: TableRow, name: str, path: Path, line: int) -> bool:
    """Whether a cell is true: `true`, `passed` and the like, 1, or a number above 0."""
    return score(row, name, path, line, None) > 0


def _columns(
    row: dict[str, Any], fields: Sequence[Field], requested: Mapping[str, str], path: Path, line: int
) -> dict[str, str]:
    present = list(row)
    columns: dict[str, str] = {}
    for field in fields:
        if requested.get(field.name) == "":
            continue
        if field.name in requested:
            column = _found(row, requested[field.name]) or requested[field.name]
            if _missing(row, column):
                raise InputError(f"has no column {column!r} ({field.name}); it has {_listed(present)}", str(path), line)
            columns[field.name] = column
            continue
        usual = next((found for name in (field.name, *field.usual) if (found := _found(row, name))), None)
        if usual is not None:
            columns[field.name] = usual
        elif field.needed:
            alone = " alone; commas, tabs or semicolons part columns" if len(present) == 1 else ""
            raise InputError(
                f"none of its columns is {field.name}; say which with --column {field.name}=NAME, it has "
                f"{_listed(present)}{alone}",
                str(path),
                line,
            )
    return columns


def _found(row: dict[str, Any], name: str) -> str | None:
    """The column of that name, or of one that differs in capitals, spaces and signs alone; None without any."""
    if name in row:
        return name
    return next((column for column in row if isinstance(column, str) and _letters(column) == _letters(name)), None)


def _letters(name: str) -> str:
    return re.sub(r"[\W_]", "", name).lower()


def _listed(names: Sequence[Any]) -> str:
    shown = ", ".join(str(name)[:40] for name in names[:12])
    return shown + (f" and {len(names) - 12} more" if len(names) > 12 else "")


_NOWHERE = object()


def _get(row: Any, column: str) -> Any:
    if isinstance(row, dict) and column in row:
        return row[column]
    value = row
    for part in column.split("."):
        if not isinstance(value, dict) or part not in value:
            return _NOWHERE
        value = value[part]
    return value


def _missing(row: dict[str, Any], column: str) -> bool:
    return _get(row, column) is _NOWHERE


def _value(row: dict[str, Any], column: str) -> Any:
    value = _get(row, column)
    return None if value is _NOWHERE else value


def _table(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line, {column: value}) of each row of a table of any of these kinds."""
    if not path.exists():
        raise InputError("no such file; name a table: CSV, JSON Lines, a JSON array or Parquet", str(path))
    data = unpacked(path, MOST_BYTES)
    if data[:4] == PARQUET_MAGIC:
        yield from parquet_rows(data, path)
        return
    text = decoded(data, path)
    if text[:4096].lstrip()[:1] not in ("{", "["):
        yield from csv_table(text, path)[1]
        return
    for line, row in json_rows(text):
        if isinstance(row, ValueError):
            raise InputError(f"{row}; mend the row, or remove it", str(path), line)
        if not isinstance(row, dict):
            raise InputError("must be a JSON object with the columns as keys", str(path), line)
        yield line, row


# ---- CSV as published measurements and logs have it: named columns, all read and refused alike ----

Rows = Iterator[tuple[int, dict[str, str | None]]]


def csv_table(text: str, path: str | Path) -> tuple[list[str], Rows]:
    """(columns, the rows, each with the line where it begins) of a text. Cells may be of any length and hold line
    breaks; what parts them (commas, tabs, semicolons, bars) is seen by the first lines, or told by a first line `sep=;`
    of a spreadsheet. Those that a row lacks are None.

    Raises InputError, with the line, for quotes that are not closed, a column that is there twice, and more cells than
    columns.
    """
    csv.field_size_limit(max(csv.field_size_limit(), len(text)))
    if "\n" not in text:  # lines of old Macs
        text = text.replace("\r", "\n")
    firsts = list(itertools.islice((line for line in text.split("\n") if line.strip()), 5))
    told = re.fullmatch(r"sep=([,;|\t])\r?", firsts[0]) if firsts else None
    delimiter = told[1] if told else max(_SIGNS, key=lambda sign: _columns_by(sign, firsts))
    lines = _lines(text, delimiter, path)
    if told:
        next(lines)
    line, header = next(lines, (1, list[str]()))
    columns = [name.strip() for name in header]
    twice = next((name for name, times in Counter(columns).items() if times > 1 and name), None)
    if twice is not None:
        raise InputError(f"has the column {twice!r} twice; rename or remove one", str(path), line)
    return columns, _rows(columns, lines, path)


_SIGNS = ",\t;|"


def _columns_by(sign: str, firsts: Sequence[str]) -> tuple[bool, int]:
    """(whether the first lines have equally many cells by that separator, and more than one, cells of the header)."""
    cells = [len(next(csv.reader([line], delimiter=sign), [])) for line in firsts]
    return bool(cells) and cells[0] > 1 and len(set(cells)) == 1, max(cells[:1], default=0)


def _rows(columns: list[str], lines: Iterator[tuple[int, list[str]]], path: str | Path) -> Rows:
    for line, cells in lines:
        if any(cell.strip() for cell in cells[len(columns) :]):
            raise InputError(
                f"has {len(cells)} cells, and the header has {len(columns)}; put cells that hold the separator in "
                "quotes",
                str(path),
                line,
            )
        yield line, {name: cells[place] if place < len(cells) else None for place, name in enumerate(columns)}


def _lines(text: str, delimiter: str, path: str | Path) -> Iterator[tuple[int, list[str]]]:
    """(line where it begins, cells) of each row that is not empty."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    while True:
        begun = reader.line_num + 1
        try:
            cells = next(reader, None)
        except csv.Error as error:
            raise InputError(f"is no CSV: {error}; save it as CSV with a header", str(path), begun) from None
        if cells is None:
            return
        if any(cell.strip() for cell in cells):
            yield begun, cells
