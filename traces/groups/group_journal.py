"""Reads the journal of a co-execution group that was executed: which job had which units when, how long jobs waited,
what phases took, and when trainings ended, each the end of an iteration of its job.

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
from ...rounds.permits.permit_events import PlacedJob
from ...rounds.permits.slowdown import WARM
from ..trace import TraceError, read_trace

GROUP_JOURNAL = "turns.jsonl"
"""The journal, in the folder of a group's runs."""

GROUPS_COPY = "groups.yaml"
"""A copy of the plan of groups, in the same folder."""


@dataclass(frozen=True, slots=True)
class PhaseSpan:
    """A phase that ran on the same units, or the part of one; times are seconds since the group began. `ended`: whether
    the phase is complete with it; else it is void, or goes on on other units, at once or after a pause."""

    job: str
    phase: str
    begun_s: float
    end_s: float
    units: tuple[int, ...]
    switched: bool
    """Whether it began with a switch."""
    ended: bool
    waited_s: float
    """Seconds from the end of the job's last phase, or from its arrival, to the beginning of this span."""
    arrival: int
    """Number of the start of the job's process that ran it, from 1."""
    first: bool = True
    """Whether the phase began with it; nothing waited for a later part."""


@dataclass
class GroupJournal:
    """The content of a journal.

    Attributes:
        group: id of the group.
        rule: permit rule.
        units: numbers of all units.
        first_jobs: the jobs with which it began, for `read_placed_job`.
        spans: of the phases of all jobs, in the order of their ends; a phase that still ran ends with the journal.
        arrivals: how often each job arrived: once, and once more for each start after a death.
        end_s: time of the last event, in seconds since the group began.
        began_s: when the group began, in seconds since 1970.
        members: jobs that are in the group.
        absent: members without a process that is ready: they start, or have ended.
        running: by job, the phase that ran at the journal's end, as the journal has it; a paused one has no units.
        waits_for: by waiting job, the jobs for which it waited last although its own nodes were free.
        changes: (seconds, job, whether it joined) of jobs that joined and left while the group ran.
    """

    group: str
    rule: str
    units: tuple[int, ...]
    first_jobs: list[dict[str, Any]] = field(default_factory=list)
    spans: list[PhaseSpan] = field(default_factory=list)
    arrivals: dict[str, int] = field(default_factory=dict)
    end_s: float = 0.0
    began_s: float = 0.0
    members: list[str] = field(default_factory=list)
    absent: set[str] = field(default_factory=set)
    running: dict[str, dict[str, Any]] = field(default_factory=dict)
    waits_for: dict[str, list[str]] = field(default_factory=dict)
    changes: list[tuple[float, str, bool]] = field(default_factory=list)

    def join(self, event: dict[str, Any], now_s: float) -> None:
        """A job joined, or got other expected seconds."""
        job = event["job"]
        self.units = tuple(sorted({*self.units, *(unit for phase in event["seat"]["units"] for unit in phase)}))
        self.arrivals.setdefault(job, 0)
        if job not in self.members:
            self.members.append(job)
            self.absent.add(job)
            self.changes.append((now_s, job, True))

    def leave(self, job: str, now_s: float) -> None:
        """A job left the group."""
        if job in self.members:
            self.members.remove(job)
            self.changes.append((now_s, job, False))


def read_placed_job(fields: Mapping[str, Any]) -> PlacedJob:
    """A job of a group as the journal writes it."""
    pairs = {key: tuple(value) for key, value in fields.items() if isinstance(value, list)}
    return PlacedJob(**{**fields, **pairs, "units": tuple(map(tuple, fields["units"]))})


