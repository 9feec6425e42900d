"""The phases of a run in its co-execution group: it waits for a permit before each, and frees the devices after it.

A run without a group has its devices to itself, and waits for nothing. Invariants:
- the end of a phase is reported only when the ledger has nothing of the run on the phase's devices: its engines sleep,
  or its trainer's states are in host memory (executor/memory/device_turns.py);
- the devices are freed after every phase, even if no other job waits: another job may get them at any time;
- the seconds of a switch, and those of a wait for a permit, count in no phase of a step; the event `permit` has them.
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
class _Permit:
    """What the event `permit` says of a phase."""

    step: int
    waited_s: float
    switch_in_s: float = 0.0


class MemberPhases:
    """The phases of a run in its group.

    Args:
        permits: of the job.
        devices: puts what is on the run's devices to sleep.
        units: where its engines are in the group; None: each permit is for all their nodes.
    """

    def __init__(self, permits: MemberPermits, devices: DeviceTurns, units: EngineUnits | None = None) -> None:
        self._permits, self._devices, self._units = permits, devices, units
        self._permit: _Permit | None = None  # of the phase that runs
        self._run: InGroup | None = None
        self._out_s = 0.0  # seconds in which the devices of the last phase became free
        permits.before_end = self._leave

    async def start(self) -> None:
        """Start what needs room on devices: engines with a permit for a rollout, then trainers with one for training.
        Raises RunFailed, InputError."""
        await self._permits.begin("rollout")
        if self._units is not None:
            wanted = self._units.all_units  # the tail of another job may still be on some of them
            await units_held(self._permits, lambda held: wanted <= frozenset(held.units))
        await self._devices.start(runs=())
        await self._permits.begin("train")
        await self._devices.start(engines=())
        await self._permits.end()

    async def before_restart(self) -> None:
        """Wait for a permit with which a trainer that died may start again, if it needs room on devices."""
        if self._devices.bounded:
            await self._permits.begin("train")

    async def begin(self, run: InGroup, phase: PhaseName) -> float:
        """Wait for the permit of a phase; returns the seconds waited. Raises TrainerDied, RunFailed."""
        await while_trainer_lives(run.trainer, self._permits.begin(phase))
        self._run, self._permit = run, _Permit(run.step_number + 1, self._permits.waited_s)
        return self._permit.waited_s

    async def round_units(self, run: InGroup, engines: Sequence[EngineHandle]) -> RoundUnits | None:
        """The units of the round that the run begins on `engines`; None: it has all of them. Raises RunFailed."""
        if self._units is None:
            return None
        return await round_units(run, self._permits, self._units, engines, self._devices, run.weights.join_all)

    def switched_in(self, seconds: float) -> None:
        """The run's engines, or its trainer's states, took so long to come to the devices of the phase."""
        if self._permit is not None:
            self._permit.switch_in_s += seconds

    async def end(self) -> float:
        """End the phase; returns the seconds until its devices were free. Raises TrainerDied, RunFailed."""
        self._out_s = 0.0
        await self._permits.end()
        return self._out_s

    async def _leave(self) -> None:
        """Free the devices of the phase that runs."""
        phase, run, permit = self._permits.phase, self._run, self._permit
        assert phase is not None, "called before a phase ends"
        began = time.perf_counter()
        await self._devices.leave(phase, run)
        self._out_s = time.perf_counter() - began
        self._permit = None
        if run is not None and permit is not None:
            run.event(
                "permit", step=permit.step, phase=phase, waited_s=round(permit.waited_s, 6),
                switch_in_s=round(permit.switch_in_s, 6), switch_out_s=round(self._out_s, 6),
            )  # fmt: skip


class InGroup(Protocol):
    """What `MemberPhases` needs of a run."""

    name: str
    permits: MemberPhases | None
    turns: DeviceTurns
    trainer: TrainerGroup
    weights: WeightSync
    step_number: int

    def event(self, event: str, /, **fields: Any) -> None:
        """Write an event to the trace."""


async def begin_phase(run: InGroup, phase: PhaseName) -> float:
    """Wait for the permit of a phase; returns the seconds waited. Raises TrainerDied, RunFailed."""
    return 0.0 if run.permits is None else await run.permits.begin(run, phase)


async def units_of_round(run: InGroup, engines: Sequence[EngineHandle]) -> RoundUnits | None:
    """The units of the round that a run begins on `engines`; None: it has all of them to the round's end. Raises
    TrainerDied, RunFailed."""
    if run.permits is None:
        return None
    return await while_trainer_lives(run.trainer, run.permits.round_units(run, engines))


def switched_in(run: InGroup, seconds: float) -> float:
    """Engines or states took so long to come to the devices; returns the seconds that count in no phase of the step."""
    if run.permits is None:
        return 0.0  # then these seconds are in the job's own plan
    run.permits.switched_in(seconds)
    return seconds


async def end_phase(run: InGroup) -> float:
    """End the phase; returns the seconds until its devices were free. Raises TrainerDied, RunFailed."""
    return 0.0 if run.permits is None else await run.permits.end()


async def before_restart(run: InGroup) -> None:
    """Make room for the trainer of a run that died and will be started again. Raises RunFailed."""
    await run.turns.before_restart(run)
    if run.permits is not None:
        await run.permits.before_restart()
