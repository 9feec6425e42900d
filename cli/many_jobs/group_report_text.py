"""The report of a co-execution group as text: each job's slowdown beside its bound, whom it waited for, busy units."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...plans.phrases.group_cells import GROUP_COLUMNS, SWITCH_COLUMNS, SWITCH_TEXT, group_cells, switch_rows
from ...plans.phrases.numbers import NONE, count, percent, seconds
from ...plans.phrases.sentences import one_line


def group_text(name: str, report: dict[str, Any]) -> str:
    """The figures of `traces.groups.group_report`, a line each."""
    begin_s, end_s = report["together_s"]
    lines = [
        f"{one_line(name)}: group {report['group']} of {count(len(report['jobs']), 'job')}, "
        f"permit rule {report['rule']}; measured while all ran, {seconds(end_s - begin_s)}"
    ]
    wide = max((len(one_line(job)) for job in report["jobs"]), default=0) + 2
    head = ("steps", "starts", *GROUP_COLUMNS)
    lines.append(f"{'':{wide}}" + _cells(head, head))
    for job, row in report["jobs"].items():
        cells = (f"{row['steps']}", f"{row['starts']}", *group_cells(row))
        broken = "  breaks its bound" if row["keeps"] is False else ""
        lines.append(f"{one_line(job):{wide}}" + _cells(cells, head) + broken)
    for job, row in report["left"].items():
        how = "is to leave" if row["still_there"] else "left"
        lines.append(f"{one_line(job)} {how} after {count(row['steps'], 'step')}")
    if rows := switch_rows(report["jobs"]):
        lines += [SWITCH_TEXT, f"{'':{wide}}" + _cells(SWITCH_COLUMNS, SWITCH_COLUMNS)]
        lines += [f"{one_line(job):{wide}}" + _cells(cells, SWITCH_COLUMNS) for job, cells in rows.items()]
    busy = ", ".join(
        f"{figures['pool'] or 'unit'} {unit} {NONE if figures['busy'] is None else percent(figures['busy'])}"
        for unit, figures in report["units"].items()
    )
    return "\n".join([*lines, f"busy share of each unit: {busy}"])


def _cells(cells: Sequence[str], titles: Sequence[str]) -> str:
    """Cells below their titles."""
    return "".join(f"{cell:>{len(title) + 3}}" for cell, title in zip(cells, titles, strict=True))
