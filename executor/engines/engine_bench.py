"""Batches of forced length on engines, timed: for profiles, and for a run that looks how fast its machine is."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Sequence

from ...plans.yaml.errors import RunFailed
from ..processes.actors import within
from .engine_handle import EngineBack, EngineEvents, EngineHandle, EngineNews
from .fleet import Fleet
from .messages import NO_RULES, EngineEvent, Request, SamplingRules

BATCH_DEADLINE_S = 300.0
SHORT_TOKENS, LONG_TOKENS = 8, 72
"""Tokens of the two decodes whose difference tells the seconds of a decode step."""

Batches = list[list[tuple[int, ...]]]
"""Prompts as token ids, a batch an engine."""


class EngineBench:
    """Runs batches on engines of a fleet. `seeded`: each request has its own seed; `rules`: which tokens are drawn."""

    def __init__(self, fleet: Fleet, vocabulary: int, seed: int, seeded: bool, rules: SamplingRules = NO_RULES) -> None:
        self._news: asyncio.Queue[list[EngineEvent]] = asyncio.Queue()
        self._random = random.Random(seed)
        self._vocabulary = vocabulary
        self._seeded, self._rules = seeded, rules._replace(stop=(), stop_token_ids=())
        self._serial = itertools.count()
        fleet.listen(self._hear)

    def _hear(self, news: EngineNews) -> None:
        """Queue the events of engines, and an empty list when an engine dies, or is given up."""
        if not isinstance(news, EngineBack):
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
        missing = {request.request_id for batch in requests for request in batch}
        names = ", ".join(engine.name for engine in engines)
        while missing:
            events = await within(BATCH_DEADLINE_S, self._news.get(), f"timing {names}")
            if not events:
                raise RunFailed(f"an engine of {names} died while it was timed")
            missing -= {event.request_id for event in events if event.name in ("finished", "lost")}
        return time.perf_counter() - began

    async def step_s(self, engines: Sequence[EngineHandle], batches: Batches) -> float:
        """Seconds of a decode step: a long decode less a short one, so that submission, prefill and delivery, which are
        in both, are not in it. At most 0 where the machine stalled in the short one."""
        short = await self.seconds(engines, batches, SHORT_TOKENS)
        long = await self.seconds(engines, batches, LONG_TOKENS)
        return (long - short) / (LONG_TOKENS - SHORT_TOKENS)

    def _request(self, prompt: tuple[int, ...], tokens: int) -> Request:
        number = next(self._serial)
        seed = number if self._seeded else None
        return Request(f"bench-{number}", prompt, tokens, ignore_eos=True, seed=seed, rules=self._rules)
