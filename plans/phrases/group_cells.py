"""The figures of a job in the report of a co-execution group, as text for terminal and page alike."""

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
