"""What the log lengths of a trace say: the marginal of all of them with its tail, how prompts differ and spread about
themselves, and how all of it moves as the policy trains.

**Marginal**, with what the trace's cap hid and what its size hides. The body is the product-limit estimate (Kaplan
and Meier, JASA 1958), in which a response that its cap ended counts as longer than it was seen to be; each prompt
weighs the same. Above the longest response nothing was seen; there the law goes on as a power of the length, whose
exponent is Hill's estimate with censoring over the upper tenth: responses that ended over their summed log excess.
Where no cap is known to have cut anything, only the last few can be missing, and the longest sqrt(count) are asked
instead: if they crowd at one length, that is a wall. The exponent's error counts prompts, not responses, since the
responses of one prompt are alike. It stays an extrapolation: a response that hit the cap may have been about to end,
or going round in circles for ever.

**Windows**: the residuals that a prompt's distribution is made of. A trace with one response to each prompt does not
tell how alike the responses to a prompt are. They are then taken to be as alike as `ASSUMED_ICC` says: that share of
the variance of log lengths lies between prompts, the rest within each.

**Drift**, from a trace with more than one checkpoint (epoch). The body's rate is the within-prompt slope of log length
over checkpoints (prompt effects removed), its error clustered by prompt (Liang and Zeger, Biometrika 1986). The tail
moves at a rate of its own, that of the trace's 95th percentile, whose error is bootstrapped over prompts: training may
shorten the usual answer and leave the lost ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...plans.phrases.numbers import percent
from ...plans.schema.predicted_evidence import LengthDrift
from ...profiles.length_tables import ASSUMED_ICC
from ...profiles.length_trace import LengthTrace, intraclass_correlation

# Share of the responses, from above, that the tail is fitted to where a cap cut some.
TAIL_SHARE = 0.1

# The largest tail index: with many responses at one length, there is no excess to fit.
_STEEPEST = 50.0

# Residuals that a prompt's law is made of. Fewer follow the shape more closely and see less of the tail; with the usual
# 16 samples a prompt this is a window of 12 prompts.
WINDOW_RESIDUALS = 192

# The quantile whose drift is that of the tail, and bootstrapped sets of prompts for its error.
_TAIL_LEVEL = 0.95
_RESAMPLES = 200


@dataclass(frozen=True, slots=True)
class LengthTail:
    """How the share of longer responses falls beyond what was seen: as length**-index.

    Attributes:
        index: the exponent.
        ended: prompts with a response in that upper part that ended by itself; the exponent's relative standard error
            is 1/sqrt(ended).
        start_tokens: where it begins: the trace's cap, or its longest response if none was cut.
        share: share of the responses beyond `start_tokens`, each prompt weighing the same.
        cut: whether the cap ended some; else the tail is what a trace of this size may have missed.
    """

    index: float
    ended: int
    start_tokens: int
    share: float
    cut: bool

    def share_beyond(self, cap_tokens: int) -> tuple[float, float, float]:
        """Share of the responses longer than `cap_tokens` (at least `start_tokens`): p5, p50, p95 of the exponent."""
        ratio = math.log(max(cap_tokens / self.start_tokens, 1.0))
        spread = 1.645 / math.sqrt(self.ended) if self.ended else math.inf
        low, high = max(0.0, self.index * (1.0 - spread)), min(_STEEPEST, self.index * (1.0 + spread))
        return (
            self.share * math.exp(-high * ratio),
            self.share * math.exp(-self.index * ratio),
            self.share * math.exp(-low * ratio),
        )

    def extrapolated(self, cap_tokens: int, subject: str, remedy: str) -> str:
        """A caution that lengths up to `cap_tokens`, which the trace's cap hid, are a guess."""
        low, middle, high = (percent(share, 2) for share in self.share_beyond(cap_tokens))
        spread = "" if low == high else f", from {low} to {high}"
        return (
            f"{percent(self.share)} of the {subject} at {self.start_tokens:,} tokens, and the job's cap is "
            f"{cap_tokens:,}: the lengths between are extrapolated ({middle} reach the cap{spread}); {remedy}"
        )


