"""Where a job of a co-execution group stands: its seat, its arrivals, its turns, the turn that runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ...plans.yaml.errors import RunFailed
from ...rounds.permits.permit_events import Seat


class Held(NamedTuple):
    """A turn that runs: its job, number and phase, the second in which it began, its units now, whether the job had all
    that it began with last, and since which second it has those of now."""

    job: str
    turn: int
    phase: str
    begun_s: float
    units: tuple[int, ...]
    resident: bool
    since_s: float

    def begun(self) -> dict[str, Any]:
        """What the journal says of it when it begins."""
        return {key: value for key, value in self._asdict().items() if key != "since_s"}


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
    """Units that others were given, and that the tail must leave first."""
    there: bool = False
    gone: bool = False
    ended: set[str] = field(default_factory=set)
    """Names of its processes that have ended."""


def never_paused(seat: Seat) -> Seat:
    """The seat. Raises RunFailed if its turns could be put aside for more urgent ones."""
    if seat.resume_s != (None, None):
        raise RunFailed(f"{seat.job}: the executor pauses no turn; remove resume_s from the workload, and solve again")
    return seat
