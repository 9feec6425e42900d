"""The figures of jobs, bounds and moves of co-execution groups, as text for terminal and page alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from ..phrases.numbers import NONE, percent, seconds, times, usd
from ..phrases.sentences import listed
from ..schema.groups_plan import GroupMember, GroupsPlan, Move, PlannedGroup
from ..schema.workload import GroupRules


def nodes_text(group: PlannedGroup) -> str:
    """The nodes of a group by pool: `2 h20 + 2 h800`."""
    return " + ".join(f"{count} {pool}" for pool, count in Counter(node.pool for node in group.nodes).items())


def move_reason(move: Move) -> str:
    """Why a move is made."""
    return "needed to keep bounds or node counts" if move.needed else f"saves {usd(move.saves_usd_per_hour)} USD/h"


def limit(member: GroupMember, rules: GroupRules) -> float:
    """The slowdown that a job must stay below: its bound minus the rules' margin."""
    slo = member.slowdown.slo
    return slo - rules.margin * (slo - 1.0)


def slack(member: GroupMember, rules: GroupRules) -> float:
    """Share of a job's limit that the 95th percentile of its slowdown leaves free."""
    return 1.0 - member.slowdown.p95 / limit(member, rules)


def point_text(member: GroupMember) -> str:
    """The plan that a job runs by, after a comma: `, by 2+1-exact (alone by 1+1-exact, 40.80 USD/h)`; empty if it has
    one only."""
    point = member.point
    if point is None:
        return ""
    return f", by {point.name}" + (
        "" if point.name == point.alone else f" (alone by {point.alone}, {usd(point.alone_usd_per_hour)} USD/h)"
    )


def declined_text(plan: GroupsPlan) -> str:
    """The moves that are not made, what they would cost and save, and why they are not; empty if there are none."""
    declined = plan.declined
    if declined is None:
        return ""
    why = f"within the {declined.hours:.2g} h until the next change they do not save a quarter more than they cost"
    if declined.reason == "bounds":
        why = "a job is too little ahead of its bound, or a new group would not outlive a departure"
    return (
        f"not made: moves of {listed(declined.jobs)}, which cost {usd(declined.price_usd)} USD once and save "
        f"{usd(declined.saves_usd_per_hour)} USD/h: {why}"
    )


def bounds_text(plan: GroupsPlan) -> str:
    """The jobs that break their bounds; else, of the jobs that share nodes, the one nearest to its limit."""
    if broken := [f"{name} in {key}" for key, name, member in plan.members if not member.slowdown.keeps]:
        return f"bounds broken: {', '.join(broken)}"
    shared = [item for item in plan.members if len(plan.groups[item[0]].jobs) > 1]
    if not shared:
        return "every bound is kept: no job shares nodes"
    key, name, member = min(shared, key=lambda item: (slack(item[2], plan.rules), item[1]))
    return (
        f"every bound is kept; {name} in {key} is nearest to its bound: its p95 slowdown of "
        f"{times(member.slowdown.p95, 3)} is {percent(slack(member, plan.rules))} below its limit of "
        f"{times(limit(member, plan.rules), 3)}"
    )


GROUP_COLUMNS = ("iteration", "alone", "slowdown", "planned so far", "long-run plan", "at most",
                 "waits to decode", "to train")  # fmt: skip
"""Titles of `group_cells`. `planned so far`: slowdown by the plan for the steps run so far; `long-run plan`:
the slowdown that stands in the plan."""


SWITCH_COLUMNS = ("decode: wake", "sleep", "planned", "train: load", "offload", "planned")
"""Titles of `switch_cells`."""

SWITCH_TEXT = "Seconds of a switch, mean over all turns; the plan's are for turns after those of another job."


def group_cells(row: Mapping[str, Any]) -> list[str]:
    """The figures of a job as `rlplan report --json` has them, one for each of GROUP_COLUMNS."""
    return [
        NONE if row["iteration_s"] is None else seconds(row["iteration_s"]),
        seconds(row["alone_s"]),
        NONE if row["slowdown"] is None else times(row["slowdown"]),
        NONE if row["slowdown_planned_so_far"] is None else times(row["slowdown_planned_so_far"]),
        times(row["slowdown_predicted"]),
        times(row["slo"]),
        seconds(row["waited_s"]["rollout"]),
        seconds(row["waited_s"]["train"]),
    ]


MOVE_COLUMNS = ("from", "to", "now", "predicted", "outage", "stopped within")
"""Titles of `move_cells`."""


def move_cells(move: Mapping[str, Any]) -> list[str]:
    """What is known of a job's move (traces/groups/groups_status.py), one for each of MOVE_COLUMNS."""
    return [
        move["from_group"] or NONE,
        move["to_group"] or NONE,
        move.get("state", "to do"),
        *(NONE if move.get(key) is None else seconds(move[key]) for key in ("price_s", "outage_s", "drain_s")),
    ]


def switch_cells(row: Mapping[str, Any]) -> list[str]:
    """Mean seconds of a job's switches (traces/groups/group_report.py) beside those of the plan, one for each of
    SWITCH_COLUMNS."""
    found = row["switches"]
    return [seconds(found[phase][key]) for phase in ("rollout", "train") for key in ("in_s", "out_s", "planned_s")]


def switch_rows(jobs: Mapping[str, Mapping[str, Any]]) -> dict[str, list[str]]:
    """`switch_cells` by job; none if no switch was measured."""
    measured = any(found["turns"] for row in jobs.values() for found in row["switches"].values())
    return {name: switch_cells(row) for name, row in jobs.items()} if measured else {}
