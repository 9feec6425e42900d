"""The permits of a group on a clock of the test: who may run, what is journaled, and what a journal gives back."""

import json
import os
from dataclasses import replace
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplan.executor.groups.live_permits import LivePermits
from rlplan.planner.groups.simulate.permit_simulator import TruePhases, simulate_phases
from rlplan.plans.yaml.errors import RunFailed
from rlplan.rounds.permits.permit_events import PlacedJob

from .simulated_phases import FakePhase, RecordedMachine, journalled

SEATS = (
    PlacedJob("a", ((0,), (1,)), (3.0, 1.0), (0.5, 0.25)),
    PlacedJob("b", ((0,), (1,)), (2.0, 2.0)),
    PlacedJob("c", ((0,), (1,)), (4.0, 5.0)),
)
TAILS = (
    PlacedJob("a", ((0, 1), (2,)), (10.0, 3.0), (0.5, 0.25), keep=1),
    PlacedJob("b", ((0, 1), (2,)), (8.0, 2.0), (0.5, 0.0)),
    PlacedJob("c", ((0, 1, 3), (2,)), (4.0, 5.0), keep=2),
)
PAUSES = (
    PlacedJob("a", ((0, 1), (2,)), (100.0, 5.0), (1.0, 0.5), pace_s=1000.0, resume_s=(2.0, None)),
    PlacedJob("b", ((0,), (3,)), (4.0, 3.0), (1.0, 0.5), pace_s=10.0),
    PlacedJob("c", ((1,), (3,)), (2.0, 6.0), (0.5, 0.0), pace_s=12.0),
)
"""A long rollout that may be paused, and two short jobs in a hurry."""


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


class Group:
    """A group and its jobs, ready if `ready`; `again` is another actor on its journal."""

    def __init__(self, folder, seats=SEATS[:2], rule="multi_rate", ready=True):
        self.clock, self.seats, self.rule, self.journal = Clock(), seats, rule, folder / "turns.jsonl"
        self.live = self.again()
        for number, seat in enumerate(seats if ready else ()):
            setattr(self, seat.job, self.live.ready(seat.job, f"p{number + 1}"))

    def again(self, seats=None, rule=None):
        return LivePermits("g1", rule or self.rule, seats or self.seats, self.journal, self.clock)

    def stands(self):
        """Whether an actor that is started again stands where this one stood."""
        self.live.close()
        stood, self.live = self.live, self.again()
        return self.live.held == stood.held and self.live.arrivals == stood.arrivals

    def events(self, *names):
        events = [json.loads(line) for line in self.journal.read_text().splitlines()]
        return [event["event"] for event in events if event["event"] in names] if names else events

    def phases(self):
        return {turn.job: turn.phase for turn in self.live.held.values()}


def paused(folder):
    """The group of PAUSES at second 2: b came at 1, and a, whose rollout runs, was paused for it."""
    group = Group(folder, PAUSES[:1])
    group.live.place_job(PAUSES[1])
    group.clock.now += 1
    group.b = group.live.ready("b", "p2")
    group.clock.now += 1
    return group


def test_a_group_begins_when_each_of_its_jobs_is_ready_or_gone(tmp_path):
    live = LivePermits("g1", "multi_rate", SEATS, tmp_path / "turns.jsonl", Clock())
    a = live.ready("a", "p1")
    live.ready("b", "p2")
    assert not live.granted("a", a, 0)
    live.leave("c", "p3")
    assert live.granted("a", a, 0) and not live.granted("a", a, 1)
    assert [turn.job for turn in live.held.values()] == ["a"] and live.arrivals == {"a": 1, "b": 1, "c": 0}


def test_a_turn_that_ends_gives_its_units_on_once(tmp_path):
    group = Group(tmp_path)
    group.clock.now += 3
    group.live.done("a", group.a, 0)
    before = dict(group.live.held)
    assert group.phases() == {"a": "train", "b": "rollout"} and before["b"].begun_s == 3.0
    group.live.done("a", group.a, 0)
    group.live.done("b", group.b, 1)
    assert group.live.held == before


