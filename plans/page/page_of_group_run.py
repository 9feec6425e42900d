"""The page of a co-execution group that was executed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..phrases.group_cells import (
    GROUP_COLUMNS,
    MOVE_COLUMNS,
    SWITCH_COLUMNS,
    SWITCH_TEXT,
    group_cells,
    move_cells,
    switch_rows,
)
from ..phrases.numbers import NONE, count, times
from ..phrases.sentences import listed
from .charts import charts_groups
from .elements import Card, Table, mark, render
from .palette import job_colours


def page(report: Mapping[str, Any], title: str, written_at: str) -> str:
    """Return the HTML document; `report`: what `rlplan report --json` prints of groups: `groups`, the report of each
    (traces/groups/group_report.py), and `moves` (traces/groups/groups_status.py)."""
    groups = report["groups"]
    jobs = {name: (key, row) for key, each in groups.items() for name, row in each["jobs"].items()}
    colours = job_colours(sorted({*jobs, *(name for each in groups.values() for name in each["left"])}))
    rules = sorted({each["rule"] for each in groups.values()})
    subtitle = (
        f"{count(len(jobs), 'job')} in {count(len(groups), 'group')}, executed; permit rule {listed(rules)}; read "
        f"{written_at}"
    )
    moves = report["moves"]
    return render(
        "group_run.html.j2",
        title,
        subtitle,
        cards=_cards(groups),
        charts=[charts_groups.turns_taken(each, colours) for each in groups.values()],
        jobs=_table(jobs, colours),
        moves=None if moves is None else _moves(moves, colours),
        moves_title="" if moves is None else f"Moves to {moves['plan']}: {moves['state']}",
        switches=_switches(jobs, colours),
        switch_text=SWITCH_TEXT,
    )


def _cards(groups: Mapping[str, Any]) -> list[Card]:
    jobs = {name: row for each in groups.values() for name, row in each["jobs"].items()}
    broken = [name for name, row in jobs.items() if row["keeps"] is False]
    known = [row for row in jobs.values() if row["slowdown"] is not None]
    # What one job after the other would have taken in each group, over what its jobs took together.
    gains = [sum(1.0 / row["slowdown"] for row in each["jobs"].values()) for each in groups.values() if _measured(each)]
    gain = min(gains) if gains else None
    starts = sum(row["starts"] for row in jobs.values())
    return [
        Card(
            "Throughput",
            NONE if gain is None else times(gain),
            "of one job after the other on the same nodes, by the plan's seconds alone"
            + ("; the least of the groups" if len(gains) > 1 else ""),
            "" if gain is None else "good" if gain > 1 else "bad",
        ),
        Card(
            "Bounds kept",
            f"{len(known) - len(broken)} of {len(known)}",
            (f"{listed(broken)} broke a bound" if broken else "slowdown of each job against its bound")
            + (f"; {count(len(jobs) - len(known), 'job')} not measured" if len(known) < len(jobs) else ""),
            "bad" if broken else "good" if known else "",
        ),
        Card("Starts of jobs", f"{starts}", f"{max(0, starts - len(jobs))} of them after deaths or to resume", ""),
    ]


def _measured(group: Mapping[str, Any]) -> bool:
    return bool(group["jobs"]) and all(row["slowdown"] is not None for row in group["jobs"].values())


def _table(jobs: Mapping[str, tuple[str, Any]], colours: Mapping[str, str]) -> Table:
    rows = [
        [mark(colours[name], name), key, f"{row['steps']:,}", *group_cells(row)] for name, (key, row) in jobs.items()
    ]
    return Table(["job", "group", "steps", *GROUP_COLUMNS], rows, numbers=range(2, 3 + len(GROUP_COLUMNS)))


def _moves(moves: Mapping[str, Any], colours: Mapping[str, str]) -> Table:
    rows = [[mark(colours[move["job"]], move["job"]), *move_cells(move)] for move in moves["moves"]]
    return Table(["job", *MOVE_COLUMNS], rows, numbers=range(4, 1 + len(MOVE_COLUMNS)))


def _switches(jobs: Mapping[str, tuple[str, Any]], colours: Mapping[str, str]) -> Table | None:
    cells = switch_rows({name: row for name, (_, row) in jobs.items()})
    rows = [[mark(colours[name], name), *own] for name, own in cells.items()]
    return Table(["job", *SWITCH_COLUMNS], rows, numbers=range(1, 1 + len(SWITCH_COLUMNS))) if rows else None
