"""The journal of a group's turns as the executor writes and reads it: whose it is, and which seats jobs have.

What its turns took: traces/groups/group_turns.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from ...rounds.permits.permit_events import Seat
from ...traces.trace import TraceError, read_trace

OTHER_GROUP = "is of another group, or of other seats; choose another --out"


def journal_header(group: str, permit_rule: str, seats: Sequence[Seat]) -> dict[str, Any]:
    """What the first event of a group's journal says of the group, as JSON has it."""
    header = {"group": group, "rule": permit_rule, "seats": [asdict(seat) for seat in seats]}
    read: dict[str, Any] = json.loads(json.dumps(header))
    return read


def read_seat(fields: Mapping[str, Any]) -> Seat:
    """A seat as the journal has it."""
    pairs = {key: tuple(value) for key, value in fields.items() if isinstance(value, list)}
    return Seat(**{**fields, **pairs, "units": tuple(map(tuple, fields["units"]))})


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
