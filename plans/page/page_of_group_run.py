"""The page of a co-execution group that was executed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..phrases.group_cells import GROUP_COLUMNS, group_cells
from ..phrases.numbers import NONE, count, seconds, times
from ..phrases.sentences import listed
from .charts import charts_groups
from .elements import Card, Table, mark, render
from .palette import job_colours


def page(report: Mapping[str, Any], title: str, written_at: str) -> str:
    """Return the HTML document; `report`: of traces/groups/group_report.py."""
    jobs = report["jobs"]
    colours = job_colours(sorted(jobs))
    begin_s, end_s = report["together_s"]
    subtitle = (
        f"Group {report['group']} of {count(len(jobs), 'job')}, executed; permit rule {report['rule']}; all jobs ran "
        f"together for {seconds(end_s - begin_s)}; read {written_at}"
    )
    return render(
        "group_run.html.j2",
        title,
        subtitle,
        cards=_cards(jobs),
        charts=[charts_groups.turns_taken(report, colours)],
        jobs=_table(jobs, colours),
    )


def _cards(jobs: Mapping[str, Any]) -> list[Card]:
    broken = [name for name, row in jobs.items() if row["keeps"] is False]
    known = [row for row in jobs.values() if row["slowdown"] is not None]
    # What one job after the other would have taken, over what they took together.
    gain = sum(1.0 / row["slowdown"] for row in known) if len(known) == len(jobs) else None
    starts = sum(row["starts"] for row in jobs.values())
    return [
        Card(
            "Throughput",
            NONE if gain is None else times(gain),
            "of one job after the other on the same nodes, by the plan's seconds alone",
            "" if gain is None else "good" if gain > 1 else "bad",
        ),
        Card(
            "Bounds kept",
            f"{len(known) - len(broken)} of {len(known)}",
            (f"{listed(broken)} broke a bound" if broken else "slowdown of each job against its bound")
            + (f"; {count(len(jobs) - len(known), 'job')} not measured" if len(known) < len(jobs) else ""),
            "bad" if broken else "good" if known else "",
        ),
        Card("Starts of jobs", f"{starts}", f"{starts - len(jobs)} of them after deaths or to resume", ""),
    ]


def _table(jobs: Mapping[str, Any], colours: Mapping[str, str]) -> Table:
    rows = [[mark(colours[name], name), f"{row['steps']:,}", *group_cells(row)] for name, row in jobs.items()]
    return Table(["job", "steps", *GROUP_COLUMNS], rows, numbers=range(1, 2 + len(GROUP_COLUMNS)))
