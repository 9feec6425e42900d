"""The definition of iterations, slowdown and bound."""

from __future__ import annotations

import pytest

from rlplan.rounds.permits.slowdown import WARM, IterationTimer, keeps_bound, slowdown_of


def measured(ends: list[tuple[int, float]]) -> list[float | None]:
    timer = IterationTimer()
    return [timer.ended(start, at_s) for start, at_s in ends]


def test_the_first_iterations_of_each_start_are_not_measured_nor_those_across_a_start():
    assert WARM == 2
    ends = [(1, 10.0), (1, 17.0), (1, 20.0), (1, 24.0), (2, 90.0), (2, 91.0), (2, 96.0)]
    assert measured(ends) == [None, None, 3.0, 4.0, None, None, 5.0]


def test_the_iteration_that_runs_is_known_once_the_start_is_warm():
    timer = IterationTimer()
    timer.ended(1, 1.0)
    assert timer.open_since_s is None
    timer.ended(1, 2.0)
    assert timer.open_since_s == 2.0
    timer.ended(2, 9.0)
    assert timer.open_since_s is None


@pytest.mark.parametrize("second", [(1, 5.0), (2, 5.0)])
def test_time_and_starts_do_not_go_back(second):
    timer = IterationTimer()
    timer.ended(2, 8.0)
    timer.ended(2, 9.0)
    with pytest.raises(ValueError, match="after"):
        timer.ended(*second)


def test_a_slowdown_is_a_mean_over_the_seconds_alone_and_a_bound_holds_up_to_itself():
    assert slowdown_of([12.0, 18.0], 10.0) == 1.5
    assert slowdown_of([], 10.0) is None
    assert keeps_bound(1.5, 1.5) and not keeps_bound(1.5000001, 1.5)