def test_a_dead_jobs_turn_is_void_and_its_process_gets_none(tmp_path):
    group = Group(tmp_path)
    live, a = group.live, group.a
    live.leave("a", "p1")
    live.done("a", a, 0)
    assert live.granted("b", group.b, 0) and not live.granted("a", a, 0) and live.arrivals["a"] == -1
    with pytest.raises(RunFailed, match="a: its process p1 has ended"):
        live.ready("a", "p1")
    again = live.ready("a", "p9")
    live.done("a", a, 0)
    assert again != a and group.phases() == {"b": "rollout"}
    with pytest.raises(RunFailed, match="a: another process has taken its place"):
        live.granted("a", a, 1)


def test_a_torn_journal_is_gone_on_with_and_anothers_is_refused(tmp_path):
    group = Group(tmp_path)
    group.live.close()
    with group.journal.open("ab") as journal:
        journal.write(b'{"event":"done","t_')
    group.clock.now -= 500  # a clock that was set back
    with pytest.warns(UserWarning, match="torn last line"):
        group.live = group.again()
    group.live.done("a", group.a, 0)
    assert group.phases() == {"a": "train", "b": "rollout"} and group.live.now_s() == 0.0
    assert group.stands()
    with pytest.raises(RunFailed, match=r"turns\.jsonl: is of another group"):
        group.again(rule="first_come")
    text = group.journal.read_text()
    group.journal.write_text(text.replace('"resident":true', '"resident":false', 1))
    with pytest.raises(RunFailed, match="do not follow from its events"):
        group.again()


def test_the_next_turn_runs_once_a_tail_has_left_together(tmp_path):
    group = Group(tmp_path, TAILS[:2], "first_come")
    live, a, b = group.live, group.a, group.b
    group.clock.now += 7
    live.tail("a", a, 0)
    live.tail("a", a, 0)
    assert live.holding("a", a, 0).units == (0,) and live.holding("a", a, 0).since_s == 7.0
    assert not live.granted("b", b, 0) and live.holding("b", b, 0) is None
    live.released("b", b, 0, 7.0)
    live.released("a", a, 0, 6.9)
    assert not live.granted("b", b, 0)
    live.released("a", a, 0, 7.0)
    assert live.granted("b", b, 0) and live.holding("b", b, 0).units == (1,)
    group.clock.now += 3
    live.done("a", a, 0)
    assert live.holding("a", a, 0) is None and live.holding("a", a, 1).phase == "train"
    assert live.holding("b", b, 0)[4:7] == ((0, 1), False, 10.0)
    live.tail("a", a, 1)
    assert group.events("tail", "cleared") == ["tail", "cleared"], "no training has a tail"
    assert [event["moved"] for event in group.events() if "moved" in event] == [{"a": [0]}, {"b": [0, 1]}]


def test_a_tail_whose_job_dies_leaves_its_units(tmp_path):
    group = Group(tmp_path, TAILS[:2], "first_come")
    group.live.tail("a", group.a, 0)
    assert not group.live.granted("b", group.b, 0)
    group.live.leave("a", "p1")
    assert group.live.granted("b", group.b, 0)
    group.live.tail("b", group.b, 0)
    assert group.events("tail") == ["tail"], "b keeps all its units"


def test_a_seat_that_changes_keeps_its_units_and_pauses_no_training(tmp_path):
    trains, group = PlacedJob("p", ((0,), (1,)), (3.0, 1.0), resume_s=(None, 1.0)), Group(tmp_path)
    for take in (group.live.place_job, lambda seat: group.again((seat,))):
        with pytest.raises(RunFailed, match="p: the executor pauses no training"):
            take(trains)
    group.live.place_job(replace(SEATS[0], pace_s=50.0))
    group.live.place_job(replace(SEATS[0], pace_s=50.0))
    assert {turn.placed.pace_s for turn in group.live.machine.jobs if turn.name == "a"} == {50.0}
    assert group.events("seat") == ["seat"]
    with pytest.raises(RunFailed, match="a: it has other units"):
        group.live.place_job(replace(SEATS[0], units=((3,), (1,))))


