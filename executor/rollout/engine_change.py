"""Engines of a round that stop decoding while others go on; rounds/hand_over.py decides whether and when.

What leaves is handed over to training, or makes way for the engines of the round's tail, of a higher TP size, which are
`new`: they take no sample before. The samples of an engine that leaves go on elsewhere, their tokens kept (they are of
the same weights). For a tail, once nothing decodes on the round's engines, those that share devices with its engines
sleep, these get weights and KV caches, and the samples go on there.
Invariants:
- the decision is asked for what the engines hold; samples that ended meanwhile are not counted;
- an engine that has left gets no sample of this round any more, be it that it dies and comes back;
- new engines get samples only when they are `open`: they have the weights and their KV caches;
- `released` is called once, when nothing decodes on the engines that leave;
- each engine sleeps, wakes and loads in the turns of its devices and of the weights, as between two rounds;
- an engine of the tail that dies is replaced, and given weights when it is back (live_round.py);
- when a tail's `close` returns, no further step of the change is taken: a step that had begun has ended, unless the
  round was left and its patience was over. Then the next turn, or the next weights, wait for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from ...plans.schema.levers import RoundTail
from ...rounds.hand_over import HandOver
from ...rounds.step_order import to_decoding, to_tail
from ..engines.engine_handle import EngineBack, EngineHandle
from ..engines.fleet import Fleet
from ..memory.device_turns import DeviceTurns, TurnsOf
from ..processes.faults import ActorFailed, ErrorClass, classify, failure
from ..trainer.trainer_group import TrainerDied
from .round_lever import LeverDecision, OpenRound, Releases, RoundLever
from .round_samples import RolloutResult
from .sample_ledger import SampleLedger


async def tokens_held(engines: Sequence[EngineHandle]) -> dict[str, int]:
    """Tokens at most that each request on engines holds; none of one that is away: its samples are drawn again."""
    answers = await asyncio.gather(*(_held(engine) for engine in engines))
    return {name: tokens for held in answers for name, tokens in held.items()}


async def _held(engine: EngineHandle) -> dict[str, int]:
    if not engine.alive:
        return {}
    try:
        return await engine.held_tokens()
    except ActorFailed:
        return {}


class EngineChange:
    """The change of one round's engines.

    Args:
        machine: decides.
        engines: all that the round may use; elsewhere an engine is its index here.
        ledger: of the round's samples.
        leaving: the engines that stop decoding if it is decided.
        staying: those that decode on.
        allowed: whether the devices have room for whoever takes those of the engines that leave, asked before the
            decision.
        released: called when the engines that leave decode nothing any more.
        new: whether those that stay take samples only after the change.

    Attributes:
        decided_s: when it was decided, in seconds from the round's start; None: not yet.
        resumed_s: when waiting samples were first sent to a new engine, in seconds from the round's start; None: not
            yet.
    """

    def __init__(
        self,
        machine: HandOver,
        engines: Sequence[EngineHandle],
        ledger: SampleLedger,
        leaving: Sequence[int],
        staying: Sequence[int],
        allowed: Callable[[], bool],
        released: Callable[[], None],
        *,
        new: bool = False,
    ) -> None:
        self.decided_s: float | None = None
        self.resumed_s: float | None = None
        self._machine, self._engines, self._ledger = machine, engines, ledger
        self._leaving, self._staying = frozenset(leaving), frozenset(staying)
        self._allowed, self._released = allowed, released
        self._new, self._open = new, not new
        self._asking = self._told = False

    @property
    def out(self) -> frozenset[int]:
        """Engines that nobody waits for: those that have left, or those that are new and not asked for yet."""
        if self._machine.freed:
            return self._leaving
        return self._staying if self._new else frozenset()

    @property
    def closed(self) -> frozenset[int]:
        """Engines that get no samples now."""
        return self.out | self._staying if self.under_way else self.out

    @property
    def under_way(self) -> bool:
        """Whether it is decided, and the new engines are not open yet: samples without an engine wait for them."""
        return self._machine.freed and not self._open

    def open(self) -> None:
        """The new engines that live can take samples, once they have the weights."""
        self._open = True

    def resumed(self, number: int) -> Releases:
        """An engine is up and has the weights: the samples that waited for a new one have been sent to it."""
        if self._machine.freed and self._new and self.resumed_s is None:
            self.resumed_s = self._ledger.now_s()
        return []

    def scored(self, count: int) -> bool:
        """So many more samples went to be scored; whether to `ask` the engines now."""
        due = [self._machine.sample_finished() for _ in range(count)]
        if not any(due) or self._asking:
            return False
        self._asking = True
        return True

    async def ask(self) -> LeverDecision:
        """Ask the engines what they hold."""
        tokens = await tokens_held([e for number, e in enumerate(self._engines) if number not in self.closed])
        up = [engine for engine in self._those_that_stay() if engine.alive]
        capacity = min((engine.facts.kv_capacity_tokens for engine in up), default=0)
        return LeverDecision(partial(self._decide, tokens, capacity))

    def _decide(self, held: dict[str, int], capacity: int) -> Releases:
        """Whether engines leave, by the tokens that requests hold and those that the smallest engine has room for."""
        self._asking = False
        running = self._ledger.running_tokens(held)
        enough = all(engine.alive for engine in self._those_that_stay()) and self._allowed()
        if not self._machine.decide(sum(running), len(running), capacity if enough else -1):
            return []
        self.decided_s = self._ledger.now_s()
        return [(number, self._ledger.requests_on(number)) for number in sorted(self._leaving)]

    def _those_that_stay(self) -> list[EngineHandle]:
        return [self._engines[number] for number in sorted(self._staying)]

    def look(self) -> None:
        """Tell it if nothing decodes any more on the engines that leave."""
        if self._machine.freed and not self._told and not any(self._ledger.has_running(e) for e in self._leaving):
            self._told = True
            self._released()


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


class TailEngines(RoundLever):
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
        self._decision = decision
        self._taking = TakeOver(run, engines, turns, give_all)
        self._change: EngineChange | None = None
        self._task: asyncio.Task[None] | None = None

    def begin(self, opened: OpenRound) -> None:
        """The round's engines of now, all but the tail's, are those that leave."""
        first = len(opened.engines) - len(self.engines)

        def released() -> None:
            self._task = asyncio.create_task(self._take_over(opened), name=f"tail of {opened.version}")

        opened.change = self._change = EngineChange(
            self._decision, opened.engines, opened.ledger, range(first), range(first, len(opened.engines)),
            self._taking.could, released, new=True,
        )  # fmt: skip

    async def _take_over(self, opened: OpenRound) -> None:
        assert self._change is not None
        try:
            if not await self._taking.carry_out(opened.version):
                return
        except Exception as error:  # noqa: BLE001 - a trainer that died ends the round by itself
            if classify(error) is not ErrorClass.ACTOR:
                opened.tell(failure(error, "the tail's engines"))
            return
        self._change.open()
        for engine in self.engines:
            if engine.alive:
                opened.tell(EngineBack(engine))

    async def close(self, patience_s: float | None) -> None:
        """The round is over; a step of the change that goes on is waited for, `patience_s` at most."""
        self._taking.over = True
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=patience_s)

    def report(self, run: TurnsOf, result: RolloutResult) -> None:
        """What happened; seconds from the round's start."""
        at_s = None if self._change is None else self._change.decided_s
        resumed_s = None if self._change is None else self._change.resumed_s
        run.event(
            "tail",
            step=run.step_number + 1,
            engines=len(self.engines),
            tp=self.engines[0].config.tp,
            at_s=None if at_s is None else round(at_s, 6),
            seconds=None if at_s is None or resumed_s is None else round(resumed_s - at_s, 6),
            moved=result.moved,
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
