"""Traces from published marginals: the marginal is the published one, the dependence is rho's, the cap cuts."""

import math
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.copula_trace import copula_lengths
from rlplan.planner.lengths.copula_lengths import Marginal
from rlplan.profiles.length_trace import LengthTrace

CDF = [(50.0, 0.05), (200.0, 0.4), (500.0, 0.8), (1000.0, 0.92), (4000.0, 0.98)]


def lengths_of(trace: LengthTrace) -> np.ndarray:
    return np.array([[r.tokens for r in rows] for rows in trace.by_prompt().values()])


@pytest.mark.parametrize("rho", [0.0, 0.3, 1.0])
def test_the_marginal_is_the_published_one_whatever_the_dependence(rho: float) -> None:
    trace = copula_lengths(CDF, rho, 4000, 200, 10, seed=4)
    for tokens, share in CDF[:-1]:
        assert (lengths_of(trace) <= tokens).mean() == pytest.approx(share, abs=0.002)
    assert np.mean([r.truncated for r in trace.rows]) == pytest.approx(0.02, abs=0.001)
    assert trace.cap_tokens == 4000


def test_the_dependence_is_a_gaussian_copula_with_correlation_rho() -> None:
    for rho in (0.0, 0.25, 0.8):
        lengths = lengths_of(copula_lengths(CDF, rho, 4000, 4000, 2, seed=1))
        noise = np.random.default_rng(0).random(lengths.shape)  # ties at the cap
        ranks = np.argsort(np.argsort((lengths + noise).ravel())).reshape(lengths.shape)
        scores = np.vectorize(NormalDist().inv_cdf)((ranks + 0.5) / lengths.size)
        assert np.corrcoef(scores.T)[0, 1] == pytest.approx(rho, abs=0.05)


def test_a_smaller_cap_cuts_and_a_larger_one_goes_on_with_the_tails_power_law() -> None:
    cut = copula_lengths(CDF, 0.2, 1000, 200, 10, seed=4)
    assert cut.cap_tokens == 1000 and max(r.tokens for r in cut.rows) == 1000
    assert np.mean([r.truncated for r in cut.rows]) == pytest.approx(0.08, abs=0.002)
    index = Marginal.of(CDF).tail_index
    longer = copula_lengths(CDF, 0.2, 16_000, 1000, 10, seed=4)
    assert np.mean([r.truncated for r in longer.rows]) == pytest.approx(0.02 * 4**-index, abs=0.001)
    # The same luck: what ended within the published cap is not touched by a larger one.
    shorter = lengths_of(copula_lengths(CDF, 0.2, 4000, 1000, 10, seed=4))
    assert (np.minimum(lengths_of(longer), 4000) == shorter).all()


def test_the_tail_index_of_a_power_law_is_found_through_the_censoring() -> None:
    points = [(float(x), 1.0 - (100 / x) ** 1.3) for x in np.geomspace(100, 5000, 80)]
    assert Marginal.of(points).tail_index == pytest.approx(1.3, rel=0.02)
    complete = [(10.0, 0.5), (20.0, 1.0)]
    assert Marginal.of(complete).tail_index == math.inf
    assert lengths_of(copula_lengths(complete, 0.1, 10_000, 50, 4)).max() <= 20


def test_a_sparse_tail_is_a_line_in_log_log_and_not_a_plateau() -> None:
    marginal = Marginal.of([(1.0, 0.0), (4000.0, 0.95), (16_000.0, 0.99)])
    middle = marginal.quantiles(np.array([1 - math.sqrt(0.05 * 0.01)]))
    assert middle[0] == pytest.approx(8000)


def test_the_same_seed_gives_the_same_trace_and_another_seed_another() -> None:
    one, two, other = (copula_lengths(CDF, 0.2, 4000, 20, 4, seed=s) for s in (3, 3, 4))
    assert one.rows == two.rows and one.rows != other.rows


@pytest.mark.parametrize(
    ("cdf", "complaint"),
    [
        ([(1.0, 0.5)], "two points"),
        ([(1.0, 5.0), (2.0, 90.0)], "divide per cent"),
        ([(1.0, 0.5), (2.0, 0.4)], "does not fall"),
        ([(3.0, 0.5), (2.0, 0.6)], "does not fall"),
    ],
)
def test_what_is_no_cdf_is_refused(cdf: list[tuple[float, float]], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        copula_lengths(cdf, 0.2, 100, 4, 4)


def test_sizes_and_rho_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="rho"):
        copula_lengths(CDF, 1.2, 100, 4, 4)
    with pytest.raises(ValueError, match="at least 1"):
        copula_lengths(CDF, 0.2, 100, 0, 4)


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(st.tuples(st.integers(1, 500), st.floats(0, 1)), min_size=2, max_size=8),
    cap=st.integers(1, 6000),
    ranks=st.lists(st.floats(0.001, 0.999), min_size=2, max_size=20),
)
def test_quantiles_never_fall_and_lengths_stay_within_one_and_the_cap(
    steps: list[tuple[int, float]], cap: int, ranks: list[float]
) -> None:
    whole = sum(weight for _, weight in steps) + 1.0
    tokens, share, cdf = 0, 0.0, []
    for more, weight in steps:
        tokens, share = tokens + more, share + weight / whole
        cdf.append((float(tokens), share))
    quantiles = Marginal.of(cdf).quantiles(np.sort(ranks))
    assert (np.diff(quantiles) >= -1e-9 * quantiles[1:]).all() and (quantiles >= 1 - 1e-9).all()
    lengths = lengths_of(copula_lengths(cdf, 0.3, cap, 6, 3))
    assert lengths.min() >= 1 and lengths.max() <= cap