def read_group_journal(path: Path) -> GroupJournal:
    """Read a journal. Raises TraceError for a damaged one, FileNotFoundError if there is none."""
    running: dict[str, dict[str, Any]] = {}
    since_s: dict[str, float] = {}
    events = list(read_trace(path))
    if not events:
        raise TraceError(path, None, "is empty; no group began")
    try:
        first = events[0]
        units = {unit for seat in first["seats"] for phase in seat["units"] for unit in phase}
        read = GroupJournal(str(first["group"]), str(first["rule"]), tuple(sorted(units)), list(first["seats"]))
        read.arrivals = {seat["job"]: 0 for seat in first["seats"]}
        read.began_s, read.members, read.absent = float(first["began_s"]), list(read.arrivals), set(read.arrivals)

        def end(job: str, now_s: float, ended: bool) -> None:
            phase = running.pop(job, None)
            if phase is not None and (phase["units"] or ended):
                first, begun_s = "since_s" not in phase, phase.get("since_s", phase["begun_s"])
                begun_s = begun_s if phase["units"] else now_s  # its last sample was scored while it was paused
                waited_s = begun_s - since_s[job] if first else 0.0
                read.spans.append(
                    PhaseSpan(
                        job, phase["phase"], begun_s, now_s, tuple(phase["units"]),
                        not phase["resident"], ended, waited_s, read.arrivals[job], first,
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
                    read.join(event, now_s)
                case "unseat":
                    end(event["job"], now_s, False)
                    read.leave(event["job"], now_s)
                case "done":
                    end(event["job"], now_s, True)
                case "turns":
                    read.waits_for = event["waits_for"]
                    for phase in event["begun"]:
                        running[phase["job"]] = phase
                    for job, units in event.get("moved", {}).items():
                        phase = running[job]
                        end(job, now_s, False)
                        # After a pause the state of another job is on the units.
                        running[job] = phase | {"units": units, "since_s": now_s, "resident": bool(phase["units"])}
        read.running = dict(running)
        for job in list(running):
            end(job, read.end_s, False)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise TraceError(path, None, f"an event lacks {error}; the journal is damaged or of another version") from error
    return read


def load_journal(folder: Path) -> GroupJournal:
    """Read the journal in a group's folder. Raises InputError if it cannot be read."""
    try:
        return read_group_journal(folder / GROUP_JOURNAL)
    except (TraceError, OSError) as error:
        raise InputError(f"its journal of phases cannot be read: {error}", str(folder)) from None


def iteration_seconds(
    journal: GroupJournal, members: Mapping[str, GroupMember]
) -> dict[str, list[tuple[float, float]]]:
    """Return by job the (rollout, train) seconds of its complete iterations, in their order.

    The first `WARM` of each start are left out, and iterations in which a phase had to be begun again. Pauses do not
    count. From a span that began with a switch the planned seconds of a switch are subtracted, since the planner adds
    them to phases that switch; at least half of the span counts, in case the planned seconds are wrong.

    Args:
        journal: of the group.
        members: the plan's jobs of the group.
    """
    found: dict[str, list[tuple[float, float]]] = {}
    for name, member in members.items():
        pairs: list[tuple[float, float]] = []
        complete, start = 0, 0
        own_s, before_s = 0.0, -1.0  # of the phase so far; of the rollout before it, negative: there is none
        for span in journal.spans:
            if span.job != name:
                continue
            if span.arrival != start:
                complete, start, before_s = 0, span.arrival, -1.0
            switch_s = member.rollout.switch_s if span.phase == "rollout" else member.train.switch_s
            own_s = _own_s(span, switch_s) + (0.0 if span.first else own_s)
            if span.phase == "train" and span.ended and before_s >= 0:
                complete += 1
                if complete > WARM:
                    pairs.append((before_s, own_s))
            before_s = own_s if span.phase == "rollout" and span.ended else -1.0
        found[name] = pairs
    return found


def _own_s(span: PhaseSpan, switch_s: float) -> float:
    """Seconds of a span without its switch."""
    seconds = span.end_s - span.begun_s
    return max(seconds - switch_s, seconds / 2) if span.switched else seconds


def bound_of(member: GroupMember) -> SlowdownBound:
    """The bound that a plan sets a job."""
    return SlowdownBound(alone_s=member.slowdown.alone_s, slo=member.slowdown.slo)


class TrainingEnd(NamedTuple):
    """The end of a training: its job, the number of the start of the job's process, and when, in seconds since 1970."""

    job: str
    start: int
    at_s: float


class TrainingEnds:
    """Reads the ends of trainings from a journal that grows; `path`: the journal, which need not exist yet."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset, self._line = 0, 0
        self._began_s = 0.0
        self._starts: dict[str, int] = {}
        self._phases: dict[str, str] = {}

    def new(self) -> list[TrainingEnd]:
        """The ends that were written since the last call. Raises TraceError for a damaged line, OSError."""
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
                raise TraceError(self._path, self._line, f"not an event of a journal of phases ({error})") from error
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
