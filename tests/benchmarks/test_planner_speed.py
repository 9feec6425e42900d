"""The benchmark of the planner's speed: what it builds and how it reads times; no times."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks import planner_speed

    return planner_speed


def test_the_exponent_of_n_log_n_over_the_range_is_what_the_docstring_says(bench) -> None:
    sizes = [1000, 10_000, 100_000]
    assert bench.exponent(sizes, [3.0 * n for n in sizes]) == pytest.approx(1.0)
    assert round(bench.exponent(sizes, [n * np.log(n) for n in sizes]), 2) == 1.11


def test_all_kinds_of_round_are_measured_and_the_race_preempts(bench) -> None:
    rate, _, preemptions = bench.rate(0.01)
    assert rate > 0 and preemptions > 0
    found = bench.columns(0.01)
    assert set(found) == {"race", "exact_short", "exact_long", "sync"} and min(found.values()) > 0


def test_the_lengths_of_the_job_have_the_published_tail(bench) -> None:
    tokens = np.array([row.tokens for row in bench.trace().rows])
    assert 0.001 < (tokens >= bench.CAP).mean() < 0.02
    assert 500 < np.median(tokens) < 1000


def test_the_documents_of_the_64_gpu_job_fit_together(bench) -> None:
    from rlplan.planner.solve import prepare

    search = prepare(bench.cluster(), bench.job(), bench.profile(), bench.trace())
    assert {key.tp * key.engines for key in search.space.decode} == {64}
    assert {key.tp for key in search.space.decode} == {1, 2, 4, 8}
