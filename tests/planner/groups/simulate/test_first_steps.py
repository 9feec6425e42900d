"""Slowdowns other than of the long run: a group's first steps, starts on host cores."""

from dataclasses import replace

import pytest

from rlplan.planner.groups.inputs.group_model import Group, Pin, Rules
from rlplan.planner.groups.simulate.first_steps import (
    MOST_STEPS,
    common_span,
    first_slowdowns,
    step_ends,
    steps_within,
)
from rlplan.planner.groups.simulate.steady_state import start_s
from rlplan.rounds.permits.permit_events import Seat

from ..made import NODE_TYPES, group, job, named

UNITS = ((0,), (1,))
EQUAL = (2.0, 2.0)


def first(rule: str, steps: int, interference: float = 0.0, **seconds: tuple[float, float]):
    """First slowdowns of jobs on one unit to decode and one to train, with bounds of 2.4."""
    alone_s = {job: sum(each) for job, each in seconds.items()}
    seats = [Seat(job, UNITS, each, pace_s=2.4 * sum(each)) for job, each in seconds.items()]
    return first_slowdowns(rule, seats, alone_s, dict.fromkeys(seconds, steps), interference)


def test_two_equal_jobs_fit_into_each_other_and_three_wait():
    assert first("round_robin", 8, a=EQUAL, b=EQUAL) == pytest.approx({"a": 1.0, "b": 1.0})
    assert first("round_robin", 8, 0.1, a=EQUAL, b=EQUAL) == pytest.approx({"a": 1.1, "b": 1.1})
    three = first("round_robin", 8, a=EQUAL, b=EQUAL, c=EQUAL)
    assert three == pytest.approx({"a": 1.5, "b": 1.5, "c": 1.5})


def test_a_short_job_begins_in_turn_and_overtakes_later_under_multi_rate():
    seconds = {"long": (5.6, 5.0), "middle": (5.2, 5.0), "short": (4.6, 3.6)}
    early, later = (first("multi_rate", steps, 0.14, **seconds) for steps in (8, 600))
    assert early["short"] > 1.15 * later["short"]
    assert early["long"] < later["long"]


def test_a_run_too_short_or_too_long_has_no_first_slowdowns():
    assert first("round_robin", 2, a=EQUAL, b=EQUAL) is None
    assert first("round_robin", MOST_STEPS + 1, a=EQUAL, b=EQUAL) is None
    assert first("round_robin", 3, a=(200.0, 200.0), b=EQUAL) is None, "a ends one step while b has any left"


def test_seconds_of_each_step_are_drawn_in_their_order():
    ends = step_ends("first_come", [Seat("a", UNITS, (1.0, 1.0))], {"a": [(1.0, 2.0), (3.0, 4.0)]}, {"a": 3}, 0.5)
    assert ends == {"a": [3.0, 10.0, 13.0]}
    both = {"a": [1.0, 2.0, 3.0, 4.0], "b": [1.5, 3.5, 5.0]}
    assert common_span(both) == (3.5, 4.0)
    assert steps_within(both, (3.5, 4.0)) == {"a": [3], "b": [1]}


CORES = {pool: replace(kind, host_cores=True) for pool, kind in NODE_TYPES.items()}
SHARED = group("xy", (0, 0))


def start(of: Group = SHARED, kinds=CORES, seconds=(60.0, 40.0)) -> float:
    """Seconds of a cold start of 30 s beside a job of these seconds."""
    jobs = named(job("x", *seconds, cold_s=30.0), job("y", 1.0, 1.0, cold_s=30.0))
    return start_s("y", of, jobs, kinds, Rules())


def test_a_start_takes_longer_by_the_busy_share_of_the_busier_cores():
    assert start(seconds=(60.0, 40.0)) == pytest.approx(30.0 * 1.6)
    assert start(seconds=(25.0, 75.0)) == pytest.approx(30.0 * 1.75)
    assert start(kinds={**CORES, "roll": NODE_TYPES["roll"]}) == pytest.approx(30.0 * 1.4), "its phase on cores counts"
    assert start(kinds=NODE_TYPES) == 30.0, "on GPUs"
    assert start(replace(SHARED, pins=SHARED.pins[1:])) == 30.0, "alone"
    apart = Group(("roll", "roll", "train", "train"), (Pin("x", 0, (0,), 0, (2,)), Pin("y", 0, (1,), 0, (3,))))
    assert start(apart) == 30.0, "on other nodes"
