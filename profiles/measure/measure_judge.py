"""Measures a judge: alone, and beside an engine that decodes, at each share of its cores.

The judge is started on the cores of the engine. While the engine idles, it has them to itself; while the engine decodes
a batch, the judge is kept busy: what the batch then takes longer is what the rollout loses, and what the judge's
samples take longer is what the judge does not gain.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import statistics
import string
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ...executor.engines.engine_bench import EngineBench
from ...executor.engines.engine_handle import EngineHandle
from ...executor.processes.supervision import Supervisor
from ...executor.rewards.charges import RewardResult
from ...executor.rewards.judge_pool import JudgePool, judge_config
from ...executor.rollout.prompts import response_text
from ...executor.trainer.train_samples import Groups
from ...plans.schema.levers import RewardJudge
from ...plans.yaml.errors import RunFailed
from ..judge_schema import Judge, JudgeShare
from .measure_site import Subject
from .time_budget import TimeBudget

AT_ONCE = 8
"""Samples that a copy is asked about at a time: a batch fills an engine step, and a death asks few again."""
SHARE = 0.2
"""Share of the cores that is measured beside the system's own division, which gives both the same."""
BURST = 64
SINGLES = 9
TICK_S = 0.05
DECODE_SEQUENCES, DECODE_TOKENS, DECODE_PROMPT = 32, 160, 16
"""The batch beside which the judge is measured; some seconds on a CPU."""


class _Question(NamedTuple):
    prompt: str
    response: str
    answer: Any
    tokens: int


async def measure_judge(
    subject: Subject,
    engine: EngineHandle,
    bench: EngineBench,
    prompts: dict[str, Any],
    groups: Groups,
    tokenizers: tuple[Any, Any],
    budget: TimeBudget,
) -> Judge:
    """The judge's part of a profile. `engine` holds weights and idles, as all others do; `groups`: samples to judge;
    `tokenizers`: the policy's and the judge's. Raises RunFailed or InputError."""
    policy, own = tokenizers
    questions = [
        _Question(prompts[s.prompt_id].text, response_text(policy, s.response_tokens.tolist()),
                  prompts[s.prompt_id].answer, s.tokens)
        for group in groups for s in group
    ]  # fmt: skip
    budget.tell("judge: alone, then beside a rollout")
    per_sample_s = per_token_s = latency_s = 0.0
    factors: list[tuple[float, float]] = []
    for share in (None, SHARE):
        planned = RewardJudge(place="beside", instances=1, at_once=AT_ONCE, share=share)
        config = judge_config(subject.job, subject.paths.judge, planned, subject.pool, own)
        here = engine.config
        placed = tuple(replace(each, cores=here.cores, node_id=here.node_id) for each in config.engines)
        pool = JudgePool(replace(config, engines=placed), own, Supervisor())
        try:
            await pool.start()
            timed = _Timed(pool, config.template, questions)
            await timed.burst(timed.mixed(AT_ONCE))  # first calls build what later ones reuse
            if share is None:
                latency_s = statistics.median([(await timed.burst(timed.mixed(1))).seconds for _ in range(SINGLES)])
                per_sample_s, per_token_s = fit_judge(
                    await timed.burst(timed.short_questions()), await timed.burst(timed.long_questions())
                )
            batches = bench.prompts(1, DECODE_SEQUENCES, DECODE_PROMPT)
            await bench.seconds([engine], batches, DECODE_TOKENS)
            decode_s = await bench.seconds([engine], batches, DECODE_TOKENS)
            decoding = asyncio.ensure_future(bench.seconds([engine], batches, DECODE_TOKENS))
            busy = await timed.while_running(decoding)
            alone_s = per_sample_s + per_token_s * busy.mean_tokens
            factors.append((max(1.0, busy.per_sample_s / alone_s), max(1.0, decoding.result() / decode_s)))
        finally:
            await pool.close()
    (beside, rollout), (shared_beside, shared_rollout) = factors
    return Judge(
        per_sample_s=per_sample_s,
        per_token_s=per_token_s,
        beside_factor=beside,
        rollout_factor=rollout,
        at_once=AT_ONCE,
        latency_s=latency_s,
        shares=(JudgeShare(share=SHARE, beside_factor=shared_beside, rollout_factor=shared_rollout),),
    )