@dataclass(frozen=True, slots=True, eq=False)
class Marginal:
    """Quantiles of the lengths: `logs` of lengths at increasing `ranks` in (0, 1), then the tail."""

    ranks: NDArray[np.float64]
    logs: NDArray[np.float64]
    tail: LengthTail

    @property
    def start(self) -> float:
        """Log of the length from which on quantiles are the tail's."""
        return math.log(self.tail.start_tokens)

    def log_quantiles(self, ranks: NDArray[np.float64]) -> NDArray[np.float64]:
        """Log lengths at `ranks` within (0, 1)."""
        body = np.interp(ranks, self.ranks, self.logs)
        beyond = self.start + np.maximum(np.log(self.tail.share) - np.log1p(-ranks), 0.0) / self.tail.index
        joined: NDArray[np.float64] = np.where(ranks > 1.0 - self.tail.share, beyond, body)
        return joined


def fit_marginal(logs: list[NDArray[np.float64]], cut: list[NDArray[np.bool_]]) -> Marginal:
    """The marginal distribution of lengths, fitted to prompts' log lengths; `cut` marks those that the cap ended."""
    values, censored = np.concatenate(logs), np.concatenate(cut)
    weights = np.concatenate([np.full(len(g), 1.0 / (len(g) * len(logs))) for g in logs])
    prompts = np.repeat(np.arange(len(logs)), [len(g) for g in logs])
    # A cut response lasted at least as long as one that ended at the same length.
    order = np.lexsort((censored, values))
    values, censored, weights, prompts = values[order], censored[order], weights[order], prompts[order]
    at_risk = np.cumsum(weights[::-1])[::-1]
    after = np.cumprod(np.where(censored, 1.0, np.maximum(at_risk - weights, 0.0) / at_risk))
    before = np.concatenate([[1.0], after[:-1]])
    tail = _fit_tail(values, censored, prompts, after)
    ended = ~censored
    middle = 1.0 - (before[ended] + after[ended]) / 2
    if not ended.any():
        middle, seen = np.array([0.5]), values[-1:]
    else:
        seen = values[ended]
    return Marginal(
        np.append(middle, max(middle[-1], 1.0 - tail.share)), np.append(seen, math.log(tail.start_tokens)), tail
    )


def _fit_tail(
    values: NDArray[np.float64], censored: NDArray[np.bool_], prompts: NDArray[np.int64], after: NDArray[np.float64]
) -> LengthTail:
    """Hill's estimate over the upper tail; values ascend, `after` is the survival after each of them."""
    start = float(values[-1])
    # No response was longer than the longest that ended, but a longer one may exist: half a response's weight lies
    # beyond the longest, as half of each response's weight lies beyond its own length.
    unseen = 0.5 / len(values)
    share = min(max(float(after[-1]), unseen), 1.0)
    upper_share = TAIL_SHARE if censored.any() else min(TAIL_SHARE, len(values) ** -0.5)
    place = min(int(np.searchsorted(-after, -upper_share)), len(values) - 1)
    upper = slice(place, None)
    excess = float((values[upper] - values[place]).sum())
    free = ~censored[upper]
    free[0] = False  # the threshold itself
    index = float(free.sum()) / excess if free.any() and excess > 0 else 1.0 if censored.any() else _STEEPEST
    ended = len(np.unique(prompts[upper][free]))
    return LengthTail(min(index, _STEEPEST), ended, max(1, round(math.exp(start))), share, bool(censored.any()))


def _one_response_each(logs: list[NDArray[np.float64]]) -> bool:
    """Whether no prompt has two responses."""
    return all(len(group) == 1 for group in logs)


