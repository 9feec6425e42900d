"""The bound machine over a journal: the same iterations and slowdown as in the report."""

from __future__ import annotations

import pytest

from rlplan.plans.schema.sections.planned_group import GroupMember
from rlplan.rounds.permits.bound_events import Broken
from rlplan.traces.groups.bound_watch import bound_of, bound_watch
from rlplan.traces.groups.group_report import _iterations_s
from rlplan.traces.groups.group_turns import GroupTurns, TurnTaken

from ...group_documents import member


def turn(job: str, phase: str, begun_s: float, end_s: float, arrival: int = 1, ended: bool = True) -> TurnTaken:
    return TurnTaken(job, phase, begun_s, end_s, (0,), False, ended, 0.0, arrival)


def journal(train_ends: list[tuple[int, float]]) -> GroupTurns:
    """A job whose trainings end then; between them rollouts, and a turn that a death ended."""
    turns = []
    for arrival, end_s in train_ends:
        turns += [
            turn("a", "rollout", end_s - 2, end_s - 1, arrival),
            turn("a", "train", end_s - 1, end_s - 0.5, arrival, ended=False),
            turn("a", "train", end_s - 0.5, end_s, arrival),
            turn("gone", "train", end_s - 0.5, end_s),
        ]
    return GroupTurns("g1", "multi_rate", (0,), turns, {"a": 2}, train_ends[-1][1])


def test_the_machine_has_the_iterations_of_the_report():
    ends = [(1, 100.0 * i) for i in range(1, 9)] + [(2, 2000.0 + 200.0 * i) for i in range(8)]
    made = journal(ends)
    planned = GroupMember.model_validate(member(slo=1.5))
    machine, told = bound_watch(made, {"a": planned}, stretch=10)
    own = [each for each in made.turns if each.job == "a"]
    iterations = _iterations_s(own, 0.0, made.end_s)
    figures = machine.figures("a")
    assert iterations == [100.0] * 6 + [200.0] * 6 and figures.iterations == len(iterations)
    assert figures.slowdown == pytest.approx(sum(iterations) / len(iterations) / planned.slowdown.alone_s)
    assert machine.jobs == ("a",) and bound_of(planned).longest_s == pytest.approx(1.5 * 90)
    assert isinstance(told[-1], Broken) and figures.state == "broken"
