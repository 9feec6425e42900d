"""Slowdowns over the first steps of a group: what turns take by hand, and that the long run differs."""

from __future__ import annotations

import pytest

from rlplan.planner.groups.simulate.first_steps import (
    MOST_STEPS,
    common_span,
    first_slowdowns,
    step_ends,
    steps_within,
)
from rlplan.rounds.permits.permit_events import Seat

UNITS = ((0,), (1,))


def slowdowns(seconds: dict[str, tuple[float, float]], rule: str, steps: int, interference: float = 0.0):
    """First slowdowns of jobs on one unit to decode and one to train, with bounds of 2.4."""
    alone_s = {job: sum(each) for job, each in seconds.items()}
    seats = [Seat(job, UNITS, each, pace_s=2.4 * sum(each)) for job, each in seconds.items()]
    return first_slowdowns(rule, seats, alone_s, dict.fromkeys(seconds, steps), interference)


def test_two_equal_jobs_fit_into_each_other_and_three_wait_for_one_another():
    assert slowdowns({"a": (2.0, 2.0), "b": (2.0, 2.0)}, "round_robin", 8) == pytest.approx({"a": 1.0, "b": 1.0})
    assert slowdowns({"a": (2.0, 2.0), "b": (2.0, 2.0)}, "round_robin", 8, 0.1) == pytest.approx({"a": 1.1, "b": 1.1})
    three = slowdowns({"a": (2.0, 2.0), "b": (2.0, 2.0), "c": (2.0, 2.0)}, "round_robin", 8)
    assert three == pytest.approx({"a": 1.5, "b": 1.5, "c": 1.5})


def test_under_multi_rate_a_short_job_begins_in_turn_with_the_others_and_overtakes_them_later():
    seconds = {"long": (5.6, 5.0), "middle": (5.2, 5.0), "short": (4.6, 3.6)}
    first, later = (slowdowns(seconds, "multi_rate", steps, 0.14) for steps in (8, 600))
    assert first["short"] > 1.15 * later["short"]
    assert first["long"] < later["long"]


def test_a_run_too_short_or_too_long_has_none():
    seconds = {"a": (2.0, 2.0), "b": (2.0, 2.0)}
    assert slowdowns(seconds, "round_robin", 2) is None
    assert slowdowns(seconds, "round_robin", MOST_STEPS + 1) is None
    unlike = {"a": (200.0, 200.0), "b": (2.0, 2.0)}
    assert slowdowns(unlike, "round_robin", 3) is None  # a ends one step while b has any left


def test_seconds_of_each_step_are_drawn_in_their_order():
    seats = [Seat("a", UNITS, (1.0, 1.0))]
    ends = step_ends("first_come", seats, {"a": [(1.0, 2.0), (3.0, 4.0)]}, {"a": 3}, 0.5)
    assert ends == {"a": [3.0, 10.0, 13.0]}
    both = {"a": [1.0, 2.0, 3.0, 4.0], "b": [1.5, 3.5, 5.0]}
    assert common_span(both) == (3.5, 4.0)
    assert steps_within(both, (3.5, 4.0)) == {"a": [3], "b": [1]}