def _reliability(logs: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Per prompt, the share of its mean's variance over prompts that is not noise of its few samples."""
    if _one_response_each(logs):
        return np.full(len(logs), ASSUMED_ICC)
    icc = intraclass_correlation([g.tolist() for g in logs])
    sizes = np.array([len(g) for g in logs], dtype=np.float64)
    return sizes * icc / (1.0 + (sizes - 1.0) * icc) if icc > 0 else np.zeros(len(logs))


def locate(logs: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Prompt means, drawn to their grand mean by the square root of their reliability (Louis, JASA 1984)."""
    means = np.array([g.mean() for g in logs])
    grand = float(means.mean())
    located: NDArray[np.float64] = grand + np.sqrt(_reliability(logs)) * (means - grand)
    return located


def windows(
    logs: list[NDArray[np.float64]],
    cut: list[NDArray[np.bool_]],
    locations: NDArray[np.float64],
    tail_index: float,
    rng: np.random.Generator,
) -> NDArray[np.float64]:
    """Residuals around each location: those of the prompts nearest to it, itself included; rows sorted, mean 0.

    A residual that was cut goes on by an exponential, as a length goes on by a power law. The order of the locations is
    all that counts, so the rows serve for locations that are spread further apart too.
    """
    if _one_response_each(logs):
        return _alike(np.concatenate(logs), np.concatenate(cut), tail_index, rng)
    residuals = []
    for group in logs:
        k = len(group)
        residuals.append((group - group.mean()) * math.sqrt(k / (k - 1)) if k > 1 else np.zeros(1))
    residuals = [
        r + np.where(c, rng.exponential(1.0 / tail_index, len(r)), 0.0) for r, c in zip(residuals, cut, strict=True)
    ]
    order = np.argsort(locations, kind="stable")
    pools: list[NDArray[np.float64]] = [np.empty(0)] * len(logs)
    for place, prompt in enumerate(order):
        chosen, low, high = [residuals[prompt]], place - 1, place + 1
        count = len(residuals[prompt])
        while count < WINDOW_RESIDUALS and (low >= 0 or high < len(order)):
            # One from each side in turn: a one-sided window would tilt towards the easier or the harder.
            for neighbour in (low, high):
                if 0 <= neighbour < len(order):
                    chosen.append(residuals[order[neighbour]])
                    count += len(chosen[-1])
            low, high = low - 1, high + 1
        pooled = np.sort(np.concatenate(chosen))
        pools[prompt] = pooled - pooled.mean()
    # Pools differ in size when prompts have different numbers of samples; quantiles bring them to one width.
    picks = max(len(pool) for pool in pools)
    levels = (np.arange(picks) + 0.5) / picks
    return np.stack([pool if len(pool) == picks else np.quantile(pool, levels) for pool in pools])


def _alike(
    logs: NDArray[np.float64], cut: NDArray[np.bool_], tail_index: float, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Residuals of prompts with one response each: the same for all, since none tells its prompt's from the others'."""
    spread = math.sqrt(1.0 - ASSUMED_ICC) * (logs - logs.mean())
    pooled = np.sort(spread + np.where(cut, rng.exponential(1.0 / tail_index, len(logs)), 0.0))
    picks = min(len(pooled), WINDOW_RESIDUALS)
    row = np.quantile(pooled, (np.arange(picks) + 0.5) / picks)
    return np.tile(row - row.mean(), (len(logs), 1))


def fit_drift(trace: LengthTrace, seed: int = 0) -> LengthDrift:
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
    return LengthDrift(
        body=body,
        body_error=body_error,
        tail=_tail_slope(by_prompt),
        tail_error=float(np.std(slopes)),
        first=epochs[0],
        last=epochs[-1],
    )


def _tail_slope(by_prompt: list[tuple[NDArray[np.float64], NDArray[np.float64]]]) -> float:
    times, lengths = (np.concatenate(columns) for columns in zip(*by_prompt, strict=True))
    epochs = np.unique(times)
    high = np.array([np.quantile(lengths[times == t], _TAIL_LEVEL) for t in epochs])
    counts = np.array([float((times == t).sum()) for t in epochs])
    middle = float((epochs * counts).sum() / counts.sum())
    spread = float((counts * (epochs - middle) ** 2).sum())
    return float((counts * (epochs - middle) * high).sum()) / spread
