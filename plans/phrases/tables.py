"""Tables as people read them: one `Table`, which the terminal (cli/screens/bars.py, cli/diff.py), markdown
(plans/diff/review.py) and pages (plans/page) draw.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class TableColumn:
    """A column of a table.

    Attributes:
        title: its head.
        right: whether it is right-aligned, as numbers are.
        code: whether it holds keys, paths and values of documents, shown as code.
    """

    title: str
    right: bool = False
    code: bool = False


def columns(*titles: str) -> tuple[TableColumn, ...]:
    """Columns by their titles: with `>` before its title it is right-aligned, with a backtick it is code."""
    return tuple(TableColumn(title.lstrip(">`"), title[:1] == ">", title[:1] == "`") for title in titles)


def right(titles: Iterable[str]) -> list[str]:
    """Titles of columns that are right-aligned, for `columns`."""
    return [f">{title}" for title in titles]


def text_lines(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A table as lines of text, its head first: columns two spaces apart, right-aligned as `columns` says."""
    heads = columns(*titles)
    lines = [[head.title for head in heads], *rows]
    widths = [max(len(cells[index]) for cells in lines) for index in range(len(heads))]
    return [
        "  ".join(
            cell.rjust(width) if head.right else cell.ljust(width)
            for cell, width, head in zip(cells, widths, heads, strict=True)
        ).rstrip()
        for cells in lines
    ]


@dataclass(frozen=True)
class Row:
    """A row of a table.

    Attributes:
        cells: one text for each column.
        block: rows of one block follow each other; if a table is cut, each block keeps its first rows.
        note: an explanation, shown as the last column or on a line of its own.
        tone: 1: better, -1: worse, 0: neither.
    """

    cells: Sequence[str]
    block: str = ""
    note: str = ""
    tone: int = 0


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        columns, rows: its content.
        note_title: title of the column of notes.
        rest: a line below the table.
        kind: the table's class in the style sheet of pages.
    """

    columns: tuple[TableColumn, ...]
    rows: tuple[Row, ...]
    note_title: str = ""
    rest: str = ""
    kind: str = ""

    @classmethod
    def of(cls, titles: Iterable[str], rows: Iterable[Sequence[str]], kind: str = "") -> Table:
        """The table with columns by their titles (`columns`), and rows by the texts of their cells."""
        return cls(columns(*titles), tuple(Row(cells) for cells in rows), kind=kind)
