"""Permit rules: in which order waiting phases are considered, and which of them may start.

round_robin: each job takes its turns in one fixed cyclic order, one rollout and one training a round (RollMux, section
    4.1 of the paper): optimal for one rollout node, ruinous for a short job beside a long one.
first_come: each unit serves the phases that need it in the order in which they became ready (what RollMux's executor
    does, arXiv 2512.11306).
multi_rate: every job has a deadline for its iteration, a pace after the one before it, and the earliest deadline
    goes first. A phase with time to spare leaves its units idle for a more urgent phase that is about to need them, if
    starting now would make the urgent phase miss its deadline and waiting makes the first miss none itself. A turn that
    can be paused is paused for an earlier deadline that would otherwise be missed by more than the switches cost.

A job ahead of its pace may lag later by as much as it was ahead, but for no more than `CREDIT` paces either way.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from .permit_events import Seat


@dataclass(slots=True, eq=False)
class PermitTurn:
    """The phase that a job runs or waits for, with its deadline and its units."""

    seat: Seat
    number: int
    """Its place in the order of arrival, which breaks ties."""
    ready_place: int
    """Its place in the order in which phases of all jobs became ready."""
    deadline_s: float
    """Second by which the present iteration should end."""
    phase: int = 0
    running: bool = False
    paused: bool = False
    """Whether it was put aside in mid-phase, and waits to go on."""
    stranded: bool = False
    """Its units are lost: it takes no turns until it leaves and arrives anew."""
    rest_s: float = 0.0
    """Seconds that its phase is still expected to take, if it waits."""
    due_s: float = 0.0
    """When its turn is expected to end, if it runs."""
    overtaken: int = 0
    """Turns that other jobs began on its units since its phase is ready."""
    begun: int = 0
    """Phases begun since the last arrival of any job; odd while its rollout is the last of them."""
    tail: bool = False
    held: frozenset[int] = frozenset()

    @property
    def units(self) -> frozenset[int]:
        """Units of the phase that it runs or waits for."""
        return frozenset(self.seat.units[self.phase])

    @property
    def kept(self) -> frozenset[int]:
        """Units that its rollout keeps if its tail is consolidated; all units that it holds if it is not in a tail."""
        if not self.tail or not self.seat.keep:
            return self.held
        return frozenset(sorted(self.held)[: self.seat.keep])

    @property
    def pace_s(self) -> float:
        """Seconds that it has for an iteration; by default its solo seconds."""
        return self.seat.pace_s or sum(self.seat.expected_s)

    def need_s(self, phase: int) -> float:
        """Seconds that the phase may take, a switch included."""
        return (self.rest_s if phase == self.phase else self.seat.expected_s[phase]) + self.seat.switch_s[phase]


class Turns(Protocol):
    """The part of the permit machine (permit_machine.py) that permit rules may use."""

    @property
    def turns(self) -> Sequence[PermitTurn]:
        """All turns in order of arrival."""

    def expected_end_s(self, turn: PermitTurn, units: frozenset[int], now_s: float) -> float:
        """When `turn` is expected to end if it starts on `units` now."""

    def free_s(self, turn: PermitTurn, now_s: float) -> float:
        """When the units of `turn` are expected to be free."""


CREDIT = 2.0
"""Paces that a job can be ahead of its deadlines, or behind them, and have it remembered."""

PATIENCE = 64
"""Overtakings after which a phase goes before all others. Far above what jobs need whose paces differ tenfold."""


@dataclass(frozen=True, slots=True)
class TurnVerdict:
    """Whether a phase with free units may start; if not, the jobs that it waits for, and until when at most."""

    may: bool
    for_whom: list[str] = field(default_factory=list)
    until_s: float = math.inf


class PermitRule(Protocol):
    """The decisions that the permit machine leaves to its rule."""

    def rank(self, turn: PermitTurn) -> tuple[float, ...]:
        """Sort key of the waiting phases: the lowest is considered first."""

    def may_start(
        self, machine: Turns, turn: PermitTurn, units: frozenset[int], refused: list[PermitTurn], now_s: float
    ) -> TurnVerdict:
        """Whether `turn` may start on `units`, which are free. `refused` were considered before it and wait on."""

    def pauses(self, machine: Turns, turn: PermitTurn, refused: list[PermitTurn], now_s: float) -> list[PermitTurn]:
        """Turns to pause so that `turn`, whose units are not free, can start."""

    def turn_bound(self, jobs: int) -> int:
        """How often a phase is overtaken at most."""


class RoundRobin:
    """Turns in one fixed cyclic order (see the module)."""

    def rank(self, turn: PermitTurn) -> tuple[float, ...]:
        return turn.begun, turn.number

    def may_start(
        self, machine: Turns, turn: PermitTurn, units: frozenset[int], refused: list[PermitTurn], now_s: float
    ) -> TurnVerdict:
        wanted, before = turn.units, []
        for other in machine.turns:
            if other is turn or other.stranded:
                continue
            for phase in (0, 1):
                # Phases are numbered rollout 0, train 0, rollout 1, ...: the other's next one of this kind.
                place = other.begun + (other.begun - phase) % 2
                if wanted.intersection(other.seat.units[phase]) and (place, other.number) < (turn.begun, turn.number):
                    before.append(other.seat.job)
        return TurnVerdict(not before, before)

    def pauses(self, machine: Turns, turn: PermitTurn, refused: list[PermitTurn], now_s: float) -> list[PermitTurn]:
        return []

    def turn_bound(self, jobs: int) -> int:
        # An arrival puts all jobs into one round: a job between training and rollout is then a round ahead of some,
        # which have that round's two turns, and the next rollout if they come first in the order.
        return 3 * (jobs - 1)


class FirstCome:
    """Phases in the order in which they became ready (see the module)."""

    def rank(self, turn: PermitTurn) -> tuple[float, ...]:
        return (turn.ready_place,)

    def may_start(
        self, machine: Turns, turn: PermitTurn, units: frozenset[int], refused: list[PermitTurn], now_s: float
    ) -> TurnVerdict:
        before = [other.seat.job for other in refused if other.units & turn.units]
        return TurnVerdict(not before, before)

    def pauses(self, machine: Turns, turn: PermitTurn, refused: list[PermitTurn], now_s: float) -> list[PermitTurn]:
        return []

    def turn_bound(self, jobs: int) -> int:
        return jobs - 1


class MultiRate:
    """The earliest deadline first (see the module)."""

    def rank(self, turn: PermitTurn) -> tuple[float, ...]:
        if _overdue(turn):
            return 0, turn.ready_place
        return 1, turn.deadline_s, turn.number

    def may_start(
        self, machine: Turns, turn: PermitTurn, units: frozenset[int], refused: list[PermitTurn], now_s: float
    ) -> TurnVerdict:
        end_s = machine.expected_end_s(turn, units, now_s)
        if before := _harms(machine, turn, end_s, refused, now_s):
            return TurnVerdict(False, before)
        until_s, for_whom = -math.inf, []
        for other in machine.turns:
            phase = 1 - other.phase
            if not other.running or other.stranded or not turn.units.intersection(other.seat.units[phase]):
                continue
            deadline_s = other.deadline_s if phase else other.deadline_s + other.pace_s
            latest_s = deadline_s - other.need_s(1) - (0.0 if phase else other.need_s(0))
            ready_s = max(now_s, other.due_s)
            if end_s <= ready_s or end_s <= latest_s:
                continue
            if turn.seat.resume_s[turn.phase] is not None and not _overdue(turn) and deadline_s < turn.deadline_s:
                continue
            spare_s = _latest_s(turn) - other.need_s(phase)
            if ready_s < spare_s:
                until_s = max(until_s, spare_s)
                for_whom.append(other.seat.job)
        return TurnVerdict(not for_whom, for_whom, until_s)

    def pauses(self, machine: Turns, turn: PermitTurn, refused: list[PermitTurn], now_s: float) -> list[PermitTurn]:
        holders = [other for other in machine.turns if other.running and other.held & turn.units]
        cost_s = 0.0
        for other in holders:
            resume_s = other.seat.resume_s[other.phase]
            if resume_s is None or other.tail or _overdue(other) or other.deadline_s <= turn.deadline_s:
                return []
            cost_s = max(cost_s, turn.seat.switch_s[turn.phase] + other.seat.switch_s[other.phase] + resume_s)
        if machine.free_s(turn, now_s) - _latest_s(turn) <= cost_s:
            return []
        end_s = machine.expected_end_s(turn, turn.units, now_s)
        return [] if _harms(machine, turn, end_s, refused, now_s) else holders

    def turn_bound(self, jobs: int) -> int:
        return PATIENCE + jobs - 1


def _overdue(turn: PermitTurn) -> bool:
    return turn.overtaken >= PATIENCE


def _latest_s(turn: PermitTurn) -> float:
    """Latest start of a waiting phase that meets its deadline."""
    if _overdue(turn):
        return -math.inf
    return turn.deadline_s - turn.need_s(1) - (turn.need_s(0) if turn.phase == 0 else 0.0)


def _harms(machine: Turns, turn: PermitTurn, end_s: float, refused: list[PermitTurn], now_s: float) -> list[str]:
    """Jobs of refused phases that a turn until `end_s` would delay beyond their latest start and the free units."""
    return [
        other.seat.job
        for other in refused
        if other.units & turn.units and (_overdue(other) or end_s > max(machine.free_s(other, now_s), _latest_s(other)))
    ]


PERMIT_RULES: dict[str, type[PermitRule]] = {
    "round_robin": RoundRobin,
    "first_come": FirstCome,
    "multi_rate": MultiRate,
}
