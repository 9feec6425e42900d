"""The report of a group that was executed, from a journal that the permits themselves wrote on a clock of the test."""

from __future__ import annotations

import itertools
import json

import pytest
from click.testing import CliRunner

from rlplan.cli.report import report_command
from rlplan.executor.groups.live_permits import LivePermits
from rlplan.plans.yaml.errors import InputError
from rlplan.plans.yaml.yaml_io import dump
from rlplan.rounds.permits.permit_events import Seat
from rlplan.traces.groups.group_report import group_report
from rlplan.traces.groups.group_turns import GROUPS_COPY, TURNS, read_turns
from rlplan.traces.groups.groups_folder import group_folders
from rlplan.traces.groups.groups_status import groups_status
from rlplan.traces.run_log import TRACE

from ...group_documents import group, groups_plan, member

SECONDS = {"a": (60.0, 30.0), "b": (20.0, 10.0)}


@pytest.fixture
def run(tmp_path):
    """A folder of a group of two jobs: b's process died in its third rollout, and b was started again."""
    dump(groups_plan({"g1": group({"a": member(slo=1.5), "b": member(slo=1.5)})}), tmp_path / GROUPS_COPY)
    clock = [50.0]
    live = LivePermits(
        "g1", "round_robin", [Seat(job, ((0,), (1,)), SECONDS[job]) for job in SECONDS], tmp_path / TURNS,
        lambda: clock[0],
    )  # fmt: skip
    arrivals = {job: live.ready(job, job) for job in SECONDS}
    died = False
    for _ in range(28):
        ends = {job: turn.begun_s + SECONDS[job][turn.turn % 2] for job, turn in live.held.items()}
        job = min(ends, key=lambda name: ends[name])
        clock[0] = 50.0 + ends[job]
        if job == "b" and live.held["b"].turn == 4 and not died:
            died = True
            live.leave("b", "b")
            arrivals["b"] = live.ready("b", "b again")
        else:
            live.done(job, arrivals[job], live.held[job].turn)
    live.close()
    write_permits(tmp_path / "a", [(0.1, 0.3), (0.3, 0.1)])
    return tmp_path


def write_permits(run, switches):
    """A trace of turns for rollout and for training with these seconds of switches, in and out of each turn."""
    run.mkdir(exist_ok=True)
    with (run / TRACE).open("a", encoding="utf-8") as trace:
        for step, (in_s, out_s) in enumerate(switches, start=1):
            for phase, more in (("rollout", 0.0), ("train", 1.0)):
                event = {"event": "permit", "t_s": 1.0 * step, "step": step, "phase": phase, "waited_s": 0.5}
                trace.write(json.dumps(event | {"switch_in_s": in_s + more, "switch_out_s": out_s}) + "\n")


def test_seconds_of_switches_are_means_over_measured_turns_beside_those_of_the_plan(run):
    report = group_report(run)
    a, b = (report["jobs"][name]["switches"] for name in "ab")
    assert (a["rollout"]["turns"], a["rollout"]["in_s"], a["rollout"]["out_s"]) == (
        2,
        pytest.approx(0.2),
        pytest.approx(0.2),
    )
    assert a["train"]["in_s"] == pytest.approx(1.2) and a["train"]["error_s"] == pytest.approx(0.0)
    assert a["train"]["planned_s"] == 1.0
    assert b["rollout"]["turns"] == 0 and b["rollout"]["in_s"] is None and b["rollout"]["error_s"] is None
    journal = read_turns(run / TURNS)
    for name in "ab":
        for phase, figures in report["jobs"][name]["switches"].items():
            own = [t for t in journal.turns if (t.job, t.phase) == (name, phase) and t.ended]
            assert figures["other_had"] == sum(turn.switched for turn in own) and 0 < figures["other_had"] <= len(own)
    text = CliRunner().invoke(report_command, [str(run)]).output
    assert "Seconds of a switch" in text and "decode: wake" in text and "1.20 s" in text
    page = run.parent / "switches.html"
    CliRunner().invoke(report_command, [str(run), "--html", str(page)])
    assert "Switches" in page.read_text()
    (run / "a" / TRACE).write_text("no event\n" * 3)
    with pytest.raises(InputError, match="its run cannot be read"):
        group_report(run)


def test_a_run_that_measured_no_switch_is_reported_without_a_table_of_them(run):
    (run / "a" / TRACE).unlink()
    assert "Seconds of a switch" not in CliRunner().invoke(report_command, [str(run)]).output


def test_turns_are_read_as_they_were_taken(run):
    turns = read_turns(run / TURNS)
    assert (turns.group, turns.rule, turns.units) == ("g1", "round_robin", (0, 1))
    assert turns.arrivals == {"a": 1, "b": 2}
    first, second = turns.turns[0], turns.turns[1]
    assert (first.job, first.phase, first.begun_s, first.end_s, first.waited_s) == ("a", "rollout", 0.0, 60.0, 0.0)
    assert (second.job, second.phase, second.begun_s, second.end_s) == ("b", "rollout", 60.0, 80.0)
    assert second.waited_s == 60.0 and second.switched and not first.switched
    void = [turn for turn in turns.turns if not turn.ended and turn.end_s < turns.end_s]
    assert [(turn.job, turn.phase) for turn in void] == [("b", "rollout")]
    for unit in turns.units:
        held = sorted((turn.begun_s, turn.end_s) for turn in turns.turns if unit in turn.units)
        assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(held))


