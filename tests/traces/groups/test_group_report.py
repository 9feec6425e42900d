"""The report and the state of a group that was executed, from a journal that the permits wrote on a clock of the test.

Every figure of the report stands in golden/group.txt.
"""

import fcntl
import itertools
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from rlplan.cli.report import report_command
from rlplan.executor.groups.live_permits import LivePermits
from rlplan.plans.schema.groups_plan import GroupMember
from rlplan.plans.yaml.errors import InputError
from rlplan.plans.yaml.yaml_io import dump
from rlplan.rounds.permits.bound_machine import BoundMachine
from rlplan.rounds.permits.permit_events import PlacedJob
from rlplan.traces.groups.group_journal import GROUP_JOURNAL, GROUPS_COPY, TrainingEnds, bound_of, read_group_journal
from rlplan.traces.groups.group_report import group_report
from rlplan.traces.groups.groups_status import groups_status
from rlplan.traces.run_log import LOCK, TRACE
from rlplan.traces.trace import TraceError

from ...golden import flat, same_as_golden
from ...group_documents import group, groups_plan, member

SECONDS = {"a": (60.0, 30.0), "b": (20.0, 10.0), "c": (20.0, 10.0)}


def seat(job):
    return PlacedJob(job, ((0,), (1,)), SECONDS[job])


class Group:
    """Jobs that run from second 50 on."""

    def __init__(self, folder, jobs, begun=False):
        self.folder, self.clock = folder, [50.0]
        self.live = LivePermits(
            "g1", "round_robin", list(map(seat, jobs)), folder / GROUP_JOURNAL, lambda: self.clock[0]
        )
        self.arrivals = self.live.arrivals if begun else {job: self.live.ready(job, job) for job in jobs}

    def run(self, turns, dies=None, seconds=SECONDS):
        """So many turns, always the one that is over first; at the end of turn `dies` (job, turn) its process dies."""
        for _ in range(turns):
            ends = {job: held.begun_s + seconds[job][held.number % 2] for job, held in self.live.held.items()}
            job = min(ends, key=ends.__getitem__)
            turn = self.live.held[job].number
            self.clock[0] = 50.0 + max(ends[job], self.live.now_s())
            if (job, turn) == dies:
                dies = None
                self.live.leave(job, job)
                self.arrivals[job] = self.live.ready(job, f"{job} again")
            else:
                self.live.done(job, self.arrivals[job], turn)


def plan(folder, *jobs):
    dump(groups_plan({"g1": group({job: member(slo=1.5) for job in jobs})}), folder / GROUPS_COPY)


@pytest.fixture
def run(tmp_path):
    """A folder of a group of two jobs: b's process died in its third rollout; a measured its switches."""
    plan(tmp_path, "a", "b")
    made = Group(tmp_path, "ab")
    made.run(28, dies=("b", 4))
    made.live.close()
    (tmp_path / "a").mkdir()
    with (tmp_path / "a" / TRACE).open("w", encoding="utf-8") as trace:
        for step, in_s in ((1, 0.1), (2, 0.3)):
            for phase, more in (("rollout", 0.0), ("train", 1.0)):
                event = {"event": "permit", "t_s": 1.0 * step, "step": step, "phase": phase, "waited_s": 0.5}
                trace.write(json.dumps(event | {"switch_in_s": in_s + more, "switch_out_s": 0.3}) + "\n")
    return tmp_path


def test_turns_are_read_as_they_were_taken(run):
    turns = read_group_journal(run / GROUP_JOURNAL)
    assert (turns.group, turns.rule, turns.units, turns.began_s) == ("g1", "round_robin", (0, 1), 50.0)
    assert turns.arrivals == {"a": 1, "b": 2}
    first, second = turns.spans[0], turns.spans[1]
    assert (first.job, first.phase, first.begun_s, first.end_s, first.waited_s) == ("a", "rollout", 0.0, 60.0, 0.0)
    assert (second.job, second.phase, second.begun_s, second.end_s) == ("b", "rollout", 60.0, 80.0)
    assert second.waited_s == 60.0 and second.switched and not first.switched
    void = [turn for turn in turns.spans if not turn.ended and turn.end_s < turns.end_s]
    assert [(turn.job, turn.phase) for turn in void] == [("b", "rollout")]
    for unit in turns.units:
        held = sorted((turn.begun_s, turn.end_s) for turn in turns.spans if unit in turn.units)
        assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(held))


