"""The length model: from a trace to fresh lengths, with their marginal and the dependence inside a prompt.

A plain bootstrap of each prompt's own k samples cannot say how rare a prompt's rare long answers are: a prompt that is
long once in fifty has, with k = 16, mostly no long sample at all, and then never is. So tails are pooled:

1. A prompt's location is the mean of its log lengths, drawn towards the grand mean by sqrt(reliability) of a mean of k
   samples, so that the locations have the variance between prompts and not that plus noise. Two moments do not say how
   far apart the hard prompts lie, so the locations are then spread until the longest samples of the model's groups,
   which rounds wait for and cutoffs split, are distributed as those of the trace's groups; as far as these are many
   enough to tell.
2. A prompt's residuals are those of the prompts nearest to it in location (length_fit.py). The window follows the
   shape of the law where it changes with difficulty.
3. All scores, location + residual, are mapped monotonically onto the trace's own marginal, which ends in a tail fitted
   through the cap's censoring (length_fit.py), so mean, quantiles and the share at the cap are the trace's, and 1 and
   2 only decide who has the long ones. A job's cap may lie above the trace's: then `tail` says how much is a guess.

The result is one table of lengths per traced prompt; a draw is a row of uniform picks from it, so a prompt can be
drawn again and again: from one distribution, with fresh draws.

How sure it is: `another()` gives a model of prompts that the trace might as well have held, by a smoothed bootstrap
over prompts (Silverman and Young, Biometrika 1987) and a draw of the tail's exponent. Few prompts do not show how far
prompts differ, so the variances between and within them are drawn to what other jobs have, as by two prompts more. A
statistic over many such models has the p50 and p95 that so many prompts warrant.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...plans.phrases.numbers import MATTERS
from ...plans.schema.predicted_evidence import MUCH_AT_CAP
from ...profiles.length_trace import PROMPT_TOKENS, LengthTrace
from .length_fit import LengthTail, Marginal, fit_marginal, locate, windows

# Spreads of the locations that are tried, how far from 1 they usually are (of mixtures that were tried), and the
# quantiles of the groups' longest samples that they are judged by, of which neighbours tell much the same.
_SPREADS = tuple(round(0.7 + 0.05 * i, 2) for i in range(20))
_USUAL_SPREAD = 0.2
_LEVELS = tuple(round(0.6 + 0.025 * i, 3) for i in range(16))
_INDEPENDENT_LEVELS = 3

# Width of the smoothing over prompts, in standard deviations of the locations times prompts**-0.2 (0.9 is Silverman's
# rule for a normal law; lengths of several kinds of prompts lie in heaps, which a wide kernel would fill up).
_BANDWIDTH = 0.5

# Variances of log lengths between and within prompts before any was seen: their median and log deviation over the
# tables that ship, and how many prompts such knowledge counts for (of a log variance with that deviation, two).
_BETWEEN, _WITHIN, _PRIOR_FREEDOM = (0.4, 1.25), (0.27, 1.0), 2

# Degrees of freedom of the variance within prompts that one prompt gives at most: it differs from prompt to prompt.
_OF_A_PROMPT = 3

# A set of fewer prompts would not show how far the longest responses of a step are from the usual ones.
_LEAST_SET = 32

# Residuals of a prompt where the trace shows none.
_NORMAL = np.array([NormalDist().inv_cdf((i + 0.5) / 16) for i in range(16)])

# Knots of the map from scores to lengths, of which the last are as dense as the scores are.
_KNOTS, _LAST_KNOTS = 2048, 256

# Prompts whose tables are summed at a time, so that a trace of many prompts takes no more memory than its own tables.
_ROWS = 256


@dataclass(frozen=True, slots=True, eq=False)
class _Map:
    """The monotone map from scores to log lengths: knots, lines below and beyond them, and where the tail begins."""

    scores: NDArray[np.float64]
    logs: NDArray[np.float64]
    low_slope: float
    slope: float
    start: float

    def tokens(self, scores: NDArray[np.float64], cap_tokens: int, stretch: float = 1.0) -> NDArray[np.int64]:
        """Lengths in tokens of these scores; beyond the tail's start log lengths are stretched by `stretch`."""
        logs = np.interp(scores, self.scores, self.logs)
        logs += self.low_slope * np.minimum(scores - self.scores[0], 0.0)
        logs += self.slope * np.maximum(scores - self.scores[-1], 0.0)
        if stretch != 1.0:
            logs = np.where(logs > self.start, self.start + (logs - self.start) * stretch, logs)
        tokens = np.rint(np.exp(np.minimum(logs, math.log(cap_tokens))))
        whole: NDArray[np.int64] = np.clip(tokens, 1, cap_tokens).astype(np.int64)
        return whole


