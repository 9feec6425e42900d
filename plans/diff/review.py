"""`Report`: a difference as title, tables and remarks, for the terminal and for a pull request.

job_report.py, groups_report.py and one_plan.py make a `Report`; markdown.py and terminal_text.py turn it into text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        title: its head.
        right: whether it is right-aligned, as numbers are.
        code: whether it holds keys and values of documents, shown as code.
    """

    title: str
    right: bool = False
    code: bool = False


@dataclass(frozen=True)
class Row:
    """A row of a table.

    Attributes:
        cells: one text for each column.
        block: rows of one block follow each other; if a table is cut, each block keeps its first rows.
        note: an explanation, shown as the last column or on a line of its own.
        tone: 1: better, -1: worse, 0: neither.
    """

    cells: tuple[str, ...]
    block: str = ""
    note: str = ""
    tone: int = 0


@dataclass(frozen=True)
class Section:
    """A table.

    Attributes:
        columns, rows: its content.
        note_title: title of the column of notes.
        rest: a line below the table.
    """

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    note_title: str = ""
    rest: str = ""


@dataclass(frozen=True)
class Report:
    """A report on a difference, independent of its output format.

    Attributes:
        name: path of the plan; a CI step finds its earlier comment by it.
        title: the plans that are compared.
        verdict: the difference in one line.
        warnings: warnings that a reviewer must see.
        sections: tables, most important first; tables without rows are not shown.
        remarks: details, shown last.
    """

    name: str
    title: str
    verdict: str
    warnings: tuple[str, ...]
    sections: tuple[Section, ...]
    remarks: tuple[str, ...]


def fold(rows: Sequence[Row], room: int) -> tuple[list[Row], int]:
    """(at most `room` rows in their order, the number of rows left out). The first row of each block is kept first,
    then the second row of each block, and so on."""
    if len(rows) <= room:
        return list(rows), 0
    seen: dict[str, int] = {}
    rank: list[tuple[int, int]] = []
    for index, row in enumerate(rows):
        rank.append((seen.get(row.block, 0), index))
        seen[row.block] = seen.get(row.block, 0) + 1
    kept = sorted(index for _, index in sorted(rank)[: max(0, room)])
    return [rows[index] for index in kept], len(rows) - len(kept)
