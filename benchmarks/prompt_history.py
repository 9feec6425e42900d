"""Predict a prompt's next group from its earlier lengths, by a trace with more than one checkpoint, in log tokens.

Given the mean of k earlier log lengths, a prompt's location at the next checkpoint is shrunk towards the mean of all
prompts for two reasons: the noise of k samples (variance within / k), and the change of prompts between checkpoints
(correlation of the true locations, noise removed). The prior is the set of the model's prompts, no normal distribution:
each prompt is weighted with the likelihood of the earlier mean, and the next group's longest response is the weighted
mixture. So shape and tail are those of the trace, and a prompt without history gets the distribution of any prompt.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlplan.planner.lengths.length_model import LengthModel, fit_lengths
from rlplan.plans.schema.length_evidence import LengthDrift
from rlplan.profiles.length_trace import LengthTrace


def drift_factor(drift: LengthDrift, epochs: float, *, tail: bool = False) -> tuple[float, float, float]:
    """The factor on lengths after `epochs` epochs of drift: p5, p50, p95."""
    rate, error = (drift.tail, drift.tail_error) if tail else (drift.body, drift.body_error)
    low, high = sorted((rate * epochs - 1.645 * error * abs(epochs), rate * epochs + 1.645 * error * abs(epochs)))
    return math.exp(low), math.exp(rate * epochs), math.exp(high)


def components(logs: list[NDArray[np.float64]]) -> tuple[float, float, float]:
    """(mean over prompts, variance between prompts, variance within one) of log lengths; one-way random effects."""
    means = np.array([g.mean() for g in logs])
    sizes = np.array([len(g) for g in logs], dtype=np.float64)
    spare = float((sizes - 1).sum())
    within = sum(float(((g - g.mean()) ** 2).sum()) for g in logs) / spare if spare > 0 else 0.0
    noise = within * float((1.0 / sizes).mean())
    between = max(0.0, float(means.var(ddof=1)) - noise) if len(means) > 1 else 0.0
    return float(means.mean()), between, within


@dataclass(frozen=True, eq=False)
class History:
    """Predicts a prompt's next group from its lengths at an earlier checkpoint. Made by `fit_history`.

    Attributes:
        model: lengths at the later checkpoint.
        earlier_mean: mean log length of the earlier checkpoint.
        between, within: variance of log lengths there, between prompts and within a prompt.
        correlation: of prompts' true locations between the two checkpoints.
    """

    model: LengthModel
    earlier_mean: float
    between: float
    within: float
    correlation: float

    def weights(self, lengths: Sequence[int]) -> NDArray[np.float64]:
        """The weight of each prompt of `model` in a prompt with these earlier lengths; sums to 1."""
        if not len(lengths) or self.between <= 0:
            return np.full(len(self.model.prompt_ids), 1.0 / len(self.model.prompt_ids))
        places = self.model.locations - self.model.locations.mean()
        places = places / max(float(places.std()), 1e-12)
        # The expected earlier mean of a prompt whose location is now `places` standard deviations above the mean.
        expected = self.earlier_mean + self.correlation * math.sqrt(self.between) * places
        variance = self.between * (1.0 - self.correlation**2) + self.within / len(lengths)
        gap = float(np.mean(np.log(lengths))) - expected
        logs = -(gap**2) / (2 * max(variance, 1e-9))
        likelihood: NDArray[np.float64] = np.exp(logs - logs.max())
        likelihood /= likelihood.sum()
        return likelihood

    def next_longest(self, lengths: Sequence[int], group_size: int, levels: Sequence[float]) -> tuple[int, ...]:
        """Quantiles of the longest response of the prompt's next group, in tokens."""
        weights = self.weights(lengths)
        tables = self.model.tables
        values = np.unique(tables)
        cdf = np.zeros(len(values))
        for weight, row in zip(weights, tables, strict=True):
            if weight > 1e-6:
                cdf += weight * (np.searchsorted(row, values, side="right") / len(row)) ** group_size
        cdf /= cdf[-1]
        indices = np.searchsorted(cdf, np.asarray(levels) - 1e-12)
        return tuple(int(values[min(k, len(values) - 1)]) for k in indices)


def fit_history(trace: LengthTrace, cap_tokens: int | None = None, seed: int = 0) -> History:
    """Fit a History to the last two checkpoints of the trace.

    With only one checkpoint the correlation is unknown and taken as 1; history then tells at most as much as predicted.
    """
    epochs = sorted({r.epoch for r in trace.rows})
    later = LengthTrace([r for r in trace.rows if r.epoch == epochs[-1]], trace.cap_tokens)
    earlier = LengthTrace([r for r in trace.rows if r.epoch == epochs[-2 if len(epochs) > 1 else -1]], trace.cap_tokens)
    before, after = _logs(earlier), _logs(later)
    mean, between, within = components(list(before.values()))
    _, between_after, _ = components(list(after.values()))
    shared = [p for p in before if p in after]
    correlation = 1.0
    if len(epochs) > 1:
        correlation = 0.0
        if len(shared) > 2 and between > 0 and between_after > 0:
            means = np.array([[before[p].mean(), after[p].mean()] for p in shared])
            covariance = float(np.cov(means.T)[0, 1])
            correlation = min(max(covariance / math.sqrt(between * between_after), 0.0), 1.0)
    return History(fit_lengths(later, cap_tokens, seed), mean, between, within, correlation)


def _logs(trace: LengthTrace) -> dict[str, NDArray[np.float64]]:
    return {p: np.array([math.log(r.tokens) for r in rows]) for p, rows in trace.by_prompt().items()}
