"""The length model against populations whose law is known, and against samples left out."""

import math
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplan.planner.lengths.length_model import LengthModel, fit_lengths
from rlplan.profiles.length_tables import ASSUMED_ICC
from rlplan.profiles.length_trace import LengthRow, LengthTrace, intraclass_correlation

from .length_check import check_model

CAP = 1024
GROUP = 8


def trace_of(lengths: np.ndarray, cap: int = CAP) -> LengthTrace:
    rows = [
        LengthRow(f"k{i:04d}", 0, j, int(min(x, cap)), bool(x >= cap), 0.0, 10 + i)
        for i, row in enumerate(lengths)
        for j, x in enumerate(row)
    ]
    return LengthTrace(rows, cap)


def sometimes_lost(prompts: int, samples: int, rng: np.random.Generator) -> np.ndarray:
    """Answers of 35 tokens or so; now and then, for some prompts more than for others, the model loses itself."""
    share = rng.beta(0.3, 6, size=(prompts, 1))
    plain = np.exp(3.5 + 0.4 * rng.normal(size=(prompts, 1)) + 0.3 * rng.normal(size=(prompts, samples)))
    lost = np.exp(1.5 + 0.6 * rng.normal(size=(prompts, samples)))
    return np.ceil(plain * np.where(rng.random((prompts, samples)) < share, lost, 1.0))


def again_long(model_share: np.ndarray) -> float:
    """Probability that a group is long given that an earlier group of its prompt was."""
    group = 1 - (1 - model_share) ** GROUP
    return float((group**2).sum() / group.sum())


def test_the_marginal_is_the_traces() -> None:
    lengths = sometimes_lost(64, 16, np.random.default_rng(3)) * 3
    model = fit_lengths(trace_of(lengths))
    capped = np.minimum(lengths, CAP)
    assert model.mean_tokens == pytest.approx(capped.mean(), rel=0.01)
    assert (model.tables >= CAP).mean() == pytest.approx((capped >= CAP).mean(), abs=0.002)
    for level in (0.25, 0.5, 0.75, 0.95):
        assert np.quantile(model.tables, level) == pytest.approx(np.quantile(capped, level), rel=0.05, abs=2)


@pytest.mark.parametrize("prompts", [100, 300, 3000])
def test_one_response_to_each_prompt_shows_the_marginal_and_an_icc_is_assumed(prompts: int) -> None:
    lengths = np.ceil(np.exp(np.random.default_rng(5).normal(4.0, 0.9, (prompts, 1))))
    model = fit_lengths(trace_of(lengths, cap=100_000))
    for level in (0.05, 0.5, 0.95):
        assert np.quantile(model.tables, level) == pytest.approx(np.quantile(lengths, level), rel=0.15)
    found = intraclass_correlation(np.log(model.tables[:, ::8]).tolist())
    assert found == pytest.approx(ASSUMED_ICC, abs=0.1)
    # The longest of a group lies between that of independent responses and that of responses which are all alike.
    (middle,) = model.group_max_quantiles(GROUP, (0.5,))
    assert np.quantile(lengths, 0.5) < middle < np.quantile(lengths, 0.5 ** (1 / GROUP))


def test_a_deferred_prompt_is_long_again_as_often_as_it_really_is_where_a_plain_bootstrap_says_too_often() -> None:
    first, second = np.split(sometimes_lost(20_000, 2 * GROUP, np.random.default_rng(1)), 2, axis=1)
    cutoff_tokens = int(np.quantile(first.max(axis=1), 0.9))
    truth = (second.max(axis=1) > cutoff_tokens)[first.max(axis=1) > cutoff_tokens].mean()
    model, bootstrap, share = [], [], []
    for seed in range(8):
        lengths = sometimes_lost(64, 16, np.random.default_rng(100 + seed))
        fitted = fit_lengths(trace_of(lengths)).share_beyond(cutoff_tokens)
        model.append(again_long(fitted))
        share.append(1 - ((1 - fitted) ** GROUP).mean())
        bootstrap.append(again_long((lengths > cutoff_tokens).mean(axis=1)))
    assert np.mean(share) == pytest.approx(0.1, abs=0.035)
    assert abs(np.mean(model) - truth) < 0.12
    assert np.mean(bootstrap) > truth + 0.12


