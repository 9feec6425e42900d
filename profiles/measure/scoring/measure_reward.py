"""Measures the reward workers: a burst of samples, and the latency that real rounds have seen."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from ....executor.rollout.reward_sum import RewardSum
from ....plans.schema.job import Job
from ...laws.reward_fit import fit_executions
from ...phase_schema import Reward, Spread
from ..decoding.measure_rollout import spread
from ..measure_rounds import Sampled

REWARD_BURST = 200

SLOW_S, ALONE = 0.02, 9
"""Seconds of a sample from which on so many are scored alone."""


async def measure_reward(
    rewards: RewardSum, prompts: dict[str, Any], tokenizer: Any, sampled: Sampled, job: Job, workers: int
) -> Reward:
    """What a worker of the first pool, of so many, needs per sample when many wait; how much of that there is beside
    decoding; and the latency of a call: from the real rounds, in which workers have been idle and engines are busy.
    Where samples take long the last one waits for others there, so that some are scored alone."""
    if not job.reward.pooled:  # no worker scores anything: lengths are looked at by the driver
        return Reward(workers=1, latency=Spread(p50=0.0, p95=0.0, repeats=0), per_sample_s=0.0)
    pool = rewards.scorer(job.reward.pooled[0].label)
    samples = [sample for group in sampled.groups for sample in group]
    texts = [str(tokenizer.decode(s.response_tokens, skip_special_tokens=True)) for s in samples[:REWARD_BURST]]

    def submit(index: int, tag: str) -> Any:
        sample = samples[index % len(texts)]
        prompt = prompts[sample.prompt_id]
        return pool.score(f"profile/{tag}/{index}", prompt.text, texts[index % len(texts)], prompt.answer)

    began = time.perf_counter()
    await asyncio.gather(*(submit(index, "burst") for index in range(len(texts))))
    per_sample = (time.perf_counter() - began) * workers / len(texts)
    alone_s = sampled.reward_exposed_s
    if per_sample >= SLOW_S:
        alone_s = []
        for index in range(ALONE):
            began = time.perf_counter()
            await submit(index, "alone")
            alone_s.append(time.perf_counter() - began)
    load = sum(sample.seconds for sample in sampled.scored) / sampled.scored_rollout_s
    return Reward(
        workers=workers,
        latency=spread(alone_s),
        per_sample_s=per_sample,
        load=load,
        # Only what runs a response's code takes as long as the response likes.
        executions=fit_executions(sampled.scored) if job.reward.kind == "code" else None,
    )
