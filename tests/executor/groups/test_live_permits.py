"""The permits of a group on a clock of the test: who may run, what is journaled, and what a journal gives back."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplan.executor.groups.live_permits import LivePermits
from rlplan.planner.groups.simulate.permit_simulator import TrueTurns, simulate_turns
from rlplan.plans.yaml.errors import RunFailed
from rlplan.rounds.permits.permit_events import Seat
from rlplan.rounds.permits.permit_machine import PermitMachine

SEATS = (
    Seat("a", ((0,), (1,)), (3.0, 1.0), (0.5, 0.25)),
    Seat("b", ((0,), (1,)), (2.0, 2.0)),
    Seat("c", ((0,), (1,)), (4.0, 5.0)),
)


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


def permits(folder, clock, seats=SEATS[:2], rule="multi_rate"):
    return LivePermits("g1", rule, seats, folder / "turns.jsonl", clock)


def test_a_group_begins_when_each_of_its_jobs_is_ready_or_gone(tmp_path):
    live = permits(tmp_path, Clock(), SEATS)
    a = live.ready("a", "p1")
    live.ready("b", "p2")
    assert not live.given("a", a, 0)
    live.leave("c", "p3")
    assert live.given("a", a, 0) and not live.given("a", a, 1)
    assert [turn.job for turn in live.held.values()] == ["a"]


def test_a_turn_that_ends_gives_its_units_on_and_what_is_said_twice_changes_nothing(tmp_path):
    clock = Clock()
    live = permits(tmp_path, clock)
    a, b = live.ready("a", "p1"), live.ready("b", "p2")
    clock.now += 3
    live.done("a", a, 0)
    before = dict(live.held)
    assert before["a"].phase == "train" and before["b"].phase == "rollout" and before["b"].begun_s == 3.0
    live.done("a", a, 0)
    live.done("b", b, 1)
    assert live.held == before


def test_the_turn_of_a_job_that_died_is_void_and_its_older_process_gets_none_any_more(tmp_path):
    live = permits(tmp_path, Clock())
    a, b = live.ready("a", "p1"), live.ready("b", "p2")
    live.leave("a", "p1")
    live.done("a", a, 0)
    assert live.given("b", b, 0) and not live.given("a", a, 0)
    with pytest.raises(RunFailed, match="a: its process p1 has ended"):
        live.ready("a", "p1")
    again = live.ready("a", "p9")
    live.done("a", a, 0)
    assert again != a and [turn.job for turn in live.held.values()] == ["b"]
    with pytest.raises(RunFailed, match="a: another process has taken its place"):
        live.given("a", a, 1)


def test_a_journal_with_a_torn_line_is_gone_on_with_and_one_of_another_group_is_refused(tmp_path):
    clock = Clock()
    live = permits(tmp_path, clock)
    a = live.ready("a", "p1")
    live.ready("b", "p2")
    live.close()
    with (tmp_path / "turns.jsonl").open("ab") as journal:
        journal.write(b'{"event":"done","t_')
    clock.now -= 500  # a clock that was set back
    with pytest.warns(UserWarning, match="torn last line"):
        again = permits(tmp_path, clock)
    again.done("a", a, 0)
    assert {turn.job: turn.phase for turn in again.held.values()} == {"a": "train", "b": "rollout"}
    again.close()
    assert all(map(json.loads, (tmp_path / "turns.jsonl").read_text().splitlines()))
    with pytest.raises(RunFailed, match=r"turns\.jsonl: is of another group"):
        permits(tmp_path, clock, rule="first_come")


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_an_actor_that_is_started_again_stands_where_it_stood(data, tmp_path_factory):
    folder, clock = tmp_path_factory.mktemp("journal"), Clock()
    rule = data.draw(st.sampled_from(["multi_rate", "round_robin", "first_come"]))
    live = permits(folder, clock, SEATS, rule)
    arrivals: dict[str, tuple[int, str]] = {}
    for number in range(data.draw(st.integers(1, 25))):
        clock.now += data.draw(st.sampled_from([0.0, 0.3, 1.0, 7.0]))
        job = data.draw(st.sampled_from("abc"))
        match data.draw(st.sampled_from(["ready", "done", "done", "done", "leave", "wake", "die"])):
            case "ready" if job not in arrivals:
                arrivals[job] = live.ready(job, f"p{number}"), f"p{number}"
            case "done" if job in arrivals:
                turn = live.held[job].turn if job in live.held else data.draw(st.integers(0, 3))
                live.done(job, arrivals[job][0], turn)
            case "leave" if job in arrivals:
                live.leave(job, arrivals[job][1])
                if data.draw(st.booleans()):  # else what a dead process said is heard later
                    del arrivals[job]
            case "wake":
                live.wake()
            case "die":
                live.close()
                stood = live.held, live.wake_s, live.machine.waits_for
                live = permits(folder, clock, SEATS, rule)
                assert (live.held, live.wake_s, live.machine.waits_for) == stood
        live.machine.check_invariants()
    live.close()


@pytest.mark.parametrize("rule", ["multi_rate", "round_robin", "first_come"])
def test_jobs_that_take_as_long_as_simulated_get_the_turns_that_the_simulator_gives(rule, tmp_path):
    seconds = {"a": (3.0, 1.0), "b": (2.0, 2.0), "c": (4.0, 5.0)}
    spans = simulate_turns(PermitMachine(rule), SEATS, [TrueTurns((seconds[seat.job],)) for seat in SEATS])
    wanted = [(span.job, span.phase, span.start_s, span.end_s) for _, span in zip(range(60), spans, strict=False)]
    clock = Clock()
    began = clock.now
    live = permits(tmp_path, clock, SEATS, rule)
    arrivals = {seat.job: live.ready(seat.job, seat.job) for seat in SEATS}
    switches = {seat.job: seat.switch_s for seat in SEATS}
    got = []
    while len(got) < len(wanted):
        ends = {}
        for job, turn in live.held.items():
            phase = turn.turn % 2
            ends[job] = turn.begun_s + seconds[job][phase] + (0.0 if turn.resident else switches[job][phase])
        first = min(ends, key=lambda job: ends[job])
        if live.wake_s is not None and live.wake_s < ends[first]:
            clock.now = began + live.wake_s
            live.wake()
            continue
        turn = live.held[first]
        clock.now = began + ends[first]
        got.append((first, turn.phase, turn.begun_s, ends[first]))
        live.done(first, arrivals[first], turn.turn)
    assert got == wanted


def test_jobs_take_seats_and_give_them_up_while_the_others_go_on(tmp_path):
    clock = Clock()
    live = permits(tmp_path, clock)
    a, b = live.ready("a", "p1"), live.ready("b", "p2")
    live.take_seat(SEATS[2])
    assert [turn.job for turn in live.held.values()] == ["a"], "it is not ready yet"
    clock.now += 3
    c = live.ready("c", "p3")
    live.done("a", a, 0)
    assert {turn.job for turn in live.held.values()} == {"a", "b"}
    live.leave("b", "p2")
    live.give_up("b")
    assert live.held["c"].phase == "rollout" and live.given("c", c, 0)
    with pytest.raises(RunFailed, match="b: is in the group no more"):
        live.given("b", b, 0)
    with pytest.raises(RunFailed, match="b: is in the group no more"):
        live.ready("b", "p2")
    live.take_seat(SEATS[1])
    late = live.ready("b", "p4")
    live.done("b", b, 0)  # of its first stay
    assert late > b and not live.given("b", late, 1)
    live.close()
    again = permits(tmp_path, clock)
    assert again.held == live.held and again.arrivals == live.arrivals == {"a": 1, "c": 1, "b": 2}


def test_a_seat_of_other_seconds_changes_the_running_job_and_one_of_other_units_is_refused(tmp_path):
    live = permits(tmp_path, Clock())
    live.ready("a", "p1"), live.ready("b", "p2")
    live.take_seat(replace(SEATS[0], pace_s=50.0))
    assert {turn.seat.pace_s for turn in live.machine.turns if turn.seat.job == "a"} == {50.0}
    with pytest.raises(RunFailed, match="a: it has other units"):
        live.take_seat(replace(SEATS[0], units=((3,), (1,))))
