"""The permits of a group on a clock of the test: who may run, what is journaled, and what a journal gives back."""

from __future__ import annotations

import json
import os
from dataclasses import astuple, replace
from math import inf

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


PAUSES = (
    Seat("a", ((0, 1), (2,)), (100.0, 5.0), (1.0, 0.5), pace_s=1000.0, resume_s=(2.0, None)),
    Seat("b", ((0,), (3,)), (4.0, 3.0), (1.0, 0.5), pace_s=10.0),
    Seat("c", ((1,), (3,)), (2.0, 6.0), (0.5, 0.0), pace_s=12.0),
)
"""A long rollout that may be paused, and two short jobs in a hurry."""

TAILS = (
    Seat("a", ((0, 1), (2,)), (10.0, 3.0), (0.5, 0.25), keep=1),
    Seat("b", ((0, 1), (2,)), (8.0, 2.0), (0.5, 0.0)),
)


def test_a_tail_moves_together_and_the_next_turn_runs_once_it_has_left_what_was_given_away(tmp_path):
    clock = Clock()
    live = permits(tmp_path, clock, TAILS, "first_come")
    a, b = live.ready("a", "p1"), live.ready("b", "p2")
    clock.now += 7
    live.tail("a", a, 0)
    live.tail("a", a, 0)
    assert live.holding("a", a, 0).units == (0,) and live.holding("a", a, 0).since_s == 7.0
    assert not live.given("b", b, 0) and live.holding("b", b, 0) is None
    live.cleared("b", b, 0, 7.0)
    assert not live.given("b", b, 0)
    live.cleared("a", a, 0, 7.0)
    assert live.given("b", b, 0) and live.holding("b", b, 0).units == (1,)
    clock.now += 3
    live.done("a", a, 0)
    assert live.holding("a", a, 0) is None and live.holding("a", a, 1).phase == "train"
    assert live.holding("b", b, 0)[4:7] == ((0, 1), False, 10.0)
    told = [json.loads(line) for line in (tmp_path / "turns.jsonl").read_text().splitlines()]
    assert [event["event"] for event in told if event["event"] in ("tail", "cleared")] == ["tail", "cleared"]
    assert [event["moved"] for event in told if "moved" in event] == [{"a": [0]}, {"b": [0, 1]}]


def test_a_tail_whose_job_dies_leaves_its_units(tmp_path):
    live = permits(tmp_path, Clock(), TAILS, "first_come")
    a, b = live.ready("a", "p1"), live.ready("b", "p2")
    live.tail("a", a, 0)
    assert not live.given("b", b, 0)
    live.leave("a", "p1")
    assert live.given("b", b, 0)


def test_a_rollout_that_keeps_all_its_units_has_no_tail(tmp_path):
    live = permits(tmp_path, Clock())
    a = live.ready("a", "p1")
    live.ready("b", "p2")
    live.tail("a", a, 0)
    assert '"tail"' not in (tmp_path / "turns.jsonl").read_text()


def test_a_seat_whose_training_could_be_paused_is_refused(tmp_path):
    seat = Seat("p", ((0,), (1,)), (3.0, 1.0), resume_s=(None, 1.0))
    with pytest.raises(RunFailed, match="p: the executor pauses no training"):
        permits(tmp_path, Clock(), (seat,))
    live = permits(tmp_path, Clock())
    with pytest.raises(RunFailed, match="p: the executor pauses no training"):
        live.take_seat(seat)


def test_turns_that_an_actor_died_before_writing_are_written_by_the_next(tmp_path):
    clock, journal = Clock(), tmp_path / "turns.jsonl"
    live = permits(tmp_path, clock, TAILS, "first_come")
    a = live.ready("a", "p1")
    live.ready("b", "p2")
    clock.now += 1 / 3  # no number of six digits
    live.tail("a", a, 0)
    live.close()
    whole = journal.read_bytes()
    *before, last = whole.splitlines(keepends=True)
    assert b'"turns"' in last and b"0.333333333" in last
    journal.write_bytes(b"".join(before))
    permits(tmp_path, clock, TAILS, "first_come").close()
    assert journal.read_bytes() == whole
    permits(tmp_path, clock, TAILS, "first_come").close()
    assert journal.read_bytes() == whole


def test_a_journal_whose_turns_do_not_follow_from_its_events_is_refused(tmp_path):
    clock, journal = Clock(), tmp_path / "turns.jsonl"
    live = permits(tmp_path, clock, TAILS, "first_come")
    live.ready("a", "p1")
    live.ready("b", "p2")
    live.close()
    journal.write_text(journal.read_text().replace('"resident":true', '"resident":false'))
    with pytest.raises(RunFailed, match="do not follow from its events"):
        permits(tmp_path, clock, TAILS, "first_come")


