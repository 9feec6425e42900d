"""History of prompts against populations that were made to drift and to change places."""

import math

import numpy as np
import pytest

from benchmarks.prompt_history import drift_factor, fit_history
from rlplan.planner.lengths.length_drift import fit_drift

from ..planner.lengths.test_length_drift import checkpoints, trace_of


def test_the_factor_of_a_drift_has_its_error() -> None:
    drift = fit_drift(trace_of(checkpoints(60, 6, 0.9, -0.004, 0)))
    low, middle, high = drift_factor(drift, 50)
    assert low < middle < high and middle == pytest.approx(math.exp(50 * drift.body))


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
