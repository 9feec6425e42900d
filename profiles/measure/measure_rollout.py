"""Measures what generation costs in a layout: decode steps over a grid, and prefill.

All engines of a layout are busy while a point is measured, because on a shared host they slow each other down. A point
is the difference between a long and a short decode of the same batch, so that submission, prefill and delivery, which
are in both, are not in it.

Contexts reach the longest that a sample of the job can have, without decoding that far: the context is a prompt, which
the engine's prefix cache has after the first of several decodes. No two sequences of a batch share their prompt, unless
its prefill would take longer than `PREFIX_S`: engines read the KV of each sequence, and of shared KV a part would come
from a processor's cache. vLLM's DecodeBenchConnector would need no prefill, but it fills the cache for all requests of
an engine, so that real rounds would need other engines, each with a start of its own.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ...executor.engines.engine_bench import LONG_TOKENS, SHORT_TOKENS, EngineBench
from ...executor.engines.engine_handle import EngineHandle
from ...plans.schema.levers import EngineLayout
from ..laws.hardware_peaks import DecodeNeeds
from ..laws.measured_fit import DecodeFit, fit_decode
from ..laws.suspicions import wrong_order
from ..phase_schema import DecodePoint, Spread
from .time_budget import TimeBudget

SHORT_CONTEXT = 16
REPEATS = 3
AGREEMENT = 0.02
"""Two repeats that are as close as this, relative to the smaller, need no third."""
PREFILL_REPEATS = 3
PREFIX_S = 20.0
"""Seconds that the prefill of a point's prompts may take."""
CACHE_SHARE = 0.9
"""Of an engine's KV cache that the sequences of a point may fill."""


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


class GridPoint(NamedTuple):
    """Sequences of each engine, and the tokens of each one's prompt; `least`: no fit does without it."""

    sequences: int
    context_tokens: int
    least: bool


@dataclass(frozen=True, slots=True)
class Decoded:
    """What a job decodes: samples of a plain round, tokens of the longest prompt, and of prompt and response."""

    samples: int
    prompt_tokens: int
    longest_tokens: int


