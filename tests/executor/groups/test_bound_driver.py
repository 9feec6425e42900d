"""Alarms of jobs near their bounds, from a journal that grows, and what becomes of the re-plan that is proposed."""

import asyncio
import json

import pytest

from rlplan.executor.groups import bound_driver
from rlplan.executor.groups.bound_driver import BoundDriver, Proposed
from rlplan.executor.groups.group_change import MoveJournal, take_request
from rlplan.plans.yaml.errors import InputError
from rlplan.plans.yaml.yaml_io import dump, sha256_file
from rlplan.traces.groups.group_journal import GROUP_JOURNAL, GROUPS_COPY, TrainingEnds
from rlplan.traces.groups.groups_folder import MOVES
from rlplan.traces.trace import TraceError, read_trace

from ...group_documents import group, groups_plan, member

ALONE_S = 90.0  # of a member, whose bound is 1.5


class Journal:
    """A journal of phases of the jobs a and b, written an iteration at a time."""

    def __init__(self, folder):
        folder.mkdir()
        self.path, self.now_s = folder / GROUP_JOURNAL, {"a": 0.0, "b": 0.0}
        self.write("group", 0.0, group="g1", rule="multi_rate", began_s=1000.0, seats=[
            {"job": job, "units": [[0], [1]]} for job in "ab"
        ])  # fmt: skip
        for job in "ab":
            self.write("ready", 0.0, job=job, process=job)

    def write(self, event, t_s, **fields):
        with self.path.open("a") as file:
            file.write(json.dumps({"event": event, "t_s": t_s, **fields}) + "\n")

    def iterate(self, job, seconds, count=1):
        for _ in range(count):
            begun_s, self.now_s[job] = self.now_s[job], self.now_s[job] + seconds
            for n, (phase, begin, end) in enumerate((("rollout", 0.0, 0.6), ("train", 0.6, 1.0))):
                turn = {"job": job, "turn": n, "phase": phase, "begun_s": begun_s + begin * seconds, "units": [n]}
                self.write("turns", turn["begun_s"], begun=[turn | {"resident": True}], waits_for={})
                self.write("done", begun_s + end * seconds, job=job)


@pytest.fixture
def groups(tmp_path, monkeypatch):
    dump(groups_plan({"g1": group({"a": member(slo=1.5), "b": member(slo=1.5)})}), tmp_path / GROUPS_COPY)
    monkeypatch.setattr(bound_driver, "EVERY_S", 0.0)
    monkeypatch.setattr(bound_driver.time, "time", lambda: 1000.0)  # no iteration runs for long
    return Journal(tmp_path / "g1")


def drive(tmp_path, scenario, *proposes):
    """Run a scenario with a driver; each re-plan proposes the next of these, or raises it. Returns the driver's notes,
    the events of the journal of moves, and what re-plans were solved from."""
    notes, asked, left = [], [], list(proposes)

    def replanner(given, path):
        asked.append(given)
        path.write_text("a plan\n")
        if isinstance(answer := left.pop(0), Exception):
            raise answer
        return Proposed(path, *answer)

    async def run():
        journal = MoveJournal(tmp_path)
        driver = BoundDriver(tmp_path, tmp_path / "plan.yaml", journal, notes.append, replanner)
        driver.runs(None, {"g1": tmp_path / "g1"})
        scenario(driver)
        await driver.close()
        journal.close()

    asyncio.run(run())
    return notes, [event for event in read_trace(tmp_path / MOVES) if event["event"] != "groups"], asked


def threatened(groups, moving=False):
    """A scenario in which a drifts above its bound while b keeps it."""

    def scenario(driver):
        for _ in range(20):
            groups.iterate("a", 1.2 * ALONE_S)
            groups.iterate("b", 1.1 * ALONE_S)
        driver.look((), moving=False)
        groups.iterate("a", 1.9 * ALONE_S, 25)
        driver.look(["c"], moving=moving)
        driver.look((), moving=moving)

    return scenario