def test_groups_left_out_are_long_as_often_as_predicted(make_trace) -> None:
    ratios = []
    for seed in range(4):
        check = check_model(make_trace(seed=seed), GROUP)
        assert check.groups == 64
        for cutoff_tokens in check.cutoffs:
            assert abs(cutoff_tokens.predicted - cutoff_tokens.observed) <= 3.5 * cutoff_tokens.standard_error + 0.02
        ratios.append(check.predicted_group_max_tokens / check.observed_group_max_tokens)
    # One half of a prompt's samples says little about the mean of the other half's maxima; four traces say more.
    assert np.mean(ratios) == pytest.approx(1.0, abs=0.12)


def test_the_dependence_inside_a_prompt_is_kept(make_trace) -> None:
    trace = make_trace(prompts=96)
    model = fit_lengths(trace)
    drawn = model.draw_many(np.arange(96), (32,), np.random.default_rng(0))
    assert intraclass_correlation(np.log1p(drawn).tolist()) == pytest.approx(trace.icc(), abs=0.06)


def test_without_dependence_all_prompts_have_one_law() -> None:
    lengths = np.ceil(np.random.default_rng(0).exponential(60, size=(40, 12)))
    model = fit_lengths(trace_of(lengths))
    assert model.tables.mean(axis=1).std() < 0.25 * model.mean_tokens


def test_drawing_again_keeps_the_law_and_renews_the_luck(make_trace) -> None:
    model = fit_lengths(make_trace())
    rng = np.random.default_rng(5)
    hardest = int(model.tables.mean(axis=1).argmax())
    first, second = model.draw(hardest, 400, rng), model.draw(hardest, 400, rng)
    assert (first != second).any()
    assert first.mean() == pytest.approx(second.mean(), rel=0.25)
    assert first.mean() > 1.5 * model.mean_tokens
    assert (model.draw(hardest, 9, np.random.default_rng(5)) == model.draw(hardest, 9, np.random.default_rng(5))).all()


def test_a_lower_cap_cuts(make_trace) -> None:
    trace = make_trace()
    model = fit_lengths(trace, 300)
    assert model.tables.max() == 300
    assert (model.tables == 300).mean() == pytest.approx(np.mean([r.tokens >= 300 for r in trace.rows]), abs=0.005)
    assert model.caution is None


def test_a_higher_cap_goes_on_with_the_tail_and_says_that_this_is_a_guess() -> None:
    rng = np.random.default_rng(2)
    natural = np.ceil(40 * rng.pareto(1.5, size=(400, 8)) + 40)
    model = fit_lengths(trace_of(natural), 4 * CAP)
    assert model.tail.index == pytest.approx(1.5, abs=3 * model.tail.index / math.sqrt(model.tail.ended) + 0.15)
    assert (model.tables >= 4 * CAP).mean() == pytest.approx((natural >= 4 * CAP).mean(), rel=0.5)
    assert model.mean_tokens == pytest.approx(np.minimum(natural, 4 * CAP).mean(), rel=0.1)
    assert model.caution is not None and f"cut at {CAP} tokens" in model.caution
    within = fit_lengths(trace_of(natural))
    assert within.caution is None
    # What the trace does show is untouched by the guess.
    assert (np.minimum(model.tables, CAP) == within.tables).all()


def test_a_trace_that_no_cap_cut_is_hardly_continued(make_trace) -> None:
    trace = make_trace(sigma=0.5)
    longest = max(r.tokens for r in trace.rows)
    assert longest < CAP
    model = fit_lengths(trace, 100 * CAP)
    assert model.caution is None
    assert (model.tables > longest).mean() < 0.5 / len(trace.rows) * 1.5
    assert model.tables.max() < 3 * longest


def test_other_prompts_that_the_trace_might_have_held_vary_as_much_as_other_traces_do(make_trace) -> None:
    """The band of a mean, and of a high quantile of groups' maxima, has the width that fresh traces show."""

    def statistics(model: LengthModel) -> tuple[float, float]:
        return math.log(model.mean_tokens), math.log(model.group_max_quantiles(GROUP, (0.8,))[0])

    rng = np.random.default_rng(0)
    fresh = np.array([statistics(fit_lengths(make_trace(prompts=40, seed=s))) for s in range(30)])
    widths = []
    for s in range(3):
        model = fit_lengths(make_trace(prompts=40, seed=s))
        widths.append(np.std([statistics(model.another(rng)) for _ in range(30)], axis=0))
    assert np.mean(widths, axis=0) == pytest.approx(fresh.std(axis=0), rel=0.45)


