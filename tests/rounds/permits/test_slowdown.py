"""The definition of iterations, slowdown and bound."""

import pytest

from rlplan.rounds.permits.slowdown import WARM, IterationTimer, keeps_bound, slowdown_of


def test_only_iterations_of_a_warm_start_are_measured():
    timer, open_since = IterationTimer(), []
    ends = [(1, 10.0), (1, 17.0), (1, 20.0), (1, 24.0), (2, 90.0), (2, 91.0), (2, 96.0)]
    assert WARM == 2
    measured = []
    for start, at_s in ends:
        measured.append(timer.ended(start, at_s))
        open_since.append(timer.open_since_s)
    assert measured == [None, None, 3.0, 4.0, None, None, 5.0]
    assert open_since == [None, 17.0, 20.0, 24.0, None, 91.0, 96.0]


@pytest.mark.parametrize(("second", "match"), [((1, 9.0), "end of start 1 after"), ((2, 8.9), "time goes back")])
def test_time_and_starts_do_not_go_back(second, match):
    timer = IterationTimer()
    timer.ended(2, 8.0)
    timer.ended(2, 9.0)
    with pytest.raises(ValueError, match=match):
        timer.ended(*second)
    assert timer.ended(2, 9.0) == 0.0


def test_a_slowdown_is_a_mean_over_the_seconds_alone():
    assert slowdown_of([12.0, 18.0], 10.0) == 1.5
    assert slowdown_of([], 10.0) is None
    assert keeps_bound(1.5, 1.5) and not keeps_bound(1.5000001, 1.5), "a bound holds up to itself"
