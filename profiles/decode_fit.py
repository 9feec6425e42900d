"""Fits the decode law's factors: least squares of log errors, drawn towards the data sheets where points are few.

The result carries the covariance of the factors, so that a prediction far from the points says how unsure it is: its
standard deviation grows with how much the prediction leans on factors that the points do not determine.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from .decode_model import PRIOR_MEAN, PRIOR_SD, DecodeLaw, Sheet

Array = NDArray[np.float64]
Predict = Callable[[DecodeLaw], Array]

NOISE = 0.05  # relative error of a good measurement: what a residual is held against
TAIL = 4.0  # degrees of freedom of the residuals' t distribution: some published points are plainly wrong
# Sheets of guessed models and unknown accelerators are off by factors; then the points decide.
GUESSED_SPREAD = 3.0
_STEPS = 60
_DELTA = 1e-5


@dataclass(frozen=True)
class DecodeFit:
    """A fitted law.

    Attributes:
        law: with the factors fitted.
        covariance: of the logarithms of the factors.
        noise: relative spread of the residuals.
        cost: what was minimised; of two sheets for the same points, the better one has the lower cost.
    """

    law: DecodeLaw
    covariance: Array
    noise: float
    cost: float

    def relative_sd(self, predict: Predict) -> Array:
        """Relative standard deviation of each prediction that `predict` makes: factors' and points' noise together."""
        jacobian = _jacobian(lambda logs: np.log(predict(replace(self.law, logs=logs))), self.law.logs)
        variance = np.einsum("ij,jk,ik->i", jacobian, self.covariance, jacobian)
        return np.sqrt(variance + self.noise**2)


def fit_law(sheet: Sheet, predict: Predict, seconds: Array) -> DecodeFit:
    """Factors that make `predict` agree with measured `seconds`, one each.

    Levenberg-Marquardt on residuals log(predicted / measured) / NOISE under a t distribution, and the prior's.
    """
    measured = np.log(seconds)
    spread = PRIOR_SD * (1.0 if sheet.exact else GUESSED_SPREAD)

    def residuals(logs: Array) -> Array:
        return (np.log(predict(DecodeLaw(sheet, logs))) - measured) / NOISE

    logs, damping = PRIOR_MEAN.copy(), 1e-2
    now = residuals(logs)
    cost = _cost(now) + float((((logs - PRIOR_MEAN) / spread) ** 2).sum())
    for _ in range(_STEPS):
        weights = _weights(now)
        jacobian = _jacobian(residuals, logs, now)
        gradient = jacobian.T @ (weights * now) + (logs - PRIOR_MEAN) / spread**2
        hessian = jacobian.T @ (weights[:, None] * jacobian) + np.diag(1 / spread**2)
        gained = 0.0
        while damping < 1e8:
            step = np.linalg.solve(hessian + damping * np.diag(np.diag(hessian)), -gradient)
            tried = logs + np.clip(step, -1.0, 1.0)
            new = residuals(tried)
            new_cost = _cost(new) + float((((tried - PRIOR_MEAN) / spread) ** 2).sum())
            if new_cost < cost:
                gained, logs, now, cost = cost - new_cost, tried, new, new_cost
                damping = max(damping / 5, 1e-9)
                break
            damping *= 4
        if gained < 1e-6 * max(cost, 1.0):
            break
    jacobian = _jacobian(residuals, logs, now)
    hessian = jacobian.T @ (_weights(now)[:, None] * jacobian) + np.diag(1 / spread**2)
    # The spread of a t distribution beyond that of its middle: left-out points lie in its tails too.
    noise = max(1.4826 * float(np.median(np.abs(now))) * NOISE * math.sqrt(TAIL / (TAIL - 2)), 0.01)
    scale = max(1.0, noise / NOISE) ** 2
    return DecodeFit(DecodeLaw(sheet, logs), scale * np.linalg.inv(hessian), noise, cost)


def _cost(residuals: Array) -> float:
    return float(TAIL * np.log1p(residuals**2 / TAIL).sum())


def _weights(residuals: Array) -> Array:
    """Of reweighted least squares: what makes its gradient that of `_cost`."""
    return np.asarray(1 / (1 + residuals**2 / TAIL))


def _jacobian(function: Callable[[Array], Array], at: Array, value: Array | None = None) -> Array:
    value = function(at) if value is None else value
    columns = []
    for place in range(len(at)):
        moved = at.copy()
        moved[place] += _DELTA
        columns.append((function(moved) - value) / _DELTA)
    return np.stack(columns, axis=-1)
