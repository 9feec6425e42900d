"""The length model: from a trace to fresh lengths, with their marginal and the dependence inside a prompt.

A plain bootstrap of each prompt's own k samples cannot say how rare a prompt's rare long answers are: a prompt that is
long once in fifty has, with k = 16, mostly no long sample at all, and then never is. So tails are pooled:

1. y = log(tokens). A prompt's location is the mean of its y, drawn towards the grand mean by sqrt(lambda), where lambda
   is the reliability of a mean of k samples (Louis, JASA 1984: so the locations have the variance between prompts, and
   not that plus the noise of k samples). Two moments do not say how far apart the hard prompts lie, so the locations
   are then spread until the longest samples of the model's groups, which rounds wait for and cutoffs split, are
   distributed as those of the trace's groups; as far as these are many enough to tell.
2. A prompt's residuals are those of the prompts nearest to it in location, itself included, scaled by sqrt(k/(k-1)).
   The window follows the shape of the law where it changes with difficulty. A residual that was cut at the cap is
   extended by an exponential (a Pareto tail in tokens), fitted to the upper tail with censoring.
3. All location + residual values are mapped monotonically onto the trace's own marginal (each prompt weighing the
   same), so mean, quantiles and the share at the cap are the trace's, and 1 and 2 only decide who has the long ones.

The result is one table of lengths per traced prompt; a draw is a row of uniform picks from it, so a prompt can be
drawn again and again: its law stays, its luck is fresh. `check_model` compares predictions with samples left out.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..profiles.lengths import LengthRow, LengthTrace, intraclass_correlation

# Residuals that a prompt's law is made of. Fewer follow the shape more closely and see less of the tail; with the usual
# 16 samples a prompt this is a window of 12 prompts.
WINDOW_RESIDUALS = 192

# Spreads of the locations that are tried, how far from 1 they usually are (of mixtures that were tried), and the
# quantiles of the groups' longest samples that they are judged by, of which neighbours tell much the same.
_SPREADS = tuple(round(0.7 + 0.05 * i, 2) for i in range(20))
_USUAL_SPREAD = 0.2
_LEVELS = tuple(round(0.6 + 0.025 * i, 3) for i in range(16))
_INDEPENDENT_LEVELS = 3

# Share of the residuals, from above, that the tail beyond the cap is fitted to.
_TAIL_SHARE = 0.1


@dataclass(frozen=True, eq=False)
class LengthModel:
    """Draws lengths for traced prompts. Made by `fit_lengths`.

    Attributes:
        prompt_ids: the traced prompts, sorted; a prompt's index here is its name in the other methods.
        tables: lengths in tokens, shape (prompts, picks), each row sorted; a draw picks uniformly from a row.
        prompt_tokens: prompt lengths, shape (prompts,).
        rewards: for each prompt its traced rewards.
        cap_tokens: a length of `cap_tokens` is one that the cap cut.
    """

    prompt_ids: tuple[str, ...]
    tables: NDArray[np.int64]
    prompt_tokens: NDArray[np.int64]
    rewards: tuple[tuple[float, ...], ...]
    cap_tokens: int

    @property
    def mean_tokens(self) -> float:
        """Unconditioned mean length, each prompt weighing the same."""
        return float(self.tables.mean())

    def draw(self, prompt_index: int, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """`count` fresh lengths of one prompt."""
        drawn: NDArray[np.int64] = self.tables[prompt_index, rng.integers(self.tables.shape[1], size=count)]
        return drawn

    def draw_many(
        self, prompt_indices: NDArray[np.int64], shape: tuple[int, ...], rng: np.random.Generator
    ) -> NDArray[np.int64]:
        """Fresh lengths of shape (len(prompt_indices), *shape), one prompt a row."""
        picks = rng.integers(self.tables.shape[1], size=(len(prompt_indices), *shape))
        rows = prompt_indices.reshape(-1, *([1] * len(shape)))
        drawn: NDArray[np.int64] = self.tables[rows, picks]
        return drawn

    def share_beyond(self, cutoff: int) -> NDArray[np.float64]:
        """Per prompt, the probability that a sample is longer than `cutoff` tokens or cut by the cap at it."""
        longer = (self.tables > cutoff) | (self.tables >= self.cap_tokens)
        share: NDArray[np.float64] = longer.mean(axis=1)
        return share

    def short_groups(self, cutoff: int, group_size: int) -> float:
        """Probability that all samples of a group end within `cutoff` tokens, over prompts."""
        return float(((1.0 - self.share_beyond(cutoff)) ** group_size).mean())

    def group_max_quantiles(self, group_size: int, levels: tuple[float, ...]) -> tuple[int, ...]:
        """Quantiles of the longest length of a group of `group_size`, over prompts and draws."""
        # The CDF of a prompt's maximum is its own CDF to the power n; values are evaluated where any table has one.
        values = np.unique(self.tables)
        below = np.empty((len(self.tables), len(values)))
        for i, row in enumerate(self.tables):
            below[i] = np.searchsorted(row, values, side="right") / len(row)
        cdf = (below**group_size).mean(axis=0)
        found = np.searchsorted(cdf, np.asarray(levels) - 1e-12)
        return tuple(int(values[min(k, len(values) - 1)]) for k in found)


def fit_lengths(trace: LengthTrace, cap_tokens: int | None = None, seed: int = 0) -> LengthModel:
    """Fit the model; lengths above `cap_tokens` (default: the trace's cap) count as cut by it.

    Raises ValueError if the trace was sampled under a lower cap and samples were cut by that: the lengths between the
    two caps are not in it.
    """
    cap = trace.cap_tokens if cap_tokens is None else cap_tokens
    if cap > trace.cap_tokens and any(r.truncated for r in trace.rows):
        raise ValueError(
            f"lengths were sampled under a cap of {trace.cap_tokens} tokens and some were cut by it, the job's cap is "
            f"{cap}; profile again"
        )
    groups = trace.by_prompt()
    ids = tuple(groups)
    logs = [np.array([math.log(min(r.tokens, cap)) for r in rows]) for rows in groups.values()]
    cut = [np.array([_cut(r, cap) for r in rows]) for rows in groups.values()]
    locations = _locations(logs)
    prompt_tokens = np.array([rows[0].prompt_tokens for rows in groups.values()], dtype=np.int64)
    rewards = tuple(tuple(r.reward for r in rows) for rows in groups.values())

    def spread_by(factor: float) -> LengthModel:
        middle = float(locations.mean())
        raw = _windows(logs, cut, middle + factor * (locations - middle), np.random.default_rng([seed, 17]))
        tables = _onto_marginal(raw, logs, cut, cap)
        tables.sort(axis=1)
        return LengthModel(ids, tables, prompt_tokens, rewards, cap)

    size, longest = _group_maxima(trace, cap)
    if size < 2 or not longest.size:
        return spread_by(1.0)
    cutoffs = sorted({int(v) for v in np.quantile(longest, _LEVELS) if v < cap})
    seen = [float((longest <= cutoff).mean()) for cutoff in cutoffs]

    def misfit(factor: float) -> float:
        """Minus twice the log of likelihood (binomial, normal approximation) times prior, up to a constant."""
        model = spread_by(factor)
        squares = [
            (model.short_groups(c, size) - share) ** 2 * len(longest) / max(share * (1 - share), 1 / len(longest))
            for c, share in zip(cutoffs, seen, strict=True)
        ]
        evidence = _INDEPENDENT_LEVELS * sum(squares) / max(len(squares), 1)
        return evidence + ((factor - 1.0) / _USUAL_SPREAD) ** 2

    # Made again rather than kept: twenty models of a long trace are gigabytes.
    return spread_by(min(_SPREADS, key=misfit))


def _group_maxima(trace: LengthTrace, cap: int) -> tuple[int, NDArray[np.int64]]:
    """(commonest size of a group, the longest length in tokens of each group of that size); a group is one epoch's."""
    groups: dict[tuple[str, int], list[int]] = {}
    for row in trace.rows:
        groups.setdefault((row.prompt, row.epoch), []).append(min(row.tokens, cap))
    sizes = Counter(len(lengths) for lengths in groups.values())
    size = max(sizes, key=lambda k: (sizes[k], k))
    return size, np.array([max(lengths) for lengths in groups.values() if len(lengths) == size], dtype=np.int64)


def _cut(row: LengthRow, cap: int) -> bool:
    return row.tokens > cap or (row.tokens == cap and row.truncated)


def _locations(logs: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Prompt means, drawn to their grand mean by the square root of their reliability."""
    means = np.array([g.mean() for g in logs])
    icc = intraclass_correlation([g.tolist() for g in logs])
    sizes = np.array([len(g) for g in logs], dtype=np.float64)
    reliability = sizes * icc / (1.0 + (sizes - 1.0) * icc) if icc > 0 else np.zeros(len(logs))
    grand = float(means.mean())
    located: NDArray[np.float64] = grand + np.sqrt(reliability) * (means - grand)
    return located


def _windows(
    logs: list[NDArray[np.float64]],
    cut: list[NDArray[np.bool_]],
    locations: NDArray[np.float64],
    rng: np.random.Generator,
) -> list[NDArray[np.float64]]:
    """Per prompt: its location plus the residuals of the prompts around it."""
    residuals = []
    for group in logs:
        k = len(group)
        residuals.append((group - group.mean()) * math.sqrt(k / (k - 1)) if k > 1 else np.zeros(1))
    scale = _tail_scale(np.concatenate(residuals), np.concatenate(cut))
    residuals = [r + np.where(c, rng.exponential(scale, len(r)), 0.0) for r, c in zip(residuals, cut, strict=True)]
    order = np.argsort(locations, kind="stable")
    windows: list[NDArray[np.float64]] = [np.empty(0)] * len(logs)
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
        pooled = np.concatenate(chosen)
        windows[prompt] = locations[prompt] + pooled - pooled.mean()
    return windows


def _tail_scale(residuals: NDArray[np.float64], cut: NDArray[np.bool_]) -> float:
    """Mean excess of the upper tail in log space: sum of excesses over the number that ended by themselves (MLE)."""
    if not cut.any():
        return 0.0
    threshold = float(np.quantile(residuals, 1.0 - _TAIL_SHARE))
    tail = residuals > threshold
    ended = int((tail & ~cut).sum())
    return float((residuals[tail] - threshold).sum()) / max(ended, 1)


def _onto_marginal(
    raw: list[NDArray[np.float64]], logs: list[NDArray[np.float64]], cut: list[NDArray[np.bool_]], cap: int
) -> NDArray[np.int64]:
    """Map the rank of each raw value to the trace's quantile at that rank; shape (prompts, picks)."""
    picks = max(len(w) for w in raw)
    # Windows differ in size when prompts have different numbers of samples; quantiles bring them to one width.
    levels = (np.arange(picks) + 0.5) / picks
    values = np.stack([np.quantile(w, levels) for w in raw])
    ranks = np.empty(values.size)
    ranks[np.argsort(values, axis=None, kind="stable")] = (np.arange(values.size) + 0.5) / values.size
    tokens = np.concatenate([np.exp(g) for g in logs])
    capped = np.concatenate(cut)
    weights = np.concatenate([np.full(len(g), 1.0 / len(g)) for g in logs]) / len(logs)
    share = float(weights[capped].sum())
    ended, weight = tokens[~capped], weights[~capped]
    if not len(ended):
        return np.full(values.shape, cap, dtype=np.int64)
    order = np.argsort(ended, kind="stable")
    ended, weight = ended[order], weight[order]
    middle = np.cumsum(weight) - weight / 2
    lengths = np.interp(ranks, middle, ended)
    lengths = np.where(ranks > 1.0 - share, cap, np.minimum(lengths, cap))
    whole: NDArray[np.int64] = np.maximum(1, np.rint(lengths)).astype(np.int64)
    return whole.reshape(values.shape)


@dataclass(frozen=True, slots=True)
class CutoffCheck:
    """For one cutoff: the share of left-out groups with a sample beyond it, predicted, observed, and its noise."""

    cutoff_tokens: int
    predicted: float
    observed: float
    standard_error: float


@dataclass(frozen=True, slots=True)
class LengthCheck:
    """Predictions of a model fitted on half of each prompt's samples against groups of the other half."""

    groups: int
    cutoffs: tuple[CutoffCheck, ...]
    predicted_mean_tokens: float
    observed_mean_tokens: float
    predicted_group_max_tokens: float
    observed_group_max_tokens: float


def check_model(
    trace: LengthTrace, group_size: int, levels: tuple[float, ...] = (0.5, 0.7, 0.8, 0.9, 0.95), seed: int = 0
) -> LengthCheck:
    """Fit on every other sample of each prompt, predict groups of `group_size` from the rest.

    Cutoffs are the observed quantiles, at `levels`, of the longest sample of a left-out group. Raises ValueError if no
    prompt has enough samples for a left-out group and as many again to fit on.
    """
    fit_rows: list[LengthRow] = []
    groups: dict[str, list[list[int]]] = {}
    rng = np.random.default_rng([seed, 23])
    for prompt, rows in trace.by_prompt().items():
        order = rng.permutation(len(rows))
        half = len(rows) // 2
        fit_rows += [rows[i] for i in order[:half]]
        left = [rows[i].tokens for i in order[half:]]
        full = len(left) // group_size
        if half and full:
            groups[prompt] = [left[g * group_size : (g + 1) * group_size] for g in range(full)]
    if not groups:
        raise ValueError(f"no prompt has {2 * group_size} samples; a group to check against cannot be left out")
    model = fit_lengths(LengthTrace(fit_rows, trace.cap_tokens), seed=seed)
    index = {p: i for i, p in enumerate(model.prompt_ids)}
    rows_of = np.array([index[p] for p, gs in groups.items() for _ in gs])
    observed = np.array([g for gs in groups.values() for g in gs])
    observed_max = observed.max(axis=1)
    drawn_max = model.draw_many(rows_of, (256, group_size), rng).max(axis=2)
    checks = []
    for cutoff in sorted({int(np.quantile(observed_max, level)) for level in levels}):
        beyond = 1.0 - (1.0 - model.share_beyond(cutoff)[rows_of]) ** group_size
        error = math.sqrt(float((beyond * (1 - beyond)).sum())) / len(beyond)
        seen = (observed_max > cutoff) | (observed_max >= model.cap_tokens)
        checks.append(CutoffCheck(cutoff, float(beyond.mean()), float(seen.mean()), error))
    return LengthCheck(
        groups=len(rows_of),
        cutoffs=tuple(checks),
        predicted_mean_tokens=float(model.tables[rows_of].mean()),
        observed_mean_tokens=float(observed.mean()),
        predicted_group_max_tokens=float(drawn_max.mean()),
        observed_group_max_tokens=float(observed_max.mean()),
    )