def test_turns_not_written_are_written_with_the_next_one(tmp_path, monkeypatch):
    group = Group(tmp_path, TAILS[:2], "first_come")
    group.clock.now += 1 / 3  # no number of six digits
    group.live.tail("a", group.a, 0)
    group.live.close()
    whole = group.journal.read_bytes()
    *before, last = whole.splitlines(keepends=True)
    assert b'"turns"' in last and b"0.333333333" in last
    group.journal.write_bytes(b"".join(before))
    for _ in range(2):
        live = group.again()
        assert group.journal.read_bytes() == whole
    real, calls = os.fsync, []

    def fsync(file):
        calls.append(file)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        real(file)

    monkeypatch.setattr("os.fsync", fsync)
    live.done("a", group.a, 0)
    live.remove_job("a")
    assert [event["event"] for event in group.events()][-4:] == ["turns", "done", "turns", "unseat"]
    calls[:] = [0]
    with pytest.raises(RunFailed, match=r"journal of phases cannot be written \(No space left on device\); make room"):
        live.done("b", group.b, 0)


def test_jobs_take_seats_and_give_them_up_while_the_others_go_on(tmp_path):
    group = Group(tmp_path)
    live, a, b = group.live, group.a, group.b
    live.place_job(SEATS[2])
    assert group.phases() == {"a": "rollout"}, "c is not ready yet"
    group.clock.now += 3
    c = live.ready("c", "p3")
    live.done("a", a, 0)
    assert set(live.held) == {"a", "b"}
    live.leave("b", "p2")
    live.leave("b", "p2")
    live.remove_job("b")
    live.remove_job("b")
    assert group.events("leave", "unseat") == ["leave", "unseat"]
    assert live.held["c"].phase == "rollout" and live.granted("c", c, 0)
    for word in (lambda: live.granted("b", b, 0), lambda: live.ready("b", "p2")):
        with pytest.raises(RunFailed, match="b: is in the group no more"):
            word()
    live.place_job(SEATS[1])
    late = live.ready("b", "p4")
    live.done("b", b, 0)  # of its first stay
    assert late > b and not live.granted("b", late, 1)
    assert group.stands() and group.live.arrivals == {"a": 1, "c": 1, "b": 2}


def test_a_paused_rollout_goes_on_when_the_urgent_one_has_ended(tmp_path):
    group = paused(tmp_path)
    live, a, b, clock = group.live, group.a, group.b, group.clock
    held = live.holding("a", a, 0)
    assert (held.number, held.units, held.since_s) == (0, (), 1.0) and not live.granted("a", a, 0)
    assert not live.granted("b", b, 0) and live.holding("b", b, 0) is None, "a is still there"
    assert live.must_release("a", a, 0) and not live.must_release("b", b, 0)
    live.tail("a", a, 0)
    live.released("a", a, 0, 0.5)  # late, of something that was taken before
    assert not live.granted("b", b, 0) and live.held["a"].ran_s(live.now_s()) == 2.0
    live.released("a", a, 0, held.since_s)
    live.released("a", a, 0, held.since_s)
    assert not live.must_release("a", a, 0) and live.granted("b", b, 0) and live.holding("b", b, 0).units == (0,)
    clock.now += 4
    assert live.held["a"].ran_s(live.now_s()) == 2.0 and live.held["b"].ran_s(live.now_s()) == 4.0
    live.done("b", b, 0)
    assert live.holding("a", a, 0)[:6] == ("a", 0, "rollout", 0.0, (0, 1), True) and live.granted("a", a, 0)
    clock.now += 3
    assert live.held["a"].ran_s(live.now_s()) == 5.0
    live.done("a", a, 0)
    assert live.holding("a", a, 1).phase == "train"
    assert [event["moved"] for event in group.events() if "moved" in event] == [{"a": []}, {"a": [0, 1]}]
    assert group.events("cleared") == ["cleared"] and group.stands()


@pytest.mark.parametrize("word", ["leave", "ready", "give_up", "done"])
def test_a_paused_job_that_ends_or_starts_anew_gives_its_units_away(word, tmp_path):
    group = paused(tmp_path)
    live, a, b = group.live, group.a, group.b
    if word == "done":
        live.done("a", a, 0)
        assert live.granted("b", b, 0) and live.granted("a", a, 1) and live.held["a"].phase == "train"
    else:
        live.remove_job("a") if word == "give_up" else getattr(live, word)("a", "p1")
        assert live.granted("b", b, 0) and "a" not in live.held
        group.clock.now += 4
        live.done("b", b, 0)
        live.done("a", a, 0)
        assert ("a" in live.held) == (word == "ready"), "its new process has its first turn"
    assert group.stands()


