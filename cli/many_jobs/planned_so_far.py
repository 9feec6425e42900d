"""The slowdowns that a plan of groups predicts for the steps run so far, in its report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...traces.groups.group_turns import GroupTurns


def add_planned_so_far(report: dict[str, Any], turns: GroupTurns, interference: float) -> None:
    """Add `slowdown_planned_so_far` to each job of a group's report (traces/groups/group_report.py): its slowdown over
    as many steps, simulated with the plan's seconds; None where jobs came or went, or started again.

    Args:
        turns: the group's journal.
        interference: of the plan's rules.
    """
    from ...planner.groups.simulate.first_steps import first_slowdowns
    from ...traces.groups.group_turns import read_seat

    jobs: dict[str, Any] = report["jobs"]
    unchanged = {seat["job"] for seat in turns.seats} == jobs.keys() and not report["left"]
    planned = None
    if jobs and unchanged and all(row["starts"] == 1 for row in jobs.values()):
        alone_s, steps = ({job: row[key] for job, row in jobs.items()} for key in ("alone_s", "steps"))
        planned = first_slowdowns(turns.rule, list(map(read_seat, turns.seats)), alone_s, steps, interference)
    for job, row in jobs.items():
        row["slowdown_planned_so_far"] = None if planned is None else planned[job]
