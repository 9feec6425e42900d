"""The fitted line of a phase: its observed seconds by the expected ones, shrunk to the expected ones by its noise.

A phase's measured seconds m are explained by the profile's x (the replay of the same round, or the same update):
`m = overhead + factor * x`, overhead >= 0 (or the least that the profile can state), factor > 0. So a refitted cost
grows wherever the profile's grew; bucketed corrections of a serving estimator were seen to make larger batches cheaper
than smaller ones.
The fit minimises the relative squared error plus a prior at the profile's own overhead and at factor 1 (a MAP estimate
with normal errors): with s the noise of a round, s^2/rounds against the prior's variance decides how far it is moved.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# Standard deviations of the priors: a cost is rarely off by more than half, an overhead by more than a tenth of the
# phase.
FACTOR_PRIOR = 0.5
OVERHEAD_PRIOR = 0.1

# Never believed to be less noisy than this, however alike a few rounds are.
NOISE_FLOOR = 0.01


@dataclass(frozen=True, slots=True)
class Line:
    """`overhead + factor * x`. `error`: standard error of the factor; `noise`: relative, of one round."""

    overhead: float
    factor: float
    error: float
    noise: float
    rounds: int


def fit_line(
    expected: Sequence[float], measured: Sequence[float], overhead: float, least_overhead: float = 0.0
) -> Line:
    """Fit measured seconds by expected ones (both without overhead), prior at `overhead` and factor 1.

    Args:
        expected: positive seconds.
        measured: seconds; of one round at least above 0, else nothing was measured and the line is the prior's.
        least_overhead: the least that the profile can state; the factor then explains the rest.

    Errors are relative to the fitted value, not to the measured one: rounds that happened to be quick would weigh
    most, and the mean, which plans are compared by, come out too small.
    """
    x, m = np.array(expected, dtype=float), np.array(measured, dtype=float)
    scale = float(np.median(m)) or float(m.mean())
    if scale <= 0:
        return Line(overhead, 1.0, FACTOR_PRIOR, FACTOR_PRIOR, len(m))
    prior = np.array([overhead, 1.0])
    precision = np.array([1.0 / (OVERHEAD_PRIOR * scale) ** 2, 1.0 / FACTOR_PRIOR**2])
    solution = np.array([overhead, max(0.05, scale / float(np.median(x)))])
    noise = 0.1
    for _ in range(20):
        fitted = solution[0] + solution[1] * x
        rows, values = np.stack([1.0 / fitted, x / fitted], axis=1), m / fitted
        weights = precision * noise**2
        solution = np.linalg.solve(rows.T @ rows + np.diag(weights), rows.T @ values + weights * prior)
        if solution[0] < least_overhead or solution[1] < 0.05:
            # Nothing takes less than the least: the factor alone explains the rest.
            column, rest = rows[:, 1], values - least_overhead * rows[:, 0]
            factor = (float(column @ rest) + weights[1]) / (float(column @ column) + weights[1])
            solution = np.array([least_overhead, max(0.05, factor)])
        residuals = m / (solution[0] + solution[1] * x) - 1.0
        noise = max(NOISE_FLOOR, math.sqrt(float(residuals @ residuals) / max(1, len(m) - 1)))
    spread = np.linalg.inv(rows.T @ rows + np.diag(precision * noise**2)) * noise**2
    return Line(float(solution[0]), float(solution[1]), math.sqrt(float(spread[1, 1])), noise, len(m))


def fit_ratio(expected: Sequence[float], measured: Sequence[float], prior: float) -> Line:
    """The ratio of the means, drawn to 1 on the log scale; for phases too short or too ragged for a line."""
    x, m = np.array(expected, dtype=float), np.array(measured, dtype=float)
    if x.mean() <= 0 or m.mean() <= 0:
        return Line(0.0, 1.0, prior, prior, len(m))
    # Of the ratio of means (delta method), and of a single round.
    noise = max(NOISE_FLOOR, float(np.std(m / m.mean() - x / x.mean())))
    error = noise / math.sqrt(len(m))
    weight = prior**2 / (prior**2 + error**2)
    return Line(0.0, math.exp(weight * math.log(m.mean() / x.mean())), error, noise, len(m))


def mean_factor(lines: Mapping[Any, Line]) -> float:
    """Geometric mean of the factors, by rounds."""
    rounds = sum(line.rounds for line in lines.values())
    return math.exp(math.fsum(line.rounds * math.log(line.factor) for line in lines.values()) / rounds)
