"""Factors over a law: found from points, drawn to the prior without them, and honest about how sure they are."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplan.profiles.laws.factor_fit import Factor, fit_factors

PRIOR = (Factor("fixed", 0.0, 0.5), Factor("slope", 0.0, 0.5))
X = np.array([1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0])


def line(x: np.ndarray):
    return lambda logs: np.exp(logs[0]) * 10 + np.exp(logs[1]) * x


def test_many_exact_points_win_over_the_prior() -> None:
    truth = np.log([1.6, 0.7])
    fit = fit_factors(PRIOR, line(X), line(X)(truth))
    assert fit.as_dict() == pytest.approx({"fixed": 1.6, "slope": 0.7}, rel=0.01)


def test_without_points_that_tell_a_factor_stays_at_the_prior() -> None:
    only_fixed = np.array([1e-9])
    fit = fit_factors(PRIOR, line(only_fixed), np.array([20.0]))
    assert fit.as_dict()["fixed"] == pytest.approx(2.0, rel=0.02)
    assert fit.as_dict()["slope"] == pytest.approx(1.0, rel=1e-3)


def test_a_plainly_wrong_point_pulls_little() -> None:
    points = line(X)(np.zeros(2))
    points[3] *= 4
    assert fit_factors(PRIOR, line(X), points).logs == pytest.approx([0, 0], abs=0.03)


def test_a_prediction_is_less_sure_the_further_it_lies_from_the_points() -> None:
    near = np.array([1.0, 2.0, 3.0])
    fit = fit_factors(PRIOR, line(near), line(near)(np.zeros(2)))
    sds = fit.relative_sd(line(np.array([2.0, 20.0, 200.0])))
    assert sds[0] < sds[1] < sds[2]


@settings(max_examples=30, deadline=None)
@given(st.floats(-0.8, 0.8), st.floats(-0.8, 0.8), st.integers(0, 100))
def test_the_fit_is_no_worse_than_the_truth(fixed: float, slope: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    truth = np.array([fixed, slope])
    points = line(X)(truth) * np.exp(rng.normal(scale=0.03, size=len(X)))
    fit = fit_factors(PRIOR, line(X), points)

    def cost(logs: np.ndarray) -> float:
        residuals = np.log(line(X)(logs) / points) / 0.05
        return float(4 * np.log1p(residuals**2 / 4).sum() + ((logs / 0.5) ** 2).sum())

    assert cost(fit.logs) <= cost(truth) + 1e-3
