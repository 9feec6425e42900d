"""The report of a co-execution group as text: each job's slowdown beside its bound, whom it waited for, busy units."""

from __future__ import annotations

from typing import Any

from ...plans.phrases.group_cells import GROUP_COLUMNS, group_cells
from ...plans.phrases.numbers import NONE, percent, seconds
from ...plans.phrases.sentences import one_line


def group_text(name: str, report: dict[str, Any]) -> str:
    """The figures of `traces.groups.group_report`, a line each."""
    begin_s, end_s = report["together_s"]
    lines = [
        f"{one_line(name)}: group {report['group']} of {len(report['jobs'])} jobs, permit rule {report['rule']}; "
        f"measured while all ran, {seconds(end_s - begin_s)}"
    ]
    wide = max(map(len, report["jobs"])) + 2
    head = ("steps", "starts", *GROUP_COLUMNS)
    lines.append(f"{'':{wide}}" + "".join(f"{title:>{len(title) + 3}}" for title in head))
    for job, row in report["jobs"].items():
        cells = (f"{row['steps']}", f"{row['starts']}", *group_cells(row))
        broken = "  breaks its bound" if row["keeps"] is False else ""
        texts = (f"{cell:>{len(title) + 3}}" for title, cell in zip(head, cells, strict=True))
        lines.append(f"{one_line(job):{wide}}" + "".join(texts) + broken)
    busy = ", ".join(
        f"{figures['pool']} {unit} {NONE if figures['busy'] is None else percent(figures['busy'])}"
        for unit, figures in report["units"].items()
    )
    return "\n".join([*lines, f"busy share of each unit: {busy}"])