def test_turns_that_a_full_disk_kept_out_of_the_journal_are_written_before_the_next_event(tmp_path, monkeypatch):
    clock, journal = Clock(), tmp_path / "turns.jsonl"
    live = permits(tmp_path, clock)
    a = live.ready("a", "p1")
    real, calls = os.fsync, []

    def fsync(file):
        calls.append(file)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        real(file)

    monkeypatch.setattr("os.fsync", fsync)
    live.ready("b", "p2")
    live.done("a", a, 0)
    live.close()
    told = [json.loads(line)["event"] for line in journal.read_text().splitlines()]
    assert told == ["group", "ready", "ready", "turns", "done", "turns"]
    permits(tmp_path, clock).close()


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_an_actor_that_is_started_again_stands_where_it_stood(data, tmp_path_factory):
    folder, clock = tmp_path_factory.mktemp("journal"), Clock()
    rule = data.draw(st.sampled_from(["multi_rate", "round_robin", "first_come"]))
    seats = data.draw(st.sampled_from([SEATS, PAUSES, (*TAILS, Seat("c", ((0, 1, 3), (2,)), (4.0, 5.0), keep=2))]))
    live = permits(folder, clock, seats, rule)
    arrivals: dict[str, tuple[int, str]] = {}
    for number in range(data.draw(st.integers(1, 25))):
        clock.now += data.draw(st.sampled_from([0.0, 0.3, 1.0, 7.0]))
        job = data.draw(st.sampled_from("abc"))
        match data.draw(
            st.sampled_from(["ready", "done", "done", "done", "tail", "tail", "cleared", "leave", "wake", "die"])
        ):
            case "ready" if job not in arrivals:
                arrivals[job] = live.ready(job, f"p{number}"), f"p{number}"
            case "done" if job in arrivals:
                turn = live.held[job].turn if job in live.held else data.draw(st.integers(0, 3))
                live.done(job, arrivals[job][0], turn)
            case "tail" if job in arrivals and job in live.held:
                live.tail(job, arrivals[job][0], live.held[job].turn)
            case "cleared" if job in arrivals and job in live.held:
                live.cleared(job, arrivals[job][0], live.held[job].turn, live.held[job].since_s)
            case "leave" if job in arrivals:
                live.leave(job, arrivals[job][1])
                if data.draw(st.booleans()):  # else what a dead process said is heard later
                    del arrivals[job]
            case "wake":
                live.wake()
            case "die":
                live.close()
                stood = live.held, live.wake_s, live.machine.waits_for, live.uncleared
                live = permits(folder, clock, seats, rule)
                assert (live.held, live.wake_s, live.machine.waits_for, live.uncleared) == stood
        live.machine.check_invariants()
    live.close()


@pytest.mark.parametrize("tail_share", [0.0, 0.3])
@pytest.mark.parametrize("rule", ["multi_rate", "round_robin", "first_come"])
def test_jobs_that_take_as_long_as_simulated_get_the_turns_that_the_simulator_gives(rule, tail_share, tmp_path):
    seats = SEATS if not tail_share else (*TAILS, Seat("c", ((0, 1, 3), (2,)), (4.0, 5.0), keep=2))
    journal = turns_as_simulated(seats, {"a": (3.0, 1.0), "b": (2.0, 2.0), "c": (4.0, 5.0)}, rule, tail_share, tmp_path)
    assert tail_share == 0.0 or '"moved"' in journal


def turns_as_simulated(seats, seconds, rule, tail_share, tmp_path):
    """Assert that jobs of so many true seconds get from the permits the turns that the simulator gives; returns the
    journal."""
    truths = [TrueTurns((seconds[seat.job],), tail_share) for seat in seats]
    spans = simulate_turns(PermitMachine(rule), seats, truths)
    wanted = [(*span[2:5], span[0], span[1], span[6]) for _, span in zip(range(60), map(astuple, spans), strict=False)]
    clock = Clock()
    clock.now = 0.0
    live = permits(tmp_path, clock, seats, rule)
    arrivals = {seat.job: live.ready(seat.job, seat.job) for seat in seats}
    by_name, got, ends, tails, rates, lefts = {seat.job: seat for seat in seats}, [], {}, {}, {}, {}
    known = {}
    while len(got) < len(wanted):
        for job, turn in live.held.items():
            if known.get(job) == turn:
                continue
            phase, old = turn.turn % 2, known.get(job)
            share = len(turn.units) / len(by_name[job].units[phase])
            if old is None or not old.units:  # it begins, or goes on
                resident, left = old is None and turn.resident, seconds[job][phase] if old is None else lefts[job]
                left += 0.0 if resident else by_name[job].switch_s[phase]
                ends[job], tail = turn.since_s + left / share, seconds[job][phase] * tail_share
                if phase == 0 and by_name[job].keep and 0 < tail < left:
                    tails[job] = turn.since_s + (left - tail) / share
                rates[job] = share
            else:
                if turn.since_s > old.since_s:
                    got.append((job, turn.phase, old.units, old.since_s, turn.since_s, False))
                if len(turn.units) > len(old.units):  # it grew; a tail that moves together goes on as fast
                    now = turn.since_s
                    ends[job] = now + (ends[job] - now) * rates[job] / share
                    if job in tails:
                        tails[job] = now + (tails[job] - now) * rates[job] / share
                    rates[job] = share
                if not turn.units:
                    lefts[job] = (ends.pop(job) - turn.since_s) * rates[job] + by_name[job].resume_s[phase]
                    tails.pop(job, None)
            known[job] = turn
        first = min(seats, key=lambda seat: min(ends.get(seat.job, inf), tails.get(seat.job, inf))).job
        at = min(ends[first], tails.get(first, inf))
        if live.wake_s is not None and live.wake_s < at:
            clock.now = live.wake_s
            live.wake()
            continue
        clock.now = at
        if tails.pop(first, inf) <= ends[first]:
            live.tail(first, arrivals[first], live.held[first].turn)
            continue
        turn = known.pop(first)
        del ends[first]
        got.append((first, turn.phase, turn.units, turn.since_s, at, True))
        live.done(first, arrivals[first], turn.turn)
    assert got[: len(wanted)] == wanted
    live.close()
    permits(tmp_path, clock, seats, rule).close()  # it stands where it stood, or is refused
    return (tmp_path / "turns.jsonl").read_text()


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
