"""Engines of a round that are handed over to training; rounds/hand_over.py decides whether and when.

The samples of a freed engine go on elsewhere, their tokens kept: they are of the same weights. Invariants:
- the decision is asked for what the engines hold; samples that ended meanwhile are not counted;
- a freed engine gets no sample of this round any more, be it that it dies and comes back;
- `freed` is told once, when nothing decodes on the freed engines.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ...rounds.hand_over import HandOver
from ..engines.engine_handle import EngineHandle
from ..faults import ActorFailed
from .sample_ledger import SampleLedger


class Held(NamedTuple):
    """What the engines of a round hold: tokens at most by request, and the KV tokens that the smallest one has."""

    tokens: dict[str, int]
    capacity_tokens: int


class EngineHandOver:
    """The hand-over of one round.

    Args:
        machine: decides.
        engines: of the round, in order; the last ones are freed.
        ledger: of the round's samples.
        allowed: whether their devices have room for the trainer, asked before the decision.
        freed: told when the engines' devices are free.
    """

    def __init__(
        self,
        machine: HandOver,
        engines: Sequence[EngineHandle],
        ledger: SampleLedger,
        allowed: Callable[[], bool],
        freed: Callable[[], None],
    ) -> None:
        self._machine, self._engines, self._ledger = machine, engines, ledger
        self._allowed, self._freed = allowed, freed
        self._asking = self._told = False

    @property
    def leaving(self) -> set[int]:
        """Engines that get no more samples, by number."""
        return set(range(self._machine.stay, len(self._engines))) if self._machine.freed else set()

    def scored(self, count: int) -> bool:
        """So many more samples went to be scored; whether to `ask` the engines now."""
        due = [self._machine.sample_finished() for _ in range(count)]
        if not any(due) or self._asking:
            return False
        self._asking = True
        return True

    async def ask(self) -> Held:
        """What the engines hold."""
        answers = await asyncio.gather(*(self._held(engine) for engine in self._engines))
        up = [engine for engine in self._engines if engine.alive]
        capacity = min((engine.facts.kv_capacity_tokens for engine in up), default=0)
        return Held({name: tokens for held in answers for name, tokens in held.items()}, capacity)

    async def _held(self, engine: EngineHandle) -> dict[str, int]:
        if not engine.alive:
            return {}
        try:
            return await engine.held_tokens()
        except ActorFailed:  # its samples are drawn again, on others
            return {}

    def decide(self, held: Held) -> list[tuple[int, list[str]]]:
        """Whether to free engines, by what is held; returns the requests to release, by engine."""
        self._asking = False
        running = [tokens for name, tokens in held.tokens.items() if self._ledger.key_of(name) is not None]
        enough = all(engine.alive for engine in self._engines[: self._machine.stay]) and self._allowed()
        if not self._machine.decide(sum(running), len(running), held.capacity_tokens if enough else -1):
            return []
        return [(number, self._ledger.requests_on(number)) for number in sorted(self.leaving)]

    def look(self) -> None:
        """Tell it if nothing decodes on the freed engines any more."""
        if self._machine.freed and not self._told and not any(self._ledger.has_running(e) for e in self.leaving):
            self._told = True
            self._freed()
