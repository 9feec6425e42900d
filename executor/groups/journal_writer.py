"""Writes the journal of a group, and continues one: its events, and the permits that were decided on each of them.

The reader of what the phases took is traces/groups/group_journal.py.
"""

from __future__ import annotations

import contextlib
import json
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from ...plans.yaml.errors import RunFailed
from ...rounds.permits.permit_events import PlacedJob
from ...traces.groups.group_journal import read_placed_job
from ...traces.trace import TraceError, TraceWriter, read_trace

DECIDED = "turns"
"""Name of the journal's events that say which permits were given."""

OTHER_GROUP = "is of another group, or of other placements; choose another --out"


def journal_header(group: str, permit_rule: str, jobs: Sequence[PlacedJob]) -> dict[str, Any]:
    """What the first event of a group's journal says of the group, as JSON has it."""
    header = {"group": group, "rule": permit_rule, "seats": [asdict(placed) for placed in jobs]}
    read: dict[str, Any] = json.loads(json.dumps(header))
    return read


class Journalled(NamedTuple):
    """The jobs in a journal: those with which the group began, those that are in it now, and the first number that no
    unit had yet."""

    first: list[PlacedJob]
    now: dict[str, PlacedJob]
    fresh: int


def journalled_jobs(journal: Path) -> Journalled:
    """Read the jobs of a journal. Raises TraceError if it is damaged, or no journal of a group."""
    events = list(read_trace(journal))
    if not events or "seats" not in events[0]:
        raise TraceError(journal, 1, "is no journal of a group's phases")
    first = [read_placed_job(fields) for fields in events[0]["seats"]]
    now, seen = {placed.job: placed for placed in first}, list(first)
    for event in events:
        if event["event"] == "seat":
            seen.append(read_placed_job(event["seat"]))
            now[event["job"]] = seen[-1]
        elif event["event"] == "unseat":
            now.pop(event["job"], None)
    units = (unit for placed in seen for of_phase in placed.units for unit in of_phase)
    return Journalled(first, now, 1 + max(units, default=-1))


def is_of(first: dict[str, Any], header: dict[str, Any]) -> bool:
    """Whether a journal whose first event this is belongs to the group of a header."""
    return {key: first.get(key) for key in header} == header


class JournalWriter:
    """The journal of a group that runs: events, and after each event the permits that were decided on it.

    Times are not rounded, so that the same events at their times give the same decisions, bit for bit. A decision that
    a death or a full disk kept from being written follows from the events, and is written before the next event.

    Args:
        path: its file.
        header: of the group (`journal_header`).
        began_s: second of the clock in which the group begins, if there is no file yet.

    Raises RunFailed if the file is of another group or damaged.
    """

    def __init__(self, path: Path, header: dict[str, Any], began_s: float) -> None:
        self._path, self._header = path, header
        try:
            self._events = list(read_trace(path)) if path.is_file() else []
        except TraceError as error:
            raise RunFailed(f"{error}; choose another --out") from None
        if self._events and not is_of(self._events[0], header):
            raise RunFailed(f"{path}: {OTHER_GROUP}")
        self.began_s = float(self._events[0]["began_s"]) if self._events else began_s
        """Second of the clock in which the group began."""
        self._pending: deque[tuple[float, dict[str, Any]]] = deque()
        self._writer: TraceWriter | None = None

    def open(self, take: Callable[[str, float, dict[str, Any]], None]) -> None:
        """Call `take` for each event of the file, then open it for more events. Raises RunFailed if the decisions in
        the file are not those that `take` makes, or if the file cannot be written."""
        for event in self._events[1:]:
            if event["event"] == DECIDED:
                self._compare(event)
            else:
                take(event["event"], float(event["t_s"]), event)
        self._writer = TraceWriter(self._path, digits=None)
        if not self._events:
            self.event("group", 0.0, {"began_s": self.began_s, **self._header})
        self._events = []
        with contextlib.suppress(OSError):
            self._write_pending(self._writer)

    def _compare(self, line: dict[str, Any]) -> None:
        written = {key: value for key, value in line.items() if key not in ("event", "t_s")}
        if not self._pending or self._pending[0] != (float(line["t_s"]), written):
            raise RunFailed(
                f"{self._path}: the phases that it says began at {line['t_s']} s do not follow from its events; it is "
                "damaged or of another version; choose another --out"
            )
        self._pending.popleft()

    def event(self, event: str, now_s: float, fields: dict[str, Any]) -> None:
        """Write an event; on return it is on the disk. Raises RunFailed if the disk is full."""
        assert self._writer is not None, "open comes first"
        try:
            self._write_pending(self._writer, event, now_s, **fields)
        except OSError as error:
            raise RunFailed(f"the journal of phases cannot be written ({error.strerror}); make room") from error

    def decided(self, now_s: float, decision: dict[str, Any]) -> None:
        """Permits were decided on the last event."""
        read: dict[str, Any] = json.loads(json.dumps(decision))
        self._pending.append((now_s, read))
        if self._writer is not None:
            with contextlib.suppress(OSError):  # decisions follow from the events; the next event tries again
                self._write_pending(self._writer)

    def _write_pending(self, writer: TraceWriter, *event: Any, **fields: Any) -> None:
        for at_s, decision in self._pending:
            writer.write(DECIDED, at_s, **decision)
        if event:
            writer.write(*event, **fields)
        writer.flush()
        self._pending.clear()

    def close(self) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()
