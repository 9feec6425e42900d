"""A run's turns in its co-execution group; a run that is in none has its devices for itself, and waits for nobody."""

from __future__ import annotations

from typing import Any, Protocol

from ...rounds.permits.permit_events import PhaseName
from ..trainer.trainer_group import TrainerGroup, while_trainer_lives
from .permit_actor import MemberPermits


class InGroup(Protocol):
    """The run whose turns are taken."""

    permits: MemberPermits | None
    trainer: TrainerGroup
    step_number: int

    def event(self, event: str, /, **fields: Any) -> None:
        """Write an event to the trace."""


async def begin_turn(run: InGroup, phase: PhaseName) -> float:
    """Wait for the turn of a phase; returns the seconds waited. Raises TrainerDied, RunFailed."""
    if run.permits is None:
        return 0.0
    await while_trainer_lives(run.trainer, run.permits.begin(phase))
    waited_s = run.permits.waited_s
    run.event("permit", step=run.step_number + 1, phase=phase, waited_s=round(waited_s, 6))
    return waited_s


async def end_turn(run: InGroup) -> None:
    """The turn is over. Raises RunFailed."""
    if run.permits is not None:
        await run.permits.end()
