"""The tail of a round on engines of a higher TP size, which take over devices of the round's engines.

Once nothing decodes on the round's engines, those that share devices with the tail's sleep, the tail's get weights and
KV caches, and the samples go on there. Invariants:
- each engine sleeps, wakes and loads in the turns of its devices and of the weights, as between two rounds;
- an engine of the tail that dies is replaced, and given weights when it is back (live_round.py);
- when `close` returns, no further step of the change is taken: a step that had begun has ended, unless the round was
  left and its patience was over. Then the next turn, or the next weights, wait for it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Sequence

from ....plans.schema.sections.layouts import EngineLayout
from ....rounds.device_ledger import Turn
from ....rounds.hand_over import HandOver, TailSpec
from ....rounds.step_order import Beside, Holders, States, to_decoding, to_tail
from ...engines.engine_handle import EngineBack, EngineHandle, EngineNews
from ...engines.fleet import Fleet
from ...faults import ActorFailed, Fault, classify, failure
from ...memory.device_turns import DeviceTurns
from ...memory.turns_took import TurnsOf
from ..round_samples import RolloutSample
from ..sample_ledger import SampleLedger
from .engine_change import EngineChange

GiveAll = Callable[[Sequence[EngineHandle], str], Awaitable[None]]
"""Gives weights of that version to engines. Raises ActorFailed if one of them is gone, or RunFailed."""


class RoundTail:
    """The tail of one round of a run.

    Args:
        run: whose turns are taken.
        decision: when it begins.
        engines: of the tail.
        turns: of the devices.
        give_all: gives them weights.
    """

    def __init__(
        self, run: TurnsOf, decision: HandOver, engines: list[EngineHandle], turns: DeviceTurns, give_all: GiveAll
    ) -> None:
        self.engines = engines
        self._run, self._decision, self._turns, self._give_all = run, decision, turns, give_all
        self._names = [engine.name for engine in engines]
        self._change: EngineChange | None = None
        self._task: asyncio.Task[None] | None = None
        self._over = False

    def begin(
        self,
        engines: Sequence[EngineHandle],
        ledger: SampleLedger,
        version: str,
        tell: Callable[[EngineNews], None],
    ) -> EngineChange:
        """The round begins by weights `version` on `engines`, of which the tail's are the last; returns what changes
        them. `tell` hears of engines that take over, and the error if they cannot."""
        first = len(engines) - len(self.engines)

        def cleared() -> None:
            self._task = asyncio.create_task(self._take_over(version, tell), name=f"tail of {version}")

        def allowed() -> bool:
            return self._turns.could(self._run, self._to_tail, self._to_decoding)

        self._change = EngineChange(
            self._decision, engines, ledger, range(first), range(first, len(engines)), allowed, cleared, new=True
        )
        return self._change

    async def _take_over(self, version: str, tell: Callable[[EngineNews], None]) -> None:
        assert self._change is not None
        try:
            for step in (self._wake_weights, lambda: self._load(version), self._wake_caches):
                await step()
                if self._over:
                    return
        except Exception as error:  # noqa: BLE001 - a trainer that died ends the round by itself
            if classify(error) is not Fault.ACTOR:
                tell(failure(error, "the tail's engines"))
            return
        self._change.open()
        for engine in self.engines:
            if engine.alive:
                tell(EngineBack(engine))

    async def _wake_weights(self) -> None:
        # Until the round's end no engine may start that the tail's left the devices to: their KV caches come yet.
        away = {other for name in self._names for other in self._turns.ledgers.beside.get(name, ())}
        await self._turns.in_round(self._run, self._to_tail, away - set(self._names))

    async def _load(self, version: str) -> None:
        lives = {engine: engine.lives for engine in self.engines if engine.alive}
        if not lives:
            return
        with contextlib.suppress(ActorFailed):  # the others have them
            await self._give_all(list(lives), version)
        for engine, life in lives.items():
            if engine.version != version and engine.lives == life and not self._over:
                engine.fail("it did not receive the weights of its round")  # its replacement gets them when it is up

    async def _wake_caches(self) -> None:
        await self._turns.in_round(self._run, self._to_decoding)

    def _to_tail(self, holders: Holders, states: States, beside: Beside) -> list[Turn]:
        return to_tail(holders, states, beside, self._names)

    def _to_decoding(self, holders: Holders, states: States, beside: Beside) -> list[Turn]:
        return to_decoding(holders, states, beside, self._names)

    async def close(self, patience_s: float | None = None) -> None:
        """The round is over; a step of the change that goes on is waited for, `patience_s` at most."""
        self._over = True
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=patience_s)

    def tell(self, run: TurnsOf, samples: Iterable[RolloutSample]) -> None:
        """Write into the run's trace what happened; seconds from the round's start."""
        at_s = None if self._change is None else self._change.decided_s
        resumed_s = None if self._change is None else self._change.resumed_s
        run.event(
            "tail",
            step=run.step_number + 1,
            engines=len(self.engines),
            tp=self.engines[0].config.tp,
            at_s=None if at_s is None else round(at_s, 6),
            seconds=None if at_s is None or resumed_s is None else round(resumed_s - at_s, 6),
            moved=sum(sample.moves > 0 for sample in samples),
        )


def round_tail(
    run: TurnsOf,
    spec: TailSpec | None,
    samples: int,
    engines: Sequence[EngineHandle],
    fleet: Fleet,
    turns: DeviceTurns,
    give_all: GiveAll,
) -> RoundTail | None:
    """The tail of a run's round on `engines`, of which `samples` samples are to be trained; None without one."""
    if spec is None:
        return None
    engines_of_tail = fleet.engines(EngineLayout(spec.tp, spec.engines))
    return RoundTail(run, HandOver(spec, samples, len(engines)), engines_of_tail, turns, give_all)
