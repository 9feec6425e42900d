"""In which order jobs leave, move and join, whatever happens on the way."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplan.rounds.permits.move_machine import Drain, Enter, JobMove, MoveMachine

GROUPS = ("g1", "g2", "g3")


def test_jobs_that_leave_go_first_and_jobs_that_join_last():
    moves = (
        JobMove("new", None, "g1"),
        JobMove("mover", "g2", "g1"),
        JobMove("old", "g1", None),
        JobMove("gone", "g2", None),
    )
    machine = MoveMachine(moves)
    assert machine.begin() == [Drain("old"), Drain("gone")]
    assert machine.out("old") == [] and machine.members({"g1": ["old"], "g2": ["mover", "gone"]})["g1"] == set()
    assert machine.out("gone") == [Drain("mover")]
    assert machine.out("mover") == [Enter("mover", "g1")]
    assert machine.entered("mover") == [Enter("new", "g1")]
    assert machine.entered("new") == [] and machine.done


def test_a_ring_is_all_out_before_the_first_enters():
    machine = MoveMachine([JobMove("a", "g1", "g2"), JobMove("b", "g2", "g1")])
    assert machine.begin() == [Drain("a")]
    assert machine.out("a") == [Drain("b")]
    assert set(machine.out("b")) == {Enter("a", "g2"), Enter("b", "g1")}


def test_of_two_movers_goes_first_whose_place_is_free():
    machine = MoveMachine([JobMove("a", "g1", "g2"), JobMove("b", "g2", "g3")])
    assert machine.begin() == [Drain("b")], "the other waits for its place"
    assert machine.out("b") == [Enter("b", "g3")]
    assert machine.entered("b") == [Drain("a")]


def test_a_job_without_nodes_lets_others_move_and_is_tried_again():
    machine = MoveMachine([JobMove("a", "g1", "g2"), JobMove("b", "g3", "g1")])
    machine.begin()
    machine.out("a")
    assert machine.short("a") == [Drain("b")] and machine.lacking() == []
    assert set(machine.out("b")) == {Enter("a", "g2"), Enter("b", "g1")}
    assert machine.short("a") == []
    assert machine.entered("b") == [] and machine.lacking() == ["a"]
    assert machine.again("a") == [Enter("a", "g2")]
    assert machine.ended("a") == [] and machine.done


def test_an_end_frees_nodes_for_a_job_that_lacks_them():
    machine = MoveMachine([JobMove("a", None, "g1"), JobMove("b", None, "g1")])
    assert machine.begin() == [Enter("a", "g1"), Enter("b", "g1")]
    assert machine.short("a") == []
    assert machine.ended("b") == [Enter("a", "g1")]
    assert machine.ended("stranger") == []
    machine.entered("a")
    assert machine.members({}) == {"g1": {"a"}}, "who has ended is in no group"


def test_what_is_no_move_is_refused():
    for moves in ([JobMove("a", None, None)], [JobMove("a", "g1", None), JobMove("a", "g1", "g2")]):
        with pytest.raises(ValueError, match="a: one move"):
            MoveMachine(moves)
    machine = MoveMachine([JobMove("a", "g1", "g2")])
    for refuse in (machine.entered, machine.short, machine.again):
        with pytest.raises(ValueError, match="a is waits, not"):
            refuse("a")
    with pytest.raises(ValueError, match="b is not moved, not waits or drains"):
        machine.out("b")


def test_a_group_of_both_plans_is_found():
    machine = MoveMachine([JobMove("a", "g1", "g2"), JobMove("b", "g2", "g1")])
    machine.check_invariants({"g1": ["a"], "g2": ["b"]})
    machine.states.update(a="enters")
    with pytest.raises(AssertionError, match=r"g2: \['a', 'b'\]"):
        machine.check_invariants({"g1": ["a"], "g2": ["b"]})


@settings(max_examples=100)
@given(st.data())
def test_whatever_happens_all_moves_end_and_no_group_mixes_plans(data):
    places = st.sampled_from((None, *GROUPS))
    jobs = {f"j{n}": (data.draw(places), data.draw(places)) for n in range(data.draw(st.integers(1, 6)))}
    before = {key: [job for job, (old, _) in jobs.items() if old == key] for key in GROUPS}
    within = data.draw(st.sets(st.sampled_from(sorted(jobs))))  # jobs that change nodes inside their group
    moves = [JobMove(j, a, b) for j, (a, b) in jobs.items() if (a, b) != (None, None) and (a != b or j in within)]
    machine = MoveMachine(moves)
    pending = machine.begin()
    left = 200
    while not machine.done:
        machine.check_invariants(before)
        left -= 1
        assert left, "moves never end"
        if not pending:
            lacking = machine.lacking()
            assert lacking, "nothing is under way, and moves are left"
            pending += machine.again(lacking[0])
            continue
        action = pending.pop(data.draw(st.integers(0, len(pending) - 1)))
        what = data.draw(st.sampled_from(("well", "well", "well", "ended", "short")))
        if what == "ended":
            pending += machine.ended(action.job)
        elif isinstance(action, Drain):
            pending += machine.out(action.job)
        else:
            pending += machine.short(action.job) if what == "short" and left > 50 else machine.entered(action.job)
    assert pending == []
    machine.check_invariants(before)
