"""What the bound machine is fed with: a job's bound, and from a group's journal, as it grows, when trainings ended.

Each end of a training is the end of an iteration of its job.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from ...plans.schema.groups_plan import GroupMember
from ...rounds.permits.bound_machine import SlowdownBound
from ..trace import TraceError


def bound_of(member: GroupMember) -> SlowdownBound:
    """The bound that a plan sets a job."""
    return SlowdownBound(alone_s=member.slowdown.alone_s, slo=member.slowdown.slo)


class TrainingEnd(NamedTuple):
    """A training that ended: of which job, in which start of its process, when, in seconds since 1970."""

    job: str
    start: int
    at_s: float


class TrainingEnds:
    """The trainings that a journal tells of; `path`: the journal, which need not exist yet."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset, self._line = 0, 0
        self._began_s = 0.0
        self._starts: dict[str, int] = {}
        self._phases: dict[str, str] = {}

    def new(self) -> list[TrainingEnd]:
        """Those that were written since the last call. Raises TraceError for a damaged line, OSError."""
        if not self._path.is_file():
            return []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            lines = file.read().split(b"\n")[:-1]  # the last one is torn, or still being written
        ends: list[TrainingEnd] = []
        for line in lines:
            self._offset, self._line = self._offset + len(line) + 1, self._line + 1
            try:
                self._take(json.loads(line), ends)
            except (ValueError, KeyError, TypeError) as error:
                raise TraceError(self._path, self._line, f"not an event of a journal of turns ({error})") from error
        return ends

    def _take(self, event: dict[str, Any], ends: list[TrainingEnd]) -> None:
        match event["event"]:
            case "group":
                self._began_s = float(event["began_s"])
            case "ready":
                self._starts[event["job"]] = self._starts.get(event["job"], 0) + 1
                self._phases.pop(event["job"], None)
            case "leave" | "unseat":
                self._phases.pop(event["job"], None)
            case "done":
                if self._phases.pop(event["job"], "") == "train":
                    job = event["job"]
                    ends.append(TrainingEnd(job, self._starts[job], self._began_s + float(event["t_s"])))
            case "turns":
                self._phases |= {turn["job"]: turn["phase"] for turn in event["begun"]}
