"""Permit rules: in which order waiting phases are considered, and which of them may start.

round_robin: jobs run in one fixed cyclic order, one rollout and one training each round (RollMux, section 4.1 of the
    paper): optimal for one rollout node, ruinous for a short job beside a long one.
first_come: each unit serves the phases that need it in the order in which they became ready (what RollMux's executor
    does, arXiv 2512.11306).
multi_rate: every job has a deadline for its iteration, one pace after its last deadline, and the earliest deadline
    goes first. A phase with time to spare leaves its units idle for a more urgent phase that will need them soon, if
    starting now would make that phase miss its deadline and waiting does not make this one miss its own. A phase that
    can be paused is paused for an earlier deadline that would otherwise be missed by more than the switches cost.

A job that is ahead of its pace may later be behind it by as much; at most `CREDIT` paces count either way.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from .permit_events import PlacedJob


@dataclass(slots=True, eq=False)
class ScheduledJob:
    """A job, with the phase that it runs or waits for, its deadline and its units."""

    placed: PlacedJob
    number: int
    """Rank in the order of arrival, which breaks ties."""
    ready_place: int
    """Rank in the order in which phases of all jobs became ready."""
    deadline_s: float
    """Second by which the present iteration should end."""
    phase: int = 0
    running: bool = False
    paused: bool = False
    """Whether the phase was paused and waits to be resumed."""
    stranded: bool = False
    """Whether units of it are lost: it gets no permit until it leaves and arrives anew."""
    rest_s: float = 0.0
    """Of a phase that waits: seconds that it is still expected to take."""
    due_s: float = 0.0
    """Of a phase that runs: when it is expected to end."""
    overtaken: int = 0
    """Phases that other jobs began on its units since its own phase is ready."""
    begun: int = 0
    """Phases begun since the last arrival of any job; odd while its rollout is the last of them."""
    tail: bool = False
    held: frozenset[int] = frozenset()

    @property
    def name(self) -> str:
        """Name of the job."""
        return self.placed.job

    @property
    def units(self) -> frozenset[int]:
        """All units of the phase that it runs or waits for."""
        return frozenset(self.placed.units[self.phase])

    @property
    def kept(self) -> frozenset[int]:
        """Units that its rollout keeps if its tail is consolidated; outside a tail all units that it holds."""
        if not self.tail or not self.placed.keep:
            return self.held
        return frozenset(sorted(self.held)[: self.placed.keep])

    @property
    def pace_s(self) -> float:
        """Seconds that it has for an iteration; without a pace, its seconds alone."""
        return self.placed.pace_s or sum(self.placed.expected_s)

    def need_s(self, phase: int) -> float:
        """Seconds that a phase may still take, a switch included."""
        return (self.rest_s if phase == self.phase else self.placed.expected_s[phase]) + self.placed.switch_s[phase]


class MachineView(Protocol):
    """What permit rules may ask of the permit machine (permit_machine.py)."""

    @property
    def jobs(self) -> Sequence[ScheduledJob]:
        """All jobs in order of arrival."""

    def expected_end_s(self, job: ScheduledJob, units: frozenset[int], now_s: float) -> float:
        """When the phase of `job` is expected to end if it starts on `units` now."""

    def free_s(self, job: ScheduledJob, now_s: float) -> float:
        """When the units of `job` are expected to be free."""


CREDIT = 2.0
"""Most paces by which a job counts as ahead of its deadlines, or behind them."""

PATIENCE = 64
"""Number of overtakings after which a phase goes before all others; jobs whose paces differ tenfold need far fewer."""


@dataclass(frozen=True, slots=True)
class StartVerdict:
    """Whether a phase with free units may start; if not, for which jobs it waits, and until when at most."""

    may: bool
    for_whom: list[str] = field(default_factory=list)
    until_s: float = math.inf


class PermitRule(Protocol):
    """The decisions that the permit machine leaves to its rule."""

    def rank(self, job: ScheduledJob) -> tuple[float, ...]:
        """Sort key of the waiting phases: the lowest is considered first."""

    def may_start(
        self, machine: MachineView, job: ScheduledJob, units: frozenset[int], refused: list[ScheduledJob], now_s: float
    ) -> StartVerdict:
        """Whether `job` may start on `units`, which are free. `refused` were considered before it and still wait."""

    def pauses(
        self, machine: MachineView, job: ScheduledJob, refused: list[ScheduledJob], now_s: float
    ) -> list[ScheduledJob]:
        """Jobs to pause so that `job`, whose units are not free, can start; by default none."""
        return []

    def overtaking_bound(self, jobs: int) -> int:
        """How often a phase is overtaken at most in a group of `jobs` jobs."""


class RoundRobin(PermitRule):
    """Jobs in one fixed cyclic order (see the module)."""

    def rank(self, job: ScheduledJob) -> tuple[float, ...]:
        return job.begun, job.number

    def may_start(
        self, machine: MachineView, job: ScheduledJob, units: frozenset[int], refused: list[ScheduledJob], now_s: float
    ) -> StartVerdict:
        wanted, before = job.units, []
        for other in machine.jobs:
            if other is job or other.stranded:
                continue
            for phase in (0, 1):
                # Phases are numbered rollout 0, train 0, rollout 1, ...: the other's next one of this kind.
                place = other.begun + (other.begun - phase) % 2
                if wanted.intersection(other.placed.units[phase]) and (place, other.number) < (job.begun, job.number):
                    before.append(other.name)
        return StartVerdict(not before, before)

    def overtaking_bound(self, jobs: int) -> int:
        # An arrival puts all jobs into one round: a job between training and rollout is then a round ahead of others.
        # They run that round's two phases before it, and the next rollout if they come first in the order.
        return 3 * (jobs - 1)


class FirstCome(PermitRule):
    """Phases in the order in which they became ready (see the module)."""

    def rank(self, job: ScheduledJob) -> tuple[float, ...]:
        return (job.ready_place,)

    def may_start(
        self, machine: MachineView, job: ScheduledJob, units: frozenset[int], refused: list[ScheduledJob], now_s: float
    ) -> StartVerdict:
        before = [other.name for other in refused if other.units & job.units]
        return StartVerdict(not before, before)

    def overtaking_bound(self, jobs: int) -> int:
        return jobs - 1


class MultiRate(PermitRule):
    """The earliest deadline first (see the module)."""

    def rank(self, job: ScheduledJob) -> tuple[float, ...]:
        if _overdue(job):
            return 0, job.ready_place
        return 1, job.deadline_s, job.number

    def may_start(
        self, machine: MachineView, job: ScheduledJob, units: frozenset[int], refused: list[ScheduledJob], now_s: float
    ) -> StartVerdict:
        end_s = machine.expected_end_s(job, units, now_s)
        if before := _harms(machine, job, end_s, refused, now_s):
            return StartVerdict(False, before)
        until_s, for_whom = -math.inf, []
        for other in machine.jobs:
            phase = 1 - other.phase
            if not other.running or other.stranded or not job.units.intersection(other.placed.units[phase]):
                continue
            deadline_s = other.deadline_s if phase else other.deadline_s + other.pace_s
            latest_s = deadline_s - other.need_s(1) - (0.0 if phase else other.need_s(0))
            ready_s = max(now_s, other.due_s)
            if end_s <= ready_s or end_s <= latest_s:
                continue
            if job.placed.resume_s[job.phase] is not None and not _overdue(job) and deadline_s < job.deadline_s:
                continue
            spare_s = _latest_s(job) - other.need_s(phase)
            if ready_s < spare_s:
                until_s = max(until_s, spare_s)
                for_whom.append(other.name)
        return StartVerdict(not for_whom, for_whom, until_s)

    def pauses(
        self, machine: MachineView, job: ScheduledJob, refused: list[ScheduledJob], now_s: float
    ) -> list[ScheduledJob]:
        holders = [other for other in machine.jobs if other.running and other.held & job.units]
        cost_s = 0.0
        for other in holders:
            resume_s = other.placed.resume_s[other.phase]
            if resume_s is None or other.tail or _overdue(other) or other.deadline_s <= job.deadline_s:
                return []
            cost_s = max(cost_s, job.placed.switch_s[job.phase] + other.placed.switch_s[other.phase] + resume_s)
        if machine.free_s(job, now_s) - _latest_s(job) <= cost_s:
            return []
        end_s = machine.expected_end_s(job, job.units, now_s)
        return [] if _harms(machine, job, end_s, refused, now_s) else holders

    def overtaking_bound(self, jobs: int) -> int:
        return PATIENCE + jobs - 1


def _overdue(job: ScheduledJob) -> bool:
    return job.overtaken >= PATIENCE


def _latest_s(job: ScheduledJob) -> float:
    """Latest start of a waiting phase that meets its deadline."""
    if _overdue(job):
        return -math.inf
    return job.deadline_s - job.need_s(1) - (job.need_s(0) if job.phase == 0 else 0.0)


def _harms(
    machine: MachineView, job: ScheduledJob, end_s: float, refused: list[ScheduledJob], now_s: float
) -> list[str]:
    """Refused jobs that would start too late if `job` ran until `end_s`: after their units are free, and after their
    latest start."""
    return [
        other.name
        for other in refused
        if other.units & job.units and (_overdue(other) or end_s > max(machine.free_s(other, now_s), _latest_s(other)))
    ]


PERMIT_RULES: dict[str, type[PermitRule]] = {
    "round_robin": RoundRobin,
    "first_come": FirstCome,
    "multi_rate": MultiRate,
}
