"""`Report`: a difference as title, tables and remarks, and its text as GitHub markdown for a pull request.

job_report.py and groups_report.py make a `Report`; cli/diff.py prints it in a terminal. The markdown has
40 lines at most. Its first line is a hidden comment; a CI step finds its earlier comment by it. Text from documents is
escaped or in code spans, so that it opens no link, mentions no user and breaks no table.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ..phrases.sentences import one_line, shorten
from ..phrases.tables import Row, Table


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
    sections: tuple[Table, ...]
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


MAX_LINES = 40
_CELL = 120  # characters; a longer cell would hide the other cells of its row
_NOTE = 140
_MOST_WARNINGS = 4
_LEAST_ROWS = 2  # of a table: the first row, and the number of the other rows


def marker(name: str) -> str:
    """The first line of the report: the same for every report on the plan `name`."""
    return f"<!-- rlplan diff: {re.sub(r'[^A-Za-z0-9_./+: -]|--+', '_', shorten(name, 200))} -->"


def markdown(report: Report, max_lines: int | None = MAX_LINES) -> str:
    """The report as markdown; tables are cut so that it has at most `max_lines` lines (None: no limit)."""
    warnings = [f"- ⚠️ {escape(shorten(text, 300))}" for text in report.warnings]
    if max_lines is not None and len(warnings) > _MOST_WARNINGS:
        warnings = [*warnings[: _MOST_WARNINGS - 1], f"- ⚠️ … and {len(warnings) - _MOST_WARNINGS + 1} more"]
    head = [marker(report.name), f"### {code(report.title)}", "", f"**{escape(report.verdict)}**"]
    if warnings:
        head += ["", *warnings]
    foot = [f"<sub>{'; '.join(escape(shorten(text, 400)) for text in report.remarks)}</sub>"] if report.remarks else []
    sections = [section for section in report.sections if section.rows]
    rooms = [len(section.rows) for section in sections]
    if max_lines is not None:
        around = sum(3 + (2 if section.rest else 0) for section in sections)
        rooms = _share(rooms, max_lines - len(head) - around - (2 if foot else 0))
    lines = list(head)
    for section, room in zip(sections, rooms, strict=True):
        lines += ["", *_table(section, room)]
    lines += ["", *foot] if foot else []
    assert max_lines is None or len(lines) <= max_lines, len(lines)
    return "\n".join(lines) + "\n"


def _share(row_counts: Sequence[int], room: int) -> list[int]:
    """Lines for each table: an equal share each, then the unused lines for the first tables that need more."""
    equal = max(_LEAST_ROWS, room // max(1, len(row_counts)))
    rooms = [min(count, equal) for count in row_counts]
    left = room - sum(rooms)
    for index, count in enumerate(row_counts):
        more = max(0, min(count - rooms[index], left))
        rooms[index] += more
        left -= more
    return rooms


def _table(section: Table, room: int) -> list[str]:
    noted = any(row.note for row in section.rows)
    # The line with the number of cut rows needs a row itself.
    rows, left = fold(section.rows, room if len(section.rows) <= room else room - 1)
    titles = [column.title for column in section.columns] + ([section.note_title] if noted else [])
    rules = ["--:" if column.right else ":--" for column in section.columns] + ([":--"] if noted else [])
    lines = [_line(titles), _line(rules)]
    previous_note = ""
    for row in rows:
        lines.append(_line([*_cells(section, row), *([_note(row, previous_note)] if noted else [])]))
        previous_note = row.note
    if left:
        lines.append(_line([f"… and {left} more", *[""] * (len(titles) - 1)]))
    return [*lines, "", escape(section.rest)] if section.rest else lines


def _cells(section: Table, row: Row) -> list[str]:
    return [
        (code if column.code else escape)(shorten(cell, _CELL))
        for cell, column in zip(row.cells, section.columns, strict=True)
    ]


def _note(row: Row, previous_note: str) -> str:
    return "″" if row.note and row.note == previous_note else escape(shorten(row.note, _NOTE))


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def escape(text: str) -> str:
    """Text that markdown shows as it is, in a table or outside."""
    text = one_line(text)
    text = re.sub(r"#(?=\d)", "&#35;", text.replace("&", "&amp;"))  # no reference to an issue
    text = text.replace("<", "&lt;").replace("@", "&#64;")
    return re.sub(r"([\\`*_\[\]|~])", r"\\\1", text)


def code(text: str) -> str:
    """A code span, also for text with backticks and pipes; empty for empty text."""
    text = one_line(text)
    if not text:
        return ""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * (longest + 1)
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{pad}{text.replace('|', chr(92) + '|')}{pad}{fence}"
