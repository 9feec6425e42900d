"""In which order jobs leave, move and join, whatever happens on the way."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplan.rounds.permits.move_machine import Drain, Enter, JobMove, MoveMachine

GROUPS = ("g1", "g2", "g3")


def test_jobs_that_leave_go_first_and_jobs_that_join_come_last() -> None:
    machine = MoveMachine([JobMove("new", None, "g1"), JobMove("mover", "g2", "g1"), JobMove("old", "g1", None)])
    assert machine.begin() == [Drain("old")]
    assert machine.out("old") == [Drain("mover")]
    assert machine.out("mover") == [Enter("mover", "g1")]
    assert machine.entered("mover") == [Enter("new", "g1")]
    assert machine.entered("new") == [] and machine.done


def test_a_ring_is_all_out_before_the_first_of_it_enters() -> None:
    machine = MoveMachine([JobMove("a", "g1", "g2"), JobMove("b", "g2", "g1")])
    assert machine.begin() == [Drain("a")]
    assert machine.out("a") == [Drain("b")]
    assert set(machine.out("b")) == {Enter("a", "g2"), Enter("b", "g1")}


def test_a_job_without_nodes_lets_the_others_move_and_is_tried_again_when_one_has_left() -> None:
    machine = MoveMachine([JobMove("a", "g1", "g2"), JobMove("b", "g3", "g1")])
    machine.begin()
    machine.out("a")
    assert machine.short("a") == [Drain("b")] and machine.lacking() == []
    assert set(machine.out("b")) == {Enter("a", "g2"), Enter("b", "g1")}
    assert machine.short("a") == []
    assert machine.entered("b") == [] and machine.lacking() == ["a"]
    assert machine.again("a") == [Enter("a", "g2")]
    assert machine.ended("a") == [] and machine.done


def test_a_move_that_changes_nothing_or_a_second_one_of_a_job_is_refused() -> None:
    with pytest.raises(ValueError, match="a: one move"):
        MoveMachine([JobMove("a", None, None)])
    with pytest.raises(ValueError, match="a: one move"):
        MoveMachine([JobMove("a", "g1", None), JobMove("a", "g1", "g2")])
    with pytest.raises(ValueError, match="a is waits, not enters"):
        MoveMachine([JobMove("a", "g1", "g2")]).entered("a")


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_whatever_happens_all_moves_end_and_no_group_mixes_both_plans(data: st.DataObject) -> None:
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
