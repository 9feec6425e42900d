"""Tables of published measurements as CSV: which columns a table must have, and rows in which a number is none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rlplan.plans.files.row_files import decoded, unpacked
from rlplan.plans.yaml.errors import InputError
from rlplan.profiles.imports.log_columns import csv_table


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
