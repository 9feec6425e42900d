"""Where a job of a co-execution group stands: its seat, its arrivals, its turns, the turn that runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ...plans.yaml.errors import RunFailed
from ...rounds.permits.permit_events import Seat


class HeldTurn(NamedTuple):
    """A turn that runs, or is paused: its job, number and phase, the second in which it began, its units now (none
    while it is paused), whether the job had all that it began with last, and since which second it has those of now.

    `from_s`: since when something of it has been on its units, or they have been kept for it; None: it is paused, and
    nothing is. `before_s`: seconds for which that was so before.
    """

    job: str
    turn: int
    phase: str
    begun_s: float
    units: tuple[int, ...]
    resident: bool
    since_s: float
    from_s: float | None
    before_s: float = 0.0

    def begun(self) -> dict[str, Any]:
        """What the journal says of it when it begins."""
        return {key: getattr(self, key) for key in ("job", "turn", "phase", "begun_s", "units", "resident")}

    def on(self, units: tuple[int, ...], now_s: float) -> HeldTurn:
        """The turn on these units from now on; on none it is paused."""
        return self._replace(units=units, since_s=now_s, from_s=now_s if self.from_s is None else self.from_s)

    def cleared(self, job: str, units: frozenset[int], now_s: float) -> HeldTurn:
        """The turn once a job has left units that were taken from its own turn: what was given them begins."""
        if self.job == job:
            return self if self.units else self._replace(from_s=None, before_s=self.ran_s(now_s))
        return self if units.isdisjoint(self.units) else self._replace(from_s=now_s)

    def ran_s(self, now_s: float) -> float:
        """Seconds that it has run: without those in which it was paused and nothing of it was on its units, or in which
        it waited for others to leave them."""
        return self.before_s + (0.0 if self.from_s is None else now_s - self.from_s)


@dataclass(slots=True)
class MemberState:
    """A job: how often it arrived, and of its latest arrival the turns that were given and are over."""

    seat: Seat
    arrival: int = 0
    given: int = 0
    over: int = 0
    in_tail: bool = False
    """Whether the turn that runs is a rollout in its tail."""
    to_clear: frozenset[int] = frozenset()
    """Units that others were given, and that the tail, or the rollout that is paused, must leave first."""
    taken_s: float = 0.0
    """When units were last taken from the turn."""
    paused_s: float | None = None
    """When the turn was last paused; None: it never was."""
    there: bool = False
    gone: bool = False
    ended: set[str] = field(default_factory=set)
    """Names of its processes that have ended."""

    def moved(self, held: HeldTurn, units: tuple[int, ...], now_s: float) -> HeldTurn:
        """Its turn on other units from now on, none if it is paused; what it loses it is to clear, unless it gets it
        back before."""
        taken = frozenset(held.units) - frozenset(units)
        self.to_clear = (self.to_clear | taken) - frozenset(units)
        self.taken_s = now_s if taken else self.taken_s
        self.paused_s = self.paused_s if units else now_s
        return held.on(units, now_s)


def executable(seat: Seat) -> Seat:
    """The seat. Raises RunFailed if its training could be put aside for more urgent turns."""
    if seat.resume_s[1] is not None:
        raise RunFailed(
            f"{seat.job}: the executor pauses no training; remove resume_s of its phase train from the workload, and "
            "solve again"
        )
    return seat
