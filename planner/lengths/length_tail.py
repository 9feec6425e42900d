"""The marginal of a trace's lengths, with what its cap hid and what its size hides.

The body is the product-limit estimate (Kaplan and Meier, JASA 1958), in which a response that its cap ended counts as
longer than it was seen to be; each prompt weighs the same. Above the longest response nothing was seen; there the law
goes on as a power of the length, whose exponent is Hill's estimate with censoring over the upper tenth: responses that
ended over their summed log excess. Where no cap is known to have cut anything, only the last few can be missing, and
the longest sqrt(count) are asked instead: if they crowd at one length, that is a wall. The exponent's error counts
prompts, not responses, since the responses of one prompt are alike.

It stays an extrapolation: a response that hit the cap may have been about to end, or going round in circles for ever.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...plans.phrases.numbers import percent

# Share of the responses, from above, that the tail is fitted to where a cap cut some.
TAIL_SHARE = 0.1

# The largest tail index: with many responses at one length, there is no excess to fit.
_STEEPEST = 50.0


@dataclass(frozen=True, slots=True)
class Tail:
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
    tail: Tail

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
) -> Tail:
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
    return Tail(min(index, _STEEPEST), ended, max(1, round(math.exp(start))), share, bool(censored.any()))
