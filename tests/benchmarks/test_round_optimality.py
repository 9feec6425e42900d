"""The benchmark that holds the round program against exhaustive search."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks import round_optimality

    return round_optimality


def test_program_and_exhaustive_search_agree_and_jobs_of_both_kinds_occur(bench) -> None:
    found = bench.compare(25, seed=7)
    assert found["mismatches"] == 0 and found["gap_max"] == 0.0
    assert 0 < found["infeasible"] < 25


def test_a_choice_that_costs_a_millionth_more_is_a_mismatch(bench) -> None:
    for number in range(20):
        job = bench.instance(random.Random(number))
        best = min(bench.costs(job), default=None)
        if best is not None:
            break
    solution = bench.solve_program(job.short, job.long, job.needs_long, job.limits, job.target)
    assert bench.agrees(job, best, solution)
    assert not bench.agrees(job, best, dataclasses.replace(solution, objective=best * (1 + 1e-6)))
    assert not bench.agrees(job, best, None) and not bench.agrees(job, None, solution)


def test_instances_are_a_function_of_their_seed(bench) -> None:
    assert bench.instance(random.Random("a")) == bench.instance(random.Random("a"))
