"""Batches of forced length on engines, timed."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Sequence

from ....executor.actors import within
from ....executor.engines.engine_handle import EngineDied, EngineEvents, EngineHandle, EngineNews
from ....executor.engines.fleet import Fleet
from ....executor.engines.messages import EngineEvent, Request
from ....plans.yaml.errors import RunFailed

BATCH_DEADLINE_S = 300.0

Batches = list[list[tuple[int, ...]]]
"""Prompts as token ids, a batch an engine."""


class EngineBench:
    """Runs batches on engines of a fleet. `seeded`: each request has its own seed."""

    def __init__(self, fleet: Fleet, vocabulary: int, seed: int, seeded: bool) -> None:
        self._news: asyncio.Queue[list[EngineEvent]] = asyncio.Queue()
        self._random = random.Random(seed)
        self._vocabulary = vocabulary
        self._seeded = seeded
        self._serial = itertools.count()
        fleet.listen(self._hear)

    def _hear(self, news: EngineNews) -> None:
        """Queue the events of engines, and an empty list when an engine dies."""
        if isinstance(news, EngineEvents | EngineDied):
            self._news.put_nowait(news.events if isinstance(news, EngineEvents) else [])

    def prompts(self, engines: int, sequences: int, tokens: int) -> Batches:
        """Random prompts of `tokens` tokens, `sequences` for each engine: equal ones would share their KV."""
        return [
            [tuple(self._random.randrange(self._vocabulary) for _ in range(tokens)) for _ in range(sequences)]
            for _ in range(engines)
        ]

    async def seconds(self, engines: Sequence[EngineHandle], batches: Batches, tokens: int) -> float:
        """Seconds until every prompt (a batch an engine) has `tokens` tokens."""
        requests = [[self._request(prompt, tokens) for prompt in batch] for batch in batches]
        began = time.perf_counter()
        await asyncio.gather(
            *(engine.submit(batch, engine.version) for engine, batch in zip(engines, requests, strict=True))
        )
        missing = sum(len(batch) for batch in requests)
        names = ", ".join(engine.name for engine in engines)
        while missing:
            events = await within(BATCH_DEADLINE_S, self._news.get(), f"profiling {names}")
            if not events:
                raise RunFailed(f"an engine of {names} died while it was profiled")
            missing -= sum(event.name == "finished" for event in events)
        return time.perf_counter() - began

    def _request(self, prompt: tuple[int, ...], tokens: int) -> Request:
        number = next(self._serial)
        return Request(f"profile-{number}", prompt, tokens, ignore_eos=True, seed=number if self._seeded else None)
