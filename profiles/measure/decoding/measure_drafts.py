"""Measures drafts: the policy answers some prompts, and then the same ones again, with the first answers to draft from.

The engine drafts by the code of a run (executor/drafts/), for any batch: as in a run it learns which tokens are
accepted, and leaves drafts out where they do not pay. It is an engine of its own, since one that can draft is built
otherwise. What the first round gives is not counted where there is time for another: the engine knows nothing yet.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
import statistics
import time
from collections.abc import Mapping, Sequence

from ....executor.actors import within
from ....executor.drafts.history_store import HistoryStore
from ....executor.engines.engine_handle import EngineEvents, EngineHandle, EngineNews
from ....executor.engines.messages import Request
from ....executor.rollout.prompts import PromptText
from ....executor.supervision import Supervisor
from ....plans.yaml.errors import RunFailed
from ...drafts.draft_counts import DraftCounts, fit_drafts, summed
from ...drafts.draft_schema import ProfiledDrafts
from ..measure_rounds import RoundSampler
from ..measure_site import Site, Subject
from ..time_budget import TimeBudget
from .measure_rollout import RolloutCosts

DRAFT_TOKENS = 4
"""Tokens of the longest draft, where the job names none."""

PARTS = 2
"""Parts of the prompts, each answered once and then again; of the first the first answers are not counted."""

ROUND_DEADLINE_S = 1800.0


def wanted_tokens(subject: Subject) -> int:
    """Tokens of the longest draft that is measured; 0: the job considers none, or assumes what they give."""
    allowed = subject.job.search.drafts
    if allowed is None or allowed.tokens is None:
        return DRAFT_TOKENS
    return 0 if allowed.acceptance is not None else max(allowed.tokens, default=0)


async def drafts_or_why_not(
    subject: Subject,
    site: Site,
    sampler: RoundSampler,
    prompts: Mapping[str, PromptText],
    costs: Sequence[RolloutCosts],
    budget: TimeBudget,
) -> ProfiledDrafts | None:
    """As `measure_drafts`; a failure leaves drafts out, as a profile does without them."""
    try:
        return await measure_drafts(subject, site, sampler, prompts, costs, budget)
    except RunFailed as error:
        budget.leave_out(f"drafts ({error})")
        return None


async def measure_drafts(
    subject: Subject,
    site: Site,
    sampler: RoundSampler,
    prompts: Mapping[str, PromptText],
    costs: Sequence[RolloutCosts],
    budget: TimeBudget,
) -> ProfiledDrafts | None:
    """The profile's section on drafts; None if there is no time, or the job wants none. The fleet's engines have ended,
    and the first trainer holds weights. Raises RunFailed."""
    tokens = wanted_tokens(subject)
    if not tokens:
        return None
    if subject.pool.accelerators.kind == "cuda":
        budget.leave_out("drafts, which are not measured on GPUs: rlplan tune learns them from a run")
        return None
    one = min(costs, key=lambda each: (each.layout.tp, each.layout.engines))
    took_s = [each.rollout_s for each in sampler.sampled.rounds if each.cap_tokens == _cap(subject)]
    took_s = took_s or [each.rollout_s for each in sampler.sampled.rounds]
    round_s, start_s = statistics.median(took_s), one.start.p50
    if not budget.allows(start_s + 2 * round_s, "drafts"):
        return None
    parts = PARTS if budget.allows(start_s + 2 * PARTS * round_s, "a second round of drafts") else 1
    engine = _DraftingEngine(site.fleet.engines(one.layout)[0], tokens, subject.job.rollout.seed_per_sample)
    try:
        budget.tell(f"starting an engine that drafts {tokens} tokens")
        await engine.start(sampler)
        return await _rounds(engine, _parts(prompts, subject, parts), subject, one, budget)
    finally:
        await engine.close()


def _cap(subject: Subject) -> int:
    return subject.job.rollout.max_response_tokens


def _parts(prompts: Mapping[str, PromptText], subject: Subject, count: int) -> list[dict[str, PromptText]]:
    """`count` parts of other prompts each, as many as a step has where the data has so many."""
    names = sorted(prompts)
    random.Random(f"drafts:{subject.job.data.seed}").shuffle(names)
    size = max(1, min(subject.job.rollout.prompts_per_step, len(names) // count))
    return [{name: prompts[name] for name in names[k * size : (k + 1) * size]} for k in range(count)]


async def _rounds(
    engine: _DraftingEngine,
    parts: Sequence[Mapping[str, PromptText]],
    subject: Subject,
    costs: RolloutCosts,
    budget: TimeBudget,
) -> ProfiledDrafts | None:
    counted: list[list[DraftCounts]] = []
    for epoch, text in enumerate(("first answers", "the same prompts again")):
        budget.tell(f"drafts: {text}")
        counted.append([await engine.answer(part, epoch, subject) for part in parts])
    first = counted[0][1:] or counted[0]
    return fit_drafts(summed(first), summed(counted[1]), lambda batch: costs.decode.a + costs.decode.b * batch)


class _DraftingEngine:
    """An engine in the place of `other`, which has ended, that remembers what it wrote."""

    def __init__(self, other: EngineHandle, tokens: int, seeded: bool) -> None:
        config = dataclasses.replace(other.config, draft_tokens=tokens).renamed(f"{other.config.name} with drafts")
        self._news: asyncio.Queue[EngineNews] = asyncio.Queue()
        self._handle = EngineHandle(config, self._news.put_nowait, Supervisor())
        self._store, self._rounds, self._tokens, self._seeded = HistoryStore(), 0, tokens, seeded

    async def start(self, sampler: RoundSampler) -> None:
        await self._handle.start()
        await sampler.weights.sync([self._handle], "profile-drafts", False)

    async def close(self) -> None:
        await self._handle.close()

    async def answer(self, prompts: Mapping[str, PromptText], epoch: int, subject: Subject) -> DraftCounts:
        """One round; what its drafts gave."""
        self._rounds += 1
        rollout, engine = subject.job.rollout, self._handle
        requests = [
            Request(
                request_id=f"drafts-{self._rounds}/{number}",
                prompt_tokens=prompt.tokens,
                max_tokens=rollout.max_response_tokens,
                temperature=rollout.temperature,
                seed=number + 1_000_003 * self._rounds if self._seeded else None,
                prompt_id=prompt.prompt,
            )
            for number, prompt in enumerate(
                prompt for prompt in prompts.values() for _ in range(rollout.samples_per_prompt)
            )
        ]
        await engine.begin_drafts(self._tokens, engine.config.max_num_seqs)
        await engine.remember([found for name in prompts if (found := self._store.of(name, epoch)) is not None])
        await engine.submit(requests, engine.version)
        written: dict[str, list[tuple[list[int], None]]] = {}
        names, deadline = {request.request_id: request.prompt_id for request in requests}, time.monotonic()
        while names:
            left_s = ROUND_DEADLINE_S - (time.monotonic() - deadline)
            news = await within(left_s, self._news.get(), f"profiling {engine.name}")
            if not isinstance(news, EngineEvents):
                raise RunFailed(f"{engine.name} died while it was profiled")
            for event in news.events:
                if event.name == "finished":
                    written.setdefault(names.pop(event.request_id), []).append((list(event.tokens), None))
        for prompt, responses in sorted(written.items()):
            self._store.record(prompt, epoch, self._rounds, responses)
        return DraftCounts.of_event(dataclasses.asdict(await engine.take_drafts([])))
