"""Locations of prompts, and the residuals that a prompt's distribution is made of. All values are log lengths.

A trace with one response to each prompt does not tell how alike the responses to a prompt are. They are then taken to
be as alike as `ASSUMED_ICC` says: that share of the variance of log lengths lies between prompts, the rest within each.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ...profiles.length_tables import ASSUMED_ICC
from ...profiles.length_trace import intraclass_correlation

# Residuals that a prompt's law is made of. Fewer follow the shape more closely and see less of the tail; with the usual
# 16 samples a prompt this is a window of 12 prompts.
WINDOW_RESIDUALS = 192


def one_response_each(logs: list[NDArray[np.float64]]) -> bool:
    """Whether no prompt has two responses."""
    return all(len(group) == 1 for group in logs)


def reliability(logs: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Per prompt, the share of its mean's variance over prompts that is not noise of its few samples."""
    if one_response_each(logs):
        return np.full(len(logs), ASSUMED_ICC)
    icc = intraclass_correlation([g.tolist() for g in logs])
    sizes = np.array([len(g) for g in logs], dtype=np.float64)
    return sizes * icc / (1.0 + (sizes - 1.0) * icc) if icc > 0 else np.zeros(len(logs))


def locate(logs: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Prompt means, drawn to their grand mean by the square root of their reliability (Louis, JASA 1984)."""
    means = np.array([g.mean() for g in logs])
    grand = float(means.mean())
    located: NDArray[np.float64] = grand + np.sqrt(reliability(logs)) * (means - grand)
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
    if one_response_each(logs):
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
