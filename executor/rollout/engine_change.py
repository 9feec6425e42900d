"""Engines of a round that stop decoding while others go on; rounds/hand_over.py decides whether and when.

What leaves is handed over to training, or makes way for the engines of the round's tail, of a higher TP size, which are
`new`: they take no sample before. The samples of an engine that leaves go on elsewhere, their tokens kept (they are of
the same weights). For a tail, once nothing decodes on the round's engines, those that share devices with its engines
sleep, these get weights and KV caches, and the samples go on there.
Invariants:
- the decision is asked for what the engines hold; samples that ended meanwhile are not counted;
- an engine that has left gets no sample of this round any more, be it that it dies and comes back;
- new engines get samples only when they are up: they have the weights and their KV caches;
- the change goes on (`_released`) once, when nothing decodes on the engines that leave;
- each engine sleeps, wakes and loads in the turns of its devices and of the weights, as between two rounds;
- an engine of the tail that dies is replaced, and given weights when it is back (live_round.py);
- when a tail's `close` returns, no further step of the change is taken: a step that had begun has ended, unless the
  round was left and its patience was over. Then the next turn, or the next weights, wait for it.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial

from ...plans.schema.levers import RoundTail
from ...rounds.hand_over import HandOver
from ...rounds.step_order import to_decoding, to_tail
from ..engines.engine_handle import EngineBack, EngineHandle
from ..engines.fleet import Fleet
from ..memory.device_turns import DeviceTurns, TurnsOf
from ..processes.faults import ActorFailed, ErrorClass, classify, failure
from ..trainer.trainer_group import TrainerDied
from .round_lever import EngineChange, OpenRound, Releases


class LeavingEngines(EngineChange):
    """Engines of a round stop decoding at once when that is decided, and others go on with their samples.

    Args:
        decision: decides.
        new: whether those that stay take samples only after the change, once they are up.
    """

    def __init__(self, decision: HandOver | None, *, new: bool = False) -> None:
        super().__init__(decision)
        self._new, self._new_are_up, self._told = new, not new, False
        self._leaving, self._staying = frozenset[int](), frozenset[int]()

    def begin_with(self, opened: OpenRound, leaving: Iterable[int], staying: Iterable[int]) -> None:
        """The round begins, of whose engines some are to leave."""
        self._leaving, self._staying = frozenset(leaving), frozenset(staying)
        super().begin(opened)

    @property
    def _freed(self) -> bool:
        return self._decision is not None and self._decision.freed

    @property
    def out(self) -> frozenset[int]:
        """Those that have left, or those that are new and not asked for yet."""
        if self._freed:
            return self._leaving
        return self._staying if self._new else frozenset()

    @property
    def closed(self) -> frozenset[int]:
        """Engines that get no samples now."""
        return self.out | self._staying if self.under_way else self.out

    @property
    def under_way(self) -> bool:
        """Whether it is decided, and the new engines are not open yet."""
        return self._freed and not self._new_are_up

    def _capacity(self) -> int:
        return self._kv_of_each(self._opened.engines[number] for number in self._staying) if self._allowed() else -1

    def _decided(self) -> Releases:
        return [(number, self._opened.ledger.requests_on(number)) for number in sorted(self._leaving)]

    def look(self) -> None:
        """Go on if nothing decodes any more on the engines that leave."""
        if self._freed and not self._told and not any(map(self._opened.ledger.has_running, self._leaving)):
            self._told = True
            self._released()

    @abstractmethod
    def _allowed(self) -> bool:
        """Whether the devices have room for whoever takes those of the engines that leave."""

    @abstractmethod
    def _released(self) -> None:
        """The engines that leave decode nothing any more."""


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

    async def bring_up(self, opened: OpenRound, ready: Callable[[], None], what: str) -> None:
        """Take all steps, unless it is over: then call `ready`, and have the round hear of the engines that live. It
        hears of a fault, too, with `what` failed, but for a trainer that died, which ends the round by itself."""
        try:
            for step in (self._wake_weights, lambda: self._load(opened.version), self._wake_caches):
                if not self.over:
                    await step()
        except Exception as error:  # noqa: BLE001 - whatever it is, the round hears of it
            if classify(error) is not ErrorClass.ACTOR:
                opened.tell(failure(error, what))
            return
        if self.over:
            return
        ready()
        for engine in self._engines:
            if engine.alive:
                opened.tell(EngineBack(engine))

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


class TailEngines(LeavingEngines):
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
        super().__init__(decision, new=True)
        self.engines = engines
        self._taking = TakeOver(run, engines, turns, give_all)
        self._task: asyncio.Task[None] | None = None
        self._resumed_s: float | None = None  # when waiting samples were first sent to an engine of the tail

    def begin(self, opened: OpenRound) -> None:
        """The round's engines of now, all but the tail's, are those that leave."""
        first = len(opened.engines) - len(self.engines)
        self.begin_with(opened, range(first), range(first, len(opened.engines)))

    def resumed(self, number: int) -> Releases:
        """An engine is up and has the weights."""
        if self._freed and self._resumed_s is None:
            self._resumed_s = self._opened.ledger.now_s()
        return []

    def _allowed(self) -> bool:
        return self._taking.could()

    def _released(self) -> None:
        def ready() -> None:
            self._new_are_up = True

        taking = self._taking.bring_up(self._opened, ready, "the tail's engines")
        self._task = asyncio.create_task(taking, name=f"tail of {self._opened.version}")

    async def close(self, patience_s: float | None) -> None:
        """The round is over; a step of the change that goes on is waited for, `patience_s` at most."""
        self._taking.over = True
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=patience_s)

    def report(self, run: TurnsOf, moved: int) -> None:
        """What happened; seconds from the round's start."""
        at_s, resumed_s = self.decided_s, self._resumed_s
        run.event(
            "tail",
            step=run.step_number + 1,
            engines=len(self.engines),
            tp=self.engines[0].config.tp,
            at_s=None if at_s is None else round(at_s, 6),
            seconds=None if at_s is None or resumed_s is None else round(resumed_s - at_s, 6),
            moved=moved,
        )


def round_tail(
    run: TurnsOf,
    spec: RoundTail | None,
    samples: int,
    engines: Sequence[EngineHandle],
    fleet: Fleet,
    turns: DeviceTurns,
    give_all: GiveAll,
) -> TailEngines | None:
    """The tail of a run's round on `engines`, of which `samples` samples are to be trained; None without one."""
    if spec is None:
        return None
    engines_of_tail = fleet.engines(spec.layout)
    return TailEngines(run, HandOver(spec, samples, len(engines)), engines_of_tail, turns, give_all)
