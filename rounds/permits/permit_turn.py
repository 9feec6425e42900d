"""A job's turn in a co-execution group, and the questions that permit rules may ask the permit machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from .permit_events import Seat


@dataclass(slots=True, eq=False)
class Turn:
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
    def turns(self) -> Sequence[Turn]:
        """All turns in order of arrival."""

    def expected_end_s(self, turn: Turn, units: frozenset[int], now_s: float) -> float:
        """When `turn` is expected to end if it starts on `units` now."""

    def free_s(self, turn: Turn, now_s: float) -> float:
        """When the units of `turn` are expected to be free."""
