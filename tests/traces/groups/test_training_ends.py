"""The bound machine over a journal: the same iterations and slowdown as in the report."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlplan.plans.schema.sections.planned_group import GroupMember
from rlplan.rounds.permits.bound_events import Broken
from rlplan.rounds.permits.bound_machine import BoundMachine
from rlplan.traces.groups.group_report import _iterations_s
from rlplan.traces.groups.group_turns import TURNS, read_turns
from rlplan.traces.groups.training_ends import TrainingEnds, bound_of
from rlplan.traces.trace import TraceWriter

from ...group_documents import member


def journal(path: Path, train_ends: list[tuple[int, float]]) -> None:
    """Write the journal of a job whose trainings end then, each in that start of its process; beside it another job
    trains. What a process of the job had begun when it died is void."""
    writer = TraceWriter(path)
    seats = [{"job": job, "units": [[0], [1]]} for job in ("a", "gone")]
    writer.write("group", 0.0, began_s=0.0, group="g1", rule="multi_rate", seats=seats)
    writer.write("ready", 0.0, job="gone", process="gone")
    arrived = 0
    for arrival, end_s in train_ends:
        if arrival != arrived:
            if arrived:
                begin(writer, "a", "train", end_s - 4)
                writer.write("leave", end_s - 3, job="a", process=f"a{arrived}")
            arrived = arrival
            writer.write("ready", end_s - 2, job="a", process=f"a{arrival}")
        for job, phase, begun_s, over_s in (
            ("a", "rollout", end_s - 2, end_s - 1), ("a", "train", end_s - 1, end_s), ("gone", "train", end_s, end_s),
        ):  # fmt: skip
            begin(writer, job, phase, begun_s)
            writer.write("done", over_s, job=job)
    writer.close()


def begin(writer: TraceWriter, job: str, phase: str, begun_s: float) -> None:
    turn = {"job": job, "turn": 0, "phase": phase, "begun_s": begun_s, "units": [0], "resident": True}
    writer.write("turns", begun_s, begun=[turn], waits_for={})


def test_the_machine_has_the_iterations_of_the_report(tmp_path):
    ends = [(1, 100.0 * i) for i in range(1, 9)] + [(2, 2000.0 + 200.0 * i) for i in range(8)]
    journal(tmp_path / TURNS, ends)
    made = read_turns(tmp_path / TURNS)
    planned = GroupMember.model_validate(member(slo=1.5))
    machine, told = BoundMachine({"a": bound_of(planned)}, stretch=10), []
    for job, start, at_s in TrainingEnds(tmp_path / TURNS).new():
        told += machine.ended(job, start, at_s)
    own = [each for each in made.turns if each.job == "a"]
    iterations = _iterations_s(own, 0.0, made.end_s)
    figures = machine.figures("a")
    assert iterations == [100.0] * 6 + [200.0] * 6 and figures.iterations == len(iterations)
    assert figures.slowdown == pytest.approx(sum(iterations) / len(iterations) / planned.slowdown.alone_s)
    assert machine.jobs == ("a",) and bound_of(planned).longest_s == pytest.approx(1.5 * 90)
    assert isinstance(told[-1], Broken) and figures.state == "broken"
