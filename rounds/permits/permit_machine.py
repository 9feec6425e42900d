"""The permit machine: which job holds which units of a co-execution group, and when.

Jobs alternate rollout and training. A phase that is ready asks for its units; the machine gives permits by one of three
permit rules (permit_rules.py). It reads no clock: every event comes with its time, and the same events at the same
times give the same actions, bit for bit, in the simulator (planner/groups/simulate/permit_simulator.py) and in the
executor.

Invariants (`check_invariants`):
- a unit is held by at most one job;
- a job holds units for one phase at a time, and phases alternate: its rollout and training never overlap (on-policy);
- a turn holds all units of its seat from start to end, but for tails: a rollout in its tail may be down to `keep`
  units, and a rollout may start without units that another's tail still keeps (it gets them when they come free);
- work conserving: while a job waits, another one runs. A phase whose units are all free waits only for jobs that
  `waits_for` names. Under round_robin it waits for a job whose turn on a shared unit comes first. Under first_come it
  waits for a phase that was ready earlier and needs one of the units. Under multi_rate it waits for a more urgent phase
  that needs one of the units, now or at the end of its present turn, and that would miss its deadline if this phase
  started;
- starvation-free: a phase is overtaken on its units at most `turn_bound()` times. Under first_come each other job
  overtakes it once at most, under round_robin three times. Under multi_rate a phase that was overtaken `PATIENCE` times
  goes before all phases that were not, yields to no job and is not paused;
- bounded credit: a job's deadline is its last deadline plus its pace, and lies at most 1 + `CREDIT` paces from the end
  of its iteration. A job that was early may be late by as much, within that limit.

Memory is not looked at: a seat's states are resident on all its units, which is the planner's to make sure of.
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
    Reseat,
    Seat,
    Start,
    TailReached,
    UnitsLost,
    Wake,
    WakeAt,
)
from .permit_rules import CREDIT, PERMIT_RULES, PermitTurn


class PermitMachine:
    """The permit machine (see the module). `turns` is in order of arrival."""

    def __init__(self, permit_rule: str) -> None:
        if permit_rule not in PERMIT_RULES:
            raise ValueError(f"unknown permit rule {permit_rule!r}: one of {', '.join(sorted(PERMIT_RULES))}")
        self.rule = PERMIT_RULES[permit_rule]()
        self.turns: list[PermitTurn] = []
        self.waits_for: dict[str, list[str]] = {}
        """Jobs that each phase waits for although its units are free, as of the last event."""
        self._last_holder: dict[int, str] = {}
        self._arrived = 0
        self._places = 0
        self._most = 0  # jobs at a time
        self._now_s = -math.inf

    # -- events --------------------------------------------------------------------------------------------------------

    def handle(self, event: Event, now_s: float) -> list[Action]:
        """Take an event at its time, which never goes back.

        Raises:
            ValueError: an event that cannot be (a turn that does not run ends, a job arrives twice, time goes back).
        """
        if now_s < self._now_s:
            raise ValueError(f"time goes back: {event} at {now_s} s after {self._now_s} s")
        self._now_s = now_s
        match event:
            case Arrive(seats):
                # All are in one round again, so that no job owes a newcomer turns, or is owed any.
                for turn in self.turns:
                    turn.begun, turn.overtaken = turn.phase + turn.running, 0
                for seat in seats:
                    self._arrive(seat, now_s)
            case Done(job):
                turn = self._turn(job)
                self._done(turn if turn.paused else self._running(job), now_s)
            case TailReached(job):
                turn = self._running(job)
                if turn.phase != 0:
                    raise ValueError(f"{job} reached the tail of a rollout, but trains")
                turn.tail = True
            case Leave(job):
                self.turns.remove(self._turn(job))
            case Reseat(seat):
                self._reseat(seat, now_s)
            case UnitsLost(units):
                self._lost(frozenset(units))
            case Wake():
                pass
        return self._grow(now_s) + self._grant(now_s)

    def _turn(self, job: str) -> PermitTurn:
        turn = next((turn for turn in self.turns if turn.seat.job == job), None)
        if turn is None:
            raise ValueError(f"{job} is not in this group")
        return turn

    def _running(self, job: str) -> PermitTurn:
        turn = self._turn(job)
        if not turn.running:
            raise ValueError(f"{job} has no turn that could end")
        return turn

    def _arrive(self, seat: Seat, now_s: float) -> None:
        if any(turn.seat.job == seat.job for turn in self.turns):
            raise ValueError(f"{seat.job} is in this group already")
        if not all(seat.units) or min(seat.expected_s) <= 0 or min(seat.switch_s) < 0:
            raise ValueError(f"{seat.job}: each phase needs a unit, and seconds")
        turn = PermitTurn(seat, self._arrived, self._next_place(), now_s, rest_s=seat.expected_s[0])
        turn.deadline_s += turn.pace_s
        self._arrived += 1
        self.turns.append(turn)
        self._most = max(self._most, len(self.turns))

    def _reseat(self, seat: Seat, now_s: float) -> None:
        turn = self._turn(seat.job)
        if seat.units != turn.seat.units:
            raise ValueError(f"{seat.job}: other units are for a job that leaves and arrives")
        turn.seat = seat
        turn.deadline_s = min(turn.deadline_s, now_s + (1 + CREDIT) * turn.pace_s)

    def _done(self, turn: PermitTurn, now_s: float) -> None:
        turn.begun += turn.paused
        self._stop(turn)
        turn.overtaken = 0
        turn.phase = 1 - turn.phase
        turn.rest_s = turn.seat.expected_s[turn.phase]
        if turn.phase == 0:
            credit_s = CREDIT * turn.pace_s
            turn.deadline_s = max(min(turn.deadline_s, now_s + credit_s), now_s - credit_s) + turn.pace_s

    def _stop(self, turn: PermitTurn) -> None:
        turn.running, turn.paused, turn.tail, turn.held = False, False, False, frozenset()
        turn.ready_place = self._next_place()

    def _next_place(self) -> int:
        self._places += 1
        return self._places

    def _lost(self, units: frozenset[int]) -> None:
        for turn in self.turns:
            if turn.held & units:
                self._stop(turn)
                turn.begun -= 1
                turn.rest_s = turn.seat.expected_s[turn.phase]
            if units & {unit for pinned in turn.seat.units for unit in pinned}:
                # Its state there is gone. A turn that runs on other units is let run to its end.
                turn.stranded, turn.overtaken = True, 0
        for unit in units:
            self._last_holder.pop(unit, None)

    # -- permits -------------------------------------------------------------------------------------------------------

    def available(self, turn: PermitTurn) -> frozenset[int]:
        """Units that a waiting phase would start on; empty: it cannot start. Consolidates tails if it needs to."""
        wanted = turn.units
        kept: frozenset[int] = frozenset()
        for other in self.turns:
            if other.running and other.held & wanted:
                if not (other.tail and other.seat.keep):
                    return frozenset()
                kept |= other.kept & wanted
        return frozenset() if kept and turn.phase == 1 else wanted - kept

    def _resident(self, turn: PermitTurn, units: frozenset[int]) -> bool:
        return all(self._last_holder.get(unit, turn.seat.job) == turn.seat.job for unit in units)

    def expected_end_s(self, turn: PermitTurn, units: frozenset[int], now_s: float) -> float:
        """When a turn is expected to end that starts now on `units`; with a part of its units it is so much slower."""
        switch_s = 0.0 if self._resident(turn, units) else turn.seat.switch_s[turn.phase]
        return now_s + (turn.rest_s + switch_s) * len(turn.units) / len(units)

    def free_s(self, turn: PermitTurn, now_s: float) -> float:
        """When the units of a waiting phase are expected to be free."""
        holders = [other.due_s for other in self.turns if other.running and other.held & turn.units]
        return max([now_s, *holders])

    def _grow(self, now_s: float) -> list[Action]:
        actions: list[Action] = []
        for turn in self.turns:
            if not turn.running or turn.tail or turn.held == turn.units:
                continue
            busy = frozenset().union(*(other.held for other in self.turns if other is not turn))
            more = turn.units - turn.held - busy
            if more:
                turn.due_s = now_s + (turn.due_s - now_s) * len(turn.held) / len(turn.held | more)
                turn.held |= more
                self._last_holder |= dict.fromkeys(more, turn.seat.job)
                actions.append(Grow(turn.seat.job, tuple(sorted(turn.held))))
        return actions

    def _grant(self, now_s: float) -> list[Action]:
        actions: list[Action] = []
        while True:
            more = self._consider_all(now_s)
            if not any(isinstance(action, Pause) for action in more):
                return actions + more
            # A pause may free units that a phase waits for that was considered before.
            actions += [action for action in more if not isinstance(action, WakeAt)]

    def _consider_all(self, now_s: float) -> list[Action]:
        actions: list[Action] = []
        self.waits_for = {}
        wake_s = math.inf
        refused: list[PermitTurn] = []
        waiting = [turn for turn in self.turns if not turn.running and not turn.stranded]
        # The order is as of now; a turn that is paused for another is considered after all others.
        for turn in sorted(waiting, key=self.rule.rank):
            units = self.available(turn)
            if not units:
                paused = self.rule.pauses(self, turn, refused, now_s)
                for other in paused:
                    self._pause(other, now_s)
                    actions.append(Pause(other.seat.job))
                units = self.available(turn) if paused else units
            elif not (verdict := self.rule.may_start(self, turn, units, refused, now_s)).may:
                self.waits_for[turn.seat.job] = verdict.for_whom
                wake_s = min(wake_s, verdict.until_s)
                units = frozenset()
            if units:
                actions += self._start(turn, units, now_s)
            else:
                refused.append(turn)
        return actions + ([WakeAt(wake_s)] if wake_s < math.inf else [])

    def _pause(self, turn: PermitTurn, now_s: float) -> None:
        turn.rest_s = max(0.0, turn.due_s - now_s) + (turn.seat.resume_s[turn.phase] or 0.0)
        turn.begun -= 1
        self._stop(turn)
        turn.paused = True

    def _start(self, turn: PermitTurn, units: frozenset[int], now_s: float) -> list[Action]:
        actions: list[Action] = []
        for other in self.turns:
            if other.running and other.held & units:
                other.held = other.kept
                actions.append(Consolidate(other.seat.job, tuple(sorted(other.held))))
        job = turn.seat.job
        resident = self._resident(turn, units)
        turn.due_s = self.expected_end_s(turn, units, now_s)
        self._last_holder |= dict.fromkeys(units, job)
        turn.running, turn.paused, turn.held = True, False, units
        turn.begun += 1
        for other in self.turns:
            if not other.running and not other.stranded and other.units & units:
                other.overtaken += 1
        return [*actions, Start(job, PHASES[turn.phase], tuple(sorted(units)), resident)]

    # -- what holds ----------------------------------------------------------------------------------------------------

    def turn_bound(self) -> int:
        """Turns that others begin at most on a phase's units while it waits and no job arrives."""
        return self.rule.turn_bound(self._most)

    def check_invariants(self) -> None:
        """Assert the invariants of the module."""
        holders: dict[int, str] = {}
        for turn in self.turns:
            assert turn.running == bool(turn.held), f"{turn.seat.job} runs without units"
            assert turn.held <= turn.units, f"{turn.seat.job} holds units that are not its own"
            assert turn.tail or not turn.running or turn.phase == 0 or turn.held == turn.units
            for unit in turn.held:
                assert unit not in holders, f"unit {unit} is held by {holders[unit]} and {turn.seat.job}"
                holders[unit] = turn.seat.job
            assert turn.overtaken <= self.turn_bound(), f"{turn.seat.job} starves"
            assert turn.deadline_s - self._now_s <= (1 + CREDIT) * turn.pace_s * (1 + 1e-9), "credit has no bound"
        waiting = [turn for turn in self.turns if not turn.running and not turn.stranded]
        assert not waiting or holders, "a job waits while none runs"
        for turn in waiting:
            if self.available(turn):
                assert self.waits_for.get(turn.seat.job), f"{turn.seat.job} waits for no job"
