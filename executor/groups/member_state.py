"""The state of a job of a co-execution group: its units, its arrivals, and the phase that it runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ...plans.yaml.errors import RunFailed
from ...rounds.permits.permit_events import PlacedJob


class HeldPhase(NamedTuple):
    """A phase that runs, or is paused. Times are seconds since the group began.

    Attributes:
        job: its job.
        number: of the phase, from 0 since the job's latest arrival; even numbers are rollouts.
        phase: `rollout` or `train`.
        begun_s: when it began.
        units: that it has now; none while it is paused.
        resident: whether the job had all units that it began on last.
        since_s: since when it has the units of now.
        running_since_s: since when it has run without a break; None: it is paused, and has left its units.
        ran_before_s: seconds that it ran before that break.
    """

    job: str
    number: int
    phase: str
    begun_s: float
    units: tuple[int, ...]
    resident: bool
    since_s: float
    running_since_s: float | None
    ran_before_s: float = 0.0

    def begun(self) -> dict[str, Any]:
        """What the journal says of it when it begins."""
        return {"job": self.job, "turn": self.number, "phase": self.phase, "begun_s": self.begun_s,
                "units": self.units, "resident": self.resident}  # fmt: skip

    def on(self, units: tuple[int, ...], now_s: float) -> HeldPhase:
        """The phase on these units from now on; on none it is paused."""
        since_s = now_s if self.running_since_s is None else self.running_since_s
        return self._replace(units=units, since_s=now_s, running_since_s=since_s)

    def released(self, job: str, units: frozenset[int], now_s: float) -> HeldPhase:
        """The phase once `job` has left units that were taken from it: a phase that waited for these units begins."""
        if self.job == job:
            return self if self.units else self._replace(running_since_s=None, ran_before_s=self.ran_s(now_s))
        return self if units.isdisjoint(self.units) else self._replace(running_since_s=now_s)

    def ran_s(self, now_s: float) -> float:
        """Seconds that it has run, without pauses, and without waits for other jobs to leave its units."""
        return self.ran_before_s + (0.0 if self.running_since_s is None else now_s - self.running_since_s)


@dataclass(slots=True)
class MemberState:
    """A job of the group. `arrival`: how often it arrived; `granted`, `finished`: how many of its phases got a permit,
    and are complete, since its latest arrival."""

    placed: PlacedJob
    arrival: int = 0
    granted: int = 0
    finished: int = 0
    in_tail: bool = False
    """Whether the phase that runs is a rollout in its tail."""
    to_release: frozenset[int] = frozenset()
    """Units that the machine has taken from the phase, and that the job has not left yet."""
    taken_s: float = 0.0
    """When units were last taken from the phase."""
    paused_s: float | None = None
    """When the phase was last paused; None: it never was."""
    present: bool = False
    """Whether the permit machine knows the job."""
    gone: bool = False
    """Whether its last process has ended."""
    ended: set[str] = field(default_factory=set)
    """Names of its processes that have ended."""

    def moved(self, held: HeldPhase, units: tuple[int, ...], now_s: float) -> HeldPhase:
        """Its phase on other units from now on, on none if it is paused; it must release the units that it loses,
        unless it gets them back before."""
        taken = frozenset(held.units) - frozenset(units)
        self.to_release = (self.to_release | taken) - frozenset(units)
        self.taken_s = now_s if taken else self.taken_s
        self.paused_s = self.paused_s if units else now_s
        return held.on(units, now_s)


def executable(placed: PlacedJob) -> PlacedJob:
    """The same job. Raises RunFailed if its training may be paused, which the executor cannot do."""
    if placed.resume_s[1] is not None:
        raise RunFailed(
            f"{placed.job}: the executor pauses no training; remove resume_s of its phase train from the workload, and "
            "solve again"
        )
    return placed
