"""The permit machine: which job holds which units of a co-execution group, and when.

Jobs alternate rollout and training. A phase that is ready asks for its units; the machine gives permits by one of three
permit rules (permit_rules.py). It reads no clock: every event comes with its time, and the same events at the same
times give the same actions, bit for bit, in the simulator (planner/groups/simulate/permit_simulator.py) and in the
executor.

Invariants (`check_invariants`):
- a unit is held by at most one job;
- a job holds units for one phase at a time, and phases alternate: its rollout and training never overlap (on-policy);
- a phase holds all its units from start to end, with two exceptions: a rollout in its tail may hold only `keep` units,
  and a rollout may start without units that another job's tail still holds (it gets them when they come free);
- work conserving: while a job waits, another one runs. A phase whose units are all free waits only for the jobs that
  `waits_for` names: under round_robin, a job that comes first on a shared unit; under first_come, a phase that was
  ready earlier and needs one of the units; under multi_rate, a more urgent phase that needs one of the units now, or
  when the phase that its job runs has ended, and that would miss its deadline if this phase started;
- starvation-free: a phase is overtaken on its units at most `overtaking_bound()` times: under first_come at most once
  by each other job, under round_robin three times. Under multi_rate a phase that was overtaken `PATIENCE` times goes
  before all phases that were not, waits for no job and is not paused;
- bounded credit: a job's deadline is its last deadline plus its pace, and is at most 1 + `CREDIT` paces away from the
  end of its iteration. A job that was early may be late by as much, within that limit.

The machine does not check memory: the planner ensures that the states of all jobs fit on their units.
"""

from __future__ import annotations

import math

from .permit_events import (
    PHASES,
    Action,
    Arrive,
    Consolidate,
    Done,
    Event,
    Grow,
    Leave,
    Pause,
    PlacedJob,
    Retime,
    Start,
    TailReached,
    UnitsLost,
    Wake,
    WakeAt,
)
from .permit_rules import CREDIT, PERMIT_RULES, ScheduledJob


