"""Measures drafts: the policy answers some prompts, and then the same ones again, with the first answers to draft from.

The engine drafts by the code of a run (executor/drafts/), for any batch: as in a run it learns which tokens are
accepted, and leaves drafts out where they do not pay. It is an engine of its own, since one that can draft is built
otherwise. Rounds go on until they tell enough or their time is over. What the very first one gives is not counted where
there is another: the engine knows nothing yet.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
import statistics
import time
from collections.abc import Mapping, Sequence

from ...executor.configuration import sampling_rules
from ...executor.drafts.history_store import HistoryStore
from ...executor.engines.engine_handle import EngineEvents, EngineHandle, EngineNews
from ...executor.engines.messages import Request
from ...executor.processes.actors import within
from ...executor.processes.supervision import Supervisor
from ...executor.rollout.prompts import PromptText
from ...plans.yaml.errors import RunFailed
from ..draft_schema import ProfiledDrafts
from ..laws.draft_counts import DraftCounts, fit_drafts, summed
from .measure_rollout import RolloutCosts
from .measure_rounds import RoundSampler
from .measure_site import Site, Subject
from .time_budget import TimeBudget

DRAFT_TOKENS = 4
"""Tokens of the longest draft, where the job names none."""

MOST_PARTS, MOST_S = 32, 45.0
"""Steps' worth of prompts that are answered at most, once and then again each, and seconds after which none begins."""

ENOUGH_STEPS = 16_000
"""Steps times their samples, of later answers, that tell enough: a rate is then known to a hundredth."""

ROUND_DEADLINE_S = 1800.0


def wanted_tokens(subject: Subject) -> int:
    """Tokens of the longest draft that is measured; 0: the job considers none, or assumes what they give."""
    allowed = subject.job.search.drafts
    if allowed is None or allowed.tokens is None:
        return DRAFT_TOKENS
    return 0 if allowed.acceptance is not None else max(allowed.tokens, default=0)


async def measure_drafts(
    subject: Subject,
    site: Site,
    sampler: RoundSampler,
    prompts: Mapping[str, PromptText],
    costs: Sequence[RolloutCosts],
    budget: TimeBudget,
) -> ProfiledDrafts | None:
    """The profile's section on drafts; None if there is no time, the job wants none, or it fails: a profile does
    without them. The fleet's engines have ended, and the first trainer holds weights."""
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
    engine = _DraftingEngine(site.fleet.engines(one.layout)[0], tokens, subject.job.rollout.seed_per_sample)
    try:
        budget.tell(f"starting an engine that drafts {tokens} tokens")
        await engine.start(sampler)
        return await _rounds(engine, _parts(prompts, subject), subject, one, budget)
    except RunFailed as error:
        budget.leave_out(f"drafts ({error})")
        return None
    finally:
        await engine.close()


def _cap(subject: Subject) -> int:
    return subject.job.rollout.max_response_tokens


def _parts(prompts: Mapping[str, PromptText], subject: Subject) -> list[dict[str, PromptText]]:
    """Parts of other prompts each, as many as a step has."""
    names, size = sorted(prompts), subject.job.rollout.prompts_per_step
    random.Random(f"drafts:{subject.job.data.seed}").shuffle(names)
    begins = range(0, min(MOST_PARTS * size, len(names)), size)
    return [{name: prompts[name] for name in names[begin : begin + size]} for begin in begins]


async def _rounds(
    engine: _DraftingEngine,
    parts: Sequence[Mapping[str, PromptText]],
    subject: Subject,
    costs: RolloutCosts,
    budget: TimeBudget,
) -> ProfiledDrafts | None:
    first: list[DraftCounts] = []
    later: list[DraftCounts] = []
    start_s, took_s = budget.elapsed_s, 0.0
    for part in parts:
        if later and sum(counts.sequence_steps for counts in later) >= ENOUGH_STEPS:
            break
        if later and (budget.elapsed_s - start_s > MOST_S or not budget.allows(took_s, "further rounds with drafts")):
            break
        budget.tell(f"drafts: {len(part)} prompts, answered and answered again")
        began_s = budget.elapsed_s
        first.append(await engine.answer(part, 0, subject))
        later.append(await engine.answer(part, 1, subject))
        took_s = budget.elapsed_s - began_s
    known = first[1:] or first
    return fit_drafts(summed(known), summed(later), lambda batch: costs.decode.a + costs.decode.b * batch)


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
                rules=sampling_rules(subject.job),
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
                if event.name in ("finished", "lost"):
                    written.setdefault(names.pop(event.request_id), []).append((list(event.tokens), None))
        for prompt, responses in sorted(written.items()):
            self._store.record(prompt, epoch, self._rounds, responses)
        return DraftCounts.of(await engine.take_drafts([]))
