"""`rlplan diff OLD NEW`: a report as JSON, as markdown, or as tables that are readable at 80 columns without colour."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from ..plans.phrases.sentences import one_line
from ..plans.phrases.tables import Row, Table
from ..plans.yaml.errors import InputError
from .screens.bars import table

if TYPE_CHECKING:
    from ..plans.diff.review import Report

_STYLE = {1: "green", -1: "red", 0: ""}
_MOST_ROWS = 20  # of a table, without --full


def render(report: Report, full: bool) -> Group:
    """The report as text for rich; tables are cut to twenty rows unless `full`."""
    from ..plans.diff.review import fold

    renderables: list[RenderableType] = [_text_line(report.title, "bold"), _text_line(report.verdict, "bold")]
    renderables += [_text_line(f"! {warning}", "yellow") for warning in report.warnings]
    for section in report.sections:
        if not section.rows:
            continue
        rows, left = (list(section.rows), 0) if full else fold(section.rows, _MOST_ROWS)
        noted = any(row.note for row in rows)
        renderables += [Text(), *(_list(section, rows) if noted else [_text_table(section, rows)])]
        if left:
            renderables.append(Text(f"… and {left} more; --full shows them", style="dim"))
        if section.rest:
            renderables.append(_text_line(section.rest, "dim"))
    if report.remarks:
        renderables.append(Text())
    renderables += [_text_line(remark, "dim") for remark in report.remarks]
    return Group(*renderables)


def _text_table(section: Table, rows: list[Row]) -> RichTable:
    drawn = table(section.columns)
    drawn.columns[0].no_wrap = True
    for row in rows:
        style = _STYLE[row.tone]
        drawn.add_row(*(_text_line(cell, style if index else "") for index, cell in enumerate(row.cells)))
    return drawn


def _list(section: Table, rows: list[Row]) -> list[RenderableType]:
    """Rows with notes: on one line key, old -> new; below it the note."""
    titles = [column.title for column in section.columns]
    renderables: list[RenderableType] = [Text(f"{titles[0]}, {' -> '.join(titles[1:])}", style="bold")]
    for row in rows:
        key, *sides = row.cells
        renderables.append(_text_line(f"{key}  {' -> '.join(sides)}", _STYLE[row.tone]))
        if row.note:
            renderables.append(Padding(_text_line(row.note, "dim"), (0, 0, 0, 4), expand=False))
    return renderables


def _text_line(text: str, style: str) -> Text:
    return Text(one_line(text), style=style)


@click.command("diff")
@click.argument("old", metavar="OLD")
@click.argument("new", metavar="NEW")
@click.option("--markdown", is_flag=True, help="Print GitHub markdown for a pull request, at most 40 lines.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as one JSON line.")
@click.option("--exit-code", is_flag=True, help="Exit with 1 if the plans differ, as git diff does.")
@click.option("--full", is_flag=True, help="All rows, also of what did not change; with --markdown, without its limit.")
def diff_command(old: str, new: str, markdown: bool, as_json: bool, exit_code: bool, full: bool) -> int:
    """Show what changes from plan OLD to plan NEW, by meaning, and the cost of the changes.

    Both are plans of one job, or both are plans of groups: files, or REV:PATH as in git, which is read with its inputs
    from that revision. Write `none` for OLD if the plan is new, for NEW if it was removed.
    """
    from ..api.diff_plans import diff

    if markdown and as_json:
        raise InputError("--markdown and --json are two ways to print; give one of them")

    def began() -> None:
        click.echo("inputs differ: simulating the old decisions with the new plan's inputs", err=True)

    difference = diff(old, new, full=full, began=began)
    if as_json:
        click.echo(json.dumps(difference.as_dict(), allow_nan=False))
    elif markdown:
        click.echo(difference.markdown(None) if full else difference.markdown(), nl=False)
    else:
        from rich.console import Console

        Console(highlight=False).print(render(difference.report, full), soft_wrap=False)
    return 1 if exit_code and not difference.same else 0
