"""A report in the terminal: tables that read well at 80 columns and without colour."""

from __future__ import annotations

from rich.console import Group
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from .report import Report, Row, Section, fold

_STYLE = {1: "green", -1: "red", 0: ""}
_MOST_ROWS = 12  # of a table, without --full


def render(report: Report, full: bool) -> Group:
    """The report; tables are cut to a dozen rows unless `full`."""
    parts: list[Text | Table | Padding | Rule] = [Text(report.title, style="bold"), Text(report.verdict, style="bold")]
    parts += [Text(f"! {warning}", style="yellow") for warning in report.warnings]
    for section in report.sections:
        if section.rows:
            rows, left = (list(section.rows), 0) if full else fold(section.rows, _MOST_ROWS)
            parts.append(Text())
            parts.append(_table(section, rows))
            parts += _notes(section, rows)
            if left:
                parts.append(Text(f"… and {left} more; --full shows them", style="dim"))
            if section.rest:
                parts.append(Text(section.rest, style="dim"))
    if report.remarks:
        parts.append(Text())
    parts += [Text(remark, style="dim") for remark in report.remarks]
    return Group(*parts)


def _table(section: Section, rows: list[Row]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in section.columns:
        table.add_column(column.title, justify="right" if column.right else "left", overflow="fold")
    for row in rows:
        style = _STYLE[row.tone]
        table.add_row(*(Text(cell, style=style if index else "") for index, cell in enumerate(row.cells)))
    return table


def _notes(section: Section, rows: list[Row]) -> list[Text | Padding]:
    """Each note once, below the table, with the rows that it is about."""
    about: dict[str, list[str]] = {}
    for row in rows:
        if row.note:
            about.setdefault(row.note, []).append(row.cells[0])
    if not about:
        return []
    found: list[Text | Padding] = [Text(section.note_title, style="bold")]
    for note, keys in about.items():
        found.append(Padding(Text.assemble((", ".join(keys) + ": ", ""), (note, "dim")), (0, 0, 0, 2)))
    return found
