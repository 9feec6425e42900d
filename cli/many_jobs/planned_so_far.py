"""What a plan of groups says of the steps that its jobs have ended, beside what it says of the long run."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def add_planned_so_far(folder: Path, report: dict[str, Any]) -> None:
    """Add `slowdown_planned_so_far` to each job of a group's report (traces/groups/group_report.py): its slowdown over
    as many steps, simulated with the plan's seconds; None where jobs came or went, or started again.

    folder: of the group's runs.
    """
    from ...planner.groups.simulate.first_steps import first_slowdowns
    from ...plans.schema.groups_plan import load_groups_plan
    from ...traces.groups.group_turns import GROUPS_COPY, TURNS
    from ...traces.trace import read_trace

    jobs: dict[str, Any] = report["jobs"]
    header = next(iter(read_trace(folder / TURNS)))
    began_together = {seat["job"] for seat in header["seats"]} == jobs.keys() and not report["left"]
    planned = None
    if jobs and began_together and all(row["starts"] == 1 for row in jobs.values()):
        planned = first_slowdowns(
            header,
            {job: row["alone_s"] for job, row in jobs.items()},
            {job: row["steps"] for job, row in jobs.items()},
            load_groups_plan(folder / GROUPS_COPY).rules.interference,
        )
    for job, row in jobs.items():
        row["slowdown_planned_so_far"] = None if planned is None else planned[job]
