"""Fits find the law that made the points, name what does not belong, and never promise free work."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplan.profiles.laws.measured_fit import (
    TrainPoint,
    fit_decode,
    fit_train,
    leave_one_out_error,
    nonnegative_least_squares,
)
from rlplan.profiles.phase_schema import DecodePoint

A, B, C = 2e-3, 4e-5, 1.5e-7


def grid(noise: float = 0.0, seed: int = 0) -> list[DecodePoint]:
    rng = np.random.default_rng(seed)
    return [
        DecodePoint(
            sequences=sequences,
            kv_tokens=sequences * context,
            step_s=(A + B * sequences + C * sequences * context) * (1 + noise * rng.uniform(-1, 1)),
            spread=0.0,
        )
        for sequences in (1, 4, 16, 64, 128)
        for context in (70, 700)
    ]


def test_the_decode_line_is_found_and_its_left_out_error_is_the_noise() -> None:
    exact = fit_decode(grid())
    assert (exact.a, exact.b, exact.c) == pytest.approx((A, B, C), rel=1e-6)
    assert exact.error < 1e-9 and not any(p.outlier for p in exact.points)
    noisy = fit_decode(grid(0.05))
    assert (noisy.a, noisy.b, noisy.c) == pytest.approx((A, B, C), rel=0.25)
    assert 0.005 < noisy.error < 0.08


def test_a_point_that_does_not_belong_is_named_and_left_out() -> None:
    points = grid(0.02)
    points[7] = points[7].model_copy(update={"step_s": 3 * points[7].step_s})
    fit = fit_decode(points)
    assert [p.outlier for p in fit.points] == [i == 7 for i in range(len(points))]
    assert (fit.a, fit.b, fit.c) == pytest.approx((A, B, C), rel=0.15)


@settings(max_examples=60, deadline=None)
@given(
    truth=st.lists(st.floats(-1.0, 2.0), min_size=3, max_size=3),
    seed=st.integers(0, 1000),
)
def test_coefficients_are_never_negative_and_no_other_choice_is_better(truth: list[float], seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.uniform(0.1, 3.0, size=(9, 3))
    values = np.maximum(rows @ np.array(truth), 0.05)
    best = nonnegative_least_squares(rows, values)
    assert (best >= 0).all()

    def misfit(x: np.ndarray) -> float:
        return float(((rows @ x / values - 1) ** 2).sum())

    for _ in range(40):
        other = np.maximum(best + rng.normal(scale=rng.choice([0.01, 0.3]), size=3), 0)
        assert misfit(best) <= misfit(other) + 1e-9


def test_updates_share_what_attention_costs_and_differ_in_what_a_token_costs() -> None:
    per_token = {2048: 5e-5, 8192: 3e-5}
    points = {
        budget: [
            TrainPoint(tokens, squares, 0.02 + cost * tokens + 3e-8 * squares)
            for tokens, squares in ((2000, 10**5), (6000, 10**6), (21_000, 9 * 10**6))
        ]
        for budget, cost in per_token.items()
    }
    fits = fit_train(points)
    assert sorted(fits) == [2048, 8192]
    for budget, fit in fits.items():
        assert fit.per_token == pytest.approx(per_token[budget], rel=1e-6)
        assert (fit.base, fit.per_squared_token) == pytest.approx((0.02, 3e-8), rel=1e-6)
        assert fit.error < 1e-6


def test_too_few_points_to_leave_one_out_are_judged_on_themselves() -> None:
    rows, values = np.array([[1.0, 2.0], [1.0, 5.0]]), np.array([3.0, 6.0])
    assert leave_one_out_error(rows, values) < 1e-9
