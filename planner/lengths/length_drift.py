"""Drift: how lengths move as the policy trains, from a trace with more than one checkpoint (epoch).

All is in log tokens. The body's rate is the within-prompt slope of log length over checkpoints (prompt effects
removed), its error clustered by prompt (Liang and Zeger, Biometrika 1986). The tail moves at a rate of its own, that of
the trace's 95th percentile, whose error is bootstrapped over prompts: training may shorten the usual answer and leave
the lost ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...profiles.length_trace import LengthTrace

_TAIL_LEVEL = 0.95
_RESAMPLES = 200


@dataclass(frozen=True, slots=True)
class Drift:
    """Change of log lengths per unit of epoch (checkpoint number), with standard errors.

    Attributes:
        body, body_error: of a prompt's mean.
        tail, tail_error: of the 95th percentile over all.
        first, last: checkpoints that it was fitted on; beyond `last` it extrapolates.
    """

    body: float
    body_error: float
    tail: float
    tail_error: float
    first: int
    last: int


def fit_drift(trace: LengthTrace, seed: int = 0) -> Drift:
    """Drift of the prompts sampled at more than one checkpoint. Raises ValueError if there are fewer than two."""
    by_prompt = [
        (np.array([r.epoch for r in rows], dtype=np.float64), np.array([math.log(r.tokens) for r in rows]))
        for rows in trace.by_prompt().values()
        if len({r.epoch for r in rows}) > 1
    ]
    if len(by_prompt) < 2:
        raise ValueError("drift needs at least two prompts that were sampled at more than one checkpoint")
    times = [t - t.mean() for t, _ in by_prompt]
    lengths = [y - y.mean() for _, y in by_prompt]
    weight = sum(float((t**2).sum()) for t in times)
    body = sum(float((t * y).sum()) for t, y in zip(times, lengths, strict=True)) / weight
    scores = [float((t * (y - body * t)).sum()) for t, y in zip(times, lengths, strict=True)]
    count = len(by_prompt)
    body_error = math.sqrt(sum(s * s for s in scores) * count / (count - 1)) / weight
    rng = np.random.default_rng([seed, 41])
    slopes = [_tail_slope([by_prompt[i] for i in rng.integers(count, size=count)]) for _ in range(_RESAMPLES)]
    epochs = sorted({int(t) for epochs_of_prompt, _ in by_prompt for t in epochs_of_prompt})
    return Drift(body, body_error, _tail_slope(by_prompt), float(np.std(slopes)), epochs[0], epochs[-1])


def _tail_slope(by_prompt: list[tuple[NDArray[np.float64], NDArray[np.float64]]]) -> float:
    times, lengths = (np.concatenate(columns) for columns in zip(*by_prompt, strict=True))
    epochs = np.unique(times)
    high = np.array([np.quantile(lengths[times == t], _TAIL_LEVEL) for t in epochs])
    counts = np.array([float((times == t).sum()) for t in epochs])
    middle = float((epochs * counts).sum() / counts.sum())
    spread = float((counts * (epochs - middle) ** 2).sum())
    return float((counts * (epochs - middle) * high).sum()) / spread
