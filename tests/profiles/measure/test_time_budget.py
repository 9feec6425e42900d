"""The minutes of a profile: what refines it is measured while there is time, and the user is told what was not."""

from rlplan.profiles.measure.time_budget import TimeBudget


class Clock:
    """Seconds that the test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def budget(minutes: float) -> tuple[TimeBudget, Clock, list[str]]:
    clock, lines = Clock(), list[str]()
    return TimeBudget(minutes, lines.append, clock), clock, lines


def test_each_part_has_an_equal_share_of_what_is_left_when_it_begins() -> None:
    time, clock, _ = budget(10)
    time.begin(3)
    assert time.allows(199, "a") and not time.allows(201, "b")
    clock.now += 60  # it took less than its share
    time.begin(2)
    assert time.allows(269, "c") and not time.allows(271, "d")
    clock.now += 300  # and this one more
    time.begin(1)
    assert time.allows(239, "e") and not time.allows(241, "f")


def test_progress_says_what_is_measured_and_the_minutes_left() -> None:
    time, clock, lines = budget(2)
    time.tell("decode")
    clock.now += 61
    time.tell("rounds")
    clock.now += 60
    time.tell("rounds")
    assert lines == ["decode (2 min left)", "rounds (1 min left)", "rounds (no time left)"]


def test_one_line_says_once_what_was_left_out() -> None:
    time, clock, _ = budget(1)
    assert time.outcome is None
    clock.now += 61
    for what in ("rounds", "rounds", "updates"):
        assert not time.allows(1, what)
    assert time.outcome == "left out, since --minutes 1 were over: rounds; updates"


def test_minutes_that_are_too_few_for_the_least_are_told_with_those_that_it_needs() -> None:
    time, clock, _ = budget(0.5)
    clock.now += 200
    time.leave_out("1 engine, TP 2")
    time.lacks(150)
    assert time.outcome == (
        "left out, since --minutes 0.5 were over: 1 engine, TP 2; the least that a plan needs takes about 6 minutes "
        "here"
    )


def test_after_the_end_no_part_has_time() -> None:
    time, clock, _ = budget(1)
    clock.now += 90
    time.begin(4)
    assert not time.allows(0.1, "a")
