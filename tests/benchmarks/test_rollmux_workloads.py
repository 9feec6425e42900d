"""The synthetic workloads and the latency of one placement."""

import numpy as np

from benchmarks import placement_latency, rollmux_workloads


def test_draws_lie_in_the_published_ranges() -> None:
    jobs = rollmux_workloads.draw_jobs(("RH",), 50, None, np.random.default_rng(0))
    assert all(100 <= job.rollout[0].mean_s <= 600 and 25 <= job.train[0].mean_s <= 200 for job in jobs)
    assert all(1 <= job.slo <= 2 for job in jobs)


def test_the_program_is_no_dearer_than_any_placer_that_keeps_its_bounds() -> None:
    jobs = rollmux_workloads.draw_jobs(rollmux_workloads.MIXED, 4, None, np.random.default_rng(3))
    paid = rollmux_workloads.snapshot(jobs, 3, 0)
    assert paid["proven"] == 1.0
    assert paid["ours"] == paid["optimum"] <= paid["ours_no_moves"]


def test_every_case_has_its_published_ratios() -> None:
    assert set(rollmux_workloads.CASES) == set(rollmux_workloads.PUBLISHED)


def test_latency_is_measured_at_every_count() -> None:
    found = placement_latency.measure([2, 4], 2)
    assert set(found["ms"]) == {"2", "4"}
    assert all(ms > 0 for ms in found["ms"].values())
