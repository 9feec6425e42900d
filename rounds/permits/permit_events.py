"""Events that the permit machine takes and actions that it returns.

A *turn* is one phase of one job from its permit to its end. Units are numbered within the co-execution group.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

PhaseName = Literal["rollout", "train"]
PHASES: tuple[PhaseName, PhaseName] = ("rollout", "train")


@dataclass(frozen=True, slots=True)
class Seat:
    """What a job brings into a group. Pairs are (rollout, train)."""

    job: str
    units: tuple[tuple[int, ...], tuple[int, ...]]
    """Units that each phase holds while it runs; its state stays resident there between turns."""
    expected_s: tuple[float, float]
    """Seconds that a turn is expected to take on these units, without a switch."""
    switch_s: tuple[float, float] = (0.0, 0.0)
    """Seconds that a turn is expected to take longer if another job had one of its units last."""
    pace_s: float = 0.0
    """Seconds within which an iteration should end on average: the bound on slowdown times the seconds alone."""
    keep: int = 0
    """Units on which the last responses of a rollout continue once its tail is reached; 0: it keeps all."""
    resume_s: tuple[float | None, float | None] = (None, None)
    """Seconds lost, beside the switch, when a turn is put aside for a more urgent one; None: it cannot be."""


# -- events ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Arrive:
    """Jobs are ready for their first rollouts; their states are resident on the units of their seats."""

    seats: tuple[Seat, ...]


@dataclass(frozen=True, slots=True)
class Done:
    """The turn of a job ended: its phase is complete, be it while it was paused."""

    job: str


@dataclass(frozen=True, slots=True)
class TailReached:
    """The running rollout of a job has a planned share of its responses; the rest would fit on `keep` units."""

    job: str


@dataclass(frozen=True, slots=True)
class Leave:
    """A job ends or moves away; a turn of its that runs is void."""

    job: str


@dataclass(frozen=True, slots=True)
class Reseat:
    """The seconds of a job's seat are others from now on, its pace among them; its units are the same."""

    seat: Seat


@dataclass(frozen=True, slots=True)
class UnitsLost:
    """Units are gone, and with them the turns and the resident states on them."""

    units: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Wake:
    """The time that `WakeAt` asked for has come."""


Event = Arrive | Done | TailReached | Leave | Reseat | UnitsLost | Wake


# -- actions -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Start:
    """Begin, or resume, a job's turn on these units. `resident`: it had all of them last, so nothing is switched."""

    job: str
    phase: PhaseName
    units: tuple[int, ...]
    resident: bool


@dataclass(frozen=True, slots=True)
class Consolidate:
    """Move what still decodes in the job's rollout to `keep`; its other units are given away at once."""

    job: str
    keep: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Grow:
    """A rollout that started without the units of another's tail gets them: its units now."""

    job: str
    units: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Pause:
    """Put the job's turn aside as it is; a later `Start` resumes it."""

    job: str


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Send `Wake` at this time unless another event comes first."""

    at_s: float


Action = Start | Consolidate | Grow | Pause | WakeAt
