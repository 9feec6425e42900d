"""Rows of published measurements: CSV files with named columns, all read and refused alike."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path

from ...plans.yaml.errors import InputError
from ...plans.yaml.input_files import must_be_readable


def csv_rows(path: str | Path, columns: Sequence[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """(line, row) of each row. Raises InputError: no file, no regular file, one of `columns` missing, or no CSV."""
    must_be_readable(path)
    try:
        with Path(path).open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            missing = [name for name in columns if name not in (reader.fieldnames or ())]
            if missing:
                raise InputError(f"has no column {', '.join(missing)}; needed are {', '.join(columns)}", str(path))
            yield from enumerate(reader, 2)
    except FileNotFoundError:
        raise InputError("no such file", str(path)) from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"cannot be read as CSV: {error}", str(path)) from None


def not_a_number(error: ValueError, path: str | Path, line: int) -> InputError:
    """The error of a row in which a value cannot be read as a number."""
    return InputError(f"holds a value that is no number: {error}", str(path), line)