class PermitMachine:
    """The permit machine (see the module). `jobs` is in order of arrival."""

    def __init__(self, permit_rule: str) -> None:
        if permit_rule not in PERMIT_RULES:
            raise ValueError(f"unknown permit rule {permit_rule!r}: one of {', '.join(sorted(PERMIT_RULES))}")
        self.rule = PERMIT_RULES[permit_rule]()
        self.jobs: list[ScheduledJob] = []
        self.waits_for: dict[str, list[str]] = {}
        """By job whose units are free: the jobs that it waits for nevertheless, as of the last event."""
        self._last_holder: dict[int, str] = {}
        self._arrived = 0
        self._places = 0
        self._most = 0  # jobs at a time
        self._now_s = -math.inf

    # -- events --------------------------------------------------------------------------------------------------------

    def handle(self, event: Event, now_s: float) -> list[Action]:
        """Take an event at its time, which never goes back.

        Raises:
            ValueError: an impossible event (a phase ends that does not run, a job arrives twice, time goes back).
        """
        if now_s < self._now_s:
            raise ValueError(f"time goes back: {event} at {now_s} s after {self._now_s} s")
        self._now_s = now_s
        match event:
            case Arrive(arriving):
                # All jobs are in one round again, so that none is ahead of a newcomer, or behind it.
                for job in self.jobs:
                    job.begun, job.overtaken = job.phase + job.running, 0
                for placed in arriving:
                    self._arrive(placed, now_s)
            case Done(name):
                job = self._job(name)
                self._done(job if job.paused else self._running(name), now_s)
            case TailReached(name):
                job = self._running(name)
                if job.phase != 0:
                    raise ValueError(f"{name} reached the tail of a rollout, but trains")
                job.tail = True
            case Leave(name):
                self.jobs.remove(self._job(name))
            case Retime(placed):
                self._retime(placed, now_s)
            case UnitsLost(units):
                self._lost(frozenset(units))
            case Wake():
                pass
        return self._grow(now_s) + self._grant(now_s)

    def _job(self, name: str) -> ScheduledJob:
        job = next((job for job in self.jobs if job.name == name), None)
        if job is None:
            raise ValueError(f"{name} is not in this group")
        return job

    def _running(self, name: str) -> ScheduledJob:
        job = self._job(name)
        if not job.running:
            raise ValueError(f"{name} has no phase that could end")
        return job

    def _arrive(self, placed: PlacedJob, now_s: float) -> None:
        if any(job.name == placed.job for job in self.jobs):
            raise ValueError(f"{placed.job} is in this group already")
        if not all(placed.units) or min(placed.expected_s) <= 0 or min(placed.switch_s) < 0:
            raise ValueError(f"{placed.job}: each phase needs a unit, and seconds")
        job = ScheduledJob(placed, self._arrived, self._next_place(), now_s, rest_s=placed.expected_s[0])
        job.deadline_s += job.pace_s
        self._arrived += 1
        self.jobs.append(job)
        self._most = max(self._most, len(self.jobs))

    def _retime(self, placed: PlacedJob, now_s: float) -> None:
        job = self._job(placed.job)
        if placed.units != job.placed.units:
            raise ValueError(f"{placed.job}: other units are for a job that leaves and arrives")
        job.placed = placed
        job.deadline_s = min(job.deadline_s, now_s + (1 + CREDIT) * job.pace_s)

    def _done(self, job: ScheduledJob, now_s: float) -> None:
        job.begun += job.paused
        self._stop(job)
        job.overtaken = 0
        job.phase = 1 - job.phase
        job.rest_s = job.placed.expected_s[job.phase]
        if job.phase == 0:
            credit_s = CREDIT * job.pace_s
            job.deadline_s = max(min(job.deadline_s, now_s + credit_s), now_s - credit_s) + job.pace_s

    def _stop(self, job: ScheduledJob) -> None:
        job.running, job.paused, job.tail, job.held = False, False, False, frozenset()
        job.ready_place = self._next_place()

    def _next_place(self) -> int:
        self._places += 1
        return self._places

    def _lost(self, units: frozenset[int]) -> None:
        for job in self.jobs:
            if job.held & units:
                self._stop(job)
                job.begun -= 1
                job.rest_s = job.placed.expected_s[job.phase]
            if units & {unit for pinned in job.placed.units for unit in pinned}:
                # Its state there is gone. A phase that runs on other units goes on to its end.
                job.stranded, job.overtaken = True, 0
        for unit in units:
            self._last_holder.pop(unit, None)

    # -- permits -------------------------------------------------------------------------------------------------------

    def available(self, job: ScheduledJob) -> frozenset[int]:
        """Units that a waiting phase would start on, without those that tails keep; empty: it cannot start."""
        wanted = job.units
        kept: frozenset[int] = frozenset()
        for other in self.jobs:
            if other.running and other.held & wanted:
                if not (other.tail and other.placed.keep):
                    return frozenset()
                kept |= other.kept & wanted
        return frozenset() if kept and job.phase == 1 else wanted - kept

    def _resident(self, job: ScheduledJob, units: frozenset[int]) -> bool:
        return all(self._last_holder.get(unit, job.name) == job.name for unit in units)

    def expected_end_s(self, job: ScheduledJob, units: frozenset[int], now_s: float) -> float:
        """When the phase of `job` is expected to end if it starts now on `units`; on fewer units it takes longer."""
        switch_s = 0.0 if self._resident(job, units) else job.placed.switch_s[job.phase]
        return now_s + (job.rest_s + switch_s) * len(job.units) / len(units)

    def free_s(self, job: ScheduledJob, now_s: float) -> float:
        """When the units of a waiting phase are expected to be free."""
        holders = [other.due_s for other in self.jobs if other.running and other.held & job.units]
        return max([now_s, *holders])

    def _grow(self, now_s: float) -> list[Action]:
        actions: list[Action] = []
        for job in self.jobs:
            if not job.running or job.tail or job.held == job.units:
                continue
            busy = frozenset().union(*(other.held for other in self.jobs if other is not job))
            more = job.units - job.held - busy
            if more:
                job.due_s = now_s + (job.due_s - now_s) * len(job.held) / len(job.held | more)
                job.held |= more
                self._last_holder |= dict.fromkeys(more, job.name)
                actions.append(Grow(job.name, tuple(sorted(job.held))))
        return actions

    def _grant(self, now_s: float) -> list[Action]:
        actions: list[Action] = []
        while True:
            more = self._consider_all(now_s)
            if not any(isinstance(action, Pause) for action in more):
                return actions + more
            # A pause may free units for a phase that was considered before it.
            actions += [action for action in more if not isinstance(action, WakeAt)]

    def _consider_all(self, now_s: float) -> list[Action]:
        actions: list[Action] = []
        self.waits_for = {}
        wake_s = math.inf
        refused: list[ScheduledJob] = []
        waiting = [job for job in self.jobs if not job.running and not job.stranded]
        # The order is that of now; a phase that is paused for another one is considered after all others.
        for job in sorted(waiting, key=self.rule.rank):
            units = self.available(job)
            if not units:
                paused = self.rule.pauses(self, job, refused, now_s)
                for other in paused:
                    self._pause(other, now_s)
                    actions.append(Pause(other.name))
                units = self.available(job) if paused else units
            elif not (verdict := self.rule.may_start(self, job, units, refused, now_s)).may:
                self.waits_for[job.name] = verdict.for_whom
                wake_s = min(wake_s, verdict.until_s)
                units = frozenset()
            if units:
                actions += self._start(job, units, now_s)
            else:
                refused.append(job)
        return actions + ([WakeAt(wake_s)] if wake_s < math.inf else [])

    def _pause(self, job: ScheduledJob, now_s: float) -> None:
        job.rest_s = max(0.0, job.due_s - now_s) + (job.placed.resume_s[job.phase] or 0.0)
        job.begun -= 1
        self._stop(job)
        job.paused = True

    def _start(self, job: ScheduledJob, units: frozenset[int], now_s: float) -> list[Action]:
        actions: list[Action] = []
        for other in self.jobs:
            if other.running and other.held & units:
                other.held = other.kept
                actions.append(Consolidate(other.name, tuple(sorted(other.held))))
        resident = self._resident(job, units)
        job.due_s = self.expected_end_s(job, units, now_s)
        self._last_holder |= dict.fromkeys(units, job.name)
        job.running, job.paused, job.held = True, False, units
        job.begun += 1
        for other in self.jobs:
            if not other.running and not other.stranded and other.units & units:
                other.overtaken += 1
        return [*actions, Start(job.name, PHASES[job.phase], tuple(sorted(units)), resident)]

    # -- what holds ----------------------------------------------------------------------------------------------------

    def overtaking_bound(self) -> int:
        """Most phases that other jobs begin on the units of a waiting phase while no job arrives."""
        return self.rule.overtaking_bound(self._most)

    def check_invariants(self) -> None:
        """Assert the invariants of the module."""
        holders: dict[int, str] = {}
        for job in self.jobs:
            assert job.running == bool(job.held), f"{job.name} runs without units"
            assert job.held <= job.units, f"{job.name} holds units that are not its own"
            assert job.tail or not job.running or job.phase == 0 or job.held == job.units
            for unit in job.held:
                assert unit not in holders, f"unit {unit} is held by {holders[unit]} and {job.name}"
                holders[unit] = job.name
            assert job.overtaken <= self.overtaking_bound(), f"{job.name} starves"
            assert job.deadline_s - self._now_s <= (1 + CREDIT) * job.pace_s * (1 + 1e-9), "credit has no bound"
        waiting = [job for job in self.jobs if not job.running and not job.stranded]
        assert not waiting or holders, "a job waits while none runs"
        for job in waiting:
            if self.available(job):
                assert self.waits_for.get(job.name), f"{job.name} waits for no job"
