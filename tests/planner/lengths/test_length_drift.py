"""Drift and history against populations that were made to drift and to change places."""

import math

import numpy as np
import pytest

from rlplan.planner.lengths.length_drift import fit_drift, fit_drifting, fit_history
from rlplan.planner.lengths.length_model import fit_lengths
from rlplan.profiles.length_trace import LengthRow, LengthTrace

CAP = 100_000
BETWEEN, WITHIN = 0.5, 0.4  # standard deviations of log lengths


def trace_of(logs: dict[int, np.ndarray]) -> LengthTrace:
    """`logs`: per checkpoint, log lengths of shape (prompts, samples)."""
    return LengthTrace(
        [
            LengthRow(f"k{i:04d}", epoch, j, max(1, round(math.exp(y))), False, 0.0, 10)
            for epoch, rows in logs.items()
            for i, row in enumerate(rows)
            for j, y in enumerate(row)
        ],
        CAP,
    )


def checkpoints(prompts: int, samples: int, correlation: float, rate: float, seed: int) -> dict[int, np.ndarray]:
    rng = np.random.default_rng(seed)
    first = rng.normal(size=prompts)
    second = correlation * first + math.sqrt(1 - correlation**2) * rng.normal(size=prompts)
    return {
        epoch: 6 + rate * epoch + BETWEEN * place[:, None] + WITHIN * rng.normal(size=(prompts, samples))
        for epoch, place in ((0, first), (100, second))
    }


def test_the_drift_of_the_body_is_found_within_its_error() -> None:
    off = []
    for seed in range(12):
        drift = fit_drift(trace_of(checkpoints(60, 6, 0.9, -0.004, seed)))
        assert (drift.first, drift.last) == (0, 100)
        off.append((drift.body + 0.004) / drift.body_error)
        low, middle, high = drift.factor(50)
        assert low < middle < high and middle == pytest.approx(math.exp(50 * drift.body))
    assert np.abs(off).max() < 3.5 and 0.5 < np.std(off) < 1.7


def test_the_tail_drifts_at_a_rate_of_its_own() -> None:
    rng = np.random.default_rng(0)
    first, second = (6 + 0.3 * rng.normal(size=(200, 8)) for _ in range(2))
    for rows, share in ((first, 0.15), (second, 0.02)):
        rows += np.where(rng.random(rows.shape) < share, 2.0, 0.0)
    drift = fit_drift(trace_of({0: first, 10: second}))
    assert drift.tail < -0.1 < drift.body
    assert abs(drift.tail) > 3 * drift.tail_error


def test_prompts_sampled_once_say_nothing_about_drift() -> None:
    logs = checkpoints(5, 2, 0.5, 0.0, 0)
    with pytest.raises(ValueError, match="more than one checkpoint"):
        fit_drift(trace_of({0: logs[0]}))


def test_a_model_that_drifts_moves_by_body_and_tail_and_stays_under_its_cap() -> None:
    logs = checkpoints(100, 6, 0.9, -0.004, 1)
    trace = trace_of(logs)
    drift = fit_drift(trace)
    model = fit_lengths(trace_of({0: logs[0]}))
    later = drift.apply(model, 100)
    assert np.median(later.tables) / np.median(model.tables) == pytest.approx(drift.factor(100)[1], rel=0.02)
    high = np.quantile(later.tables, 0.97) / np.quantile(model.tables, 0.97)
    assert high == pytest.approx(drift.factor(100, tail=True)[1], rel=0.03)
    assert (drift.apply(model, -10_000).tables <= CAP).all()
    assert (np.diff(later.tables, axis=1) >= 0).all()


def test_what_the_cap_cut_is_not_seen_to_end_earlier_because_others_do() -> None:
    model = fit_lengths(trace_of(checkpoints(50, 6, 0.9, 0.0, 1)), 500)
    assert ((model.stretched(-0.5, -0.5, 0.95).tables == 500) == (model.tables == 500)).all()


def test_lengths_ahead_of_a_drifting_trace_are_predicted_where_pooled_ones_are_stale() -> None:
    rng = np.random.default_rng(3)
    places = BETWEEN * rng.normal(size=(150, 1))
    every = {e: 6 - 0.15 * e + places + WITHIN * rng.normal(size=(150, 6)) for e in range(4)}
    come = np.exp(every.pop(3))
    trace = trace_of(every)
    model, drift = fit_drifting(trace, ahead=1)
    assert drift is not None and drift.body == pytest.approx(-0.15, abs=0.03)
    assert model.mean_tokens == pytest.approx(come.mean(), rel=0.06)
    assert np.quantile(model.tables, 0.95) == pytest.approx(np.quantile(come, 0.95), rel=0.15)
    assert fit_lengths(trace).mean_tokens > 1.25 * come.mean()


def test_a_drift_within_its_error_moves_nothing() -> None:
    for seed in range(4):
        trace = trace_of(checkpoints(40, 4, 0.9, 0.0, seed))
        model, drift = fit_drifting(trace, ahead=1000)
        assert drift is not None
        if abs(drift.body) < drift.body_error and abs(drift.tail) < drift.tail_error:
            assert (model.tables == fit_lengths(trace).tables).all()
            break
    else:
        pytest.fail("no seed without a visible drift")


def test_a_trace_of_one_checkpoint_has_no_drift() -> None:
    trace = trace_of({0: checkpoints(20, 4, 0.9, 0.0, 0)[0]})
    model, drift = fit_drifting(trace, ahead=5)
    assert drift is None and (model.tables == fit_lengths(trace).tables).all()


def test_the_correlation_between_checkpoints_is_found_through_the_noise_of_few_samples() -> None:
    for correlation in (0.3, 0.8):
        found = [fit_history(trace_of(checkpoints(150, 3, correlation, 0.0, seed))).correlation for seed in range(4)]
        assert np.mean(found) == pytest.approx(correlation, abs=0.1)


def test_the_band_of_the_next_longest_holds_for_prompts_left_out_and_history_narrows_it() -> None:
    every = checkpoints(700, 8, 0.8, -0.004, 3)
    history = fit_history(trace_of({epoch: rows[:300] for epoch, rows in every.items()}))
    inside, errors, blind_errors = [], [], []
    blind = history.next_longest([], 8, (0.5,))[0]
    for before, after in zip(every[0][300:], every[100][300:], strict=True):
        longest = math.exp(after.max())
        low, middle, high = history.next_longest([round(math.exp(y)) for y in before], 8, (0.05, 0.5, 0.95))
        inside.append(low <= longest <= high)
        errors.append(abs(math.log(middle / longest)))
        blind_errors.append(abs(math.log(blind / longest)))
    assert 0.85 < np.mean(inside) < 0.95
    assert np.mean(errors) < 0.8 * np.mean(blind_errors)


def test_a_prompt_without_history_or_whose_history_says_nothing_has_the_law_of_any_prompt() -> None:
    history = fit_history(trace_of(checkpoints(400, 4, 0.0, 0.0, 5)))
    any_prompt = history.model.group_max_quantiles(8, (0.1, 0.5, 0.9))
    assert history.next_longest([], 8, (0.1, 0.5, 0.9)) == any_prompt
    assert history.next_longest([5000] * 4, 8, (0.1, 0.5, 0.9)) == pytest.approx(any_prompt, rel=0.15)


def test_more_samples_are_believed_more() -> None:
    history = fit_history(trace_of(checkpoints(200, 6, 0.9, 0.0, 2)))
    assert history.next_longest([2000] * 2, 8, (0.5,)) < history.next_longest([2000] * 20, 8, (0.5,))
