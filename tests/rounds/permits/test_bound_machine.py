"""The bound machine: alarms come before bounds break, once, and go when the danger is over."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplan.rounds.permits.bound_events import Alarm, Bound, BoundEvent, Broken, Cleared
from rlplan.rounds.permits.bound_machine import FEWEST, BoundMachine
from rlplan.rounds.permits.slowdown import WARM, keeps_bound

BOUND = Bound(alone_s=100.0, slo=1.3)


class Driver:
    """One job whose iterations take given seconds, after its warm-up."""

    def __init__(self, stretch: int = 10, bound: Bound = BOUND) -> None:
        self.machine, self.now_s, self.done = BoundMachine({"a": bound}, stretch), 0.0, 0
        for _ in range(WARM):
            assert self.machine.ended("a", 1, self.now_s) == []

    def run(self, *seconds: float) -> list[tuple[int, BoundEvent]]:
        """(number of the iteration, event) of what is told."""
        told = []
        for each in seconds:
            self.now_s += each
            self.done += 1
            told += [(self.done, event) for event in self.machine.ended("a", 1, self.now_s)]
            self.machine.check_invariants()
        return told


def kinds(told: list[tuple[int, BoundEvent]]) -> list[type]:
    return [type(event) for _, event in told]


def test_a_job_within_its_bound_is_told_nothing():
    driver = Driver()
    assert driver.run(*[129.0] * 60) == []
    figures = driver.machine.figures("a")
    assert (figures.state, figures.iterations) == ("kept", 60)
    assert figures.slowdown == pytest.approx(1.29) and figures.recent == pytest.approx(1.29)
    assert figures.ahead_s == pytest.approx(60.0) and figures.breaks_in is None


def test_an_alarm_comes_before_the_mean_breaks_and_says_how_many_iterations_are_left():
    driver = Driver()
    assert driver.run(*[110.0] * 20) == []  # 400 s ahead
    told = driver.run(*[150.0] * 30)
    assert kinds(told) == [Alarm, Broken]
    alarmed, broke = told[0][0], told[1][0]
    assert broke == 20 + 21, "400 s are lost after 20 iterations of 20 s, and the next is too much"
    alarm = told[0][1]
    assert isinstance(alarm, Alarm) and 20 < alarmed <= 20 + 5
    assert alarm.figures.state == "alarm" and alarm.figures.slowdown < 1.3 and alarm.figures.breaks_in is not None
    assert driver.machine.figures("a").breaks_in == 0


def test_a_job_long_ahead_of_its_bound_has_an_alarm_when_its_stretches_are_too_slow():
    driver = Driver()
    driver.run(*[101.0] * 500)
    told = driver.run(*[140.0] * 12)
    assert kinds(told) == [Alarm]
    alarm = told[0][1]
    assert isinstance(alarm, Alarm) and alarm.reason == "stretch" and alarm.figures.slowdown < 1.1


def test_breaks_in_counts_the_iterations_after_which_the_mean_is_above():
    driver = Driver()
    driver.run(*[110.0] * 10, *[150.0] * 5)
    left = driver.machine.figures("a").breaks_in
    assert left is not None
    told = driver.run(*[150.0] * left)
    assert told[-1][0] == 15 + left and isinstance(told[-1][1], Broken)


def test_a_job_is_not_judged_before_half_a_stretch():
    driver = Driver(stretch=10)
    assert driver.run(*[500.0] * 4) == [] and driver.machine.figures("a").state == "early"
    assert kinds(driver.run(500.0)) == [Broken]


def test_one_long_iteration_is_no_alarm_but_while_it_runs_the_mean_may_be_known_to_break():
    driver = Driver()
    driver.run(*[128.0] * 20)  # 40 s ahead
    assert driver.machine.look(driver.now_s + 169.0) == []
    told = driver.machine.look(driver.now_s + 171.0)
    assert [type(event) for event in told] == [Alarm] and isinstance(told[0], Alarm) and told[0].reason == "running"
    assert driver.machine.look(driver.now_s + 400.0) == [], "it was told"
    assert kinds(driver.run(172.0)) == [Broken]

    calm = Driver()
    calm.run(*[110.0] * 20)
    assert calm.run(300.0) == []


def test_an_alarm_is_cleared_only_after_half_a_stretch_without_danger():
    driver = Driver()
    driver.run(*[120.0] * 40)
    told = driver.run(*[140.0] * 10, *[110.0] * 20)
    assert kinds(told) == [Alarm, Cleared]
    assert told[1][0] >= 51 + driver.machine.half - 1, "iteration 51 is the first that is fast again"
    assert driver.machine.figures("a").state == "kept"


def test_iterations_around_the_bound_do_not_make_an_alarm_of_each():
    driver = Driver(stretch=20)
    told = driver.run(*[110.0] * 20, *[125.0, 139.0] * 100)
    assert len(told) <= 2


def test_a_broken_bound_that_holds_again_stays_in_alarm_until_the_danger_is_over():
    driver = Driver()
    told = driver.run(*[140.0] * 10)
    assert kinds(told) == [Broken]
    told = driver.run(*[100.0] * 40)
    assert kinds(told) == [Cleared]
    assert told[0][0] > 10 + 4 + driver.machine.half - 1, "after 4 the mean holds"


def test_a_new_bound_keeps_what_the_job_was_ahead_and_forgets_the_stretch():
    driver = Driver()
    driver.run(*[120.0] * 20, *[140.0] * 6)
    assert driver.machine.figures("a").state == "alarm"
    before = driver.machine.figures("a").ahead_s
    driver.machine.rebind("a", Bound(alone_s=120.0, slo=1.3))
    figures = driver.machine.figures("a")
    assert (figures.state, figures.recent) == ("kept", None) and figures.ahead_s == pytest.approx(before)
    assert driver.run(*[150.0] * 40) == []


def test_a_job_that_moved_has_another_journal_and_keeps_what_it_was_ahead():
    driver = Driver()
    driver.run(*[120.0] * 20, *[140.0] * 6)
    before = driver.machine.figures("a")
    assert before.state == "alarm"
    driver.machine.moved("a")
    driver.now_s = 3.0  # the other group began later
    for _ in range(WARM):
        assert driver.machine.ended("a", 1, driver.now_s) == []
    assert driver.machine.figures("a").state == "kept" and driver.run(*[120.0] * 10) == []
    assert driver.machine.figures("a").ahead_s == pytest.approx(before.ahead_s + 10 * 10)


def test_jobs_come_and_go_and_what_is_not_watched_is_not_told():
    machine = BoundMachine({"a": BOUND}, 10)
    with pytest.raises(ValueError, match="watched already"):
        machine.join("a", BOUND)
    machine.join("b", BOUND)
    machine.leave("a")
    assert machine.jobs == ("b",) and machine.ended("a", 1, 5.0) == []
    with pytest.raises(KeyError):
        machine.figures("a")


@pytest.mark.parametrize("bound", [Bound(0.0, 1.5), Bound(10.0, 0.9), Bound(float("nan"), 1.5), Bound(1e308, 1e9)])
def test_a_bound_that_is_none_is_refused(bound):
    with pytest.raises(ValueError, match="a bound is at least 1"):
        BoundMachine({"a": bound}, 10)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.floats(1.0, 400.0), st.just("restart"), st.builds(Bound, st.floats(50, 200), st.floats(1.0, 3.0)),
            st.tuples(st.floats(0, 500)),
        ),
        max_size=120,
    ),
    st.integers(1, 30),
)  # fmt: skip
def test_whatever_happens_states_are_right_and_everything_is_told_once(events, stretch):
    machine = BoundMachine({"a": BOUND}, stretch)
    now_s, start, told = 0.0, 1, list[BoundEvent]()
    for event in events:
        if event == "restart":
            start += 1
        elif isinstance(event, Bound):
            machine.rebind("a", event)
            told = [] if machine.figures("a").state == "kept" else told
        elif isinstance(event, tuple):
            told += machine.look(now_s + event[0])
        else:
            now_s += event
            told += machine.ended("a", start, now_s)
        machine.check_invariants()
        figures = machine.figures("a")
        if figures.state != "early":
            assert figures.slowdown is not None
            # Beside the bound itself, where rounding decides.
            if abs(figures.slowdown / figures.slo - 1) > 1e-9:
                assert (figures.state == "broken") == (not keeps_bound(figures.slowdown, figures.slo))
    for one, other in itertools.pairwise(told):
        assert not (isinstance(one, Alarm) and isinstance(other, Alarm))
        assert not (isinstance(one, Cleared) and isinstance(other, Cleared))


def test_a_stretch_is_long_enough_for_a_standard_error():
    assert BoundMachine({}, 1).half == FEWEST
