"""Events that the permit machine takes and actions that it returns.

A *permit* lets a job run one phase, a rollout or a training, on some units of its co-execution group. A *unit* is a
slot of a node, or a whole node that has one slot; a group numbers its units from 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

PhaseName = Literal["rollout", "train"]
PHASES: tuple[PhaseName, PhaseName] = ("rollout", "train")


@dataclass(frozen=True, slots=True)
class PlacedJob:
    """A job in a group: its units and its expected seconds. Pairs are (rollout, train)."""

    job: str
    units: tuple[tuple[int, ...], tuple[int, ...]]
    """Units that each phase holds while it runs; between two runs of the phase its state stays in their host memory."""
    expected_s: tuple[float, float]
    """Seconds that a phase is expected to take on these units, without a switch."""
    switch_s: tuple[float, float] = (0.0, 0.0)
    """Seconds that a phase is expected to take longer if another job had one of its units last."""
    pace_s: float = 0.0
    """Seconds within which an iteration should end on average: the bound on slowdown times the seconds alone."""
    keep: int = 0
    """Units on which the last responses of a rollout continue once its tail is reached; 0: it keeps all."""
    resume_s: tuple[float | None, float | None] = (None, None)
    """Seconds lost, beside the switch, when a phase is paused for a more urgent one; None: it is never paused."""


# -- events ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Arrive:
    """Jobs are ready for their first rollouts; their states are resident on their units."""

    jobs: tuple[PlacedJob, ...]


@dataclass(frozen=True, slots=True)
class Done:
    """The phase of a job is complete; it may be one that was paused."""

    job: str


@dataclass(frozen=True, slots=True)
class TailReached:
    """The running rollout of a job has the planned share of its responses; the rest would fit on `keep` units."""

    job: str


@dataclass(frozen=True, slots=True)
class Leave:
    """A job ends or moves away; its running phase is void."""

    job: str


@dataclass(frozen=True, slots=True)
class Retime:
    """A job has other expected seconds and another pace from now on, on the same units."""

    placed: PlacedJob


@dataclass(frozen=True, slots=True)
class UnitsLost:
    """Units are gone, and with them the running phases and the resident states on them."""

    units: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Wake:
    """The time of the last `WakeAt` has come."""


Event = Arrive | Done | TailReached | Leave | Retime | UnitsLost | Wake


# -- actions -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Start:
    """Begin, or resume, a job's phase on these units. `resident`: the job had all of them last: there is no switch."""

    job: str
    phase: PhaseName
    units: tuple[int, ...]
    resident: bool


@dataclass(frozen=True, slots=True)
class Consolidate:
    """Move what still decodes in the job's rollout to the units `keep`; the permit for the others ends at once."""

    job: str
    keep: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Grow:
    """A rollout that started without the units of another job's tail gets them; `units`: all that it has now."""

    job: str
    units: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Pause:
    """Pause the job's phase as it is; a later `Start` resumes it."""

    job: str


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Send `Wake` at this time unless another event comes first."""

    at_s: float


Action = Start | Consolidate | Grow | Pause | WakeAt
