"""Random durations and drift of phases, from published distributions, since no trace of the jobs is public.

Lengths of responses: the quantiles of 1.38 million production requests to a reasoning model (output p50 792, p90 3432,
p99 12607 tokens; Alibaba ServeGen's DeepSeek-R1 trace), cut at 16k tokens, near the replay's mean cap of 12.1k. An
iteration has 32 prompts of 8 samples; samples of one prompt agree with a normal copula of 0.8, the dependence measured
on math prompts (ICC 0.79). Rollout seconds follow the longest response, and one part in `_BATCH` sequences of the
tokens' sum (a decode step costs a part per step and a part per sequence); training seconds follow the sum. So long
responses lengthen both, training more evenly than rollout.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rlplan.planner.groups.inputs.group_model import GroupJob, PhaseWay

_QUANTILES = ((0.0, 792.0), (1.2816, 3432.0), (2.3263, 12607.0))
"""(normal score, tokens); straight lines in log tokens, the outer ones prolonged."""
_CAP_TOKENS = 16384.0
_PROMPTS, _SAMPLES = 32, 8
_COPULA = 0.8
_BATCH = 128.0
_NODE_ENGINES = 8
PLANNED_DRAWS, REAL_DRAWS = 64, 512


def response_tokens(score: np.ndarray) -> np.ndarray:
    """Tokens of a response whose place in the distribution has this normal score; any shape."""
    (z0, t0), (z1, t1), (z2, t2) = _QUANTILES
    low, high = np.log(t1 / t0) / (z1 - z0), np.log(t2 / t1) / (z2 - z1)
    log = np.log(t1) + np.where(score < z1, low, high) * (score - z1)
    return np.clip(np.exp(log), 1.0, _CAP_TOKENS)


def spread(draws: int, rng: np.random.Generator) -> tuple[tuple[float, float], ...]:
    """`draws` random (rollout, training) seconds of an iteration, each divided by its mean over the draws."""
    prompt = rng.standard_normal((draws, _PROMPTS, 1))
    sample = rng.standard_normal((draws, _PROMPTS, _SAMPLES))
    tokens = response_tokens(np.sqrt(_COPULA) * prompt + np.sqrt(1.0 - _COPULA) * sample).reshape(draws, -1)
    rollout = tokens.max(axis=1) + tokens.sum(axis=1) / _NODE_ENGINES / _BATCH
    train = tokens.sum(axis=1)
    return tuple(zip((rollout / rollout.mean()).tolist(), (train / train.mean()).tolist(), strict=True))


def with_spread(job: GroupJob, draws: int, rng: np.random.Generator) -> GroupJob:
    """The job with random phases around its means."""
    return replace(job, spread=spread(draws, rng))


DIRECTIONS = ("up", "down", "mixed")


class Drift:
    """Drift of phase seconds: linear over each job's stay, from the seconds at arrival, by a share of up to `most`.

    Each phase of each job ends at its own share, uniform up to `most`; slower for `up`, faster for `down`, either for
    `mixed`, drawn by job. A bound on slowdown is a share of the job's seconds alone as they are at the time.
    """

    def __init__(self, direction: str, most: float, rng: np.random.Generator) -> None:
        if direction not in DIRECTIONS:
            raise ValueError(f"no such direction: {direction}")
        self._direction = direction
        self._most = most
        self._rng = rng
        self._ends: dict[str, tuple[float, float]] = {}

    def drifted(self, job: GroupJob, share: float) -> GroupJob:
        """The job with its phase seconds after this share of its stay; `job`: as it arrived."""
        if job.name not in self._ends:
            signs = {"up": 1.0, "down": -1.0, "mixed": float(self._rng.choice((-1.0, 1.0)))}
            sign = signs[self._direction]
            self._ends[job.name] = (sign * self._most * self._rng.uniform(), sign * self._most * self._rng.uniform())
        rollout, train = self._ends[job.name]
        return replace(
            job, rollout=_slower(job.rollout, 1.0 + rollout * share), train=_slower(job.train, 1.0 + train * share)
        )


def _slower(ways: tuple[PhaseWay, ...], factor: float) -> tuple[PhaseWay, ...]:
    return tuple(replace(way, mean_s=way.mean_s * factor) for way in ways)
