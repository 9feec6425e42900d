"""Fits of measured points to the few coefficients of a profile, each checked on points that it was not fitted on."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...plans.schema.levers import EngineLayout
from ..phase_schema import DecodePoint

Array = NDArray[np.float64]

# Beyond so many robust standard deviations of the relative residuals a point is an outlier: named, and left out.
OUTLIER_SIGMAS = 4.0
# Residuals of a good fit can be so small that their spread names honest points; nothing below this is an outlier.
OUTLIER_FLOOR = 0.15

MEAN_OVER_DEVIATION = math.sqrt(2 / math.pi)
"""Mean absolute value of a normal error over its standard deviation."""

MEDIAN_OVER_DEVIATION = 0.674490
"""Median absolute value of a normal error over its standard deviation: the normal quantile at 3/4."""


@dataclass(frozen=True, slots=True)
class MeasuredRound:
    """A real plain round: its layout, what was decoded, in order of issue, under which cap, and how long it took."""

    layout: EngineLayout
    cap_tokens: int
    lengths: dict[tuple[int, int], tuple[str, int, bool]]  # (draw, sample) -> (prompt, tokens, truncated)
    rollout_s: float


def nonnegative_least_squares(rows: Array, values: Array) -> Array:
    """Coefficients x >= 0 that minimise the relative squared error of rows @ x against values.

    rows: [points, terms], values: [points], all positive. With a handful of terms, trying every set of active ones is
    exact and simple. Costs cannot be negative: a negative coefficient would promise free work outside the grid.
    """
    scaled = rows / values[:, None]
    ones = np.ones(len(values))
    terms = rows.shape[1]
    best, best_error = np.zeros(terms), np.inf
    for size in range(1, terms + 1):
        for active in itertools.combinations(range(terms), size):
            columns = scaled[:, active]
            solution, *_ = np.linalg.lstsq(columns, ones, rcond=None)
            if (solution < 0).any():
                continue
            error = float(((columns @ solution - ones) ** 2).sum())
            if error < best_error - 1e-12:
                best_error = error
                best = np.zeros(terms)
                best[list(active)] = solution
    return best


def leave_one_out_errors(rows: Array, values: Array) -> Array:
    """Relative error on each point when fitted on the others; on all points if there are too few to leave any."""
    if len(values) <= rows.shape[1]:
        return np.abs(rows @ nonnegative_least_squares(rows, values) / values - 1)
    errors = []
    for left_out in range(len(values)):
        keep = np.arange(len(values)) != left_out
        fitted = nonnegative_least_squares(rows[keep], values[keep])
        errors.append(abs(float(rows[left_out] @ fitted) / values[left_out] - 1))
    return np.array(errors)


def leave_one_out_error(rows: Array, values: Array) -> float:
    """Mean of `leave_one_out_errors`."""
    return float(np.mean(leave_one_out_errors(rows, values)))


def residual_noise(rows: Array, values: Array, of: NDArray[np.bool_] | None = None) -> float | None:
    """Relative standard deviation of the values about their own fit, or of those marked in `of`; the terms that the fit
    uses are taken off the count of points, in proportion. None if no more points than terms are left to tell."""
    fit = nonnegative_least_squares(rows, values)
    residuals = (values / (rows @ fit) - 1)[slice(None) if of is None else of]
    free = len(residuals) * (1 - np.count_nonzero(fit) / len(values))
    return float(np.sqrt((residuals**2).sum() / free)) if free > 0 else None


def outliers(rows: Array, values: Array) -> NDArray[np.bool_]:
    """Which points do not belong to the fit of the others (robust z-score of the relative residuals)."""
    residuals = rows @ nonnegative_least_squares(rows, values) / values - 1
    centre = float(np.median(residuals))
    sigma = 1.4826 * float(np.median(np.abs(residuals - centre)))
    beyond: NDArray[np.bool_] = np.abs(residuals - centre) > max(OUTLIER_SIGMAS * sigma, OUTLIER_FLOOR)
    return beyond


@dataclass(frozen=True, slots=True)
class DecodeFit:
    """step seconds = a + b * sequences + c * KV tokens; `error` is the leave-one-out mean relative error."""

    a: float
    b: float
    c: float
    error: float
    points: tuple[DecodePoint, ...]


def fit_decode(points: Sequence[DecodePoint]) -> DecodeFit:
    """Fit the decode line; points that do not belong are flagged in the result and left out."""
    rows = np.array([[1.0, p.sequences, p.kv_tokens] for p in points])
    values = np.array([p.step_s for p in points])
    bad = outliers(rows, values) if len(points) > 4 else np.zeros(len(points), dtype=bool)
    a, b, c = nonnegative_least_squares(rows[~bad], values[~bad])
    flagged = tuple(p.model_copy(update={"outlier": bool(flag)}) for p, flag in zip(points, bad, strict=True))
    return DecodeFit(float(a), float(b), float(c), leave_one_out_error(rows[~bad], values[~bad]), flagged)


@dataclass(frozen=True, slots=True)
class TrainPoint:
    """One measured update: sums over its samples, and seconds."""

    tokens: int
    squared_tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class TrainFit:
    """Seconds of an update = base + per_token * tokens + per_squared_token * sum over samples of (tokens squared).

    `noise`: relative standard deviation of an update about that; None: too few points to tell.
    """

    base: float
    per_token: float
    per_squared_token: float
    error: float
    noise: float | None = None


def fit_train(points: Mapping[int, Sequence[TrainPoint]]) -> dict[int, TrainFit]:
    """Fit updates by micro-batch budget; `error` is the mean relative error on points left out, one at a time, `noise`
    the relative standard deviation of the points about the fit.

    Only the cost of a token depends on the budget (larger products are cheaper per row). What an update costs without
    tokens, and what attention costs, do not, so all budgets' points fit them together.
    """
    budgets = sorted(points)
    rows, values, owner = [], [], []
    for place, budget in enumerate(budgets):
        for point in points[budget]:
            linear_terms = [float(point.tokens) if i == place else 0.0 for i in range(len(budgets))]
            rows.append([1.0, float(point.squared_tokens), *linear_terms])
            values.append(point.seconds)
            owner.append(place)
    matrix, seconds = np.array(rows), np.array(values)
    base, quadratic, *linear = nonnegative_least_squares(matrix, seconds)
    errors = leave_one_out_errors(matrix, seconds)
    fits = {}
    for i, budget in enumerate(budgets):
        of_budget = np.array(owner) == i
        noise = residual_noise(matrix, seconds, of_budget)
        fits[budget] = TrainFit(
            float(base), float(linear[i]), float(quadratic), float(np.mean(errors[of_budget])), noise
        )
    return fits
