"""Engines of a round that stop decoding while others go on; rounds/hand_over.py decides whether and when.

What leaves is handed over to training, or makes way for the engines of the round's tail, which are `new`: they take no
sample before. The samples of an engine that leaves go on elsewhere, their tokens kept (they are of the same weights).
Invariants:
- the decision is asked for what the engines hold; samples that ended meanwhile are not counted;
- an engine that has left gets no sample of this round any more, be it that it dies and comes back;
- new engines get samples only when they are `open`: they have the weights and their KV caches;
- `cleared` is told once, when nothing decodes on the engines that leave.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from ....rounds.hand_over import HandOver
from ...engines.engine_handle import EngineHandle
from ...faults import ActorFailed
from ..sample_ledger import SampleLedger


class Held(NamedTuple):
    """What the engines of a round hold: tokens at most by request, and the KV tokens that the smallest one has of those
    that would decode on."""

    tokens: dict[str, int]
    capacity_tokens: int


class RoundChange(Protocol):
    """What a round asks of that which changes its engines while it goes on; see EngineChange."""

    @property
    def out(self) -> frozenset[int]:
        """Engines that nobody waits for."""

    @property
    def closed(self) -> frozenset[int]:
        """Engines that get no samples now."""

    @property
    def under_way(self) -> bool:
        """Whether samples without an engine wait for new ones."""

    def resumed(self, number: int) -> list[tuple[int, list[str]]]:
        """An engine is up and has the weights; returns requests that others are to release for it, by engine."""

    def scored(self, count: int) -> bool:
        """So many more samples went to be scored; whether to `ask` the engines now."""

    async def ask(self) -> Held:
        """What the engines hold."""

    def decide(self, held: Held) -> list[tuple[int, list[str]]]:
        """Decide by what is held; returns the requests to release, by engine."""

    def look(self) -> None:
        """Something may have ended."""


async def held_tokens(engine: EngineHandle) -> dict[str, int]:
    """Tokens at most that each request on an engine holds; none if it is away: its samples are drawn again."""
    if not engine.alive:
        return {}
    try:
        return await engine.held_tokens()
    except ActorFailed:
        return {}


def running_tokens(held: Held, ledger: SampleLedger) -> list[int]:
    """Tokens of each request that is held and has not ended meanwhile."""
    return [tokens for name, tokens in held.tokens.items() if ledger.key_of(name) is not None]


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
        cleared: told when the engines that leave decode nothing any more.
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
        cleared: Callable[[], None],
        *,
        new: bool = False,
    ) -> None:
        self.decided_s: float | None = None
        self.resumed_s: float | None = None
        self._machine, self._engines, self._ledger = machine, engines, ledger
        self._leaving, self._staying = frozenset(leaving), frozenset(staying)
        self._allowed, self._cleared = allowed, cleared
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

    def resumed(self, number: int) -> list[tuple[int, list[str]]]:
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

    async def ask(self) -> Held:
        """What the engines hold."""
        decoding = [engine for number, engine in enumerate(self._engines) if number not in self.closed]
        answers = await asyncio.gather(*(held_tokens(engine) for engine in decoding))
        up = [engine for engine in self._those_that_stay() if engine.alive]
        capacity = min((engine.facts.kv_capacity_tokens for engine in up), default=0)
        return Held({name: tokens for held in answers for name, tokens in held.items()}, capacity)

    def decide(self, held: Held) -> list[tuple[int, list[str]]]:
        """Whether engines leave, by what is held; returns the requests to release, by engine."""
        self._asking = False
        running = running_tokens(held, self._ledger)
        enough = all(engine.alive for engine in self._those_that_stay()) and self._allowed()
        if not self._machine.decide(sum(running), len(running), held.capacity_tokens if enough else -1):
            return []
        self.decided_s = self._ledger.now_s()
        return [(number, self._ledger.requests_on(number)) for number in sorted(self._leaving)]

    def _those_that_stay(self) -> list[EngineHandle]:
        return [self._engines[number] for number in sorted(self._staying)]

    def look(self) -> None:
        """Tell it if nothing decodes any more on the engines that leave."""
        if self._machine.freed and not self._told and not any(self._ledger.has_running(e) for e in self._leaving):
            self._told = True
            self._cleared()
