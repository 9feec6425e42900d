"""Reads the journal of a co-execution group that was executed: which job had which units when, who waited how long,
what its turns took, and when its trainings ended, each the end of an iteration of its job.

docs/trace.md lists its events.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ...plans.schema.groups_plan import GroupMember
from ...plans.yaml.errors import InputError
from ...rounds.permits.bound_machine import SlowdownBound
from ...rounds.permits.permit_events import Seat
from ...rounds.permits.slowdown import WARM
from ..trace import TraceError, read_trace

TURNS = "turns.jsonl"
"""The journal, in the folder of a group's runs."""

GROUPS_COPY = "groups.yaml"
"""A copy of the plan of groups, beside it."""


@dataclass(frozen=True, slots=True)
class TurnTaken:
    """A turn, or the part of one on the same units: seconds since the group began. `ended`: whether its phase is
    complete with it; else it is void, or goes on on other units, at once or after a pause."""

    job: str
    phase: str
    begun_s: float
    end_s: float
    units: tuple[int, ...]
    switched: bool
    """Whether it began with a switch."""
    ended: bool
    waited_s: float
    """Seconds from the end of the job's turn before, or its arrival, until this one began."""
    arrival: int
    """Number of the start of the job's process that took it, from 1."""
    first: bool = True
    """Whether the turn began with it; a later part was waited for by nobody."""


@dataclass
class GroupTurns:
    """What a journal holds.

    Attributes:
        group: id of the group.
        rule: permit rule.
        units: numbers of all units.
        seats: of the jobs with which it began, as `read_seat` takes them.
        turns: of all jobs, in the order of their ends; those that still ran when the journal was read end with it.
        arrivals: how often each job arrived: once, and once more for each start after a death.
        end_s: time of the last event, in seconds since the group began.
        began_s: when the group began, in seconds since 1970.
        seated: jobs that have a seat.
        absent: those of them of which no process is ready: they start, or have ended.
        running: the turns that ran when the journal was read, by job, as the journal has them; one that was paused has
            no units.
        waits_for: jobs for whom each waiting job waited last although its own nodes were free.
        changes: (seconds, job, whether it got a seat) of seats that were given and given up while the group ran.
    """

    group: str
    rule: str
    units: tuple[int, ...]
    seats: list[dict[str, Any]] = field(default_factory=list)
    turns: list[TurnTaken] = field(default_factory=list)
    arrivals: dict[str, int] = field(default_factory=dict)
    end_s: float = 0.0
    began_s: float = 0.0
    seated: list[str] = field(default_factory=list)
    absent: set[str] = field(default_factory=set)
    running: dict[str, dict[str, Any]] = field(default_factory=dict)
    waits_for: dict[str, list[str]] = field(default_factory=dict)
    changes: list[tuple[float, str, bool]] = field(default_factory=list)

    def take_seat(self, event: dict[str, Any], now_s: float) -> None:
        """A job got a seat, or other seconds for its own."""
        job = event["job"]
        self.units = tuple(sorted({*self.units, *(unit for phase in event["seat"]["units"] for unit in phase)}))
        self.arrivals.setdefault(job, 0)
        if job not in self.seated:
            self.seated.append(job)
            self.absent.add(job)
            self.changes.append((now_s, job, True))

    def give_up(self, job: str, now_s: float) -> None:
        """A job gave its seat up."""
        if job in self.seated:
            self.seated.remove(job)
            self.changes.append((now_s, job, False))


def read_seat(fields: Mapping[str, Any]) -> Seat:
    """A seat as the journal has it."""
    pairs = {key: tuple(value) for key, value in fields.items() if isinstance(value, list)}
    return Seat(**{**fields, **pairs, "units": tuple(map(tuple, fields["units"]))})


