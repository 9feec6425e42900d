"""Drift against populations that were made to drift."""

import math

import numpy as np
import pytest

from rlplan.planner.lengths.length_fit import fit_drift
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
