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
    from rlplan.planner.search_inputs import prepare

    search = prepare(bench.cluster(), bench.job(), bench.profile(), bench.trace())
    assert {key.tp * key.engines for key in search.space.decode} == {64}
    assert {key.tp for key in search.space.decode} == {1, 2, 4, 8}


def test_the_32b_example_is_solved_on_1024_nodes_without_simulating_a_whole_round(bench) -> None:
    from benchmarks import planner_scale
    from rlplan.planner.choose.candidate_search import Pass
    from rlplan.planner.simulate.columns.composed_log import ComposedLog
    from rlplan.planner.solve import solve
    from rlplan.planner.solve_options import SolveOptions

    passes = (Pass(4, 2, float("inf")), Pass(8, 4, 0.05))
    solved = solve(*planner_scale.documents(1024), planner_scale.INPUTS, SolveOptions(mode="sync", passes=passes))
    assert solved.plan.job.issue.prompts_per_step == 16_384
    assert solved.plan.job.rounds.short.issue.prompts == 16_384
    chosen = solved.search.short[solved.solution.cycle.short.key].log
    assert isinstance(chosen, ComposedLog) and set(chosen.groups) == {16_384}
    assert set(chosen.cells.groups) == {256}
    assert sum(chunk.nbytes for chunk in solved.search.setting.draws._chunks.values()) < 20e6


def test_kinds_of_every_mode_are_compared_by_cells_and_whole(bench) -> None:
    from benchmarks import planner_scale
    from rlplan.planner.choose.candidates.candidate_space import MODES
    from rlplan.planner.search_inputs import prepare

    kinds = planner_scale.kinds_compared(prepare(*planner_scale.documents(64)))
    assert {key.mode for key in kinds} == set(MODES)
    found = {
        "solve_s": {"8": 5.0},
        "solve_cpu_s": {"8": 4.5},
        "peak_bytes": {"8": 3 * 10**8},
        "differences": {"exact": {"mean": -0.004, "p95": 0.0061, "noise": 0.002, "cpu": 0.25}},
    }
    assert planner_scale.lines(found) == [
        "8 nodes: solved in 5.0 s (4.5 s of CPU), at most 0.30 GB",
        "exact, by cells instead of whole: mean -0.40 %, p95 +0.61 %, standard error 0.20 %, "
        "in 0.25 of the CPU seconds",
    ]