def decode_grid(decoded: Decoded, engines: int, capacity_tokens: int, block_tokens: int) -> list[GridPoint]:
    """What to measure for rounds of up to twice `decoded.samples` samples (over-issue).

    Sequences: from one (the tail) to as many as an engine may get, each four times the one before, at a short context.
    Then, so that the cost of KV can be told from the cost of a sequence, two numbers of sequences at the longest
    context: a plain round's, of which all samples reach the cap, and a quarter of it; fewer where the cache of an
    engine (`capacity_tokens`) holds fewer. That context is one token longer than whole blocks of the cache, which alone
    stay in it.
    """
    largest = max(4, -(-2 * decoded.samples // engines))
    counts = sorted({1, max(4, largest // 16), max(4, largest // 4), largest})
    room_tokens = max(2 * SHORT_CONTEXT, decoded.longest_tokens - LONG_TOKENS)
    longest = max(room_tokens - 1, block_tokens) // block_tokens * block_tokens + 1
    longest = longest if longest <= room_tokens else room_tokens
    fitting = max(1, int(CACHE_SHARE * capacity_tokens) // (longest + LONG_TOKENS + block_tokens))
    many = min(max(4, largest // 2), fitting)
    few = max(1, min(max(4, largest // 8), many // 4))
    grid = [GridPoint(count, SHORT_CONTEXT, count in (1, largest)) for count in counts]
    return grid + [GridPoint(count, longest, True) for count in sorted({few, many})]


async def measure_decode(
    bench: EngineBench, engines: Sequence[EngineHandle], grid: Sequence[GridPoint], budget: TimeBudget, prefix: str
) -> DecodeFit:
    """Measure the grid and fit it; points that are not `least` only while there is time."""
    # First calls of a size allocate.
    await bench.seconds(engines, bench.prompts(len(engines), 4, SHORT_CONTEXT), LONG_TOKENS)
    points: list[DecodePoint] = []
    took_s = 0.0
    for point in sorted(grid, key=lambda each: not each.least):
        if not point.least and not budget.allows(took_s, f"{prefix}: decode steps between the ends of the grid"):
            continue
        budget.tell(f"{prefix}: decode: {point.sequences} sequences, context {point.context_tokens}")
        began_s = budget.elapsed_s
        found = await _measure_point(bench, engines, point)
        took_s = max(took_s, budget.elapsed_s - began_s)
        if found is not None:
            points.append(found)
    points = await _again(bench, engines, grid, points, budget, prefix)
    return fit_decode(sorted(points, key=lambda each: (each.kv_tokens / each.sequences, each.sequences)))


async def _again(
    bench: EngineBench,
    engines: Sequence[EngineHandle],
    grid: Sequence[GridPoint],
    points: list[DecodePoint],
    budget: TimeBudget,
    prefix: str,
) -> list[DecodePoint]:
    """The points; two of which the one with more work took less time (impossible-order) are measured anew."""
    steps = [DecodeNeeds(p.sequences, p.kv_tokens, p.step_s, p.spread) for p in points]
    wrong = {
        n
        for pair in itertools.permutations(range(len(steps)), 2)
        if wrong_order(*(steps[n] for n in pair))
        for n in pair
    }
    for number in sorted(wrong):
        old = points[number]
        point = next(each for each in grid if (each.sequences, _kv_tokens(each)) == (old.sequences, old.kv_tokens))
        budget.tell(f"{prefix}: again, since more work took less time: {point.sequences} sequences")
        points[number] = await _measure_point(bench, engines, point) or old
    return points


def _kv_tokens(point: GridPoint) -> float:
    """KV tokens that the sequences of a point hold together, mean over its steps."""
    return point.sequences * (point.context_tokens + (SHORT_TOKENS + LONG_TOKENS) / 2)


async def _measure_point(bench: EngineBench, engines: Sequence[EngineHandle], point: GridPoint) -> DecodePoint | None:
    """A point of the grid; None if the machine stalled in the short decode, so that there is no information."""
    count = len(engines)
    # One sequence after the other, so that it shows how long the others take; all of them stay in the prefix cache.
    batches = bench.prompts(count, 1, point.context_tokens)
    prefill_s = await bench.seconds(engines, batches, 1)
    different = max(1, min(point.sequences, int(PREFIX_S / prefill_s)))
    further = bench.prompts(count, different - 1, point.context_tokens)
    batches = [[*one, *more] for one, more in zip(batches, further, strict=True)]
    batches = [[batch[number % different] for number in range(point.sequences)] for batch in batches]
    await bench.seconds(engines, batches, 1)
    # The same prompts each time: once the prefix cache has them, long prefills no longer drown a few decode steps.
    steps: list[float] = []
    for _ in range(REPEATS):
        steps.append(await bench.step_s(engines, batches))
        if len(steps) == 2 and max(steps) <= (1 + AGREEMENT) * min(steps):
            break
    centre = statistics.median(steps)
    if centre <= 0:
        return None
    return DecodePoint(
        sequences=point.sequences,
        kv_tokens=_kv_tokens(point),
        step_s=centre,
        spread=statistics.median(abs(s - centre) for s in steps) / centre,
    )


async def measure_prefill(
    bench: EngineBench, engines: Sequence[EngineHandle], decoded: Decoded, decode: DecodeFit
) -> tuple[float, float]:
    """(seconds per request, per prompt token): a batch of one-token answers at two prompt lengths.

    No two of the prompts are alike, so nothing is cached: a simulated sample that finds its prompt cached pays for less
    than this, as the real one does.
    """
    count = max(4, decoded.samples // len(engines))
    times: list[float] = []
    lengths = (8, max(16, decoded.prompt_tokens))
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
    bench: EngineBench,
    engines: Sequence[EngineHandle],
    layout: EngineLayout,
    decoded: Decoded,
    budget: TimeBudget,
    prefix: str,
) -> RolloutCosts:
    """What decoding and prefill cost on the engines of a layout, which hold weights. `prefix`: of progress lines."""
    capacity_tokens = min(engine.facts.kv_capacity_tokens for engine in engines)
    block_tokens = engines[0].facts.kv_block_tokens
    grid = decode_grid(decoded, layout.engines, capacity_tokens, block_tokens)
    decode = await measure_decode(bench, engines, grid, budget, prefix)
    budget.tell(f"{prefix}: prefill")
    prefill_s, prefill_s_per_token = await measure_prefill(bench, engines, decoded, decode)
    return RolloutCosts(
        layout=layout,
        decode=decode,
        prefill_s=prefill_s,
        prefill_s_per_token=prefill_s_per_token,
        kv_capacity_tokens=capacity_tokens,
        kv_block_tokens=block_tokens,
        start=spread([engine.facts.start_s for engine in engines]),
    )