def test_a_rollout_that_gets_back_what_it_has_not_left_clears_nothing(tmp_path):
    group = paused(tmp_path)
    group.live.leave("b", "p2")
    held = group.live.holding("a", group.a, 0)
    assert held.units == (0, 1) and held.since_s == 2.0
    group.live.released("a", group.a, 0, 1.0)
    assert group.events("cleared") == []


def restarted_anywhere(data, folder):
    """An actor that is started again at any point stands where it stood."""
    rule = data.draw(st.sampled_from(["multi_rate", "round_robin", "first_come"]))
    group = Group(folder, data.draw(st.sampled_from([SEATS, PAUSES, TAILS])), rule, ready=False)
    live, arrivals = group.live, {}
    words = ["ready", "done", "done", "done", "tail", "tail", "cleared", "leave", "wake", "die"]
    for number in range(data.draw(st.integers(1, 25))):
        group.clock.now += data.draw(st.sampled_from([0.0, 0.3, 1.0, 7.0]))
        job = data.draw(st.sampled_from("abc"))
        match data.draw(st.sampled_from(words)):
            case "ready" if job not in arrivals:
                arrivals[job] = live.ready(job, f"p{number}"), f"p{number}"
            case "done" if job in arrivals:
                turn = live.held[job].number if job in live.held else data.draw(st.integers(0, 3))
                live.done(job, arrivals[job][0], turn)
            case "tail" if job in arrivals and job in live.held:
                live.tail(job, arrivals[job][0], live.held[job].number)
            case "cleared" if job in arrivals and job in live.held:
                live.released(job, arrivals[job][0], live.held[job].number, live.held[job].since_s)
            case "leave" if job in arrivals:
                live.leave(job, arrivals[job][1])
                if data.draw(st.booleans()):  # else what a dead process said is heard later
                    del arrivals[job]
            case "wake":
                live.wake()
            case "die":
                live.close()
                stood = live.held, live.wake_s, live.machine.waits_for, live.unreleased
                live = group.again()
                assert (live.held, live.wake_s, live.machine.waits_for, live.unreleased) == stood
        live.machine.check_invariants()
    live.close()


def one_job_on_a_unit(data, folder):
    """A job computes on what it heard that it holds until it says that it has left it: no unit has two."""
    seats = tuple(replace(seat, keep=data.draw(st.integers(0, len(seat.units[0]) - 1))) for seat in PAUSES)
    group = Group(folder, seats, ready=False)
    live = group.live
    arrivals, turns, on, heard, left = {}, dict.fromkeys("abc", 0), {}, {}, set()
    words = ["ready", "hear", "hear", "hear", "clear", "clear", "done", "tail", "die", "leave"]
    for number in range(data.draw(st.integers(1, 50))):
        group.clock.now += data.draw(st.sampled_from([0.1, 1.0, 7.0]))
        job, word = data.draw(st.sampled_from("aabc")), data.draw(st.sampled_from(words))
        if job not in arrivals or word == "leave":
            if job in arrivals:
                live.leave(job, arrivals.pop(job)[1])
            on.pop(job, None), heard.pop(job, None), left.discard(job)
            arrivals[job], turns[job] = (live.ready(job, f"p{number}"), f"p{number}"), 0
        elif word == "die":
            live.close()
            live = group.again()
        elif word == "hear" and (held := live.holding(job, arrivals[job][0], turns[job])) is not None:
            if job in heard or held.units:  # else it has not begun
                lost = on.get(job, frozenset()) - frozenset(held.units)
                on[job] = frozenset(held.units) | lost
                left.discard(job) if not lost else left.add(job)
            heard[job] = held
            if not held.units and not on.get(job):
                live.released(job, arrivals[job][0], turns[job], held.since_s)
        elif word == "clear" and job in left:
            on[job] = frozenset(heard[job].units)
            left.discard(job)
            live.released(job, arrivals[job][0], turns[job], heard[job].since_s)
        elif word == "done" and job in heard:
            on.pop(job, None), heard.pop(job), left.discard(job)
            live.done(job, arrivals[job][0], turns[job])
            turns[job] += 1
        elif word == "tail" and job in heard:
            live.tail(job, arrivals[job][0], turns[job])
        computing = [unit for units in on.values() for unit in units]
        assert len(computing) == len(set(computing)), (on, live.held)
    live.close()


