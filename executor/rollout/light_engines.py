"""Engines that have few samples left in mid-round, and the running samples of others that they get;
rounds/balancing/longest_first.py decides which.

Invariants:
- the decision is asked for what the engines hold; samples that ended meanwhile are not moved;
- one question at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import NamedTuple

from ...rounds.balancing.longest_first import Balance, LongestFirst
from ..engines.engine_handle import EngineHandle
from ..memory.device_turns import TurnsOf
from ..processes.faults import ActorFailed
from .round_samples import RolloutResult
from .sample_ledger import SampleLedger


class Holdings(NamedTuple):
    """Tokens that the samples of a round hold at most, by request, their prompts' included."""

    tokens: dict[str, int]


class LightEngines:
    """The moves of one round. `engines`: of the round; elsewhere an engine is its index here."""

    def __init__(self, placement: LongestFirst, engines: Sequence[EngineHandle], ledger: SampleLedger) -> None:
        self._placement, self._engines, self._ledger = placement, engines, ledger
        self._asking = False

    def due(self, alive: set[int]) -> bool:
        """Whether to `ask` now; `alive` are the engines that can take samples."""
        return not self._asking and self._placement.to_relieve(alive)

    async def ask(self, alive: set[int]) -> Holdings:
        """What the engines hold."""
        self._asking = True
        loaded = [self._engines[number] for number in sorted(alive) if self._ledger.has_running(number)]
        answers = await asyncio.gather(*(self._held(engine) for engine in loaded))
        return Holdings({name: tokens for held in answers for name, tokens in held.items()})

    async def _held(self, engine: EngineHandle) -> dict[str, int]:
        try:
            return await engine.held_tokens()
        except ActorFailed:  # its samples are drawn again, on others
            return {}

    def decide(self, holdings: Holdings, alive: set[int]) -> list[tuple[int, list[str]]]:
        """The requests to release, by engine."""
        self._asking = False
        tokens = {}
        for name, held in holdings.tokens.items():
            key = self._ledger.key_of(name)
            if key is not None:
                tokens[key] = held - len(self._ledger.samples[key].prompt_tokens)
        released: dict[int, list[str]] = {}
        for key, engine in self._placement.relieve(alive, tokens):
            released.setdefault(engine, []).append(self._ledger.request_id(key))
        return sorted(released.items())


def tell_balance(run: TurnsOf, prompts: Collection[str], balance: Balance, result: RolloutResult) -> None:
    """Write into the run's trace how a round on these prompts was balanced."""
    run.event(
        "balanced",
        step=run.step_number + 1,
        prompts=len(prompts),
        known=sum(prompt in balance.recorded.expected for prompt in prompts),
        moved=result.relieved,
        moved_tokens=result.relieved_tokens,
    )