def test_the_report_compares_iterations_with_those_that_the_plan_has_alone(run):
    assert group_folders(run) == {"g1": run}
    report = group_report(run)
    a = report["jobs"]["a"]
    # Its own 60 + 30 seconds are the longest chain: b's rollouts and the restart hardly hold it up.
    assert a["iteration_s"] == pytest.approx(90.0, rel=0.05) and a["slowdown"] == pytest.approx(a["iteration_s"] / 90.0)
    assert a["keeps"] and a["slo"] == 1.5 and a["alone_s"] == 90.0
    assert report["jobs"]["b"]["starts"] == 2
    assert report["units"]["0"]["pool"] == "roll" and report["units"]["0"]["busy"] == pytest.approx(80 / 90, abs=0.05)
    assert report["units"]["1"]["busy"] == pytest.approx(40 / 90, abs=0.05)


def test_the_command_tells_it_as_text_json_and_page(run):
    text = CliRunner().invoke(report_command, [str(run)]).output
    assert "group g1 of 2 jobs" in text and "roll 0" in text and "1.50x" in text
    page = run.parent / f"{run.name}.html"
    done = CliRunner().invoke(report_command, [str(run), "--html", str(page), "--json"])
    assert json.loads(done.output)["groups"]["g1"]["jobs"].keys() == {"a", "b"}
    assert "who had which unit when" in page.read_text()


def test_a_job_that_left_is_told_and_one_that_joined_is_measured_from_then_on(run):
    members = {"a": member(slo=1.5), "c": member(slo=2.0)}
    dump(groups_plan({"g1": group(members)}), run / GROUPS_COPY)
    clock = [read_turns(run / TURNS).end_s + 50.0]
    live = LivePermits(
        "g1", "round_robin", [Seat(job, ((0,), (1,)), SECONDS[job]) for job in SECONDS], run / TURNS, lambda: clock[0]
    )
    changed_s = live.now_s()
    live.leave("b", "b again")
    live.give_up("b")
    live.take_seat(Seat("c", ((0,), (1,)), (20.0, 10.0)))
    arrivals = {"a": live.arrivals["a"], "c": live.ready("c", "c")}
    for _ in range(24):
        seconds = SECONDS | {"c": (20.0, 10.0)}
        ends = {job: turn.begun_s + seconds[job][turn.turn % 2] for job, turn in live.held.items()}
        job = min(ends, key=lambda name: ends[name])
        clock[0] = 50.0 + max(ends[job], live.now_s())
        live.done(job, arrivals[job], live.held[job].turn)
    live.close()
    report = group_report(run)
    assert report["jobs"].keys() == {"a", "c"} and report["left"].keys() == {"b"} and report["left"]["b"]["steps"] > 1
    assert report["together_s"][0] > changed_s and report["jobs"]["c"]["slo"] == 2.0
    assert report["jobs"]["c"]["slowdown"] is not None and report["jobs"]["a"]["slowdown"] is not None
    text = CliRunner().invoke(report_command, [str(run)]).output
    assert "b left after" in text
    status = groups_status(run, clock[0])
    assert status["jobs"].keys() == {"a", "c"} and not status["running"] and status["moves"] is None
    assert {row["state"] for row in status["jobs"].values()} == {"stopped"}


def test_a_damaged_journal_is_one_line_with_its_folder(run):
    lines = (run / TURNS).read_text().splitlines()
    (run / TURNS).write_text("\n".join([lines[0], lines[1].replace('"job"', '"jab"'), *lines[2:]]) + "\n")
    with pytest.raises(InputError, match=r"turns cannot be read.*lacks 'job'"):
        group_report(run)


def test_a_paused_turn_holds_nothing_and_goes_on_with_a_switch(tmp_path):
    clock = [0.0]
    patient = Seat("a", ((0,), (1,)), (100.0, 5.0), pace_s=1000.0, resume_s=(1.0, None))
    live = LivePermits("g1", "multi_rate", [patient], tmp_path / TURNS, lambda: clock[0])
    a = live.ready("a", "p1")
    live.take_seat(Seat("b", ((0,), (2,)), (5.0, 6.0), pace_s=12.0))
    clock[0] = 10.0
    b = live.ready("b", "p2")
    turns = read_turns(tmp_path / TURNS)
    assert turns.running["a"]["units"] == [] and turns.running["b"]["units"] == [0]
    clock[0] = 15.0
    live.done("b", b, 0)
    clock[0] = 20.0
    live.done("a", a, 0)
    parts = [turn for turn in read_turns(tmp_path / TURNS).turns if turn.job == "a" and turn.phase == "rollout"]
    assert [(turn.begun_s, turn.end_s, turn.units) for turn in parts] == [(0.0, 10.0, (0,)), (15.0, 20.0, (0,))]
    assert [(turn.switched, turn.ended, turn.first) for turn in parts] == [(False, False, True), (True, True, False)]
    live.close()


def test_a_rollout_that_ended_while_it_was_paused_is_a_rollout_that_ended(tmp_path):
    clock = [0.0]
    patient = Seat("a", ((0,), (1,)), (100.0, 5.0), pace_s=1000.0, resume_s=(1.0, None))
    live = LivePermits("g1", "multi_rate", [patient], tmp_path / TURNS, lambda: clock[0])
    a = live.ready("a", "p1")
    live.take_seat(Seat("b", ((0,), (2,)), (5.0, 6.0), pace_s=12.0))
    clock[0] = 10.0
    live.ready("b", "p2")
    clock[0] = 11.0
    live.done("a", a, 0)
    live.close()
    parts = [turn for turn in read_turns(tmp_path / TURNS).turns if turn.job == "a"]
    assert [(turn.begun_s, turn.end_s, turn.ended) for turn in parts] == [
        (0.0, 10.0, False), (11.0, 11.0, True), (11.0, 11.0, False),
    ]  # fmt: skip
