"""The shape of a rollout: how many sequences run at each twentieth of it, and where its tail begins."""

import pytest

from rlplan.rounds.round_shape import most_running, shape, tail_begins_s

# Eight run from second 1 on; at second 6 twelve ran for no time.
LEVELS = [(1.0, 8), (6.0, 12), (6.0, 6), (10.0, 2), (12.0, 3), (14.0, 1), (18.0, 0)]


def test_levels_that_last_no_time_do_not_count_as_the_most():
    assert most_running(LEVELS) == 8
    assert most_running([]) == 0 and most_running([(3.0, 9), (3.0, 5)]) == 5


@pytest.mark.parametrize(
    ("levels", "begins_s"),
    [
        (LEVELS, 14.0),  # at second 12 three run again, which are more than a quarter of eight
        ([(0.0, 8), (5.0, 2)], 20.0),  # just a quarter
        ([(0.0, 8), (5.0, 1), (7.0, 8), (9.0, 1)], 9.0),
        ([(0.0, 8), (25.0, 1)], 20.0),  # not beyond the rollout's end
    ],
)
def test_the_tail_begins_when_fewer_than_a_quarter_run_for_good(levels, begins_s):
    assert tail_begins_s(levels, 20.0) == begins_s


def test_a_shape_says_what_runs_just_before_each_twentieth():
    assert shape([(0.0, 4), (5.0, 2), (15.0, 1)], 20.0) == [1.0] * 6 + [0.5] * 10 + [0.25] * 5
    assert shape([], 20.0) == shape([(0.0, 0)], 9.0) == [0.0] * 21


def test_seconds_without_decoding_show_neither_first_nor_last():
    assert shape([(3.0, 4), (15.0, 2), (17.0, 0)], 20.0) == [1.0] * 16 + [0.5] * 2 + [0.0] * 2 + [0.5]
    assert shape([(3.0, 4), (20.0, 1)], 20.0)[-1] == 1.0, "what begins at the end did not run"
