"""Engines that begin to decode in mid-round: those that share devices with them sleep, they wake, get the round's
weights and their KV caches.

Each engine sleeps, wakes and loads in the turns of its devices and of the weights, as between two rounds.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from ....rounds.step_order import to_decoding, to_tail
from ...engines.engine_handle import EngineHandle
from ...faults import ActorFailed
from ...memory.device_turns import DeviceTurns, TurnsOf
from ...trainer.trainer_group import TrainerDied

GiveAll = Callable[[Sequence[EngineHandle], str], Awaitable[None]]
"""Gives weights of that version to engines. Raises TrainerDied if the trainer is gone, ActorFailed if an engine is, or
RunFailed."""


class TakeOver:
    """What leads `engines` to decoding in a round of a run; `over`, once set, keeps further steps from being taken."""

    def __init__(self, run: TurnsOf, engines: Sequence[EngineHandle], turns: DeviceTurns, give_all: GiveAll) -> None:
        self.over = False
        self._run, self._engines, self._turns, self._give_all = run, engines, turns, give_all
        self._names = [engine.name for engine in engines]
        self._to_tail, self._to_decoding = (partial(order, engines=self._names) for order in (to_tail, to_decoding))

    def could(self) -> bool:
        """Whether the devices have room for it now."""
        return self._turns.could(self._run, self._to_tail, self._to_decoding)

    async def carry_out(self, version: str) -> bool:
        """Take all steps, with weights of this version; returns whether it came to its end. Raises what a step does."""
        for step in (self._wake_weights, lambda: self._load(version), self._wake_caches):
            await step()
            if self.over:
                return False
        return True

    async def _wake_weights(self) -> None:
        # Until the round's end no engine may start that these left the devices to: their KV caches come yet.
        away = {other for name in self._names for other in self._turns.ledger.beside.get(name, ())}
        await self._turns.in_round(self._run, self._to_tail, away - set(self._names), self._names)

    async def _load(self, version: str) -> None:
        lives = {engine: engine.lives for engine in self._engines if engine.alive}
        if not lives:
            return
        try:
            await self._give_all(list(lives), version)
        except TrainerDied:
            raise  # engines without these weights are sound: they are not replaced
        except ActorFailed:
            pass  # one engine is gone; the others have the weights
        for engine, life in lives.items():
            if engine.version != version and engine.lives == life and not self.over:
                engine.fail("it did not receive the weights of its round")  # its replacement gets them when it is up

    async def _wake_caches(self) -> None:
        await self._turns.in_round(self._run, self._to_decoding)
