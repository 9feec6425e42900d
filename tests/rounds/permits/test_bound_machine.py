"""The bound machine: alarms come before bounds break, once, and go when the danger is over."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplan.rounds.permits.bound_machine import BoundEvent, BoundMachine, SlowdownBound
from rlplan.rounds.permits.slowdown import WARM, keeps_bound

BOUND = SlowdownBound(alone_s=100.0, slo=1.3)


class Driver:
    """One job whose iterations take given seconds, after its warm-up."""

    def __init__(self, *seconds, stretch=10, bound=BOUND):
        self.machine, self.now_s, self.done = BoundMachine({"a": bound}, stretch), 0.0, 0
        for _ in range(WARM):
            assert self.machine.ended("a", 1, self.now_s) == []
        self.begun = self.run(*seconds)

    def run(self, *seconds):
        """(number of the iteration, event) of what is told."""
        told = []
        for each in seconds:
            self.now_s += each
            self.done += 1
            told += [(self.done, event) for event in self.machine.ended("a", 1, self.now_s)]
            self.machine.check_invariants()
        return told

    @property
    def figures(self):
        return self.machine.figures("a")


def kinds(told):
    return [event.state for _, event in told]


def test_a_job_within_its_bound_is_told_nothing():
    driver = Driver(*[129.0] * 60)
    figures = driver.figures
    assert driver.begun == [] and (figures.state, figures.iterations) == ("kept", 60)
    assert figures.slowdown == pytest.approx(1.29) and figures.recent == pytest.approx(1.29)
    assert figures.ahead_s == pytest.approx(60.0) and figures.breaks_in is None and figures.slo == 1.3


def test_an_alarm_comes_before_the_mean_breaks():
    driver = Driver(*[110.0] * 20)
    assert driver.begun == []  # 400 s ahead
    (alarmed, alarm), (broke, _) = told = driver.run(*[150.0] * 30)
    assert kinds(told) == ["alarm", "broken"]
    assert broke == 20 + 21, "400 s are lost after 20 iterations of 20 s, and the next is too much"
    assert alarmed == 24 and (alarm.job, alarm.at_s, alarm.reason) == ("a", 20 * 110 + 4 * 150, "stretch")
    assert alarm.figures.state == "alarm" and alarm.figures.slowdown < 1.3
    assert alarm.figures.breaks_in == 27, "320 s ahead, and the fresh ones, of which one took 110 s, lose 12 s each"
    assert driver.figures.breaks_in == 0


def test_a_job_far_ahead_has_an_alarm_when_stretches_are_slow():
    told = Driver(*[101.0] * 500).run(*[140.0] * 12)
    assert kinds(told) == ["alarm"]
    assert told[0][1].reason == "stretch" and told[0][1].figures.slowdown < 1.1
    # Of seven iterations one is older than the fresh three and the three to come.
    assert [number for number, _ in Driver(*[100.0] * 20, stretch=7).run(*[131.0] * 6)] == [24]


def test_a_job_hardly_ahead_has_an_alarm_before_its_stretch_is_full():
    (number, alarm), _ = Driver(*[129.0] * 6, *[131.5] * 5, stretch=12).begun
    assert (number, alarm.reason) == (10, "mean"), "the mean is just at the bound"


def test_breaks_in_counts_iterations_until_the_mean_is_above():
    driver = Driver(*[110.0] * 10, *[150.0] * 5)
    left = driver.figures.breaks_in
    told = driver.run(*[150.0] * left)
    assert told[-1][0] == 15 + left and told[-1][1].state == "broken"


def test_a_job_is_not_judged_before_half_a_stretch():
    driver = Driver(*[500.0] * 4)
    assert driver.begun == [] and driver.figures.state == "early"
    assert kinds(driver.run(500.0)) == ["broken"]
    assert BoundMachine({}, 1).half == 3, "enough for a standard error"


def test_an_iteration_that_runs_too_long_raises_an_alarm():
    driver = Driver(*[128.0] * 20)  # 40 s ahead
    assert driver.machine.look(driver.now_s + 170.0) == [], "the mean would be at the bound"
    (alarm,) = driver.machine.look(driver.now_s + 170.5)
    assert alarm.state == "alarm" and alarm.reason == "running"
    assert driver.machine.look(driver.now_s + 400.0) == [], "it was told"
    assert kinds(driver.run(172.0)) == ["broken"]
    calm = Driver(*[128.0] * 20)
    calm.machine.look(calm.now_s + 170.5)
    assert [number for number, _ in calm.run(*[129.0] * 9)] == [25], "five calm iterations clear it"
    assert Driver(*[110.0] * 20).run(300.0) == [], "one long iteration alone is no alarm"


def test_an_alarm_is_cleared_only_after_half_a_calm_stretch():
    driver = Driver(*[120.0] * 40)
    told = driver.run(*[140.0] * 10, *[110.0] * 20)
    assert [(number, event.state) for number, event in told] == [(44, "alarm"), (56, "cleared")]
    assert driver.machine.half == 5, "the fresh ones of iteration 52 threaten nothing"
    assert driver.figures.state == "kept"


def test_iterations_around_the_bound_do_not_each_make_an_alarm():
    driver = Driver(*[110.0] * 20, *[125.0, 139.0] * 100, stretch=20)
    assert len(driver.begun) <= 2


def test_a_broken_bound_that_holds_again_stays_in_alarm_first():
    driver = Driver(*[140.0] * 10)
    assert kinds(driver.begun) == ["broken"]
    ((cleared, event),) = driver.run(*[100.0] * 40)
    assert (event.state, event.job, event.at_s, cleared) == ("cleared", "a", 2300.0, 10 + 9), "after 4 the mean holds"


def test_a_new_bound_keeps_what_the_job_was_ahead():
    driver = Driver(*[120.0] * 20, *[140.0] * 6)
    assert driver.figures.state == "alarm"
    before = driver.figures.ahead_s
    driver.machine.rebind("a", SlowdownBound(alone_s=120.0, slo=1.3))
    assert (driver.figures.state, driver.figures.recent) == ("kept", None), "the stretch is forgotten"
    assert driver.figures.ahead_s == pytest.approx(before)
    assert driver.run(*[150.0] * 40) == []


def test_a_job_that_moved_keeps_what_it_was_ahead():
    driver = Driver(*[120.0] * 20, *[140.0] * 6)
    before = driver.figures
    assert before.state == "alarm"
    driver.machine.moved("a")
    driver.now_s = 3.0  # the other group, whose journal is another, began later
    for _ in range(WARM):
        assert driver.machine.ended("a", 1, driver.now_s) == []
    assert driver.figures.state == "kept" and driver.run(*[120.0] * 10) == []
    assert driver.figures.ahead_s == pytest.approx(before.ahead_s + 10 * 10)
    broken = Driver(*[140.0] * 10)
    broken.machine.moved("a")
    assert broken.figures.state == "broken"


def test_jobs_come_and_go_and_others_are_not_told():
    machine = BoundMachine({"a": BOUND}, 10)
    with pytest.raises(ValueError, match="watched already"):
        machine.join("a", BOUND)
    machine.join("b", BOUND)
    machine.leave("a")
    assert machine.jobs == ("b",) and machine.ended("a", 1, 5.0) == []
    with pytest.raises(KeyError):
        machine.figures("a")


@pytest.mark.parametrize(
    "bound",
    [SlowdownBound(0.0, 1.5), SlowdownBound(10.0, 0.9), SlowdownBound(float("nan"), 1.5), SlowdownBound(1e308, 1e9)],
)
def test_a_bound_that_is_none_is_refused(bound):
    with pytest.raises(ValueError, match="a bound is at least 1"):
        BoundMachine({"a": bound}, 10)
    machine = BoundMachine({"a": SlowdownBound(0.1, 1.0)}, 10)
    with pytest.raises(ValueError, match="a bound is at least 1"):
        machine.rebind("a", bound)


@settings(max_examples=80)
@given(
    st.lists(
        st.one_of(
            st.floats(1.0, 400.0),
            st.just("restart"),
            st.builds(SlowdownBound, st.floats(50, 200), st.floats(1.0, 3.0)),
            st.tuples(st.floats(0, 500)),
        ),
        max_size=120,
    ),
    st.integers(1, 30),
)  # fmt: skip
def test_whatever_happens_states_are_right_and_told_once(events, stretch):
    machine = BoundMachine({"a": BOUND}, stretch)
    now_s, start, told = 0.0, 1, list[BoundEvent]()
    for event in events:
        if event == "restart":
            start += 1
        elif isinstance(event, SlowdownBound):
            machine.rebind("a", event)
            told = [] if machine.figures("a").state == "kept" else told
        elif isinstance(event, tuple):
            told += machine.look(now_s + event[0])
        else:
            now_s += event
            told += machine.ended("a", start, now_s)
        machine.check_invariants()
        figures = machine.figures("a")
        # Beside the bound itself, where rounding decides.
        if figures.state != "early" and abs(figures.slowdown / figures.slo - 1) > 1e-9:
            assert (figures.state == "broken") == (not keeps_bound(figures.slowdown, figures.slo))
    for one, other in itertools.pairwise(told):
        assert one.state != other.state or one.state == "broken"
