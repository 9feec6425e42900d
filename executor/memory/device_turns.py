"""Engines and trainers of a run take turns on the devices that they share, in the order of rounds/step_order.py.

Invariants:
- the ledger is asked before memory is taken and told after memory was freed; what it refuses ends the run with device,
  holder and bytes, before any device runs out of memory;
- turns of the same kind are taken at once: all engines sleep together, and wake together;
- an engine that cannot sleep or wake is a dead engine: it is replaced, and its replacement waits here until its devices
  have room for it, which is while others decode;
- where no memory is bounded (CPUs) the same turns are taken and traced, and no engine is waited for;
- in a co-execution group nothing is on the devices of a phase after `leave`, until the job has its next turn there.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple, Protocol

from ...plans.yaml.errors import RunFailed
from ...rounds import step_order
from ...rounds.device_ledger import EVENTS, DeviceLedger, DeviceTransition, OutOfMemory, TransitionBytes
from ...rounds.permits.permit_events import PhaseName
from ...rounds.step_order import Order
from ..engines.engine_handle import EngineHandle
from ..engines.fleet import Fleet
from ..processes.faults import ActorFailed
from ..processes.supervision import together
from ..trainer.trainer_group import TrainerDied, TrainerGroup
from .device_holds import trainer_name

Engines = Sequence[EngineHandle]
Names = Collection[str]
Fails = Callable[[str, RunFailed], None]


class TurnsOf(Protocol):
    """The run whose turns are taken; they are told in its trace."""

    name: str
    step_number: int

    def event(self, event: str, /, **fields: Any) -> None:
        """Write an event to the trace."""


class TurnsTook(NamedTuple):
    """Seconds of turns: of engines that sleep and wake, and of trainers whose states come and leave."""

    engines_s: float = 0.0
    trainers_s: float = 0.0


def no_turns() -> DeviceTurns:
    """Turns of a run whose engines and trainer share nothing: none is ever taken."""
    fleet: Any = SimpleNamespace(all_engines=list)
    return DeviceTurns(DeviceLedger([]), fleet, {})


class DeviceTurns:
    """The turns of one fleet and the trainers of all runs that use it, by name of the run."""

    def __init__(self, ledger: DeviceLedger, fleet: Fleet, trainers: Mapping[str, TrainerGroup]) -> None:
        self.ledger = ledger
        self._fleet, self._trainers = fleet, {trainer_name(run): trainer for run, trainer in trainers.items()}
        self._engines = {engine.name: engine for engine in fleet.all_engines()}
        self._changed, self._turn = asyncio.Event(), asyncio.Lock()
        self._may_start = True  # replacements of engines; not from the end of a rollout to the beginning of the next
        self._freed: frozenset[str] = frozenset()  # engines whose devices others use in this round
        self._wanting: set[str] = set()  # engines that wait for room to start
        for engine in self._engines.values():
            engine.room, engine.gone = self.room, self._gone

    # -- starts --------------------------------------------------------------------------------------------------------

    async def start(
        self, engines: Engines | None = None, runs: Names | None = None, fails: Fails | None = None
    ) -> None:
        """Start engines and the trainers of runs, None: all; at the end engines sleep, and trainers are offloaded.

        On GPUs those start side by side for whom there is room at once; whoever has started leaves the device to the
        next. An engine without a planned KV cache starts there alone: vLLM measures how much memory is free. If a start
        fails the others are cancelled; a trainer's is told to `fails` instead, by the name of its run, if there is one.
        Raises RunFailed or InputError.
        """
        engines = list(self._engines.values()) if engines is None else engines
        waiting = [engine.name for engine in sorted(engines, key=lambda engine: engine.config.tp)]
        waiting += list(self._trainers) if runs is None else [trainer_name(run) for run in runs]
        measuring = {engine.name for engine in engines if self.bounded and engine.config.memory_share is None}
        while waiting:
            if self.bounded:
                await self._free_devices()
            batch = step_order.starting_together(self.ledger, waiting, measuring)
            if not batch:
                self._take(step_order.start_of(self.ledger, waiting[0]))
            self._let_start(True)
            await together(*(self._start(name, fails) for name in batch))
            waiting = [name for name in waiting if name not in batch]
        await self._free_devices()

    async def _start(self, name: str, fails: Fails | None) -> None:
        if name in self._engines:
            return await self._engines[name].start()
        self._take(DeviceTransition("trainer_starts", name))
        try:
            await self._trainers[name].start()
        except RunFailed as failure:
            if fails is None:
                raise
            self._gone(name)
            fails(self._trainers[name].name, failure)

    async def _free_devices(self) -> TurnsTook:
        """Put all that has started to sleep. A trainer that died meanwhile counts as absent; its run restarts it."""
        while True:
            try:
                return await self._go(step_order.to_starting)
            except TrainerDied as death:
                self._gone(death.process)

    async def end(self, engines: Engines, runs: Collection[str] = ()) -> None:
        """End engines and the trainers of runs, which others are to have the devices of; they may start again."""
        trainers = [trainer_name(run) for run in runs]
        await asyncio.gather(
            *(engine.close() for engine in engines), *(self._trainers[name].close() for name in trainers)
        )
        for name in (*(engine.name for engine in engines), *trainers):
            self._gone(name)

    async def room(self, name: str) -> None:
        """Wait until an engine's devices have room for its start, and book it; its earlier process is gone."""
        self._wanting.add(name)
        try:
            while self.ledger.contended(name) and not self._may_start_now(name):
                await self._changed.wait()
        finally:
            self._wanting.discard(name)
        self._take(DeviceTransition("engine_starts", name))

    def _may_start_now(self, name: str) -> bool:
        return (
            self._may_start and name not in self._freed and self.ledger.could(DeviceTransition("engine_starts", name))
        )

    async def before_restart(self, run: TurnsOf) -> None:
        """Make room for the ranks of a run's trainer, which died and will be started again."""
        if (name := trainer_name(run.name)) not in self._trainers:
            return
        self._let_start(False)
        self._gone(name)
        await self._go(step_order.to_starting, run)
        self._take(DeviceTransition("trainer_starts", name))

    # -- a step --------------------------------------------------------------------------------------------------------

    async def to_sending(self, run: TurnsOf, engines: Engines, later: Engines = ()) -> TurnsTook:
        """Have `engines` ready to receive the weights of the run's trainer; to those of `later` the round may change.

        Raises RunFailed, TrainerDied.
        """
        if (name := trainer_name(run.name)) not in self._trainers:
            return TurnsTook()
        nobody = any(self.ledger.contended(engine.name) for engine in engines) and not any(e.alive for e in engines)
        if nobody or any(engine.name in self._wanting for engine in later):
            # A replacement finds no room beside a trainer that sends, and one of `later` none beside those that decode:
            # they book it now. Who has booked it is waited for; without any engine there is nobody to send to.
            await self._go(step_order.to_starting, run)
            self._let_start(True)
            while any(self._may_start_now(name) for name in self._wanting):
                await asyncio.sleep(0)
            if nobody:
                await self._fleet.some_ready(engines)
        self._let_start(False)
        names = [engine.name for engine in engines]
        return await self._go(partial(step_order.to_sending, trainer=name, engines=names), run)

    async def to_decoding(self, run: TurnsOf, engines: Engines) -> TurnsTook:
        """Have `engines`, which hold new weights, ready to decode. Raises RunFailed, TrainerDied."""
        if trainer_name(run.name) not in self._trainers:
            return TurnsTook()
        took = await self._go(partial(step_order.to_decoding, engines=[engine.name for engine in engines]), run)
        self._let_start(True)
        return took

    def could(self, run: TurnsOf, *orders: Order) -> bool:
        """Whether the turns of orders could be taken now, one order after another, and no start be waited for."""
        if trainer_name(run.name) not in self._trainers:
            return True
        ledger, states = self.ledger, self.ledger.states
        starting = (
            n for n, e in self._engines.items() if not e.alive and states[n] != "absent" and ledger.contended(n)
        )
        return not any(starting) and ledger.refusal(turn for order in orders for turn in order(ledger)) is None

    async def in_round(self, run: TurnsOf, order: Order, freed: Names = (), back: Names = ()) -> TurnsTook:
        """Take the turns of an order while a round decodes. Raises RunFailed, TrainerDied.

        `freed`: engines whose devices others use until they are `back` or the round is over; replacements wait for it.
        """
        if trainer_name(run.name) not in self._trainers:
            return TurnsTook()
        # One that died while it slept would find room in the ledger, which says nothing of what is to come.
        self._freed = (self._freed | frozenset(freed)) - frozenset(back)
        self._tell_waiting()
        return await self._go(order, run)

    async def to_training(self, run: TurnsOf) -> TurnsTook:
        """Have the run's trainer ready for an update: engines sleep. Raises RunFailed, TrainerDied."""
        if (name := trainer_name(run.name)) not in self._trainers:
            return TurnsTook()
        self._let_start(False)
        return await self._go(partial(step_order.to_training, trainer=name), run)

    async def leave(self, phase: PhaseName, run: TurnsOf | None = None) -> TurnsTook:
        """Free the devices of a phase for the other jobs of the group. Raises RunFailed, TrainerDied."""
        self._let_start(False)
        return await self._go(partial(step_order.to_leaving, phase=phase), run)

    async def _go(self, order: Order, run: TurnsOf | None = None) -> TurnsTook:
        """Take the turns of an order; those of one kind that follow each other at once."""
        took = TurnsTook()
        async with self._turn:
            await self._look()
            turns = order(self.ledger)
            for event, batch in itertools.groupby(turns, key=lambda turn: turn.event):
                began, group = time.perf_counter(), list(batch)
                moves = await asyncio.gather(*(self._carry_out(turn) for turn in group))
                seconds = time.perf_counter() - began
                whose = "engines_s" if event.startswith("engine") else "trainers_s"
                took = took._replace(**{whose: getattr(took, whose) + seconds})
                if run is not None:
                    taken = [move for move in moves if move is not None]
                    run.event(
                        "turn", step=run.step_number + 1, turn=event, whom=[move.transition.holder for move in taken],
                        device_bytes=max((move.mapped_bytes for move in taken), default=0.0),
                        link_bytes=max((move.link_bytes for move in taken), default=0.0), seconds=round(seconds, 6),
                    )  # fmt: skip
        return took

    async def _look(self) -> None:
        """Have the ledger say of each engine whether it is there.

        One that is starting on a bounded device that it shares is waited for: its memory is booked, and it sleeps when
        it is up. If that start fails, or while no node has room for it, nothing is booked, and nobody waits.
        """
        for name, engine in self._engines.items():
            while not engine.alive and self.ledger.states[name] != "absent":
                if engine.given_up or not self.ledger.contended(name):
                    self._gone(name)
                    break
                changed = asyncio.ensure_future(self._changed.wait())
                await asyncio.wait({changed, engine.repair}, return_when=asyncio.FIRST_COMPLETED)
                changed.cancel()
            if engine.alive and self.ledger.states[name] == "absent":
                self._take(DeviceTransition("engine_starts", name))

    async def _carry_out(self, turn: DeviceTransition) -> TransitionBytes | None:
        """Take one turn; None if its engine is gone. Raises RunFailed, TrainerDied."""
        if self.ledger.states[turn.holder] == "absent":  # it died since the order was made
            return None
        if self.ledger.grows(turn):
            move = self._take(turn)
            return move if await self._act(turn) else None
        done = await self._act(turn) and self.ledger.states[turn.holder] != "absent"
        return self._take(turn) if done else None

    async def _act(self, turn: DeviceTransition) -> bool:
        """Do what a turn says; False if its engine is gone, or gone of this."""
        if turn.holder in self._trainers:
            await self._place(turn)
            return True
        engine = self._engines[turn.holder]
        try:
            if turn.event == "engine_sleeps":
                await engine.sleep()
            else:
                await engine.wake("weights" if turn.event == "engine_wakes_weights" else "kv_cache")
        except ActorFailed:  # its replacement has begun; the fleet tells of it
            self._gone(turn.holder)
            return False
        return True

    async def _place(self, turn: DeviceTransition) -> None:
        """Have a trainer's ranks place what they hold as the ledger says of the state that the turn leads to."""
        if turn.event == "trainer_trains":
            return
        parts = self.ledger.holders[turn.holder].on_device.get(EVENTS[turn.event][1])
        await self._trainers[turn.holder].place(parts or {})

    # -- the ledger ----------------------------------------------------------------------------------------------------

    @property
    def bounded(self) -> bool:
        """Whether engines hold memory of devices, so that who starts needs room there."""
        return any(map(self.ledger.bounded, self._engines))

    def _gone(self, name: str) -> None:
        kind = self.ledger.holders[name].kind
        if self.ledger.states[name] != "absent":
            self._take(DeviceTransition("engine_ends" if kind == "engine" else "trainer_ends", name))

    def _take(self, turn: DeviceTransition) -> TransitionBytes:
        try:
            move = self.ledger.take(turn)
        except OutOfMemory as refused:
            raise RunFailed(
                f"{refused}; plan with fewer bytes per device: solve again with what cluster.yaml says of its memory"
            ) from None
        self._tell_waiting()
        return move

    def _let_start(self, may: bool) -> None:
        """Whether replacements of engines may book memory; those that have booked it are waited for (`_look`)."""
        self._may_start = may
        self._freed = frozenset() if may else self._freed
        self._tell_waiting()

    def _tell_waiting(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
