"""Traces that are drawn from tables: quantiles and ICC are the table's, and other jobs' differ as stated."""

import math
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.copula_trace import copula_lengths
from rlplan.planner.lengths.table_lengths import (
    PublishedLengths,
    TableTrace,
    Variation,
    changed_table,
    named_lengths,
    open_lengths,
    scaled_lengths,
    shown_table,
)
from rlplan.plans.schema.plan import LengthsInput
from rlplan.plans.yaml.errors import InputError
from rlplan.profiles.length_tables import shipped_table
from rlplan.profiles.length_trace import LengthRow, LengthTrace, write_lengths


@pytest.mark.parametrize("name", ["math-16k", "short-math-2k"])
def test_a_trace_from_a_table_has_its_quantiles_cap_and_icc(name: str) -> None:
    table = shipped_table(name)
    summary = (trace := TableTrace(table)).summary()
    assert summary.p50_tokens == pytest.approx(table.quantile(0.5), rel=0.03)
    assert summary.p95_tokens == pytest.approx(table.quantile(0.95), rel=0.05)
    assert summary.truncated_share == pytest.approx(table.at_cap, abs=0.001)
    assert summary.icc == pytest.approx(table.icc, abs=0.02)
    assert trace.cap_tokens == table.cap_tokens >= summary.max_tokens


def test_a_plan_names_a_table_without_a_path_and_opens_it_again(tmp_path) -> None:
    trace, given = named_lengths("math-16k")
    assert given.model_dump() == {"library": "math-16k", "sha256": given.sha256}
    assert open_lengths(given, tmp_path / "plan.yaml").rows == trace.rows
    stated, named = named_lengths("max=16384,p95=4000,p50=800")
    assert named.assumed == "p50=800,p95=4000,max=16384,icc=0.5" and named.path is None
    assert open_lengths(named, tmp_path / "plan.yaml").rows == stated.rows
    assert changed_table(given) is None and changed_table(named) is None
    rows = [LengthRow("a", 0, s, 10 + s, False, 0.0, 5) for s in range(3)]
    write_lengths(tmp_path / "lengths.jsonl", rows)
    beside = LengthsInput(path="lengths.jsonl", sha256="0" * 64)
    assert open_lengths(beside, tmp_path / "plan.yaml").rows == tuple(rows) and changed_table(beside) is None


def test_a_scale_that_was_measured_moves_all_lengths(tmp_path) -> None:
    own, scaled = named_lengths("math-16k")[0], named_lengths("math-16k")[0].scaled(0.8)
    assert scaled.summary().p50_tokens == pytest.approx(0.8 * own.summary().p50_tokens, rel=0.01)
    assert set(own.variations()) - set(scaled.variations()) == {"scale"}
    longer = scaled.varied(Variation(scale=1.5)).summary().p50_tokens
    assert longer == pytest.approx(1.2 * own.summary().p50_tokens, rel=0.01)
    assert scaled.scaled(1.5).scale == 1.2
    for word in ("math-16k", "p50=800,p95=4000,max=16384"):
        given = scaled_lengths(named_lengths(word)[1], 0.8)
        assert (given.scale, given.path) == (0.8, None) and given.sha256 != named_lengths(word)[1].sha256
        assert open_lengths(given, tmp_path / "plan.yaml").rows == named_lengths(word)[0].scaled(0.8).rows
        assert changed_table(given) is None and scaled_lengths(given, 0.8) == given
        assert "digest" in (changed_table(given.model_copy(update={"scale": 0.7})) or "") or word == "math-16k"
    for word in ("math-16k,icc=0.3", "math-16k,scale=0.8,icc=0.3", "math-16k,max=4096,scale=0.8"):
        with pytest.raises(InputError, match=r"a table takes only ,scale=F after its name, as in math-16k,scale=0\.8"):
            named_lengths(word)
    with pytest.raises(InputError, match=",scale=F must come last"):
        named_lengths("p50=800,p95=4000,max=16384,scale=0.8,icc=0.3")
    for wrong in ("math-16k,scale=", "math-16k,scale=0", "math-16k,scale=nan", "p50=8,p95=9,max=10,scale=1e9"):
        with pytest.raises(InputError, match="is no factor on lengths; write one from"):
            named_lengths(wrong)


