"""A difference as titles, tables and remarks: what the terminal and a pull request both show.

markdown.py and terminal_text.py turn a `Report` into text; job_report.py, groups_report.py and one_plan.py make it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        title: its head.
        right: numbers, right-aligned.
        code: keys and values of documents, and not words.
    """

    title: str
    right: bool = False
    code: bool = False


@dataclass(frozen=True)
class Row:
    """A row of a table.

    Attributes:
        cells: one text for each column.
        block: rows of one block stand together, and each block keeps a row when a table is folded.
        note: what explains it; the table's last column, or a line of its own.
        tone: 1 good news, -1 bad news, 0 neither.
    """

    cells: tuple[str, ...]
    block: str = ""
    note: str = ""
    tone: int = 0


@dataclass(frozen=True)
class Section:
    """A table.

    Attributes:
        columns, rows: what it holds.
        note_title: head of the notes.
        rest: a line below it.
    """

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    note_title: str = ""
    rest: str = ""


@dataclass(frozen=True)
class Report:
    """What is shown.

    Attributes:
        name: path of the plan; by it a CI step finds its earlier comment.
        title: what is compared.
        verdict: the one line that matters.
        warnings: what a reviewer must not miss.
        sections: most important first; empty ones are left out.
        remarks: small print.
    """

    name: str
    title: str
    verdict: str
    warnings: tuple[str, ...]
    sections: tuple[Section, ...]
    remarks: tuple[str, ...]


def fold(rows: Sequence[Row], room: int) -> tuple[list[Row], int]:
    """At most `room` of the rows, and how many are left out: the first of each block as long as there is room, then
    the second of each, and so on; in their order."""
    if len(rows) <= room:
        return list(rows), 0
    seen: dict[str, int] = {}
    rank: list[tuple[int, int]] = []
    for index, row in enumerate(rows):
        rank.append((seen.get(row.block, 0), index))
        seen[row.block] = seen.get(row.block, 0) + 1
    kept = sorted(index for _, index in sorted(rank)[: max(0, room)])
    return [rows[index] for index in kept], len(rows) - len(kept)