def test_the_report_compares_a_group_with_its_plan(run):
    report = group_report(run)
    same_as_golden(list(flat(report, 260)), Path(__file__).parent / "golden" / "group.txt")
    a = report["jobs"]["a"]
    # Its own 60 + 30 seconds are the longest chain: b's rollouts and the restart hardly hold it up.
    assert a["iteration_s"] == pytest.approx(90.0, rel=0.05) and a["slowdown"] == pytest.approx(a["iteration_s"] / 90.0)
    assert report["units"]["0"]["busy"] == pytest.approx(80 / 90, abs=0.05)
    rollout = {"turns": 2, "in_s": 0.2, "out_s": 0.3, "error_s": 0.2, "planned_s": 1.0, "other_had": 6}
    assert a["switches"]["rollout"] == pytest.approx(rollout)
    for name, waited in (("a", True), ("b", True)):
        own = [
            t for t in read_group_journal(run / GROUP_JOURNAL).spans if (t.job, t.phase) == (name, "train") and t.ended
        ]
        assert report["jobs"][name]["steps"] == len(own) > 3
        assert report["jobs"][name]["switches"]["train"]["other_had"] == sum(turn.switched for turn in own) > 0
        assert (report["jobs"][name]["waited_s"]["rollout"] > 0) == waited


def test_the_command_tells_it_as_text_json_and_page(run):
    text = CliRunner().invoke(report_command, [str(run)]).output
    for words in ("group g1 of 2 jobs", "roll 0", "1.50x", "Seconds of a switch", "decode: wake", "1.20 s"):
        assert words in text
    page = run.parent / f"{run.name}.html"
    done = CliRunner().invoke(report_command, [str(run), "--html", str(page), "--json"])
    assert json.loads(done.output)["groups"]["g1"]["jobs"].keys() == {"a", "b"}
    assert "who had which unit when" in page.read_text() and "Switches" in page.read_text()
    (run / "a" / TRACE).unlink()
    assert "Seconds of a switch" not in CliRunner().invoke(report_command, [str(run)]).output


def test_joined_jobs_are_measured_from_then_on_leavers_told(run):
    plan(run, "a", "c")
    grown = Group(run, "ab", begun=True)
    grown.clock[0] += read_group_journal(run / GROUP_JOURNAL).end_s + 50.0
    changed_s = grown.live.now_s()
    grown.live.leave("b", "b again")
    grown.live.remove_job("b")
    grown.live.place_job(seat("c"))
    grown.arrivals = {"a": grown.live.arrivals["a"], "c": grown.live.ready("c", "c")}
    grown.run(24)
    grown.live.close()
    report = group_report(run)
    assert report["jobs"].keys() == {"a", "c"} and report["left"].keys() == {"b"} and report["left"]["b"]["steps"] > 1
    assert report["together_s"][0] > changed_s
    assert report["jobs"]["c"]["slowdown"] is not None and report["jobs"]["a"]["slowdown"] is not None
    assert "b left after" in CliRunner().invoke(report_command, [str(run)]).output
    status = groups_status(run, grown.clock[0])
    assert status["jobs"].keys() == {"a", "c"} and not status["running"] and status["moves"] is None
    assert {row["state"] for row in status["jobs"].values()} == {"stopped"}


def test_damaged_and_foreign_files_are_one_line_with_their_folder(run):
    lines = (run / GROUP_JOURNAL).read_text().splitlines()
    for damaged, words in (
        ([lines[0], lines[1].replace('"job"', '"jab"'), *lines[2:]], "journal of phases cannot be read.*lacks 'job'"),
        ([], "journal of phases cannot be read.*no group began"),
    ):
        (run / GROUP_JOURNAL).write_text("".join(f"{line}\n" for line in damaged))
        with pytest.raises(InputError, match=words):
            group_report(run)
    (run / GROUP_JOURNAL).write_text("\n".join(lines) + "\n")
    (run / "a" / TRACE).write_text("no event\n" * 3)
    with pytest.raises(InputError, match="its run cannot be read"):
        group_report(run)
    plan(run, "a", "c")
    with pytest.raises(InputError, match="are not of the same group"):
        group_report(run)


def test_what_a_group_does_now_is_read_from_its_files(tmp_path):
    plan(tmp_path, "a", "b", "c")
    made = Group(tmp_path, "ab")
    made.run(5)
    made.clock[0] += 7.5
    made.live.place_job(seat("c"))
    (tmp_path / LOCK).touch()
    with (tmp_path / LOCK).open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        status = groups_status(tmp_path, made.clock[0])
        made.live.remove_job("b")
        left = groups_status(tmp_path, made.clock[0])
    held = read_group_journal(tmp_path / GROUP_JOURNAL).running
    assert status["running"] and status["out"] == str(tmp_path) and status["proposed"] is None
    assert status["groups"]["g1"]["jobs"] == ["a", "b", "c"] and status["groups"]["g1"]["rule"] == "round_robin"
    for row in status["groups"]["g1"]["held"]:
        begun_s = 50.0 + (held[row["job"]]["begun_s"] if row["job"] in held else made.clock[0] - 50.0 - row["for_s"])
        assert row["for_s"] == pytest.approx(made.clock[0] - begun_s) and row["units"] in ([0], [1])
    states = {name: row["state"] for name, row in status["jobs"].items()}
    assert states == {"a": "train", "b": "rollout", "c": "starting"}
    assert status["jobs"]["a"]["slo"] == 1.5 and status["jobs"]["a"]["steps"] == 1
    assert left["jobs"]["b"]["state"] == "ended" and left["jobs"]["b"]["waits_for"] == []
    assert groups_status(tmp_path, made.clock[0])["groups"]["g1"]["held"] == [], "no driver runs them any more"
    made.live.close()
    with pytest.raises(InputError, match="holds no groups that were executed"):
        groups_status(tmp_path / "none")


