"""How lengths move as the policy trains, and what a prompt's earlier lengths say about its next group.

Both need a trace with more than one checkpoint (epoch). All is in log tokens.

Drift. The body's rate is the within-prompt slope of log length over checkpoints (prompt effects removed), its error
clustered by prompt (Liang and Zeger, Biometrika 1986). The tail moves at a rate of its own, that of the trace's 95th
percentile, whose error is bootstrapped over prompts: training may shorten the usual answer and leave the lost ones.

History. A prompt's location at the next checkpoint, given the mean of k earlier log lengths, is drawn to the middle
twice: for the noise of k samples (variance within / k), and because prompts change places between checkpoints
(correlation of the true locations, noise removed). The prior is not a bell but the prompts of the model: each gets the
likelihood of the earlier mean as its weight, and the next group's longest response is a mixture of theirs. So shape and
tail are the trace's, and a history that says nothing gives back the law of any prompt.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ...profiles.length_trace import LengthTrace
from .length_model import LengthModel, fit_lengths
from .length_windows import components

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

    def factor(self, epochs: float, *, tail: bool = False) -> tuple[float, float, float]:
        """What lengths are multiplied with after so many epochs: p5, p50, p95."""
        rate, error = (self.tail, self.tail_error) if tail else (self.body, self.body_error)
        low, high = sorted((rate * epochs - 1.645 * error * abs(epochs), rate * epochs + 1.645 * error * abs(epochs)))
        return math.exp(low), math.exp(rate * epochs), math.exp(high)

    def apply(self, model: LengthModel, epochs: float) -> LengthModel:
        """The model as it will be after so many epochs: moved by `body` up to its median, by `tail` from its p95 on."""
        return model.stretched(self.body * epochs, self.tail * epochs, _TAIL_LEVEL)


def fit_drift(trace: LengthTrace, seed: int = 0) -> Drift:
    """From prompts that were sampled at more than one checkpoint. Raises ValueError if fewer than two were."""
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
    epochs = sorted({int(t) for own, _ in by_prompt for t in own})
    return Drift(body, body_error, _tail_slope(by_prompt), float(np.std(slopes)), epochs[0], epochs[-1])


def _tail_slope(by_prompt: list[tuple[NDArray[np.float64], NDArray[np.float64]]]) -> float:
    times, lengths = (np.concatenate(parts) for parts in zip(*by_prompt, strict=True))
    at = np.unique(times)
    high = np.array([np.quantile(lengths[times == t], _TAIL_LEVEL) for t in at])
    counts = np.array([float((times == t).sum()) for t in at])
    middle = float((at * counts).sum() / counts.sum())
    spread = float((counts * (at - middle) ** 2).sum())
    return float((counts * (at - middle) * high).sum()) / spread


def fit_drifting(
    trace: LengthTrace, cap_tokens: int | None = None, ahead: float = 0.0, seed: int = 0
) -> tuple[LengthModel, Drift | None]:
    """A model of the lengths `ahead` epochs after the trace's last checkpoint, from all of its checkpoints.

    Earlier lengths are moved to the last checkpoint first, so that a run's own trace is not averaged over a policy that
    is gone; but only at rates that stand out from their errors (1.645 of them), for moving by noise adds noise. What
    the cap cut stays cut. The drift is None, and nothing moves, where no two prompts show one.
    """
    try:
        drift = fit_drift(trace, seed)
    except ValueError:
        return fit_lengths(trace, cap_tokens, seed), None
    body, tail = (
        rate if abs(rate) > 1.645 * error else 0.0
        for rate, error in ((drift.body, drift.body_error), (drift.tail, drift.tail_error))
    )
    logs = np.log([r.tokens for r in trace.rows])
    lags = np.array([drift.last - r.epoch for r in trace.rows], dtype=np.float64)
    low = {e: float(np.quantile(logs[lags == drift.last - e], 0.5)) for e in {r.epoch for r in trace.rows}}
    high = {e: float(np.quantile(logs[lags == drift.last - e], _TAIL_LEVEL)) for e in low}
    moved = []
    for row, log, lag in zip(trace.rows, logs, lags, strict=True):
        far = min(max((log - low[row.epoch]) / max(high[row.epoch] - low[row.epoch], 1e-12), 0.0), 1.0)
        tokens = row.tokens if row.truncated else max(1, round(math.exp(log + lag * (body + far * (tail - body)))))
        moved.append(replace(row, tokens=min(tokens, trace.cap_tokens)))
    model = fit_lengths(LengthTrace(moved, trace.cap_tokens), cap_tokens, seed)
    return model.stretched(body * ahead, tail * ahead, _TAIL_LEVEL), drift


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
        """How much of each prompt of `model` is in this one; sums to 1. `lengths`: its earlier ones, any number."""
        if not len(lengths) or self.between <= 0:
            return np.full(len(self.model.prompt_ids), 1.0 / len(self.model.prompt_ids))
        places = self.model.locations - self.model.locations.mean()
        places = places / max(float(places.std()), 1e-12)
        # The earlier mean of a prompt that is `place` deviations out now.
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
        found = np.searchsorted(cdf, np.asarray(levels) - 1e-12)
        return tuple(int(values[min(k, len(values) - 1)]) for k in found)


def fit_history(trace: LengthTrace, cap_tokens: int | None = None, seed: int = 0) -> History:
    """From the last two checkpoints that share prompts.

    With one checkpoint only the correlation is unknown and taken as 1: what history says is then an upper limit.
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