def test_another_model_is_the_same_for_the_same_luck_and_keeps_the_mean(make_trace) -> None:
    model = fit_lengths(make_trace())
    one, two = (model.another(np.random.default_rng(4)) for _ in range(2))
    assert (one.tables == two.tables).all() and len(set(one.prompt_ids)) == 64
    means = [model.another(np.random.default_rng(s)).mean_tokens for s in range(60)]
    assert np.mean(means) == pytest.approx(model.mean_tokens, rel=0.06)
    assert (np.diff(one.tables, axis=1) >= 0).all()


def test_a_trace_of_one_sample_a_prompt_or_of_capped_samples_only_still_fits() -> None:
    assert fit_lengths(trace_of(np.array([[5], [9], [70]]))).tables.min() >= 1
    assert (fit_lengths(trace_of(np.full((3, 4), CAP))).tables == CAP).all()


def test_checking_needs_groups_to_leave_out() -> None:
    with pytest.raises(ValueError, match="left out"):
        check_model(trace_of(np.array([[5, 6], [9, 8]])), GROUP)


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.lists(st.integers(1, 80), min_size=1, max_size=6), min_size=1, max_size=6),
    cutoff_tokens=st.integers(1, 80),
)
def test_tables_are_lengths_and_quantiles_are_those_of_the_group_maximum(
    lengths: list[list[int]], cutoff_tokens: int
) -> None:
    rows = [
        LengthRow(f"k{i}", 0, j, min(x, 64), x >= 64, 0.0, 3)
        for i, own in enumerate(lengths)
        for j, x in enumerate(own)
    ]
    model = fit_lengths(LengthTrace(rows, 64))
    assert model.tables.min() >= 1 and model.tables.max() <= 64
    low, high = model.group_max_quantiles(4, (0.3, 0.9))
    assert low <= high
    # The quantile is the least value that a share of at least 0.9 of the groups stays within.
    below = (np.array([(row <= high).mean() for row in model.tables]) ** 4).mean()
    assert below >= 0.9 - 1e-9
    within = ((model.tables <= cutoff_tokens) & (model.tables < 64)).mean(axis=1)
    assert model.short_groups(cutoff_tokens, 4) == pytest.approx((within**4).mean())


def longest_by_all_values(tables: np.ndarray, size: int, levels: tuple[float, ...]) -> tuple[int, ...]:
    """The CDF of the longest of `size`, prompt by prompt at each length that there is."""
    values = np.unique(tables)
    below = np.array([np.searchsorted(row, values, side="right") / len(row) for row in tables])
    found = np.searchsorted((below**size).mean(axis=0), np.asarray(levels) - 1e-12)
    return tuple(int(values[min(k, len(values) - 1)]) for k in found)


def test_quantiles_of_the_longest_in_a_group_are_those_of_the_mean_of_all_prompts_laws() -> None:
    levels = (0.0, 0.1, 0.4, 0.5, 0.6, 0.8, 0.93, 0.97, 1.0)
    for seed, (prompts, samples) in enumerate([(1, 4), (2, 2), (7, 16), (300, 16)]):
        model = fit_lengths(trace_of(sometimes_lost(prompts, samples, np.random.default_rng(seed))))
        for size in (1, 2, 8, 64):
            assert model.group_max_quantiles(size, levels) == longest_by_all_values(model.tables, size, levels)


def test_quantiles_of_the_longest_in_a_group_take_little_memory_for_many_prompts_and_lengths() -> None:
    rng = np.random.default_rng(2)
    small = fit_lengths(trace_of(sometimes_lost(8, 4, rng)))
    tables = np.sort(rng.integers(1, 8_000, size=(500, 64)), axis=1)
    model = replace(small, tables=tables, cap_tokens=8_000)
    tracemalloc.start()
    try:
        found = model.group_max_quantiles(8, (0.5, 0.9))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # Prompts times distinct lengths would be 500 * 8,000 * 8 bytes, 32 MB, twice.
    assert peak < 2_000_000
    assert found == longest_by_all_values(tables, 8, (0.5, 0.9))
