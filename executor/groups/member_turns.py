"""A run's turns in its co-execution group; a run that is in none has its devices for itself, and waits for nobody.

Invariants:
- a turn is told to be over only after the ledger has nothing of the run on the turn's devices: its engines sleep, or
  its trainer's states are in host memory (executor/memory/device_turns.py);
- so it is after every turn, also where no other job asks for the devices: another job may get them at any time;
- seconds of a switch are in no phase of a step, as those that the turn was waited for; the event `permit` has them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ...rounds.permits.permit_events import PhaseName
from ..engines.engine_handle import EngineHandle
from ..memory.device_turns import DeviceTurns
from ..rollout.unit_change import EngineUnits, RoundUnits, round_units, units_held
from ..trainer.trainer_group import TrainerGroup, while_trainer_lives
from ..weight_sync import WeightSync
from .permit_actor import MemberPermits


@dataclass
class _Told:
    """What the event `permit` tells of a turn."""

    step: int
    waited_s: float
    switch_in_s: float = 0.0


class MemberTurns:
    """The turns of a run in its group.

    Args:
        permits: asks for them.
        devices: puts what is on the run's devices to sleep.
        units: where its engines are in the group; None: it has all their nodes in each turn.
    """

    def __init__(self, permits: MemberPermits, devices: DeviceTurns, units: EngineUnits | None = None) -> None:
        self._permits, self._devices, self._units = permits, devices, units
        self._told: _Told | None = None  # of the turn that is held
        self._run: InGroup | None = None
        self._out_s = 0.0  # that the last turn's devices took to be free
        permits.before_end = self._leave

    async def start(self) -> None:
        """Start what needs room on devices: engines in a turn for rollout, then trainers in one for training. Raises
        RunFailed, InputError."""
        await self._permits.begin("rollout")
        if self._units is not None:
            wanted = self._units.all_units  # another's tail may still be on a part of them
            await units_held(self._permits, lambda held: wanted <= frozenset(held.units))
        await self._devices.start(runs=())
        await self._permits.begin("train")
        await self._devices.start(engines=())
        await self._permits.end()

    async def before_restart(self) -> None:
        """Wait for a turn in which a trainer that died may start again, if it needs room on devices."""
        if self._devices.bounded:
            await self._permits.begin("train")

    async def begin(self, run: InGroup, phase: PhaseName) -> float:
        """Wait for the turn of a phase; returns the seconds waited. Raises TrainerDied, RunFailed."""
        await while_trainer_lives(run.trainer, self._permits.begin(phase))
        waited_s = self._permits.waited_s
        self._run = run
        self._told = _Told(run.step_number + 1, waited_s)
        return waited_s

    async def round_units(self, run: InGroup, engines: Sequence[EngineHandle]) -> RoundUnits | None:
        """The units of the round that the run begins on `engines`, in its turn; None: it has all of them. Raises
        RunFailed."""
        if self._units is None:
            return None
        return await round_units(run, self._permits, self._units, engines, self._devices, run.weights.join_all)

    def switched_in(self, seconds: float) -> None:
        """The run's engines, or its trainer's states, took so long to come to the devices of the turn."""
        if self._told is not None:
            self._told.switch_in_s += seconds

    async def end(self) -> float:
        """The turn is over; returns the seconds until its devices were free. Raises TrainerDied, RunFailed."""
        self._out_s = 0.0
        await self._permits.end()
        return self._out_s

    async def _leave(self) -> None:
        """Free the devices of the turn that is held."""
        phase, run, told = self._permits.phase, self._run, self._told
        assert phase is not None, "called before a turn's end"
        began = time.perf_counter()
        await self._devices.leave(phase, run)
        self._out_s = time.perf_counter() - began
        self._told = None
        if run is not None and told is not None:
            run.event(
                "permit", step=told.step, phase=phase, waited_s=round(told.waited_s, 6),
                switch_in_s=round(told.switch_in_s, 6), switch_out_s=round(self._out_s, 6),
            )  # fmt: skip


class InGroup(Protocol):
    """The run whose turns are taken."""

    name: str
    permits: MemberTurns | None
    turns: DeviceTurns
    trainer: TrainerGroup
    weights: WeightSync
    step_number: int

    def event(self, event: str, /, **fields: Any) -> None:
        """Write an event to the trace."""


async def begin_turn(run: InGroup, phase: PhaseName) -> float:
    """Wait for the turn of a phase; returns the seconds waited. Raises TrainerDied, RunFailed."""
    return 0.0 if run.permits is None else await run.permits.begin(run, phase)


async def units_of_round(run: InGroup, engines: Sequence[EngineHandle]) -> RoundUnits | None:
    """The units of the round that a run begins on `engines`, in its turn; None: it has all of them until its end.
    Raises TrainerDied, RunFailed."""
    if run.permits is None:
        return None
    return await while_trainer_lives(run.trainer, run.permits.round_units(run, engines))


def switched_in(run: InGroup, seconds: float) -> float:
    """What came to the devices of the turn took so long; returns the seconds that are in no phase of the step."""
    if run.permits is None:
        return 0.0  # then they are of the job itself, and its plan has them
    run.permits.switched_in(seconds)
    return seconds


async def end_turn(run: InGroup) -> float:
    """The turn is over; returns the seconds until its devices were free. Raises TrainerDied, RunFailed."""
    return 0.0 if run.permits is None else await run.permits.end()


async def before_restart(run: InGroup) -> None:
    """Make room for the trainer of a run, which died and will be started again. Raises RunFailed."""
    await run.turns.before_restart(run)
    if run.permits is not None:
        await run.permits.before_restart()
