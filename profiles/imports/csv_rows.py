"""CSV as published measurements and users' logs have it: named columns, all read and refused alike."""

from __future__ import annotations

import csv
import io
import itertools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from ...plans.files.row_files import decoded, unpacked
from ...plans.yaml.errors import InputError

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


def csv_rows(path: str | Path, columns: Sequence[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """(line, row) of each row of a file, gzipped or not; cells that a row lacks are empty. Raises InputError: no file,
    no regular file, one of `columns` missing, or no CSV."""
    header, rows = csv_table(decoded(unpacked(path), path), path)
    missing = [name for name in columns if name not in header]
    if missing:
        raise InputError(f"has no column {', '.join(missing)}; needed are {', '.join(columns)}", str(path), 1)
    for line, row in rows:
        yield line, {name: cell or "" for name, cell in row.items()}


def not_a_number(error: ValueError, path: str | Path, line: int) -> InputError:
    """The error of a row in which a value cannot be read as a number."""
    return InputError(f"holds a value that is no number: {error}", str(path), line)