def read_turns(path: Path) -> GroupTurns:
    """Read a journal. Raises TraceError for a damaged one, FileNotFoundError if there is none."""
    running: dict[str, dict[str, Any]] = {}
    since_s: dict[str, float] = {}
    events = list(read_trace(path))
    if not events:
        raise TraceError(path, None, "is empty; no group began")
    try:
        first = events[0]
        units = {unit for seat in first["seats"] for phase in seat["units"] for unit in phase}
        read = GroupTurns(str(first["group"]), str(first["rule"]), tuple(sorted(units)), list(first["seats"]))
        read.arrivals = {seat["job"]: 0 for seat in first["seats"]}
        read.began_s, read.seated, read.absent = float(first["began_s"]), list(read.arrivals), set(read.arrivals)

        def end(job: str, now_s: float, ended: bool) -> None:
            turn = running.pop(job, None)
            if turn is not None and (turn["units"] or ended):
                first, begun_s = "since_s" not in turn, turn.get("since_s", turn["begun_s"])
                begun_s = begun_s if turn["units"] else now_s  # its last sample was scored while it was paused
                waited_s = begun_s - since_s[job] if first else 0.0
                read.turns.append(
                    TurnTaken(
                        job, turn["phase"], begun_s, now_s, tuple(turn["units"]),
                        not turn["resident"], ended, waited_s, read.arrivals[job], first,
                    )
                )  # fmt: skip
            since_s[job] = now_s

        for event in events[1:]:
            read.end_s = now_s = float(event["t_s"])
            match event["event"]:
                case "ready":
                    end(event["job"], now_s, False)
                    read.arrivals[event["job"]] += 1
                    read.absent.discard(event["job"])
                case "leave":
                    end(event["job"], now_s, False)
                    read.absent.add(event["job"])
                case "seat":
                    read.take_seat(event, now_s)
                case "unseat":
                    end(event["job"], now_s, False)
                    read.give_up(event["job"], now_s)
                case "done":
                    end(event["job"], now_s, True)
                case "turns":
                    read.waits_for = event["waits_for"]
                    for turn in event["begun"]:
                        running[turn["job"]] = turn
                    for job, units in event.get("moved", {}).items():
                        turn = running[job]
                        end(job, now_s, False)
                        # Who goes on after a pause finds the state of another job on its units.
                        running[job] = turn | {"units": units, "since_s": now_s, "resident": bool(turn["units"])}
        read.running = dict(running)
        for job in list(running):
            end(job, read.end_s, False)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise TraceError(path, None, f"an event lacks {error}; the journal is damaged or of another version") from error
    return read


def turns_of(folder: Path) -> GroupTurns:
    """Read the journal in a group's folder. Raises InputError if it cannot be read."""
    try:
        return read_turns(folder / TURNS)
    except (TraceError, OSError) as error:
        raise InputError(f"its turns cannot be read: {error}", str(folder)) from None


def turn_seconds(turns: GroupTurns, members: Mapping[str, GroupMember]) -> dict[str, list[tuple[float, float]]]:
    """Return by job the (rollout, train) seconds of its complete iterations, in their order.

    The first `WARM` of each start are left out, and iterations in which a phase had to be begun again. Pauses are not
    counted. A turn, or what follows a pause, that began with a switch is counted without the seconds that the plan has
    for one, since the planner adds them to the turns that switch; it keeps at least half of its own, in case the plan
    is wrong about the switch.

    Args:
        turns: of the group (`read_turns`).
        members: the plan's jobs of the group.
    """
    found: dict[str, list[tuple[float, float]]] = {}
    for name, member in members.items():
        pairs: list[tuple[float, float]] = []
        complete, start = 0, 0
        own_s, before_s = 0.0, -1.0  # of the turn so far; of the rollout before it, negative: there is none
        for turn in turns.turns:
            if turn.job != name:
                continue
            if turn.arrival != start:
                complete, start, before_s = 0, turn.arrival, -1.0
            switch_s = member.rollout.switch_s if turn.phase == "rollout" else member.train.switch_s
            own_s = _own_s(turn, switch_s) + (0.0 if turn.first else own_s)
            if turn.phase == "train" and turn.ended and before_s >= 0:
                complete += 1
                if complete > WARM:
                    pairs.append((before_s, own_s))
            before_s = own_s if turn.phase == "rollout" and turn.ended else -1.0
        found[name] = pairs
    return found


def _own_s(turn: TurnTaken, switch_s: float) -> float:
    """Seconds of a turn without its switch."""
    seconds = turn.end_s - turn.begun_s
    return max(seconds - switch_s, seconds / 2) if turn.switched else seconds


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
