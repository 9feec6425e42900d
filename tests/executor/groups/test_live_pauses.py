"""Rollouts of a group that are paused for more urgent turns: who holds what, what is journaled, what is simulated."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("ray")

from benchmarks.coexecution.fake_job import FakeTurn
from benchmarks.coexecution.replay import RecordedMachine, journalled
from rlplan.executor.groups.permit_actor import MemberPermits
from rlplan.planner.groups.simulate.permit_simulator import TrueTurns, simulate_turns
from rlplan.rounds.permits.permit_events import Seat

from .test_live_permits import PAUSES, Clock, permits, turns_as_simulated


def paused(folder, clock):
    """The permits of PAUSES at second 1, in which b has come and a, whose rollout runs, was paused for it."""
    live = permits(folder, clock, PAUSES[:1])
    a = live.ready("a", "p1")
    live.take_seat(PAUSES[1])
    clock.now += 1
    b = live.ready("b", "p2")
    clock.now += 1
    return live, a, b


def test_a_paused_rollout_keeps_its_turn_and_goes_on_when_the_urgent_one_has_ended(tmp_path):
    clock = Clock()
    live, a, b = paused(tmp_path, clock)
    held = live.holding("a", a, 0)
    assert (held.turn, held.units, held.since_s) == (0, (), 1.0) and not live.given("a", a, 0)
    assert not live.given("b", b, 0) and live.holding("b", b, 0) is None, "a is still there"
    live.tail("a", a, 0)
    live.cleared("a", a, 0, 0.5)  # late, of something that was taken before
    assert not live.given("b", b, 0) and live.held["a"].ran_s(live.now_s()) == 2.0
    live.cleared("a", a, 0, held.since_s)
    live.cleared("a", a, 0, held.since_s)
    assert live.given("b", b, 0) and live.holding("b", b, 0).units == (0,)
    clock.now += 4
    assert live.held["a"].ran_s(live.now_s()) == 2.0 and live.held["b"].ran_s(live.now_s()) == 4.0
    live.done("b", b, 0)
    assert live.holding("a", a, 0)[:6] == ("a", 0, "rollout", 0.0, (0, 1), True) and live.given("a", a, 0)
    clock.now += 3
    assert live.held["a"].ran_s(live.now_s()) == 5.0
    live.done("a", a, 0)
    assert live.holding("a", a, 1).phase == "train"
    told = [json.loads(line) for line in (tmp_path / "turns.jsonl").read_text().splitlines()]
    assert [event["moved"] for event in told if "moved" in event] == [{"a": []}, {"a": [0, 1]}]
    assert [event["event"] for event in told].count("cleared") == 1
    live.close()
    assert permits(tmp_path, clock, PAUSES[:1]).held == live.held


def test_a_rollout_that_ends_while_it_is_paused_has_ended(tmp_path):
    clock = Clock()
    live, a, b = paused(tmp_path, clock)
    live.done("a", a, 0)
    assert live.given("b", b, 0) and live.given("a", a, 1) and live.held["a"].phase == "train"
    live.close()
    assert permits(tmp_path, clock, PAUSES[:1]).held == live.held


@pytest.mark.parametrize("word", ["leave", "ready", "give_up"])
def test_a_paused_job_that_dies_or_starts_anew_or_leaves_gives_its_units_away(word, tmp_path):
    clock = Clock()
    live, a, b = paused(tmp_path, clock)
    live.give_up("a") if word == "give_up" else getattr(live, word)("a", "p1")
    assert live.given("b", b, 0) and "a" not in live.held
    clock.now += 4
    live.done("b", b, 0)
    live.done("a", a, 0)
    assert ("a" in live.held) == (word == "ready"), "its new process has its first turn"
    live.close()
    assert permits(tmp_path, clock, PAUSES[:1]).held == live.held


def test_a_turn_that_is_paused_before_its_process_has_heard_of_it_is_to_be_cleared_too(tmp_path):
    live, a, b = paused(tmp_path, Clock())
    assert live.is_to_clear("a", a, 0) and not live.is_to_clear("b", b, 0)
    live.cleared("a", a, 0, live.holding("a", a, 0).since_s)
    assert not live.is_to_clear("a", a, 0) and live.given("b", b, 0)


def test_a_rollout_that_gets_back_what_it_has_not_left_yet_clears_nothing(tmp_path):
    clock = Clock()
    live, a, _ = paused(tmp_path, clock)
    live.leave("b", "p2")
    assert live.holding("a", a, 0).units == (0, 1) and live.holding("a", a, 0).since_s == 2.0
    live.cleared("a", a, 0, 1.0)
    assert '"cleared"' not in (tmp_path / "turns.jsonl").read_text()


@settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_no_unit_has_two_jobs_though_turns_are_paused_and_tails_move(data, tmp_path_factory):
    """A job computes on what it heard that it holds until it says that it has left it."""
    seats = tuple(replace(seat, keep=data.draw(st.integers(0, len(seat.units[0]) - 1))) for seat in PAUSES)
    clock, journal = Clock(), tmp_path_factory.mktemp("pauses")
    live = permits(journal, clock, seats)
    arrivals, turns, on, heard, left = {}, dict.fromkeys("abc", 0), {}, {}, set()
    for number in range(data.draw(st.integers(1, 50))):
        clock.now += data.draw(st.sampled_from([0.1, 1.0, 7.0]))
        job = data.draw(st.sampled_from("aabc"))
        word = data.draw(
            st.sampled_from(["ready", "hear", "hear", "hear", "clear", "clear", "done", "tail", "die", "leave"])
        )
        if job not in arrivals or word == "leave":
            if job in arrivals:
                live.leave(job, arrivals.pop(job)[1])
            on.pop(job, None), heard.pop(job, None), left.discard(job)
            arrivals[job], turns[job] = (live.ready(job, f"p{number}"), f"p{number}"), 0
        elif word == "die":
            live.close()
            live = permits(journal, clock, seats)
        elif word == "hear" and (held := live.holding(job, arrivals[job][0], turns[job])) is not None:
            if job in heard or held.units:  # else it has not begun
                lost = on.get(job, frozenset()) - frozenset(held.units)
                on[job] = frozenset(held.units) | lost
                left.discard(job) if not lost else left.add(job)
            heard[job] = held
            if not held.units and not on.get(job):
                live.cleared(job, arrivals[job][0], turns[job], held.since_s)
        elif word == "clear" and job in left:
            on[job] = frozenset(heard[job].units)
            left.discard(job)
            live.cleared(job, arrivals[job][0], turns[job], heard[job].since_s)
        elif word == "done" and job in heard:
            on.pop(job, None), heard.pop(job), left.discard(job)
            live.done(job, arrivals[job][0], turns[job])
            turns[job] += 1
        elif word == "tail" and job in heard:
            live.tail(job, arrivals[job][0], turns[job])
        computing = [unit for units in on.values() for unit in units]
        assert len(computing) == len(set(computing)), (on, live.held)
    live.close()


@pytest.mark.parametrize("tail_share", [0.0, 0.3])
def test_jobs_of_which_one_is_paused_get_the_turns_that_the_simulator_gives(tail_share, tmp_path):
    journal = turns_as_simulated(
        PAUSES, {"a": (90.0, 5.0), "b": (4.0, 3.0), "c": (2.5, 6.0)}, "multi_rate", tail_share, tmp_path
    )
    assert '"moved":{"a":[]}' in journal and '"moved":{"a":[0,1]}' in journal


@settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_random_jobs_whose_rollouts_may_be_paused_get_the_turns_that_the_simulator_gives(data, tmp_path_factory):
    folder, seconds, seats = tmp_path_factory.mktemp("random"), {}, []
    for job in "abcd"[: data.draw(st.integers(2, 4))]:
        seconds[job] = data.draw(st.sampled_from([2.0, 7.0, 31.0, 90.0])), data.draw(st.sampled_from([1.0, 5.0]))
        units = data.draw(st.sampled_from([(0,), (1,), (0, 1)]))
        pace_s = sum(seconds[job]) * data.draw(st.sampled_from([1.2, 2.0, 8.0]))
        resume_s, keep = data.draw(st.sampled_from([None, 0.0, 1.5])), data.draw(st.integers(0, len(units) - 1))
        switch_s = data.draw(st.sampled_from([(0.0, 0.0), (0.3, 0.7)]))
        seats.append(Seat(job, (units, (2,)), seconds[job], switch_s, pace_s, keep, (resume_s, None)))
    turns_as_simulated(seats, seconds, "multi_rate", data.draw(st.sampled_from([0.0, 0.3])), folder)


class InProcess(MemberPermits):
    """A job's side of permits in this process."""

    def __init__(self, live, job):
        super().__init__("", job, f"of {job}")
        self.live = live

    async def _ask(self, method, *arguments):
        if method == "turn":
            await asyncio.sleep(0.001)
            return self.live.given(self._job, *arguments)
        return getattr(self.live, method)(self._job, *(arguments[:2] if method == "holding" else arguments))


