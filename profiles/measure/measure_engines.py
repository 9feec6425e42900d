"""Measures the engines of a profile, one TP size after another: of each, one engine alone and as many as fit."""

from __future__ import annotations

import itertools
import math
from collections.abc import Awaitable, Callable, Sequence

from ...executor.engines.engine_bench import EngineBench
from ...executor.engines.engine_handle import EngineHandle
from ...executor.processes.supervision import together
from ...plans.schema.levers import EngineLayout
from ...plans.yaml.errors import RunFailed
from .decoding.measure_drafts import wanted_tokens
from .decoding.measure_rollout import Decoded, RolloutCosts, measure_layout
from .measure_rounds import RoundSampler
from .measure_site import FIRST, Site, Subject
from .measured_layouts import layout_name, share_of_step
from .time_budget import TimeBudget

TRAINERS_PART = DRAFTS_PART = 0.5
"""Time that is kept for other layouts of the trainer, and for drafts, over that of one TP size of engines."""


async def measure_engines(
    subject: Subject,
    site: Site,
    sampler: RoundSampler,
    budget: TimeBudget,
    layouts: Sequence[EngineLayout],
    vocabulary: int,
    beside: Callable[[EngineHandle, EngineBench], Awaitable[None]] | None = None,
) -> tuple[RolloutCosts, ...]:
    """Costs of the layouts, those of one TP size after those of another; `sampler` has what their rounds gave.

    Each engine is started once: on GPUs those of a size when those before have ended, on CPUs, where no device's memory
    runs out, all of them at once, which takes less time. A size that fails, or for which no time is left, is left out,
    as long as there is another. Starts reward workers and the first trainer, too. `vocabulary`: tokens that prompts are
    made of. `beside` measures what is to run beside an engine, once there are samples. Raises RunFailed.
    """
    costs: list[RolloutCosts] = []
    on_gpu = subject.pool.accelerators.kind == "cuda"
    sizes = [list(alike) for _, alike in itertools.groupby(layouts, key=lambda each: each.tp)]
    later = TRAINERS_PART + (DRAFTS_PART if wanted_tokens(subject) and not on_gpu else 0.0)
    least_s = 0.0  # of one size: the start of its engines, and the least of its layouts
    for number, alike in enumerate(sizes):
        names, left = " and ".join(layout_name(layout) for layout in alike), len(sizes) - number
        if costs and budget.left_s < least_s:
            budget.leave_out(names)
            budget.lacks(least_s * left)
            continue
        budget.begin(left + later)
        before_s = budget.elapsed_s
        widest = max(alike, key=lambda each: each.engines)
        engines = site.fleet.engines(widest)
        starting = engines if on_gpu else site.fleet.all_engines() if not number else []
        try:
            if starting:
                budget.tell("starting " + ", ".join(engine.name for engine in starting))
            if number:
                await site.turns.start(starting, [])
            else:
                await together(site.rewards.start(), site.turns.start(starting, [FIRST]))
            if not on_gpu:  # those of other sizes have started, too
                before_s = budget.elapsed_s
                budget.begin(left + later)
            for layout in alike:
                costs.append(await _least(subject, site, sampler, budget, layout, layouts, vocabulary))
            if not number:
                await sampler.lengths(widest)
                if beside is not None:
                    bench = EngineBench(site.fleet, vocabulary, seed=0, seeded=subject.job.rollout.seed_per_sample)
                    await sampler.ready(widest, "beside")  # after their updates the engines sleep
                    await beside(engines[0], bench)
            least_s = max(least_s, budget.elapsed_s - before_s)
            if budget.left_s < 0:
                budget.lacks(least_s * (left - 1))
            for layout in alike:
                await sampler.more(layout, first=layout == layouts[0])
            if not number:
                await sampler.more_lengths(widest)
        except RunFailed as error:
            if not sampler.sampled.groups:  # lengths come with the first size
                raise
            budget.tell(f"the rest of {names} is left out: {error}")
        finally:
            await site.turns.end(engines)
    return tuple(costs)


async def _least(
    subject: Subject,
    site: Site,
    sampler: RoundSampler,
    budget: TimeBudget,
    layout: EngineLayout,
    layouts: Sequence[EngineLayout],
    vocabulary: int,
) -> RolloutCosts:
    """The least of one of `layouts`: its costs, and some real rounds."""
    name, rollout = layout_name(layout), subject.job.rollout
    budget.tell(f"{name}: first weights")  # as in a run: the first load builds what decoding then reads
    await sampler.ready(layout, "profile")
    samples = math.ceil(share_of_step(layout, layouts, subject.pool) * rollout.samples_per_step)
    decoded = Decoded(samples, rollout.max_prompt_tokens, rollout.longest_tokens)
    bench = EngineBench(site.fleet, vocabulary, seed=layout.tp, seeded=rollout.seed_per_sample)
    costs = await measure_layout(bench, site.fleet.engines(layout), layout, decoded, budget, name)
    await sampler.least(layout, first=layout == layouts[0])
    return costs
