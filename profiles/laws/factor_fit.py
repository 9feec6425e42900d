"""Fits positive factors over a physical law: least squares of log errors, drawn towards a prior where points are few.

Laws here are a data sheet's seconds times factors, so errors are relative and factors are fitted as logarithms.
Published points are sometimes plainly wrong: residuals are held to follow a t distribution, under which such a point
pulls little.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Law = Callable[[Array], Array]  # logarithms of factors -> predictions, all positive

NOISE = 0.05  # relative error of a good measurement: what a residual is held against
TAIL = 4.0  # degrees of freedom of the residuals' distribution
_STEPS = 60
_DELTA = 1e-5


@dataclass(frozen=True, slots=True)
class Factor:
    """A free factor: the prior is log-normal around exp(`log_mean`)."""

    name: str
    log_mean: float
    log_sd: float


@dataclass(frozen=True)
class Factors:
    """Fitted factors.

    Attributes:
        names, logs: of each, the logarithm.
        covariance: of the logarithms.
        noise: relative spread of the residuals.
    """

    names: tuple[str, ...]
    logs: Array
    covariance: Array
    noise: float

    def relative_sd(self, law: Law) -> Array:
        """Relative standard deviation of each prediction of `law`: the factors' and a measurement's noise together.

        It grows with how much a prediction leans on factors that the points do not determine: outside their grid.
        """
        jacobian = _jacobian(lambda logs: np.log(law(logs)), self.logs)
        variance = np.einsum("ij,jk,ik->i", jacobian, self.covariance, jacobian)
        return np.asarray(np.sqrt(variance + self.noise**2))

    def as_dict(self) -> dict[str, float]:
        """Each factor by name."""
        return {name: math.exp(log) for name, log in zip(self.names, self.logs.tolist(), strict=True)}


def fit_factors(factors: Sequence[Factor], law: Law, measured: Array, widen: float = 1.0) -> Factors:
    """Factors that make `law` agree with `measured`, both positive and of one length, also 0.

    Levenberg-Marquardt on residuals log(law / measured) / NOISE under a t distribution, and the prior's; `widen`
    multiplies the prior's spread.
    """
    mean = np.array([factor.log_mean for factor in factors])
    spread = widen * np.array([factor.log_sd for factor in factors])
    target = np.log(measured)

    def residuals(logs: Array) -> Array:
        return np.asarray((np.log(law(logs)) - target) / NOISE)

    def total(logs: Array, at: Array) -> float:
        return float(TAIL * np.log1p(at**2 / TAIL).sum() + (((logs - mean) / spread) ** 2).sum())

    logs, damping = mean.copy(), 1e-2
    now = residuals(logs)
    cost = total(logs, now)
    for _ in range(_STEPS):
        weights = _weights(now)
        jacobian = _jacobian(residuals, logs, now)
        gradient = jacobian.T @ (weights * now) + (logs - mean) / spread**2
        hessian = jacobian.T @ (weights[:, None] * jacobian) + np.diag(1 / spread**2)
        gained = 0.0
        while damping < 1e8:
            step = np.linalg.solve(hessian + damping * np.diag(np.diag(hessian)), -gradient)
            tried = logs + np.clip(step, -1.0, 1.0)
            new = residuals(tried)
            if total(tried, new) < cost:
                gained = cost - total(tried, new)
                logs, now, cost = tried, new, cost - gained
                damping = max(damping / 5, 1e-9)
                break
            damping *= 4
        if gained < 1e-6 * max(cost, 1.0):
            break
    jacobian = _jacobian(residuals, logs, now)
    hessian = jacobian.T @ (_weights(now)[:, None] * jacobian) + np.diag(1 / spread**2)
    # The spread of a t distribution is beyond that of its middle: left-out points lie in its tails too.
    robust = 1.4826 * float(np.median(np.abs(now))) * NOISE * math.sqrt(TAIL / (TAIL - 2)) if len(now) else NOISE
    noise = max(robust, 0.01)
    covariance = max(1.0, noise / NOISE) ** 2 * np.linalg.inv(hessian).astype(np.float64)
    return Factors(tuple(factor.name for factor in factors), logs, covariance, noise)


def _weights(residuals: Array) -> Array:
    """Of reweighted least squares, whose gradient is then that of the t distribution."""
    return np.asarray(1 / (1 + residuals**2 / TAIL))


def _jacobian(function: Law, at: Array, value: Array | None = None) -> Array:
    value = function(at) if value is None else value
    columns = []
    for place in range(len(at)):
        moved = at.copy()
        moved[place] += _DELTA
        columns.append((function(moved) - value) / _DELTA)
    return np.stack(columns, axis=-1)
