"""The length model and its tail against populations whose law is known, and against samples left out."""

import math
import tracemalloc
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplan.planner.lengths.length_fit import fit_marginal
from rlplan.planner.lengths.length_model import LengthModel, fit_lengths
from rlplan.profiles.length_tables import ASSUMED_ICC
from rlplan.profiles.length_trace import LengthRow, LengthTrace, intraclass_correlation

from ..conftest import heavy_trace

CAP = 1024
GROUP = 8


def trace_of(lengths: Sequence[Sequence[float]] | np.ndarray, cap: int = CAP) -> LengthTrace:
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


def test_the_marginal_is_the_traces() -> None:
    lengths = sometimes_lost(64, 16, np.random.default_rng(3)) * 3
    model = fit_lengths(trace_of(lengths))
    capped = np.minimum(lengths, CAP)
    assert model.mean_tokens == pytest.approx(capped.mean(), rel=0.01)
    assert (model.tables >= CAP).mean() == pytest.approx((capped >= CAP).mean(), abs=0.002)
    for level in (0.25, 0.5, 0.75, 0.95):
        assert np.quantile(model.tables, level) == pytest.approx(np.quantile(capped, level), rel=0.05, abs=2)


@pytest.mark.parametrize("prompts", [4, 300])
def test_equal_lengths_stay_what_they_are(prompts: int) -> None:
    assert {*fit_lengths(trace_of([[100.0]] * prompts)).quantiles()} == {100}


def test_where_few_reached_the_cap_others_might_not() -> None:
    few, many = (fit_lengths(trace_of([[CAP]] * prompts)) for prompts in (4, 300))
    assert few.mean_tokens == many.mean_tokens == CAP
    means = [np.mean([m.another(np.random.default_rng(k)).mean_tokens for k in range(20)]) for m in (few, many)]
    assert means[0] < 0.99 * CAP < means[1] <= CAP


@pytest.mark.parametrize("prompts", [100, 3000])
def test_one_response_to_each_prompt_shows_the_marginal_alone(prompts: int) -> None:
    lengths = np.ceil(np.exp(np.random.default_rng(5).normal(4.0, 0.9, (prompts, 1))))
    model = fit_lengths(trace_of(lengths, cap=100_000))
    for level in (0.05, 0.5, 0.95):
        assert np.quantile(model.tables, level) == pytest.approx(np.quantile(lengths, level), rel=0.15)
    found = intraclass_correlation(np.log(model.tables[:, ::8]).tolist())
    assert found == pytest.approx(ASSUMED_ICC, abs=0.1)
    # The longest of a group lies between that of independent responses and that of responses which are all alike.
    (middle,) = model.group_max_quantiles(GROUP, (0.5,))
    assert np.quantile(lengths, 0.5) < middle < np.quantile(lengths, 0.5 ** (1 / GROUP))


def test_a_deferred_prompt_is_long_again_as_often_as_it_really_is() -> None:
    first, second = np.split(sometimes_lost(20_000, 2 * GROUP, np.random.default_rng(1)), 2, axis=1)
    cutoff_tokens = int(np.quantile(first.max(axis=1), 0.9))
    truth = (second.max(axis=1) > cutoff_tokens)[first.max(axis=1) > cutoff_tokens].mean()
    again, share = [], []
    for seed in range(8):
        lengths = sometimes_lost(64, 16, np.random.default_rng(100 + seed))
        # The probability that a group is long, given that an earlier group of its prompt was.
        group = 1 - fit_lengths(trace_of(lengths)).groups_within(cutoff_tokens, GROUP)
        again.append((group**2).sum() / group.sum())
        share.append(group.mean())
    assert np.mean(share) == pytest.approx(0.1, abs=0.035)
    assert abs(np.mean(again) - truth) < 0.12, "where a plain bootstrap says too often"


def test_groups_left_out_are_long_as_often_as_predicted() -> None:
    """By a model of half of each prompt's samples; the other half is a group."""
    ratios = []
    for seed in range(4):
        trace, rng = heavy_trace(seed=seed), np.random.default_rng(seed)
        halves = [np.split(rng.permutation([row.tokens for row in rows]), 2) for rows in trace.by_prompt().values()]
        model = fit_lengths(trace_of(np.array([seen for seen, _ in halves])))
        longest = np.array([left for _, left in halves]).max(axis=1)
        for cutoff in np.quantile(longest, (0.5, 0.7, 0.8, 0.9, 0.95)).astype(int):
            beyond = 1.0 - model.groups_within(cutoff, GROUP)
            noise = math.sqrt(float((beyond * (1 - beyond)).sum())) / len(beyond)
            assert abs(beyond.mean() - (longest > cutoff).mean()) <= 3.5 * noise + 0.02
        drawn = model.draw_many(np.arange(len(halves)), (256, GROUP), rng).max(axis=2)
        ratios.append(drawn.mean() / longest.mean())
    # One half of a prompt's samples says little about the mean of the other half's maxima; four traces say more.
    assert np.mean(ratios) == pytest.approx(1.0, abs=0.12)


def test_drawing_again_keeps_the_law_and_the_dependence_and_renews_the_luck() -> None:
    trace = heavy_trace(prompts=96)
    model = fit_lengths(trace)
    drawn = model.draw_many(np.arange(96), (32,), np.random.default_rng(0))
    assert intraclass_correlation(np.log1p(drawn).tolist()) == pytest.approx(trace.icc(), abs=0.06)
    rng, hardest = np.random.default_rng(5), int(model.tables.mean(axis=1).argmax())
    first, second = model.draw(hardest, 400, rng), model.draw(hardest, 400, rng)
    assert (first != second).any() and first.mean() > 1.5 * model.mean_tokens
    assert first.mean() == pytest.approx(second.mean(), rel=0.25)
    alike = fit_lengths(trace_of(np.ceil(np.random.default_rng(0).exponential(60, size=(40, 12)))))
    assert alike.tables.mean(axis=1).std() < 0.25 * alike.mean_tokens, "without dependence all prompts have one law"