@dataclass(frozen=True, eq=False)
class LengthModel:
    """Draws lengths for traced prompts. Made by `fit_lengths`.

    Attributes:
        prompt_ids: the traced prompts, sorted; a prompt's index here is its name in the other methods.
        tables: lengths in tokens, shape (prompts, picks), each row sorted; a draw picks uniformly from a row.
        prompt_tokens: prompt lengths, shape (prompts,).
        rewards: for each prompt its traced rewards; 0 where none is known.
        cap_tokens: a length of `cap_tokens` is one that the cap cut.
        tail: how lengths go on beyond the longest that the trace shows.
        locations: per prompt, where its law lies (log tokens, before the map onto the marginal).
    """

    prompt_ids: tuple[str, ...]
    tables: NDArray[np.int64]
    prompt_tokens: NDArray[np.int64]
    rewards: tuple[tuple[float, ...], ...]
    cap_tokens: int
    tail: LengthTail
    locations: NDArray[np.float64]
    _residuals: NDArray[np.float64]
    _freedom: int
    _map: _Map

    @property
    def mean_tokens(self) -> float:
        """Unconditioned mean length, each prompt weighing the same."""
        return float(self.tables.mean())

    def quantiles(self) -> tuple[int, ...]:
        """Lengths at 0, 5, …, 100 % of all responses, tokens."""
        levels = np.quantile(self.tables, np.linspace(0, 1, 21), method="inverted_cdf")
        return tuple(int(length) for length in levels)

    @property
    def at_cap(self) -> str | None:
        """A warning if more than `MUCH_AT_CAP` of the responses reach the job's cap, else None."""
        share = float((self.tables >= self.cap_tokens).mean())
        if share <= MUCH_AT_CAP:
            return None
        return (
            f"{share:.0%} of the responses reach the cap of {self.cap_tokens} tokens (rollout.max_response_tokens), so "
            "that the cap decides how long rounds last; raise it, or give lengths that are the job's own"
        )

    @property
    def caution(self) -> str | None:
        """A caution on the lengths near the cap; None if the trace shows all but the last percent."""
        if self.cap_tokens <= self.tail.start_tokens * (1.0 + MATTERS) or not self.tail.cut:
            return None
        return self.tail.extrapolated(
            self.cap_tokens, "traced lengths were cut", "profile again under the job's cap to measure them"
        )

    def draw(self, prompt_index: int, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """`count` fresh lengths of one prompt."""
        drawn: NDArray[np.int64] = self.tables[prompt_index, rng.integers(self.tables.shape[1], size=count)]
        return drawn

    def draw_many(
        self, prompt_indices: NDArray[np.int64], shape: tuple[int, ...], rng: np.random.Generator
    ) -> NDArray[np.int64]:
        """Fresh lengths of shape (len(prompt_indices), *shape), one prompt a row."""
        return self.lengths_of(prompt_indices, rng.integers(self.tables.shape[1], size=(len(prompt_indices), *shape)))

    def lengths_of(self, prompt_indices: NDArray[np.int64], picks: NDArray[Any]) -> NDArray[np.int64]:
        """The lengths at places `picks` of the prompts' tables, in the shape of `picks`, one prompt a row."""
        rows = prompt_indices.reshape(-1, *([1] * (picks.ndim - 1)))
        lengths: NDArray[np.int64] = self.tables[rows, picks]
        return lengths

    def groups_within(self, tokens: int, group_size: int) -> NDArray[np.float64]:
        """Per prompt, the probability that all samples of a group end within `tokens`, and by themselves."""
        longer = (self.tables > tokens) | (self.tables >= self.cap_tokens)
        share: NDArray[np.float64] = (1.0 - longer.mean(axis=1)) ** group_size
        return share

    def short_groups(self, tokens: int, group_size: int) -> float:
        """`groups_within`, mean over prompts."""
        return float(self.groups_within(tokens, group_size).mean())

    def mixed_groups(self, group_size: int) -> NDArray[np.float64]:
        """Per prompt, the probability that the rewards of a group, picked from those traced, are not all equal."""
        alike = (sum((n / len(of)) ** group_size for n in Counter(of).values()) for of in self.rewards)
        return np.array([1.0 - each for each in alike])

    def group_max_quantiles(self, group_size: int, levels: tuple[float, ...]) -> tuple[int, ...]:
        """Quantiles of the longest length of a group of `group_size`, over prompts and draws."""
        # The CDF of a prompt's maximum is its own CDF to the power n. At the j-th of a row's m ascending picks it rises
        # from ((j - 1) / m)^n to (j / m)^n, so the mean over prompts is a sum of such rises by length.
        picks = self.tables.shape[1]
        rises = np.diff((np.arange(picks + 1) / picks) ** group_size)
        lengths = int(self.tables.max()) + 1
        mass, count = np.zeros(lengths), np.zeros(lengths, dtype=np.int64)
        for first in range(0, len(self.tables), _ROWS):
            rows = self.tables[first : first + _ROWS]
            mass += np.bincount(rows.ravel(), weights=np.tile(rises, len(rows)), minlength=lengths)
            count += np.bincount(rows.ravel(), minlength=lengths)
        values = np.flatnonzero(count)
        cdf = np.cumsum(mass[values]) / len(self.tables)
        indices = np.searchsorted(cdf, np.asarray(levels) - 1e-12)
        return tuple(int(values[min(k, len(values) - 1)]) for k in indices)

    def another(self, rng: np.random.Generator) -> LengthModel:
        """A model of other prompts that the trace might as well have held; see the module's docstring."""
        count = len(self.prompt_ids)
        size = max(count, _LEAST_SET)
        chosen = rng.integers(count, size=count)
        if size > count:  # the prompts of the set: by what so few would show of them
            chosen = chosen[rng.integers(count, size=size)]
        middle, spread = float(self.locations.mean()), float(self.locations.std())
        # Smoothing adds to the variance between prompts and is drawn together again; that of a prompt not seen yet
        # exceeds the variance among those seen by (K + 1) / (K - 1), for their mean and spread are estimates too.
        unseen = (count + 1) / max(count - 1, 1)
        between = _updated(_BETWEEN, unseen * spread**2, count - 1, rng)
        kernel = _BANDWIDTH * count**-0.2
        smooth = kernel / math.hypot(1.0, kernel) if spread > 0 else 1.0  # of the deviation between prompts
        seen = (self.locations[chosen] - middle) / spread if spread > 0 else np.zeros(size)
        shift = smooth * rng.standard_normal() / math.sqrt(count) if size > count else 0.0
        deviations = math.sqrt(1.0 - smooth**2) * seen + smooth * rng.standard_normal(size) + shift
        locations = middle + math.sqrt(between) * deviations
        residuals = self._residuals[chosen]
        known = float(self._residuals.var())
        within = _updated(_WITHIN, known, self._freedom, rng)
        if known > 0:
            residuals = residuals * math.sqrt(within / known)
        else:
            residuals = math.sqrt(within) * np.tile(_NORMAL, (size, 1))
        shape = max(self.tail.ended, 1)
        stretch = shape / rng.gamma(shape)
        scores = locations[:, None] + residuals
        tables = self._map.tokens(scores, self.cap_tokens, stretch)
        if self.tail.share == 1.0:  # the cap cut all that was seen, and so few leave open how many it does not cut
            below = np.minimum(scores - np.quantile(scores, rng.beta(1.0, count)), 0.0)
            tables = np.where(below < 0.0, np.ceil(self.tail.start_tokens * np.exp(below)).astype(np.int64), tables)
        return replace(
            self,
            prompt_ids=tuple(f"{self.prompt_ids[k]}~{place}" for place, k in enumerate(chosen)),
            tables=tables,
            prompt_tokens=self.prompt_tokens[chosen],
            rewards=tuple(self.rewards[k] for k in chosen),
            locations=locations,
            _residuals=residuals,
        )


def _updated(prior: tuple[float, float], variance: float, freedom: int, rng: np.random.Generator) -> float:
    """A variance that was seen with some degrees of freedom, drawn to one of the prior's."""
    median, deviation = prior
    drawn = median * math.exp(deviation * rng.standard_normal())
    return (_PRIOR_FREEDOM * drawn + freedom * variance) / (_PRIOR_FREEDOM + freedom)


def fit_lengths(trace: LengthTrace, cap_tokens: int | None = None, seed: int = 0) -> LengthModel:
    """The length model of a trace; lengths above `cap_tokens` (default: the trace's cap) count as cut by it.

    A cap above the trace's is taken too: what the trace's cap hid is extrapolated then, and `LengthModel.caution` says
    so.
    """
    cap = trace.cap_tokens if cap_tokens is None else cap_tokens
    groups = trace.by_prompt()
    logs = [np.array([math.log(r.tokens) for r in rows]) for rows in groups.values()]
    cut = [np.array([bool(r.truncated) for r in rows]) for rows in groups.values()]
    marginal = fit_marginal(logs, cut)
    located = locate(logs)
    residuals = windows(logs, cut, located, marginal.tail.index, np.random.default_rng([seed, 17]))
    middle = float(located.mean())
    size, longest = _group_maxima(trace)
    limits = sorted({int(v) for v in np.quantile(longest, _LEVELS) if v < trace.cap_tokens})
    seen = [float((longest <= limit).mean()) for limit in limits]

    def misfit(factor: float) -> float:
        """Minus twice the log of likelihood (binomial, normal approximation) times prior, up to a constant."""
        scores = middle + factor * (located - middle)[:, None] + residuals
        tables = _map(scores, marginal).tokens(scores, trace.cap_tokens)
        squares = []
        for limit, share in zip(limits, seen, strict=True):
            within = ((tables <= limit) & (tables < trace.cap_tokens)).mean(axis=1)
            gap = float((within**size).mean()) - share
            squares.append(gap**2 * len(longest) / max(share * (1 - share), 1 / len(longest)))
        evidence = _INDEPENDENT_LEVELS * sum(squares) / max(len(squares), 1)
        return evidence + ((factor - 1.0) / _USUAL_SPREAD) ** 2

    factor = min(_SPREADS, key=misfit) if size > 1 else 1.0
    locations = middle + factor * (located - middle)
    scores = locations[:, None] + residuals
    mapped = _map(scores, marginal)
    return LengthModel(
        prompt_ids=tuple(groups),
        tables=mapped.tokens(scores, cap),
        prompt_tokens=np.array([rows[0].prompt_tokens or PROMPT_TOKENS for rows in groups.values()], dtype=np.int64),
        rewards=tuple(tuple(r.reward for r in rows if r.reward is not None) or (0.0,) for rows in groups.values()),
        cap_tokens=cap,
        tail=marginal.tail,
        locations=locations,
        _residuals=residuals,
        _freedom=_freedom_within([len(rows) for rows in groups.values()]),
        _map=mapped,
    )


def _freedom_within(sizes: Sequence[int]) -> int:
    """What groups of these sizes say of the variance within a prompt, in degrees of freedom."""
    if max(sizes) == 1:
        return len(sizes) - 1
    return sum(min(size - 1, _OF_A_PROMPT) for size in sizes)


def _map(scores: NDArray[np.float64], marginal: Marginal) -> _Map:
    """The map that gives `scores`, each prompt weighing the same, the marginal's quantiles."""
    ascending = np.sort(scores, axis=None)
    count = len(ascending)
    places = np.unique(np.linspace(0, count - 1, _KNOTS).astype(np.int64))
    places = np.union1d(places, np.arange(max(0, count - _LAST_KNOTS), count))
    # Equal scores, as of a trace of equal lengths, have the mean of their quantiles.
    knots, firsts, times = np.unique(ascending[places], return_index=True, return_counts=True)
    logs = np.add.reduceat(marginal.log_quantiles((places + 0.5) / count), firsts) / times
    # Scores outside come up in `another` only; how lengths grow with the lowest and the highest scores tells theirs.
    few = math.isqrt(count)
    low, high = ascending[min(few, count - 1)], ascending[max(0, count - 1 - few)]

    def slope(one: float, other: float) -> float:
        run = other - one
        return float(np.interp(other, knots, logs) - np.interp(one, knots, logs)) / run if run > 0 else 1.0

    low_slope = slope(knots[0], low) if marginal.tail.share < 1.0 else 0.0  # else the cap cut all that was seen
    return _Map(knots, logs, low_slope, slope(high, knots[-1]), marginal.start)


def _group_maxima(trace: LengthTrace) -> tuple[int, NDArray[np.int64]]:
    """(commonest size of a group, the longest length in tokens of each group of that size); a group is one epoch's."""
    groups: dict[tuple[str, int], list[int]] = {}
    for row in trace.rows:
        groups.setdefault((row.prompt, row.epoch), []).append(row.tokens)
    sizes = Counter(len(lengths) for lengths in groups.values())
    size = max(sizes, key=lambda k: (sizes[k], k))
    return size, np.array([max(lengths) for lengths in groups.values() if len(lengths) == size], dtype=np.int64)
