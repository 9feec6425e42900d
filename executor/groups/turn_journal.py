"""The journal of a group's turns as the executor writes and reads it: whose it is, what happened, what was decided.

What its turns took: traces/groups/group_turns.py.
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
from ...rounds.permits.permit_events import Seat
from ...traces.groups.group_turns import read_seat
from ...traces.trace import TraceError, TraceWriter, read_trace

DECIDED = "turns"
"""Name of the events that say what was decided."""

OTHER_GROUP = "is of another group, or of other seats; choose another --out"


def journal_header(group: str, permit_rule: str, seats: Sequence[Seat]) -> dict[str, Any]:
    """What the first event of a group's journal says of the group, as JSON has it."""
    header = {"group": group, "rule": permit_rule, "seats": [asdict(seat) for seat in seats]}
    read: dict[str, Any] = json.loads(json.dumps(header))
    return read


class Journalled(NamedTuple):
    """What a journal says of a group's seats: the seats that it began with, those that jobs have now, and the first
    number that no unit had yet."""

    first: list[Seat]
    now: dict[str, Seat]
    fresh: int


def journalled_seats(journal: Path) -> Journalled:
    """Read the seats of a journal. Raises TraceError if it is damaged, or says nothing of a group."""
    events = list(read_trace(journal))
    if not events or "seats" not in events[0]:
        raise TraceError(journal, 1, "is no journal of a group's turns")
    first = [read_seat(seat) for seat in events[0]["seats"]]
    now, seats = {seat.job: seat for seat in first}, list(first)
    for event in events:
        if event["event"] == "seat":
            seats.append(read_seat(event["seat"]))
            now[event["job"]] = seats[-1]
        elif event["event"] == "unseat":
            now.pop(event["job"], None)
    return Journalled(first, now, 1 + max((unit for seat in seats for held in seat.units for unit in held), default=-1))


def is_of(first: dict[str, Any], header: dict[str, Any]) -> bool:
    """Whether a journal whose first event this is belongs to the group of a header."""
    return {key: first.get(key) for key in header} == header


class TurnJournal:
    """The journal of a group that runs: events, and after each of them the turns that were decided on it.

    Times are written as they are, not rounded: whoever takes the events at their times decides what was decided, bit
    for bit. What a death or a full disk kept from being written of a decision follows from the events, and is written
    before anything else is.

    Args:
        path: its file.
        header: of the group (`journal_header`).
        began_s: second in which the group begins, if there is no file yet.

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
        self._owed: deque[tuple[float, dict[str, Any]]] = deque()
        self._writer: TraceWriter | None = None

    def open(self, take: Callable[[str, float, dict[str, Any]], None]) -> None:
        """Have all events that it holds taken, then open it for more. Raises RunFailed if other turns were decided on
        them than are now, or if it cannot be written."""
        for event in self._events[1:]:
            if event["event"] == DECIDED:
                self._compare(event)
            else:
                take(event["event"], float(event["t_s"]), event)
        self._writer = TraceWriter(self._path, digits=None)
        if not self._events:
            self.event("group", 0.0, {"began_s": self.began_s, **self._header})
        self._events = []
        self._write_owed()

    def _compare(self, line: dict[str, Any]) -> None:
        stands = {key: value for key, value in line.items() if key not in ("event", "t_s")}
        if not self._owed or self._owed[0] != (float(line["t_s"]), stands):
            raise RunFailed(
                f"{self._path}: the turns that it says began at {line['t_s']} s do not follow from its events; it is "
                "damaged or of another version; choose another --out"
            )
        self._owed.popleft()

    def event(self, event: str, now_s: float, fields: dict[str, Any]) -> None:
        """Something happened: on return it is on the disk. Raises RunFailed if the disk is full."""
        assert self._writer is not None, "open comes first"
        try:
            for at_s, decided in self._owed:
                self._writer.write(DECIDED, at_s, **decided)
            self._writer.write(event, now_s, **fields)
            self._writer.flush()
        except OSError as error:
            raise RunFailed(f"the journal of turns cannot be written ({error.strerror}); make room") from error
        self._owed.clear()

    def turns(self, now_s: float, decided: dict[str, Any]) -> None:
        """Turns were decided on the last event."""
        read: dict[str, Any] = json.loads(json.dumps(decided))
        self._owed.append((now_s, read))
        self._write_owed()

    def _write_owed(self) -> None:
        if self._writer is None or not self._owed:
            return
        with contextlib.suppress(OSError):  # they follow from the events; the next event tries again, and says it
            for at_s, decided in self._owed:
                self._writer.write(DECIDED, at_s, **decided)
            self._writer.flush()
            self._owed.clear()

    def close(self) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()