def test_a_job_that_asks_for_a_turn_which_was_paused_meanwhile_lets_the_urgent_one_begin(tmp_path):
    async def scene():
        clock = Clock()
        live = permits(tmp_path, clock, PAUSES[:1])
        a, b = InProcess(live, "a"), InProcess(live, "b")
        await a.ready()
        live.take_seat(PAUSES[1])
        clock.now += 1
        await b.ready()
        begins = asyncio.create_task(a.begin("rollout"))
        await b.begin("rollout")
        assert not begins.done()
        clock.now += 4
        await b.end()
        await begins
        assert a.phase == "rollout" and live.held["a"].units == (0, 1)
        clock.now += 1
        await b.begin("train")
        await b.end()
        assert not live.held["a"].units, "b is in a hurry again"
        await a.begin("train")
        assert a.phase == "train", "its rollout ended while it was paused"

    asyncio.run(asyncio.wait_for(scene(), 10))


@pytest.mark.parametrize("tail_share", [0.0, 0.3])
def test_the_devices_of_a_replay_take_as_long_as_simulated_though_turns_are_paused(tail_share, tmp_path):
    """FakeTurn is what a replay on Ray has for devices (benchmarks/coexecution); here all is in this process."""
    seats = [replace(seat, keep=len(seat.units[0]) - 1) for seat in PAUSES]
    truths = {
        seat.job: TrueTurns((seat.expected_s, (seat.expected_s[0] * 0.8, seat.expected_s[1])), tail_share)
        for seat in seats
    }
    machine = RecordedMachine("multi_rate")
    spans = simulate_turns(machine, seats, list(truths.values()))
    while len(machine.decided) < 80:
        next(spans)
    clock = Clock()
    clock.now = 0.0
    live = permits(tmp_path, clock, seats)
    arrivals = {seat.job: live.ready(seat.job, seat.job) for seat in seats}
    turns: dict[str, FakeTurn] = {}
    until_s = machine.decided[-1].at_s
    while clock.now < until_s:
        for seat in seats:
            held = live.held.get(seat.job)
            known = turns.get(seat.job)
            if held is not None and (known is None or known.held.turn != held.turn):
                draws = truths[seat.job].draws_s
                seconds = draws[held.turn // 2 % len(draws)][held.turn % 2]
                turns[seat.job] = FakeTurn(seat, seconds, tail_share, held)
            elif held is not None and known.held != held:
                known.move(held)
        job = min(turns, key=lambda name: turns[name].due_s)
        turn, at_s = turns[job], turns[job].due_s
        if live.wake_s is not None and live.wake_s < at_s:
            clock.now = live.wake_s
            live.wake()
            continue
        clock.now = at_s
        if turn.tail_s <= turn.ends_s:
            turn.tail_s = inf
            live.tail(job, arrivals[job], turn.held.turn)
        else:
            live.done(job, arrivals[job], turns.pop(job).held.turn)
    live.close()
    assert any(() in decided.moved.values() for decided in machine.decided)
    assert journalled(tmp_path / "turns.jsonl", until_s) == [each for each in machine.decided if each.at_s < until_s]
