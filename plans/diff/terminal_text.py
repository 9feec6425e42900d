"""A report for the terminal: tables that are readable at 80 columns and without colour."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ..phrases.sentences import one_line
from .review import Report, Row, Section, fold

_STYLE = {1: "green", -1: "red", 0: ""}
_MOST_ROWS = 20  # of a table, without --full


def render(report: Report, full: bool) -> Group:
    """The report as text for rich; tables are cut to twenty rows unless `full`."""
    renderables: list[RenderableType] = [_line(report.title, "bold"), _line(report.verdict, "bold")]
    renderables += [_line(f"! {warning}", "yellow") for warning in report.warnings]
    for section in report.sections:
        if not section.rows:
            continue
        rows, left = (list(section.rows), 0) if full else fold(section.rows, _MOST_ROWS)
        noted = any(row.note for row in rows)
        renderables += [Text(), *(_list(section, rows) if noted else [_table(section, rows)])]
        if left:
            renderables.append(Text(f"… and {left} more; --full shows them", style="dim"))
        if section.rest:
            renderables.append(_line(section.rest, "dim"))
    if report.remarks:
        renderables.append(Text())
    renderables += [_line(remark, "dim") for remark in report.remarks]
    return Group(*renderables)


def _table(section: Section, rows: list[Row]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for index, column in enumerate(section.columns):
        table.add_column(column.title, justify="right" if column.right else "left", overflow="fold", no_wrap=index == 0)
    for row in rows:
        style = _STYLE[row.tone]
        table.add_row(*(_line(cell, style if index else "") for index, cell in enumerate(row.cells)))
    return table


def _list(section: Section, rows: list[Row]) -> list[RenderableType]:
    """Rows with notes: on one line key, old -> new; below it the note."""
    titles = [column.title for column in section.columns]
    renderables: list[RenderableType] = [Text(f"{titles[0]}, {' -> '.join(titles[1:])}", style="bold")]
    for row in rows:
        key, *sides = row.cells
        renderables.append(_line(f"{key}  {' -> '.join(sides)}", _STYLE[row.tone]))
        if row.note:
            renderables.append(Padding(_line(row.note, "dim"), (0, 0, 0, 4), expand=False))
    return renderables


def _line(text: str, style: str) -> Text:
    return Text(one_line(text), style=style)