def test_a_table_with_other_figures_or_none_at_all_is_told(tmp_path) -> None:
    other = LengthsInput(library="math-16k", sha256="0" * 64)
    assert "other figures" in (changed_table(other) or "")
    gone = LengthsInput(library="math-1k", sha256="0" * 64)
    assert "no lengths ship as 'math-1k'" in (changed_table(gone) or "")
    with pytest.raises(InputError, match="no lengths ship"):
        open_lengths(gone, tmp_path / "plan.yaml")
    edited = LengthsInput(assumed="p50=1,p95=2,max=3,icc=0.5", sha256="0" * 64)
    assert "digest" in (changed_table(edited) or "")


@pytest.mark.parametrize("word", ["p50=800,p95=4000,max=16384,scale=0.8", "math-16k,scale=100"])
def test_a_scaled_table_is_shown_as_it_is_drawn(word: str) -> None:
    table, scale = shown_table(word)
    summary = named_lengths(word)[0].summary()
    assert scale == float(word.rpartition("=")[2])
    assert table.quantile(0.5) == pytest.approx(summary.p50_tokens, rel=0.03)
    assert table.quantile(0.95) == pytest.approx(summary.p95_tokens, rel=0.06)
    assert table.quantile(0.999) <= table.cap_tokens
    assert table.at_cap == pytest.approx(summary.truncated_share, abs=0.001)


# -- published marginals -----------------------------------------------------------------------------------------------

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


def test_a_smaller_cap_cuts_and_a_larger_one_continues_the_tail() -> None:
    cut = copula_lengths(CDF, 0.2, 1000, 200, 10, seed=4)
    assert cut.cap_tokens == 1000 and max(r.tokens for r in cut.rows) == 1000
    assert np.mean([r.truncated for r in cut.rows]) == pytest.approx(0.08, abs=0.002)
    index = PublishedLengths.of(CDF).tail_index
    longer = copula_lengths(CDF, 0.2, 16_000, 1000, 10, seed=4)
    assert np.mean([r.truncated for r in longer.rows]) == pytest.approx(0.02 * 4**-index, abs=0.001)
    # The same luck: what ended within the published cap is not touched by a larger one.
    shorter = lengths_of(copula_lengths(CDF, 0.2, 4000, 1000, 10, seed=4))
    assert (np.minimum(lengths_of(longer), 4000) == shorter).all()


def test_the_tail_index_of_a_power_law_is_found_through_the_censoring() -> None:
    points = [(float(x), 1.0 - (100 / x) ** 1.3) for x in np.geomspace(100, 5000, 80)]
    assert PublishedLengths.of(points).tail_index == pytest.approx(1.3, rel=0.02)
    complete = [(10.0, 0.5), (20.0, 1.0)]
    assert PublishedLengths.of(complete).tail_index == math.inf
    assert lengths_of(copula_lengths(complete, 0.1, 10_000, 50, 4)).max() <= 20


def test_a_sparse_tail_is_a_line_in_log_log() -> None:
    marginal = PublishedLengths.of([(1.0, 0.0), (4000.0, 0.95), (16_000.0, 0.99)])
    middle = marginal.quantiles(np.array([1 - math.sqrt(0.05 * 0.01)]))
    assert middle[0] == pytest.approx(8000)


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
    for rho, prompts, told in ((1.2, 4, "rho"), (-0.1, 4, "rho"), (0.2, 0, "at least 1")):
        with pytest.raises(ValueError, match=told):
            copula_lengths(CDF, rho, 100, prompts, 4)


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(st.tuples(st.integers(1, 500), st.floats(0, 1)), min_size=2, max_size=8),
    cap=st.integers(1, 6000),
    ranks=st.lists(st.floats(0.001, 0.999), min_size=2, max_size=20),
)
def test_quantiles_never_fall_and_lengths_stay_within_the_cap(steps, cap, ranks) -> None:
    whole = sum(weight for _, weight in steps) + 1.0
    tokens, share, cdf = 0, 0.0, []
    for more, weight in steps:
        tokens, share = tokens + more, share + weight / whole
        cdf.append((float(tokens), share))
    quantiles = PublishedLengths.of(cdf).quantiles(np.sort(ranks))
    assert (np.diff(quantiles) >= -1e-9 * quantiles[1:]).all() and (quantiles >= 1 - 1e-9).all()
    lengths = lengths_of(copula_lengths(cdf, 0.3, cap, 6, 3))
    assert lengths.min() >= 1 and lengths.max() <= cap
