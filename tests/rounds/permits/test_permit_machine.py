"""Who gets which units when, by each policy, and what holds whatever comes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplan.rounds.permits.permit_events import (
    Arrive,
    Consolidate,
    Done,
    Grow,
    Leave,
    Lost,
    Pause,
    Seat,
    Start,
    Tail,
    Wake,
    WakeAt,
)
from rlplan.rounds.permits.permit_machine import PermitMachine
from rlplan.rounds.permits.permit_rules import CREDIT, PATIENCE, PERMIT_RULES

ALL = pytest.mark.parametrize("policy", sorted(PERMIT_RULES))


def seat(
    job: str, node: int, rollout_s: float = 100.0, train_s: float = 50.0, slo: float = 1.5, **more: object
) -> Seat:
    """A job on one rollout node of one unit and the training node, unit 9."""
    return Seat(job, ((node,), (9,)), (rollout_s, train_s), pace_s=slo * (rollout_s + train_s), **more)  # type: ignore[arg-type]


def starts(actions: list[object]) -> list[tuple[str, str]]:
    return [(action.job, action.phase) for action in actions if isinstance(action, Start)]


@ALL
def test_jobs_that_share_no_unit_run_at_once_and_never_overlap_their_own_phases(policy: str) -> None:
    machine = PermitMachine(policy)
    one, two = seat("a", 0), Seat("b", ((1,), (8,)), (100.0, 50.0))
    assert set(starts(machine.handle(Arrive((one, two)), 0.0))) == {("a", "rollout"), ("b", "rollout")}
    assert machine.handle(Done("a"), 100.0) == [Start("a", "train", (9,), True)]
    machine.check_invariants()


@ALL
def test_on_one_node_the_second_rollout_waits_for_the_first(policy: str) -> None:
    machine = PermitMachine(policy)
    assert starts(machine.handle(Arrive((seat("a", 0), seat("b", 0))), 0.0)) == [("a", "rollout")]
    assert set(starts(machine.handle(Done("a"), 100.0))) == {("b", "rollout"), ("a", "train")}


def test_round_robin_gives_each_job_one_turn_a_round() -> None:
    machine = PermitMachine("round_robin")
    machine.handle(Arrive((seat("long", 0, 400, 100), seat("short", 1, 50, 50))), 0.0)
    # The training node is free, but the long job's turn on it comes first.
    assert machine.handle(Done("short"), 50.0) == []
    assert machine.waits_for == {"short": ["long"]}
    assert starts(machine.handle(Done("long"), 400.0)) == [("long", "train")]
    assert set(starts(machine.handle(Done("long"), 500.0))) == {("long", "rollout"), ("short", "train")}


def test_first_come_serves_in_the_order_of_asking() -> None:
    machine = PermitMachine("first_come")
    machine.handle(Arrive((seat("long", 0, 400, 100), seat("short", 1, 50, 50), seat("other", 2, 60, 60))), 0.0)
    assert starts(machine.handle(Done("short"), 50.0)) == [("short", "train")]
    assert starts(machine.handle(Done("other"), 60.0)) == []
    assert starts(machine.handle(Done("short"), 100.0)) == [("other", "train"), ("short", "rollout")]


def test_first_come_lets_nobody_past_a_phase_that_waits_for_more_units() -> None:
    machine = PermitMachine("first_come")
    wide = Seat("wide", ((0, 1), (9,)), (100.0, 50.0))
    machine.handle(Arrive((seat("a", 0), wide)), 0.0)
    late = machine.handle(Arrive((seat("late", 1),)), 10.0)
    assert late == [], "unit 1 is free, but `wide` asked for it before"
    assert machine.waits_for == {"late": ["wide"]}


def test_multi_rate_leaves_a_unit_idle_for_a_pressed_job_and_says_for_whom() -> None:
    machine = PermitMachine("multi_rate")
    tight, lax = seat("tight", 0, 80, 77, slo=1.1), seat("lax", 0, 888, 559, slo=2.0)
    assert starts(machine.handle(Arrive((tight, lax)), 0.0)) == [("tight", "rollout")]
    # A rollout of 888 s would make `tight`, back in 77 s, miss its deadline by far; `lax` has time.
    actions = machine.handle(Done("tight"), 80.0)
    assert starts(actions) == [("tight", "train")]
    assert machine.waits_for == {"lax": ["tight"]}
    latest_start_s = 2.0 * (888 + 559) - 888 - 559
    assert actions[-1] == WakeAt(latest_start_s - 80)


def test_multi_rate_holds_nobody_back_beyond_its_own_latest_start() -> None:
    machine = PermitMachine("multi_rate")
    machine.handle(Arrive((seat("tight", 0, 80, 77, slo=1.1), seat("lax", 0, 888, 559, slo=2.0))), 0.0)
    wake = machine.handle(Done("tight"), 80.0)[-1]
    assert isinstance(wake, WakeAt)
    # The tight job's training takes for ever.
    assert starts(machine.handle(Wake(), wake.at_s)) == [("lax", "rollout")]


def test_multi_rate_pauses_a_turn_for_an_earlier_deadline_only_if_that_would_be_missed() -> None:
    def group(slo: float) -> PermitMachine:
        machine = PermitMachine("multi_rate")
        lax = seat("lax", 0, 100, 559, slo=2.0, resume_s=(None, 2.0), switch_s=(1.0, 4.0))
        machine.handle(Arrive((lax, seat("tight", 1, 110, 77, slo=slo, switch_s=(1.0, 4.0)))), 0.0)
        assert starts(machine.handle(Done("lax"), 100.0)) == [("lax", "train")]
        return machine

    actions = group(1.3).handle(Done("tight"), 110.0)
    assert actions == [Pause("lax"), Start("tight", "train", (9,), False)]
    pressed = group(1.3)
    pressed.handle(Done("tight"), 110.0)
    assert starts(pressed.handle(Done("tight"), 191.0)) == [("tight", "rollout"), ("lax", "train")]
    pressed.check_invariants()
    assert group(6.9).handle(Done("tight"), 110.0) == []


def test_a_resumed_turn_has_what_was_left_and_what_the_pause_cost() -> None:
    machine = PermitMachine("multi_rate")
    lax = seat("lax", 0, 100, 559, slo=2.0, resume_s=(None, 2.0))
    machine.handle(Arrive((lax, seat("tight", 1, 110, 77, slo=1.3))), 0.0)
    machine.handle(Done("lax"), 100.0)
    machine.handle(Done("tight"), 110.0)
    machine.handle(Done("tight"), 187.0)
    assert machine.turns[0].due_s == 187.0 + (559 - 10) + 2.0


def test_a_phase_that_ends_while_its_turn_is_paused_is_complete() -> None:
    machine = PermitMachine("multi_rate")
    lax = seat("lax", 0, 559, 100, slo=2.0, resume_s=(2.0, None))
    machine.handle(Arrive((lax,)), 0.0)
    tight = Seat("tight", ((0,), (8,)), (77.0, 10.0), pace_s=100.0)
    assert machine.handle(Arrive((tight,)), 10.0) == [Pause("lax"), Start("tight", "rollout", (0,), False)]
    assert machine.handle(Done("lax"), 12.0) == [Start("lax", "train", (9,), True)]
    machine.check_invariants()
    assert [turn.begun for turn in machine.turns] == [2, 1]
    assert machine.handle(Done("lax"), 13.0) == [], "its next rollout waits for the other"
    with pytest.raises(ValueError, match="has no turn that could end"):
        machine.handle(Done("lax"), 14.0)


@ALL
def test_in_the_tail_the_next_rollout_starts_on_what_is_freed_and_gets_the_rest_later(policy: str) -> None:
    machine = PermitMachine(policy)
    jobs = [Seat(job, ((0, 1, 2, 3), (9,)), (100.0, 50.0), pace_s=300.0, keep=1) for job in "ab"]
    machine.handle(Arrive(tuple(jobs)), 0.0)
    assert machine.handle(Tail("a"), 80.0) == [Consolidate("a", (0,)), Start("b", "rollout", (1, 2, 3), False)]
    machine.check_invariants()
    assert machine.handle(Done("a"), 100.0) == [Grow("b", (0, 1, 2, 3)), Start("a", "train", (9,), True)]
    machine.check_invariants()


def test_a_tail_keeps_its_units_while_nobody_wants_them() -> None:
    machine = PermitMachine("first_come")
    machine.handle(Arrive((Seat("a", ((0, 1), (9,)), (100.0, 50.0), keep=1),)), 0.0)
    assert machine.handle(Tail("a"), 80.0) == []
    assert machine.turns[0].held == {0, 1}


@ALL
def test_leaving_frees_the_units_and_loss_strands_who_had_state_there(policy: str) -> None:
    machine = PermitMachine(policy)
    machine.handle(Arrive((seat("a", 0), seat("b", 0), seat("c", 1))), 0.0)
    assert starts(machine.handle(Leave("a"), 10.0)) == [("b", "rollout")]
    assert machine.handle(Lost((0,)), 20.0) == []
    machine.check_invariants()
    assert starts(machine.handle(Done("c"), 100.0)) == [("c", "train")]
    machine.handle(Leave("b"), 110.0)
    assert starts(machine.handle(Arrive((seat("b", 1),)), 120.0)) == [("b", "rollout")]


def test_who_arrives_late_owes_round_robin_no_turns() -> None:
    machine = PermitMachine("round_robin")
    machine.handle(Arrive((seat("a", 0),)), 0.0)
    for number in range(5):
        machine.handle(Done("a"), 150.0 * number + 100)
        machine.handle(Done("a"), 150.0 * number + 150)
    machine.handle(Arrive((seat("b", 1),)), 760.0)
    assert starts(machine.handle(Done("a"), 850.0)) == [("a", "train")]


@ALL
def test_events_that_cannot_be_are_refused(policy: str) -> None:
    machine = PermitMachine(policy)
    machine.handle(Arrive((seat("a", 0), seat("b", 0))), 0.0)
    with pytest.raises(ValueError, match="b has no turn that could end"):
        machine.handle(Done("b"), 1.0)
    with pytest.raises(ValueError, match="time goes back"):
        machine.handle(Done("a"), 0.5)
    with pytest.raises(ValueError, match="a is in this group already"):
        machine.handle(Arrive((seat("a", 0),)), 2.0)
    with pytest.raises(ValueError, match="c is not in this group"):
        machine.handle(Leave("c"), 3.0)


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(ValueError, match="first_come, multi_rate, round_robin"):
        PermitMachine("fair")


def test_a_phase_overtaken_too_often_goes_before_all_others() -> None:
    machine = PermitMachine("multi_rate")
    # By its deadlines the patient one would wait for ever: its pace is a year.
    patient = Seat("patient", ((0,), (9,)), (500.0, 50.0), pace_s=3e7)
    machine.handle(Arrive((patient, seat("a", 0, 10, 5, slo=1.0), seat("b", 0, 10, 5, slo=1.0))), 0.0)
    now_s, turns = 0.0, 0
    while not machine.turns[0].running:
        running = min((turn for turn in machine.turns if turn.running), key=lambda turn: turn.due_s)
        now_s = running.due_s
        machine.handle(Done(running.seat.job), now_s)
        machine.check_invariants()
        turns += 1
        assert turns < 4 * PATIENCE
    assert turns > PATIENCE // 2


@st.composite
def schedules(draw: st.DrawFn) -> tuple[list[Seat], list[tuple[int, float]]]:
    jobs = []
    for number in range(draw(st.integers(2, 5))):
        rollout = draw(st.lists(st.integers(0, 3), min_size=1, max_size=4, unique=True))
        train = draw(st.lists(st.integers(3, 5), min_size=1, max_size=3, unique=True))
        seconds = draw(st.tuples(st.integers(1, 500), st.integers(1, 500)))
        jobs.append(
            Seat(
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


@settings(max_examples=200, deadline=None)
@given(schedules(), st.sampled_from(sorted(PERMIT_RULES)))
def test_whatever_comes_the_invariants_hold_and_a_replay_gives_the_same_actions(
    schedule: tuple[list[Seat], list[tuple[int, float]]], policy: str
) -> None:
    jobs, happens = schedule
    machine = PermitMachine(policy)
    now_s = 0.0
    events = [(Arrive(tuple(jobs[:2])), 0.0)]
    actions = [machine.handle(*events[0])]
    absent = list(jobs[2:])
    for pick, seconds in happens:
        now_s += seconds
        running = [turn for turn in machine.turns if turn.running]
        event: object
        if absent and pick % 7 == 0:
            event = Arrive((absent.pop(),))
        elif pick % 29 == 1 and len(machine.turns) > 1:
            gone = machine.turns[pick % len(machine.turns)].seat
            event = Leave(gone.job)
            absent.append(gone)
        elif pick % 31 == 2:
            event = Lost((pick % 6,))
        elif not running:
            continue
        else:
            turn = running[pick % len(running)]
            event = Tail(turn.seat.job) if turn.phase == 0 and pick % 3 == 0 else Done(turn.seat.job)
        events.append((event, now_s))  # type: ignore[arg-type]
        actions.append(machine.handle(*events[-1]))
        machine.check_invariants()
    again = PermitMachine(policy)
    assert [again.handle(*event) for event in events] == actions


def test_credit_is_bounded_in_both_directions() -> None:
    for seconds in (1.0, 10_000.0):
        machine = PermitMachine("multi_rate")
        machine.handle(Arrive((seat("a", 0, slo=2.0),)), 0.0)
        now_s = 0.0
        for _ in range(20):
            for _ in range(2):
                now_s += seconds
                machine.handle(Done("a"), now_s)
        ahead = machine.turns[0].deadline_s - now_s
        assert ahead == pytest.approx((1 + CREDIT if seconds == 1.0 else 1 - CREDIT) * 300.0)