def any_jobs_as_simulated(data, folder):
    seats = []
    for job in "abcd"[: data.draw(st.integers(2, 4))]:
        seconds = data.draw(st.sampled_from([2.0, 7.0, 31.0, 90.0])), data.draw(st.sampled_from([1.0, 5.0]))
        units = data.draw(st.sampled_from([(0,), (1,), (0, 1)]))
        pace_s = sum(seconds) * data.draw(st.sampled_from([1.2, 2.0, 8.0]))
        resume_s, keep = data.draw(st.sampled_from([None, 0.0, 1.5])), data.draw(st.integers(0, len(units) - 1))
        switch_s = data.draw(st.sampled_from([(0.0, 0.0), (0.3, 0.7)]))
        seats.append(PlacedJob(job, (units, (2,)), seconds, switch_s, pace_s, keep, (resume_s, None)))
    as_simulated(seats, "multi_rate", data.draw(st.sampled_from([0.0, 0.3])), folder, decisions=40)


def as_simulated(seats, rule, tail_share, folder, decisions=60):
    """Jobs that take as long as simulated (FakePhase) get from the permits the
    turns that the simulator gives, bit for bit; returns what was decided."""
    truths = {
        seat.job: TruePhases((seat.expected_s, (seat.expected_s[0] * 0.8, seat.expected_s[1])), tail_share)
        for seat in seats
    }
    machine = RecordedMachine(rule)
    spans = simulate_phases(machine, seats, list(truths.values()))
    while len(machine.decided) < decisions:
        next(spans)
    clock, journal = Clock(), folder / "turns.jsonl"
    clock.now = 0.0
    live = LivePermits("g1", rule, seats, journal, clock)
    arrivals = {seat.job: live.ready(seat.job, seat.job) for seat in seats}
    turns, until_s = {}, machine.decided[-1].at_s
    while clock.now < until_s:
        for seat in seats:
            held, known = live.held.get(seat.job), turns.get(seat.job)
            if held is not None and (known is None or known.held.number != held.number):
                draws = truths[seat.job].draws_s
                seconds = draws[held.number // 2 % len(draws)][held.number % 2]
                turns[seat.job] = FakePhase(seat, seconds, tail_share, held)
            elif held is not None and known.held != held:
                known.move(held)
        job = min(turns, key=lambda name: turns[name].due_s)
        turn, clock.now = turns[job], min(turns[job].due_s, inf if live.wake_s is None else live.wake_s)
        if clock.now < turn.due_s:
            live.wake()
        elif turn.tail_s <= turn.ends_s:
            turn.tail_s = inf
            live.tail(job, arrivals[job], turn.held.number)
        else:
            live.done(job, arrivals[job], turns.pop(job).held.number)
    live.close()
    found = journalled(journal, until_s)
    assert found == [each for each in machine.decided if each.at_s < until_s]
    LivePermits("g1", rule, seats, journal, clock).close()  # it stands where it stood, or is refused
    return [moved for each in found for moved in each.moved.items()]


@pytest.mark.parametrize("tail_share", [0.0, 0.3])
@pytest.mark.parametrize("rule", ["multi_rate", "round_robin", "first_come"])
def test_jobs_get_the_turns_that_the_simulator_gives(rule, tail_share, tmp_path):
    moved = as_simulated(TAILS if tail_share else SEATS, rule, tail_share, tmp_path)
    assert bool(moved) == bool(tail_share)


@pytest.mark.parametrize("tail_share", [0.0, 0.3])
def test_paused_jobs_get_the_turns_that_the_simulator_gives(tail_share, tmp_path):
    seats = [replace(seat, keep=len(seat.units[0]) - 1 if tail_share else 0) for seat in PAUSES]
    moved = as_simulated(seats, "multi_rate", tail_share, tmp_path, decisions=80)
    assert ("a", ()) in moved and ("a", (0, 1)) in moved


PROPERTIES = pytest.mark.parametrize("holds", [restarted_anywhere, one_job_on_a_unit, any_jobs_as_simulated])


@PROPERTIES
@settings(deadline=None, max_examples=4)
@given(data=st.data())
def test_permits_hold_for_any_jobs(data, holds, tmp_path_factory):
    holds(data, tmp_path_factory.mktemp("permits"))


@pytest.mark.search
@PROPERTIES
@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_permits_hold_for_many_jobs(data, holds, tmp_path_factory):
    holds(data, tmp_path_factory.mktemp("permits"))
