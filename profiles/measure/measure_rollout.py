"""Measures what generation costs: decode steps over a grid, prefill, engine start, weight transfer, in each layout.

All engines of a layout are busy while a point is measured, because on a shared host they slow each other down. A point
is the difference between a long and a short decode of the same batch, so that submission, prefill and delivery, which
are in both, are not in it.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ...executor.actors import within
from ...executor.engines.engine_handle import EngineDied, EngineEvents, EngineHandle, EngineNews
from ...executor.engines.fleet import Fleet
from ...executor.engines.messages import EngineEvent, Request
from ...plans.schema.sections.layouts import EngineLayout
from ...plans.yaml.errors import RunFailed
from ..laws.measured_fit import DecodeFit, fit_decode
from ..phase_schema import DecodePoint, Spread

SHORT_TOKENS, LONG_TOKENS = 8, 72
REPEATS = 3
AGREEMENT = 0.02
"""Two repeats that are as close as this, relative to the smaller, need no third."""
BATCH_DEADLINE_S = 300.0
PREFILL_REPEATS = 3

Notify = Callable[[str], None]

Batches = list[list[tuple[int, ...]]]  # prompts as token ids, a batch an engine


@dataclass(frozen=True, slots=True)
class RolloutCosts:
    """The measured costs of one layout."""

    layout: EngineLayout
    decode: DecodeFit
    prefill_s: float
    prefill_s_per_token: float
    kv_capacity_tokens: int
    kv_block_tokens: int
    start: Spread


class _Bench:
    """Runs batches of forced length on engines and times them."""

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


def decode_grid(samples: int, engines: int, max_len: int) -> list[tuple[int, int]]:
    """(sequences per engine, prompt tokens) to measure for rounds of up to `samples` samples.

    From one sequence (the tail) to twice a plain round (over-issue), each four times the one before, at a short
    context and, for two batch sizes, at a long one, so that the cost of KV can be told from the cost of a sequence.
    """
    largest = max(4, -(-2 * samples // engines))
    counts = sorted({1, max(4, largest // 16), max(4, largest // 4), largest})
    short = [(count, 16) for count in counts]
    long_context = max(32, min(max_len - LONG_TOKENS - 1, 640))
    return short + [(count, long_context) for count in (max(4, largest // 8), max(4, largest // 2))]


async def measure_decode(
    bench: _Bench, engines: Sequence[EngineHandle], grid: Sequence[tuple[int, int]], notify: Notify
) -> DecodeFit:
    """Measure the grid and fit it."""
    await bench.seconds(engines, bench.prompts(len(engines), 4, 16), LONG_TOKENS)  # first calls of a size allocate
    points: list[DecodePoint] = []
    for sequences, prompt_tokens in grid:
        notify(f"decode: {sequences} sequences, context {prompt_tokens}")
        steps: list[float] = []
        # The same prompts each time: once the prefix cache has them, long prefills no longer drown a few decode steps.
        batches = bench.prompts(len(engines), sequences, prompt_tokens)
        await bench.seconds(engines, batches, 1)
        for _ in range(REPEATS):
            short = await bench.seconds(engines, batches, SHORT_TOKENS)
            long = await bench.seconds(engines, batches, LONG_TOKENS)
            steps.append((long - short) / (LONG_TOKENS - SHORT_TOKENS))
            if len(steps) == 2 and max(steps) <= (1 + AGREEMENT) * min(steps):
                break
        centre = statistics.median(steps)
        if centre <= 0:
            continue  # the machine stalled in the short decode, twice of three times: no information
        points.append(
            DecodePoint(
                sequences=sequences,
                kv_tokens=sequences * (prompt_tokens + (SHORT_TOKENS + LONG_TOKENS) / 2),
                step_s=centre,
                spread=statistics.median(abs(s - centre) for s in steps) / centre,
            )
        )
    return fit_decode(points)


async def measure_prefill(
    bench: _Bench, engines: Sequence[EngineHandle], samples: int, prompt_tokens: int, decode: DecodeFit
) -> tuple[float, float]:
    """(seconds per request, per prompt token): a batch of one-token answers at two prompt lengths.

    No two of the prompts are alike, so nothing is cached: a simulated sample that finds its prompt cached pays for less
    than this, as the real one does.
    """
    count = max(4, samples // len(engines))
    times: list[float] = []
    lengths = (8, max(16, prompt_tokens))
    for length in lengths:
        repeats = [
            await bench.seconds(engines, bench.prompts(len(engines), count, length), 1) for _ in range(PREFILL_REPEATS)
        ]
        times.append(statistics.median(repeats))
    per_token = max(0.0, (times[1] - times[0]) / (count * (lengths[1] - lengths[0])))
    per_request = max(0.0, (times[0] - decode.a) / count - per_token * lengths[0] - decode.b)
    return per_request, per_token


def spread(times: Sequence[float]) -> Spread:
    """Median and 95th percentile (nearest rank) of repeats."""
    ordered = sorted(times)
    rank = min(len(ordered) - 1, round(0.95 * (len(ordered) - 1)))
    return Spread(p50=statistics.median(ordered), p95=ordered[rank], repeats=len(ordered))


async def measure_layout(
    fleet: Fleet,
    layout: EngineLayout,
    *,
    samples: int,
    prompt_tokens: int,
    max_len: int,
    vocabulary: int,
    seeded: bool,
    export: Callable[[str], Awaitable[Any]],
    weights_path: str,
    notify: Notify,
) -> RolloutCosts:
    """Everything about one layout. `samples` is a plain round's; `seeded`: each has its own seed; lengths in tokens."""
    engines = fleet.engines(layout)
    notify("first weights")  # as in a run: the first load builds what decoding then reads
    await export(version := "profile")
    for engine in engines:
        await engine.load(weights_path, version, False)
    bench = _Bench(fleet, vocabulary, seed=layout.tp, seeded=seeded)
    decode = await measure_decode(bench, engines, decode_grid(samples, layout.engines, max_len), notify)
    notify("prefill")
    prefill_s, prefill_s_per_token = await measure_prefill(bench, engines, samples, prompt_tokens, decode)
    return RolloutCosts(
        layout=layout,
        decode=decode,
        prefill_s=prefill_s,
        prefill_s_per_token=prefill_s_per_token,
        kv_capacity_tokens=min(engine.facts.kv_capacity_tokens for engine in engines),
        kv_block_tokens=engines[0].facts.kv_block_tokens,
        start=spread([engine.facts.start_s for engine in engines]),
    )
