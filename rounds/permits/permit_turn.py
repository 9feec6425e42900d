"""Where a job stands in a co-execution group, and what the rules of order may ask the permit machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from .permit_events import Seat


@dataclass(slots=True, eq=False)
class Turn:
    """Where a job stands."""

    seat: Seat
    number: int
    """Its place in the order of arrival, which breaks ties."""
    asked: int
    """Its place in the order in which phases became ready, whoever's they are."""
    deadline_s: float
    """By when the iteration under way should end."""
    phase: int = 0
    running: bool = False
    stranded: bool = False
    """Its units are lost: it takes no turns until it leaves and arrives anew."""
    rest_s: float = 0.0
    """Seconds that its phase is still expected to take, if it waits."""
    due_s: float = 0.0
    """When its turn is expected to end, if it runs."""
    overtaken: int = 0
    """Turns that others began on its units since its phase is ready."""
    begun: int = 0
    """Phases begun since anybody arrived, odd while its rollout is the last one."""
    tail: bool = False
    held: frozenset[int] = frozenset()

    @property
    def units(self) -> frozenset[int]:
        """Units of the phase that it runs or waits for."""
        return frozenset(self.seat.units[self.phase])

    @property
    def kept(self) -> frozenset[int]:
        """Units that its rollout keeps if its tail is consolidated; all that it holds if it is in none."""
        if not self.tail or not self.seat.keep:
            return self.held
        return frozenset(sorted(self.held)[: self.seat.keep])

    @property
    def pace_s(self) -> float:
        """Seconds that it has for an iteration; by default what it takes alone."""
        return self.seat.pace_s or sum(self.seat.expected_s)

    def need_s(self, phase: int) -> float:
        """Seconds that the phase may take, a switch included."""
        return (self.rest_s if phase == self.phase else self.seat.expected_s[phase]) + self.seat.switch_s[phase]


class Turns(Protocol):
    """What the rules of order may ask: the permit machine (permit_machine.py)."""

    @property
    def turns(self) -> Sequence[Turn]:
        """All turns in order of arrival."""

    def expected_end_s(self, turn: Turn, units: frozenset[int], now_s: float) -> float:
        """When `turn` is expected to end if it starts on `units` now."""

    def free_s(self, turn: Turn, now_s: float) -> float:
        """When the units of `turn` are expected to be free."""