def patient(folder):
    """A rollout of a that waits while b, which is more urgent, decodes from second 10 on."""
    clock = [0.0]
    first = PlacedJob("a", ((0,), (1,)), (100.0, 5.0), pace_s=1000.0, resume_s=(1.0, None))
    live = LivePermits("g1", "multi_rate", [first], folder / GROUP_JOURNAL, lambda: clock[0])
    a = live.ready("a", "p1")
    live.place_job(PlacedJob("b", ((0,), (2,)), (5.0, 6.0), pace_s=12.0))
    clock[0] = 10.0
    return live, clock, a, live.ready("b", "p2")


def parts_of_a(folder):
    turns = [turn for turn in read_group_journal(folder / GROUP_JOURNAL).spans if turn.job == "a"]
    return [(turn.begun_s, turn.end_s, turn.units, turn.ended, turn.switched, turn.first) for turn in turns]


def test_a_paused_turn_holds_nothing_and_goes_on_with_a_switch(tmp_path):
    live, clock, a, b = patient(tmp_path)
    turns = read_group_journal(tmp_path / GROUP_JOURNAL)
    assert turns.running["a"]["units"] == [] and turns.running["b"]["units"] == [0] and turns.units == (0, 1, 2)
    plan(tmp_path, "a", "b")
    (tmp_path / LOCK).touch()
    with (tmp_path / LOCK).open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert groups_status(tmp_path, clock[0])["jobs"]["a"]["state"] == "paused"
    clock[0] = 15.0
    live.done("b", b, 0)
    clock[0] = 20.0
    live.done("a", a, 0)
    whole, resumed, _ = parts_of_a(tmp_path)
    assert whole == (0.0, 10.0, (0,), False, False, True) and resumed == (15.0, 20.0, (0,), True, True, False)
    live.close()


def test_a_rollout_may_end_while_it_is_paused(tmp_path):
    live, clock, a, _ = patient(tmp_path)
    clock[0] = 11.0
    live.done("a", a, 0)
    live.close()
    assert [(begun, end, ended) for begun, end, _, ended, *_ in parts_of_a(tmp_path)] == [
        (0.0, 10.0, False), (11.0, 11.0, True), (11.0, 11.0, False),
    ]  # fmt: skip


def test_the_bound_machine_has_the_slowdown_of_the_report(tmp_path):
    plan(tmp_path, "a")
    planned = GroupMember.model_validate(member(slo=1.5))
    assert TrainingEnds(tmp_path / GROUP_JOURNAL).new() == [], "no journal yet"
    made = Group(tmp_path, "a")
    ends = TrainingEnds(tmp_path / GROUP_JOURNAL)
    made.run(12)
    early = ends.new()
    made.run(25, dies=("a", 13), seconds={"a": (150.0, 30.0)})
    told = [*early, *ends.new()]
    assert len(early) == 6 and ends.new() == []
    # Seconds since 1970; the group began at second 50.
    assert [(end.job, end.start, end.at_s) for end in early] == [("a", 1, 140.0 + 90 * k) for k in range(6)]
    assert told[6] == ("a", 2, 950.0)
    machine = BoundMachine({"a": bound_of(planned)}, stretch=10)
    events = [event for end in told for event in machine.ended(*end)]
    figures, report = machine.figures("a"), group_report(tmp_path)["jobs"]["a"]
    assert figures.slowdown == pytest.approx(report["slowdown"]) and bound_of(planned).longest_s == 1.5 * 90
    assert report["steps"] == len(told) and events[-1].state == "broken" and figures.state == "broken"
    made.live.close()
    with (tmp_path / GROUP_JOURNAL).open("a") as journal:
        journal.write('{"event":"done","t_s":1.0}\n{"event":"do')
    lines = len((tmp_path / GROUP_JOURNAL).read_text().splitlines()) - 1
    with pytest.raises(TraceError, match=rf"turns\.jsonl:{lines}: not an event of a journal of phases \('job'\)"):
        ends.new()
