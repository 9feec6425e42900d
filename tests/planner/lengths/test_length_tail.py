"""The marginal and its tail: what a cap hid is found again, what no cap hid is left alone."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplan.planner.lengths.length_tail import fit_marginal


def capped(natural: np.ndarray, cap: float) -> tuple[list[np.ndarray], list[np.ndarray]]:
    return [np.log(np.minimum(row, cap)) for row in natural], [row >= cap for row in natural]


@pytest.mark.parametrize("cap", [2_000.0, 10_000.0, math.inf])
def test_a_power_laws_exponent_is_found_whatever_the_cap_hid(cap: float) -> None:
    rng = np.random.default_rng(0)
    natural = 100 * (1 + rng.pareto(1.2, size=(3000, 4)))
    tail = fit_marginal(*capped(natural, cap)).tail
    assert tail.index == pytest.approx(1.2, rel=0.12 if cap < math.inf else 0.3)
    assert tail.cut == (cap < math.inf)
    low, middle, high = tail.share_beyond(4 * tail.start_tokens)
    assert low < middle < high
    if tail.cut:
        assert middle == pytest.approx((100 / (4 * cap)) ** 1.2, rel=0.35)


def test_responses_cut_at_different_caps_are_weighed_by_the_product_limit() -> None:
    rng = np.random.default_rng(1)
    natural = rng.exponential(100, size=(4000, 2)) + 1
    caps = np.where(rng.random((4000, 1)) < 0.5, 80.0, 400.0)
    logs = [np.log(np.minimum(row, cap)) for row, cap in zip(natural, caps, strict=True)]
    cut = [row >= cap for row, cap in zip(natural, caps, strict=True)]
    marginal = fit_marginal(logs, cut)
    for level in (0.2, 0.5, 0.8, 0.9):
        found = math.exp(float(marginal.log_quantiles(np.array([level]))[0]))
        assert found == pytest.approx(np.quantile(natural, level), rel=0.08)


def test_few_prompts_say_little_about_the_tail_however_many_samples_they_have() -> None:
    few = 100 * (1 + np.random.default_rng(0).pareto(1.2, size=(20, 100)))
    tail = fit_marginal(*capped(few, 5_000.0)).tail
    assert tail.ended <= 20


def test_a_wall_that_no_cap_was_named_for_is_not_climbed() -> None:
    rng = np.random.default_rng(0)
    natural = 30 * (1 + rng.pareto(0.8, size=(2000, 3)))
    blurred = np.where(natural > 4000, rng.normal(4096, 10, natural.shape), natural)
    marginal = fit_marginal([np.log(row) for row in blurred], [np.zeros(3, dtype=bool)] * 2000)
    assert math.exp(float(marginal.log_quantiles(np.array([1 - 1e-6]))[0])) < 1.15 * 4096


def test_when_nothing_ended_by_itself_the_error_is_infinite() -> None:
    tail = fit_marginal(*capped(np.full((3, 4), 64.0), 64.0)).tail
    assert tail.share == 1.0 and tail.start_tokens == 64 and tail.ended == 0
    assert tail.share_beyond(64) == (1.0, 1.0, 1.0)


@settings(max_examples=80, deadline=None)
@given(
    lengths=st.lists(st.lists(st.integers(1, 80), min_size=1, max_size=6), min_size=1, max_size=6),
    cap=st.integers(1, 90),
    ranks=st.lists(st.floats(0.001, 0.999), min_size=2, max_size=12),
)
def test_quantiles_never_fall_and_begin_within_what_was_seen(
    lengths: list[list[int]], cap: int, ranks: list[float]
) -> None:
    rows = [np.array(own, dtype=float) for own in lengths]
    marginal = fit_marginal([np.log(np.minimum(r, cap)) for r in rows], [r >= cap for r in rows])
    found = marginal.log_quantiles(np.sort(ranks))
    assert (np.diff(found) >= -1e-9).all()
    assert found[0] >= math.log(min(min(own) for own in lengths)) - 1e-9 or cap < min(min(own) for own in lengths)
    assert 0 < marginal.tail.share <= 1 and marginal.tail.index > 0
