"""The figures of jobs and moves of co-execution groups that are executed, as text for terminal and page alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .numbers import NONE, seconds, times

GROUP_COLUMNS = ("iteration", "alone", "slowdown", "predicted", "at most", "waits to decode", "to train")
"""Titles of `group_cells`."""


def group_cells(row: Mapping[str, Any]) -> list[str]:
    """The figures of a job (traces/groups/group_report.py), one for each of GROUP_COLUMNS."""
    return [
        NONE if row["iteration_s"] is None else seconds(row["iteration_s"]),
        seconds(row["alone_s"]),
        NONE if row["slowdown"] is None else times(row["slowdown"]),
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