class _Timed:
    """Times bursts on a judge. No question is asked twice: the prefix cache would know all of it."""

    def __init__(self, pool: JudgePool, template: str, questions: Sequence[_Question]) -> None:
        self._template = template
        self._pool, self._ordered = pool, sorted(questions, key=lambda question: question.tokens)
        self._mixed = itertools.cycle(questions)
        self._serial = itertools.count()

    def mixed(self, count: int) -> list[_Question]:
        """The next `count` questions about samples of all lengths."""
        return list(itertools.islice(self._mixed, count))

    def short_questions(self) -> list[_Question]:
        """`BURST` questions about samples of the shorter half."""
        return list(itertools.islice(itertools.cycle(self._ordered[: max(1, len(self._ordered) // 2)]), BURST))

    def long_questions(self) -> list[_Question]:
        """`BURST` questions about the longest eighth of the samples."""
        return list(itertools.islice(itertools.cycle(self._ordered[-max(1, len(self._ordered) // 8) :]), BURST))

    def _ask(self, question: _Question) -> asyncio.Future[RewardResult]:
        number = next(self._serial)
        values = numbered(self._template, number, question.prompt, question.response, question.answer)
        return self._pool.score(f"profile/{number}", *values)

    async def burst(self, questions: Sequence[_Question]) -> Burst:
        """Questions that come together."""
        began = time.perf_counter()
        _must_be_verdicts(await asyncio.gather(*map(self._ask, questions)))
        seconds = time.perf_counter() - began
        return Burst(len(questions), statistics.fmean(question.tokens for question in questions), seconds)

    async def while_running(self, other: asyncio.Future[float]) -> Burst:
        """Keep the judge busy until `other` is done."""
        began, tokens = time.perf_counter(), []
        pending: dict[asyncio.Future[RewardResult], int] = {}
        while not other.done():
            while len(pending) < 2 * AT_ONCE:
                (question,) = self.mixed(1)
                pending[self._ask(question)] = question.tokens
            await asyncio.wait(set(pending), timeout=TICK_S, return_when=asyncio.FIRST_COMPLETED)
            answered = [future for future in pending if future.done()]
            _must_be_verdicts([future.result() for future in answered])
            tokens += [pending.pop(future) for future in answered]
        seconds = time.perf_counter() - began
        for future in pending:
            future.cancel()
        if not tokens:
            raise RunFailed("the judge gave no verdict while an engine decoded beside it; take a smaller judge")
        return Burst(len(tokens), statistics.fmean(tokens), seconds)


def numbered(template: str, number: int, prompt: str, response: str, answer: Any) -> tuple[str, str, Any]:
    """Prompt, response and answer of a question that is like no other from its first placeholder on: a number stands
    in front of what comes first."""
    first = next(name for _, name, _, _ in string.Formatter().parse(template) if name is not None)
    if first == "prompt":
        return f"{number} {prompt}", response, answer
    if first == "response":
        return prompt, f"{number} {response}", answer
    shown = answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)
    return prompt, response, f"{number} {shown}"


def _must_be_verdicts(results: Sequence[RewardResult]) -> None:
    for result in results:
        if result.outcome != "ok":
            raise RunFailed(f"the judge cannot be measured: {result.detail}")


class Burst(NamedTuple):
    """Samples that a judge was given together: how many, their mean tokens, and seconds until the last verdict."""

    samples: int
    mean_tokens: float
    seconds: float

    @property
    def per_sample_s(self) -> float:
        """Seconds for each sample."""
        return self.seconds / self.samples


def fit_judge(short: Burst, long: Burst) -> tuple[float, float]:
    """(seconds per sample, seconds per token of it), both at least 0.

    Bursts of nearly the same length say nothing of tokens: then every sample takes their mean.
    """
    apart = long.mean_tokens - short.mean_tokens
    mean_s = (short.seconds + long.seconds) / (short.samples + long.samples)
    if apart < 0.1 * long.mean_tokens:
        return mean_s, 0.0
    per_token_s = max(0.0, (long.per_sample_s - short.per_sample_s) / apart)
    per_sample_s = short.per_sample_s - per_token_s * short.mean_tokens
    if per_sample_s < 0:  # longer samples took more than in proportion: a line through 0, right in the mean
        tokens = short.samples * short.mean_tokens + long.samples * long.mean_tokens
        return 0.0, (short.seconds + long.seconds) / tokens
    return (per_sample_s, per_token_s) if per_token_s else (mean_s, 0.0)
