"""What the bound machine is given and what it tells: bounds, figures of jobs beside them, alarms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["early", "kept", "alarm", "broken"]
Reason = Literal["mean", "stretch", "running"]


@dataclass(frozen=True, slots=True)
class Bound:
    """What a job is held to: seconds of an iteration alone, and at most how many times as long one may take."""

    alone_s: float
    slo: float

    @property
    def longest_s(self) -> float:
        """Mean seconds of an iteration at the bound."""
        return self.slo * self.alone_s


@dataclass(frozen=True, slots=True)
class BoundFigures:
    """A job beside its bound.

    Attributes:
        state: `early`: too few iterations; `kept`; `alarm`: it will break its bound if nothing changes; `broken`.
        iterations: that were measured.
        slowdown: mean over all of them; None before the first.
        recent: mean over the stretch; None before the first.
        slo: the bound.
        ahead_s: seconds that the job could still lose before its mean is above the bound; negative if it is.
        breaks_in: iterations until the mean is above the bound if they are like the fresh ones; None: never.
    """

    state: State
    iterations: int
    slowdown: float | None
    recent: float | None
    slo: float
    ahead_s: float
    breaks_in: int | None


@dataclass(frozen=True, slots=True)
class Alarm:
    """A job will break its bound. `reason`: what is about to be above it; `running`: the mean, when the iteration that
    runs ends."""

    job: str
    at_s: float
    reason: Reason
    figures: BoundFigures


@dataclass(frozen=True, slots=True)
class Broken:
    """A job's mean slowdown is above its bound."""

    job: str
    at_s: float
    figures: BoundFigures


@dataclass(frozen=True, slots=True)
class Cleared:
    """A job keeps its bound again, and will."""

    job: str
    at_s: float
    figures: BoundFigures


BoundEvent = Alarm | Broken | Cleared
