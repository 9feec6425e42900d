"""A length trace with a published marginal and dependence, for benchmarks and tests."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rlplan.planner.lengths.table_lengths import copula_tokens
from rlplan.profiles.length_trace import LengthRow, LengthTrace


def copula_lengths(
    cdf: Sequence[tuple[float, float]],
    rho: float,
    cap_tokens: int,
    prompts: int,
    samples: int,
    seed: int = 0,
    *,
    prompt_tokens: int = 256,
    reward_share: float = 0.5,
) -> LengthTrace:
    """A trace of `prompts` x `samples` responses with this marginal and this dependence, sampled under `cap_tokens`.

    Args:
        cdf: (tokens, share of the responses within them), shares within [0, 1]. Responses above the last share count as
            cut at the last length: give the published cap as the last point. A smaller `cap_tokens` cuts the trace
            there, a larger one extrapolates by the tail's power law (`Marginal.tail_index`); nobody knows how much
            longer the responses at the published cap would have been.
        rho: correlation of the scores within a prompt, in [0, 1].
        prompt_tokens: length of every prompt; nothing is published about it.
        reward_share: share of the samples with reward 1, at random, whatever its length.

    Raises ValueError for points that are no CDF, rho outside [0, 1], or sizes below 1.
    """
    if min(cap_tokens, prompt_tokens) < 1:
        raise ValueError("cap_tokens and prompt_tokens must be at least 1")
    natural = copula_tokens(cdf, rho, prompts, samples, seed)
    rng = np.random.default_rng([seed, 37])
    rewards = (rng.random(natural.shape) < reward_share).astype(float)
    rows = [
        LengthRow(
            prompt=f"c{p:06d}",
            epoch=0,
            sample=s,
            tokens=math.ceil(min(natural[p, s], cap_tokens)),
            truncated=bool(natural[p, s] > cap_tokens),
            reward=float(rewards[p, s]),
            prompt_tokens=prompt_tokens,
        )
        for p in range(prompts)
        for s in range(samples)
    ]
    return LengthTrace(rows, cap_tokens)
