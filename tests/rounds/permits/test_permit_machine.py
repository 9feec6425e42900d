"""Who gets which units when, by each rule, and what holds whatever comes."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplan.rounds.permits.permit_events import (
    Arrive,
    Consolidate,
    Done,
    Grow,
    Leave,
    Pause,
    PlacedJob,
    Retime,
    Start,
    TailReached,
    UnitsLost,
    Wake,
    WakeAt,
)
from rlplan.rounds.permits.permit_machine import PermitMachine
from rlplan.rounds.permits.permit_rules import CREDIT, PATIENCE, PERMIT_RULES

each_rule = pytest.mark.parametrize("rule", sorted(PERMIT_RULES))


def seat(job, node, rollout_s=100.0, train_s=50.0, slo=1.5, **more):
    """A job on one rollout node of one unit and the training node, unit 9."""
    return PlacedJob(job, ((node,), (9,)), (rollout_s, train_s), pace_s=slo * (rollout_s + train_s), **more)


class Driver:
    """A machine whose jobs arrive at second 0, and what it does, as (job, phase) of the turns that start."""

    def __init__(self, rule, *seats):
        self.machine = PermitMachine(rule)
        self.begun = self.starts(Arrive(seats), 0.0)

    def handle(self, event, now_s):
        actions = self.machine.handle(event, now_s)
        self.machine.check_invariants()
        return actions

    def starts(self, event, now_s):
        return [(action.job, action.phase) for action in self.handle(event, now_s) if isinstance(action, Start)]

    def done(self, job, now_s):
        return self.starts(Done(job), now_s)

    def turn(self, job):
        return next(turn for turn in self.machine.jobs if turn.name == job)


@each_rule
def test_jobs_that_share_no_unit_run_at_once(rule):
    driver = Driver(rule, seat("a", 0), PlacedJob("b", ((1,), (8,)), (100.0, 50.0)))
    assert set(driver.begun) == {("a", "rollout"), ("b", "rollout")}
    assert driver.handle(Done("a"), 100.0) == [Start("a", "train", (9,), True)], "its own phases never overlap"


@each_rule
def test_on_one_node_the_second_rollout_waits_for_the_first(rule):
    driver = Driver(rule, seat("a", 0), seat("b", 0))
    assert driver.begun == [("a", "rollout")]
    starts = Start("b", "rollout", (0,), False), Start("a", "train", (9,), True)  # the other's state was on unit 0
    assert sorted(driver.handle(Done("a"), 100.0), key=str) == sorted(starts, key=str)


def test_round_robin_gives_each_job_one_turn_a_round():
    driver = Driver("round_robin", seat("long", 0, 400, 100), seat("short", 1, 50, 50))
    # The training node is free, but the long job's turn on it comes first.
    assert driver.done("short", 50.0) == []
    assert driver.machine.waits_for == {"short": ["long"]}
    assert driver.done("long", 400.0) == [("long", "train")]
    assert set(driver.done("long", 500.0)) == {("long", "rollout"), ("short", "train")}


def test_first_come_serves_in_the_order_of_asking():
    driver = Driver("first_come", seat("long", 0, 400, 100), seat("short", 1, 50, 50), seat("other", 2, 60, 60))
    assert driver.done("short", 50.0) == [("short", "train")]
    assert driver.done("other", 60.0) == []
    assert driver.done("short", 100.0) == [("other", "train"), ("short", "rollout")]


def test_first_come_lets_nobody_past_who_waits_for_more_units():
    driver = Driver("first_come", seat("a", 0), PlacedJob("wide", ((0, 1), (9,)), (100.0, 50.0)))
    assert driver.starts(Arrive((seat("late", 1),)), 10.0) == [], "unit 1 is free, but `wide` asked for it before"
    assert driver.machine.waits_for == {"late": ["wide"]}
    driver.done("a", 100.0)
    assert driver.machine.waits_for == {}, "it needs what `wide` has now"


# A rollout of 888 s would make `tight`, back in 77 s, miss its deadline by far; `lax` has time.
TIGHT, LAX = seat("tight", 0, 80, 77, slo=1.1), seat("lax", 0, 888, 559, slo=2.0)


def test_multi_rate_leaves_a_unit_idle_for_a_pressed_job():
    driver = Driver("multi_rate", TIGHT, LAX)
    assert driver.begun == [("tight", "rollout")]
    actions = driver.handle(Done("tight"), 80.0)
    assert driver.machine.waits_for == {"lax": ["tight"]}
    latest_start_s = 2.0 * (888 + 559) - 888 - 559
    assert actions == [Start("tight", "train", (9,), True), WakeAt(latest_start_s - 80)]
    # It is held back until its own latest start, even if the tight job's training takes for ever.
    assert driver.starts(Wake(), latest_start_s - 80) == [("lax", "rollout")]


def test_multi_rate_starts_a_turn_that_makes_nobody_late():
    short = Driver("multi_rate", TIGHT, seat("lax", 0, 80, 559, slo=2.0))
    assert short.done("tight", 80.0) == [("tight", "train"), ("lax", "rollout")], "it ends 3 s after the training"
    pausable = Driver("multi_rate", TIGHT, dataclasses.replace(LAX, resume_s=(2.0, None)))
    assert pausable.done("tight", 80.0) == [("tight", "train"), ("lax", "rollout")], "it will be paused"


def multi_rate(pace_s, **lax):
    """A job that trains from second 100 to 659 and may be paused; another, of this pace, asks for its unit at 110."""
    driver = Driver("multi_rate", seat("lax", 0, 100, 559, **{"slo": 2.0, "resume_s": (None, 2.0), **lax}))
    assert driver.done("lax", 100.0) == [("lax", "train")]
    tight = PlacedJob("tight", ((1,), (9,)), (10.0, 77.0), (1.0, 4.0), pace_s=pace_s)
    assert driver.starts(Arrive((tight,)), 100.0) == [("tight", "rollout")]
    return driver


def test_multi_rate_pauses_a_turn_for_a_deadline_that_would_be_missed():
    driver = multi_rate(633.0, switch_s=(1.0, 4.0))  # it would be 7 s late, and cost 10 s
    assert driver.handle(Done("tight"), 110.0) == []
    driver = multi_rate(629.0, switch_s=(1.0, 4.0))
    assert driver.handle(Done("tight"), 110.0) == [Pause("lax"), Start("tight", "train", (9,), False)]
    assert driver.done("tight", 191.0) == [("lax", "train"), ("tight", "rollout")]
    # What was left of it, what the pause cost, and the switch.
    assert driver.turn("lax").due_s == 191.0 + (559 - 10) + 2.0 + 4.0


@pytest.mark.parametrize(
    ("pace_s", "lax"),
    [
        (634.0, {}),  # it would be late by just what a pause costs
        (580.0, {"slo": 1.0}),  # a later deadline
        (113.0, {"resume_s": (None, None)}),
        (113.0, {"resume_s": (None, 1e4)}),  # the pause would cost more than it saves
    ],
)
def test_multi_rate_pauses_no_turn_without_need(pace_s, lax):
    assert multi_rate(pace_s, **lax).handle(Done("tight"), 110.0) == []


def test_a_phase_that_ends_while_it_is_paused_is_complete():
    driver = Driver("multi_rate", seat("lax", 0, 559, 100, slo=2.0, resume_s=(2.0, None)))
    tight = PlacedJob("tight", ((0,), (8,)), (77.0, 10.0), pace_s=100.0)
    assert driver.handle(Arrive((tight,)), 10.0) == [Pause("lax"), Start("tight", "rollout", (0,), False)]
    assert driver.handle(Done("lax"), 12.0) == [Start("lax", "train", (9,), True)]
    assert [turn.begun for turn in driver.machine.jobs] == [2, 1]
    assert driver.handle(Done("lax"), 13.0) == [], "its next rollout waits for the other"
    with pytest.raises(ValueError, match="has no phase that could end"):
        driver.handle(Done("lax"), 14.0)


@each_rule
def test_in_the_tail_the_next_rollout_starts_on_what_is_freed(rule):
    jobs = [PlacedJob(job, ((0, 1, 2, 3), (9,)), (100.0, 50.0), (1.0, 4.0), pace_s=300.0, keep=1) for job in "ab"]
    driver = Driver(rule, *jobs)
    assert driver.handle(TailReached("a"), 80.0) == [Consolidate("a", (0,)), Start("b", "rollout", (1, 2, 3), False)]
    assert driver.turn("b").due_s == pytest.approx(80 + 101 * 4 / 3)
    assert driver.handle(Done("a"), 100.0) == [Grow("b", (0, 1, 2, 3)), Start("a", "train", (9,), True)]
    assert driver.turn("b").due_s == pytest.approx(100 + (101 * 4 / 3 - 20) * 3 / 4), "it is faster on all"
    with pytest.raises(ValueError, match="a reached the tail of a rollout, but trains"):
        driver.handle(TailReached("a"), 110.0)


def test_a_tail_keeps_its_units_while_nobody_wants_them():
    driver = Driver("first_come", PlacedJob("a", ((0, 1), (9,)), (100.0, 50.0), keep=1))
    assert driver.handle(TailReached("a"), 80.0) == []
    assert driver.turn("a").held == {0, 1}


def test_a_training_waits_for_all_its_units():
    """A tail that keeps one of them gives the others to no training."""
    wide = PlacedJob("wide", ((0, 1), (9,)), (100.0, 50.0), keep=1)
    driver = Driver("first_come", wide, PlacedJob("b", ((7,), (0, 1)), (10.0, 50.0)))
    assert driver.done("b", 10.0) == [] == driver.starts(TailReached("wide"), 80.0)
    assert driver.handle(Done("wide"), 100.0) == [
        Start("b", "train", (0, 1), False),
        Start("wide", "train", (9,), True),
    ]


@each_rule
def test_leaving_frees_units_and_loss_strands_who_was_there(rule):
    driver = Driver(rule, seat("a", 0), seat("b", 0), seat("c", 1))
    assert driver.starts(Leave("a"), 10.0) == [("b", "rollout")]
    assert driver.handle(UnitsLost((0,)), 20.0) == []
    assert driver.turn("b").stranded and not driver.turn("c").stranded
    assert driver.handle(Arrive((seat("d", 0),)), 30.0) == [Start("d", "rollout", (0,), True)], "no state is there"
    driver.handle(Leave("d"), 40.0)
    assert driver.done("c", 100.0) == [("c", "train")]
    driver.handle(Leave("b"), 110.0)
    assert driver.handle(Arrive((seat("b", 1),)), 120.0) == [Start("b", "rollout", (1,), False)]


def test_a_turn_on_other_units_than_the_lost_runs_to_its_end():
    driver = Driver("first_come", seat("a", 0))
    driver.done("a", 100.0)
    assert driver.handle(UnitsLost((0,)), 110.0) == []
    assert driver.turn("a").running and driver.turn("a").stranded
    assert driver.done("a", 150.0) == [], "it takes no further turns"
    assert driver.turn("a").begun == 2


def test_a_lost_turn_begins_anew():
    driver = Driver("round_robin", seat("a", 0), seat("b", 1))
    driver.handle(UnitsLost((0,)), 60.0)
    turn = driver.turn("a")
    assert (turn.running, turn.begun, turn.rest_s) == (False, 0, 100.0)
    assert driver.done("b", 100.0) == [("b", "train")], "nobody waits for the turns of who is stranded"


@each_rule
def test_new_seconds_of_a_seat_count_from_the_next_phase_on(rule):
    driver = Driver(rule, seat("a", 0, slo=2.0))
    assert driver.handle(Retime(seat("a", 0, 20.0, 10.0, slo=2.0)), 50.0) == []
    assert driver.turn("a").deadline_s == 50 + (1 + CREDIT) * 60.0, "credit is of the new pace"
    driver.done("a", 100.0)
    assert driver.turn("a").due_s == 110.0
    with pytest.raises(ValueError, match="a: other units are for a job that leaves"):
        driver.handle(Retime(seat("a", 1)), 105.0)


def test_who_arrives_late_owes_round_robin_no_turns():
    driver = Driver("round_robin", seat("a", 0))
    for number in range(5):
        driver.done("a", 150.0 * number + 100)
        driver.done("a", 150.0 * number + 150)
    driver.handle(Arrive((seat("b", 1),)), 760.0)
    assert driver.done("a", 850.0) == [("a", "train")]


@each_rule
def test_events_that_cannot_be_are_refused(rule):
    driver = Driver(rule, seat("a", 0), seat("b", 0))
    for event, now_s, match in (
        (Done("b"), 1.0, "b has no phase that could end"), (Done("a"), 0.5, "time goes back"),
        (Arrive((seat("a", 0),)), 2.0, "a is in this group already"), (Leave("c"), 3.0, "c is not in this group"),
        (Arrive((seat("c", 0, rollout_s=0.0),)), 4.0, "c: each phase needs a unit, and seconds"),
        (Arrive((seat("c", 0, switch_s=(0.0, -1.0)),)), 4.0, "c: each phase needs"),
        (Arrive((PlacedJob("c", ((0,), ()), (1.0, 1.0)),)), 4.0, "c: each phase needs"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=match):
            driver.machine.handle(event, now_s)
    with pytest.raises(ValueError, match="first_come, multi_rate, round_robin"):
        PermitMachine("fair")


@pytest.mark.parametrize(("rule", "most"), [("round_robin", 6), ("first_come", 2), ("multi_rate", PATIENCE + 2)])
def test_a_phase_is_overtaken_at_most_so_often(rule, most):
    driver = Driver(rule, *(seat(job, node) for node, job in enumerate("abc")))
    driver.handle(Leave("c"), 1.0)
    assert driver.machine.overtaking_bound() == most
    driver.turn("a").overtaken = most + 1
    with pytest.raises(AssertionError, match="a starves"):
        driver.machine.check_invariants()


def test_without_a_pace_a_job_has_its_solo_seconds():
    driver = Driver("multi_rate", PlacedJob("a", ((0,), (9,)), (100.0, 50.0)))
    assert driver.turn("a").deadline_s == 150.0


def test_a_phase_overtaken_too_often_goes_before_all_others():
    # By its deadlines the patient one would wait for ever: its pace is a year.
    patient = PlacedJob("patient", ((0,), (9,)), (500.0, 50.0), pace_s=3e7)
    driver = Driver("multi_rate", patient, seat("a", 0, 10, 5, slo=1.0), seat("b", 0, 10, 5, slo=1.0))
    turns = 0
    while not driver.turn("patient").running:
        running = min((turn for turn in driver.machine.jobs if turn.running), key=lambda turn: turn.due_s)
        driver.handle(Done(running.name), running.due_s)
        turns += 1
        assert turns < 4 * PATIENCE
    assert turns > PATIENCE // 2


@st.composite
def schedules(draw):
    jobs = []
    for number in range(draw(st.integers(2, 5))):
        rollout = draw(st.lists(st.integers(0, 3), min_size=1, max_size=4, unique=True))
        train = draw(st.lists(st.integers(3, 5), min_size=1, max_size=3, unique=True))
        seconds = draw(st.tuples(st.integers(1, 500), st.integers(1, 500)))
        jobs.append(
            PlacedJob(
                f"job-{number}",
                (tuple(sorted(rollout)), tuple(sorted(train))),
                (float(seconds[0]), float(seconds[1])),
                (1.0, 4.0),
                pace_s=sum(seconds) * draw(st.floats(0.5, 3)),
                keep=draw(st.integers(0, 2)),
                resume_s=draw(st.sampled_from([(None, None), (None, 2.0), (6.0, 2.0)])),
            )
        )
    happens = draw(st.lists(st.tuples(st.integers(0, 99), st.floats(0, 300)), min_size=20, max_size=80))
    return jobs, happens


@settings(max_examples=60)
@given(schedules(), st.sampled_from(sorted(PERMIT_RULES)))
def test_whatever_comes_invariants_hold_and_a_replay_is_the_same(schedule, rule):
    jobs, happens = schedule
    machine, now_s = PermitMachine(rule), 0.0
    events = [(Arrive(tuple(jobs[:2])), 0.0)]
    actions = [machine.handle(*events[0])]
    absent = list(jobs[2:])
    for pick, seconds in happens:
        now_s += seconds
        running = [turn for turn in machine.jobs if turn.running]
        if absent and pick % 7 == 0:
            event = Arrive((absent.pop(),))
        elif pick % 29 == 1 and len(machine.jobs) > 1:
            gone = machine.jobs[pick % len(machine.jobs)].placed
            event = Leave(gone.job)
            absent.append(gone)
        elif pick % 31 == 2:
            event = UnitsLost((pick % 6,))
        elif not running:
            continue
        else:
            turn = running[pick % len(running)]
            event = TailReached(turn.name) if turn.phase == 0 and pick % 3 == 0 else Done(turn.name)
        events.append((event, now_s))
        actions.append(machine.handle(*events[-1]))
        machine.check_invariants()
    again = PermitMachine(rule)
    assert [again.handle(*event) for event in events] == actions


@pytest.mark.parametrize(("seconds", "ahead"), [(1.0, 1 + CREDIT), (10_000.0, 1 - CREDIT)])
def test_credit_is_bounded_in_both_directions(seconds, ahead):
    driver, now_s = Driver("multi_rate", seat("a", 0, slo=2.0)), 0.0
    for _ in range(2 * 20):
        now_s += seconds
        driver.handle(Done("a"), now_s)
    assert driver.turn("a").deadline_s - now_s == pytest.approx(ahead * 300.0)