def test_an_alarm_is_told_once_and_only_proposes_without_policy(groups, tmp_path):
    answer = 2, 60.0, False, "no rlplan.policy.yaml allows it"
    notes, events, (given,) = drive(tmp_path, threatened(groups), answer)
    told = [(event["event"], event.get("job"), event.get("state")) for event in events]
    assert told[0] == ("bound", "a", "alarm") and told[-1] == ("proposed", None, None)
    assert told.count(("bound", "a", "alarm")) == 1 and events[0]["slo"] == 1.5 and events[0]["group"] == "g1"
    assert given.journals.keys() == {"g1"} and given.ended == {"c"} and given.plan == tmp_path / "plan.yaml"
    assert given.ahead_s["b"] > 0 and given.hours_since is None
    assert take_request(tmp_path) is None and not events[-1]["applies"]
    assert any("a is about to break its bound: " in note and "goes above 1.5" in note for note in notes)
    assert "2 moves of 60" in notes[-1] and "not applied: no rlplan.policy.yaml allows it; see rlplan diff" in notes[-1]


def test_a_replan_that_the_policy_allows_is_applied(groups, tmp_path):
    _, events, _ = drive(tmp_path, threatened(groups), (1, 30.0, True, "rlplan.policy.yaml:3 allows it"))
    request, path = take_request(tmp_path), tmp_path / "proposed-1.yaml"
    assert request.id == events[-1]["id"] and events[-1]["applies"]
    assert (request.plan, request.sha256) == (str(path.resolve()), sha256_file(path))
    again = MoveJournal(tmp_path)
    assert again.proposals == 1 and again.hours_since_applied() == 0.0


@pytest.mark.parametrize(
    ("answer", "note", "proposed"),
    [
        (InputError("no room"), "no re-plan is proposed: no room", False),
        (KeyError("x"), "no re-plan is proposed: KeyError: 'x'", False),
        ((0, 0.0, True, "allowed"), "no move would help; ", True),
    ],
)
def test_a_replan_that_cannot_be_solved_or_helps_nobody_is_a_note(groups, tmp_path, answer, note, proposed):
    notes, events, _ = drive(tmp_path, threatened(groups), answer)
    assert notes[-1].startswith(note) and take_request(tmp_path) is None
    assert [event["event"] for event in events].count("proposed") == proposed


def test_no_alarm_while_jobs_move_nor_twice_after_a_restart(groups, tmp_path):
    _, events, asked = drive(tmp_path, threatened(groups, moving=True))
    assert events and {event["event"] for event in events} == {"bound"} and not asked
    refused = InputError("no room")
    _, same, asked = drive(tmp_path, lambda driver: driver.look((), moving=False), refused)
    assert same == events and len(asked) == 1, "but what was seen coming may be there still"


def test_a_job_that_has_ended_or_left_is_looked_at_no_more(groups, tmp_path):
    def scenario(driver):
        driver.ended("a")
        threatened(groups)(driver)

    def left(driver):
        dump(groups_plan({"g1": group({"b": member(slo=1.5)})}), tmp_path / GROUPS_COPY)
        driver.runs(None, {"g1": tmp_path / "g1"})
        groups.iterate("a", 1.9 * ALONE_S, 25)
        driver.look((), moving=False)

    assert drive(tmp_path, scenario)[1] == [] and drive(tmp_path, left)[1] == []


def test_trainings_are_read_as_the_journal_grows_and_a_torn_line_waits(groups):
    ends = TrainingEnds(groups.path)
    assert ends.new() == []
    groups.iterate("a", 10.0, 2)
    whole = groups.path.read_bytes()
    groups.path.write_bytes(whole[:-5])
    assert [(end.job, end.start, end.at_s) for end in ends.new()] == [("a", 1, 1010.0)]
    groups.path.write_bytes(whole)
    assert [end.at_s for end in ends.new()] == [1020.0]
    groups.write("leave", 21.0, job="a", process="a")
    groups.write("ready", 22.0, job="a", process="a2")
    groups.now_s["a"] = 22.0
    groups.iterate("a", 10.0)
    assert [end.start for end in ends.new()] == [2]
    with groups.path.open("a") as file:
        file.write("no event\n")
    with pytest.raises(TraceError, match=r"turns\.jsonl:\d+: not an event of a journal of phases"):
        ends.new()
