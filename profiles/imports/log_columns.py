"""Rows of another tool's table: CSV, gzipped CSV, or JSON Lines, with columns named by the user.

A reader asks for the fields that it knows by their names; `--column FIELD=NAME` says which column holds a field, and
without that a column of the field's own name, or of a usual one, is taken. JSON rows may nest: `stats.tokens`.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...plans.yaml.errors import InputError

MOST_BYTES = 1 << 30
"""A larger table, unpacked, is refused: it would not be a sample of anything, and memory ends."""

Row = dict[str, Any]


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
    """{field: column} of the `--column FIELD=NAME` options. Raises InputError for an unknown field, or one twice."""
    names = {field.name for field in fields}
    columns: dict[str, str] = {}
    for text in given:
        name, equals, column = text.partition("=")
        if not equals or not column or name not in names:
            raise InputError(f"--column {text[:120]}: write FIELD=COLUMN, with a field of {', '.join(sorted(names))}")
        if name in columns:
            raise InputError(f"--column {text[:120]}: {name} is already column {columns[name]!r}; give it once")
        columns[name] = column
    return columns


def read_rows(path: Path, fields: Sequence[Field], requested: Mapping[str, str]) -> Iterator[tuple[int, Row]]:
    """(line, {field: value}) of each row; fields that the table lacks are left out. Empty cells are None.

    Raises InputError, with the line where one is at fault, for a file that cannot be read, a table without a needed
    column, or a column that was asked for and is not there.
    """
    text = _text(path)
    first = text.lstrip()[:1]
    rows = _json_rows(text, path) if first == "{" else _csv_rows(text, path)
    columns: dict[str, str] | None = None
    for line, row in rows:
        if columns is None:
            columns = _columns(row, fields, requested, path, line)
        yield line, {name: _value(row, column) for name, column in columns.items()}
    if columns is None:
        raise InputError("has no rows; name a table with one row for each sample", str(path))


def number(row: Row, name: str, path: Path, line: int, default: float | None = None) -> float:
    """A finite number of a row. Raises InputError for anything else, or for an empty one without a default."""
    value = row.get(name)
    if value is None or value == "":
        if default is not None:
            return default
        raise InputError(f"{name} is empty; fill it in or remove the row", str(path), line)
    if isinstance(value, bool):
        return float(value)
    try:
        parsed = float(value)
    except (TypeError, ValueError):
        raise InputError(
            f"{name} must be a number, not {str(value)[:80]!r}; correct the row", str(path), line
        ) from None
    if not math.isfinite(parsed):
        raise InputError(f"{name} must be finite, not {value!r}; correct the row", str(path), line)
    return parsed


def truth(row: Row, name: str, path: Path, line: int) -> bool:
    """Whether a cell is true: `true`, 1, or a number above 0."""
    value = row.get(name)
    if isinstance(value, str) and value.strip().lower() in ("true", "yes"):
        return True
    if isinstance(value, str) and value.strip().lower() in ("false", "no"):
        return False
    return number(row, name, path, line) > 0


def _columns(row: Row, fields: Sequence[Field], requested: Mapping[str, str], path: Path, line: int) -> dict[str, str]:
    present = list(row)
    columns: dict[str, str] = {}
    for field in fields:
        if field.name in requested:
            column = requested[field.name]
            if _missing(row, column):
                raise InputError(f"has no column {column!r} ({field.name}); it has {_listed(present)}", str(path), line)
            columns[field.name] = column
            continue
        usual = next((name for name in (field.name, *field.usual) if name in row), None)
        if usual is not None:
            columns[field.name] = usual
        elif field.needed:
            raise InputError(
                f"none of its columns is {field.name}; say which with --column {field.name}=NAME, it has "
                + _listed(present),
                str(path),
                line,
            )
    return columns


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


def _missing(row: Row, column: str) -> bool:
    return _get(row, column) is _NOWHERE


def _value(row: Row, column: str) -> Any:
    value = _get(row, column)
    return None if value is _NOWHERE else value


def _csv_rows(text: str, path: Path) -> Iterator[tuple[int, Row]]:
    reader = csv.DictReader(io.StringIO(text))
    try:
        for row in reader:
            yield reader.line_num, row
    except csv.Error as error:
        raise InputError(f"is no CSV: {error}; save it as CSV with a header", str(path), reader.line_num) from None


def _json_rows(text: str, path: Path) -> Iterator[tuple[int, Row]]:
    for line, content in enumerate(text.split("\n"), 1):
        if not content.strip():
            continue
        try:
            row = json.loads(content)
        except (json.JSONDecodeError, RecursionError):
            raise InputError("not valid JSON; each line holds one whole JSON object", str(path), line) from None
        if not isinstance(row, dict):
            raise InputError("must be a JSON object with the columns as keys", str(path), line)
        yield line, row


def _text(path: Path) -> str:
    if path.exists() and not path.is_file():
        raise InputError("is a folder, a pipe or a device; a file is needed", str(path))
    try:
        if path.stat().st_size > MOST_BYTES:
            raise InputError(f"is larger than {MOST_BYTES >> 30} GiB; import a sample of it", str(path))
        data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":
            with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
                data = file.read(MOST_BYTES + 1)
            if len(data) > MOST_BYTES:
                raise InputError(f"unpacks to more than {MOST_BYTES >> 30} GiB; import a sample of it", str(path))
        return data.decode("utf-8-sig")
    except FileNotFoundError:
        raise InputError("no such file; name a CSV, a gzipped CSV or JSON Lines", str(path)) from None
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read as CSV, gzipped CSV or JSON Lines ({error})", str(path)) from None