def test_a_higher_cap_goes_on_with_the_tail_as_a_guess() -> None:
    rng = np.random.default_rng(2)
    natural = np.ceil(40 * rng.pareto(1.5, size=(400, 8)) + 40)
    model = fit_lengths(trace_of(natural), 4 * CAP)
    assert model.tail.index == pytest.approx(1.5, abs=3 * model.tail.index / math.sqrt(model.tail.ended) + 0.15)
    assert (model.tables >= 4 * CAP).mean() == pytest.approx((natural >= 4 * CAP).mean(), rel=0.5)
    assert model.mean_tokens == pytest.approx(np.minimum(natural, 4 * CAP).mean(), rel=0.1)
    assert model.caution is not None and f"cut at {CAP:,} tokens" in model.caution
    assert fit_lengths(trace_of(natural), CAP + CAP // 200).caution is None, (
        "half a percent of a length changes no step"
    )
    assert " from " not in model.tail.extrapolated(CAP, "lengths were cut", "measure"), "no value repeated to itself"
    within = fit_lengths(trace_of(natural))
    assert within.caution is None
    # What the trace does show is untouched by the guess.
    assert (np.minimum(model.tables, CAP) == within.tables).all()


def test_a_trace_that_no_cap_cut_is_hardly_continued() -> None:
    trace = heavy_trace(sigma=0.5)
    longest = max(r.tokens for r in trace.rows)
    assert longest < CAP
    model = fit_lengths(trace, 100 * CAP)
    assert model.caution is None
    assert (model.tables > longest).mean() < 0.5 / len(trace.rows) * 1.5
    assert model.tables.max() < 3 * longest


def test_other_prompts_vary_as_much_as_other_traces_do() -> None:
    """The band of a mean, and of a high quantile of groups' maxima, has the width that fresh traces show."""

    def statistics(model: LengthModel) -> tuple[float, float]:
        return math.log(model.mean_tokens), math.log(model.group_max_quantiles(GROUP, (0.8,))[0])

    rng = np.random.default_rng(0)
    fresh = np.array([statistics(fit_lengths(heavy_trace(prompts=40, seed=s))) for s in range(30)])
    widths = []
    for s in range(3):
        model = fit_lengths(heavy_trace(prompts=40, seed=s))
        widths.append(np.std([statistics(model.another(rng)) for _ in range(30)], axis=0))
    assert np.mean(widths, axis=0) == pytest.approx(fresh.std(axis=0), rel=0.45)


def longest_by_all_values(tables: np.ndarray, size: int, levels: tuple[float, ...]) -> tuple[int, ...]:
    """Quantiles of the longest of `size`, by the CDF prompt by prompt at each length that there is."""
    values = np.unique(tables)
    below = np.array([np.searchsorted(row, values, side="right") / len(row) for row in tables])
    found = np.searchsorted((below**size).mean(axis=0), np.asarray(levels) - 1e-12)
    return tuple(int(values[min(k, len(values) - 1)]) for k in found)


LEVELS = (0.0, 0.1, 0.4, 0.5, 0.6, 0.8, 0.93, 0.97, 1.0)


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.lists(st.integers(1, 80), min_size=1, max_size=6), min_size=1, max_size=6),
    cutoff_tokens=st.integers(1, 80),
    size=st.sampled_from([1, 2, 8, 64]),
)
def test_quantiles_of_the_longest_are_those_of_all_prompts_laws(lengths, cutoff_tokens, size) -> None:
    model = fit_lengths(trace_of(lengths, 64))
    assert model.tables.min() >= 1 and model.tables.max() <= 64
    assert model.group_max_quantiles(size, LEVELS) == longest_by_all_values(model.tables, size, LEVELS)
    within = ((model.tables <= cutoff_tokens) & (model.tables < 64)).mean(axis=1)
    assert model.short_groups(cutoff_tokens, size) == pytest.approx((within**size).mean())


def test_quantiles_of_the_longest_take_little_memory() -> None:
    rng = np.random.default_rng(2)
    small = fit_lengths(trace_of(sometimes_lost(8, 4, rng)))
    tables = np.sort(rng.integers(1, 8_000, size=(500, 64)), axis=1)
    model = replace(small, tables=tables, cap_tokens=8_000)
    tracemalloc.start()
    try:
        found = model.group_max_quantiles(8, LEVELS)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # Prompts times distinct lengths would be 500 * 8,000 * 8 bytes, 32 MB, twice.
    assert peak < 2_000_000
    assert found == longest_by_all_values(tables, 8, LEVELS)


# -- the marginal and its tail -----------------------------------------------------------------------------------------


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
def test_quantiles_never_fall_and_begin_within_what_was_seen(lengths, cap, ranks) -> None:
    rows = [np.array(own, dtype=float) for own in lengths]
    marginal = fit_marginal([np.log(np.minimum(r, cap)) for r in rows], [r >= cap for r in rows])
    found = marginal.log_quantiles(np.sort(ranks))
    assert (np.diff(found) >= -1e-9).all()
    assert found[0] >= math.log(min(min(own) for own in lengths)) - 1e-9 or cap < min(min(own) for own in lengths)
    assert 0 < marginal.tail.share <= 1 and marginal.tail.index > 0
