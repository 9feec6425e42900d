"""`rlplan apply` and `rlplan status` on folders of groups: what is refused in one line, and what is shown."""

from __future__ import annotations

import json

import pytest

from rlplan.plans.yaml.yaml_io import dump
from rlplan.traces.groups.group_turns import GROUPS_COPY, TURNS
from rlplan.traces.groups.groups_folder import MOVES

from ..group_documents import group, groups_plan, member
from .command_line import refused, rlplan

MOVE = {"job": "b", "from_group": None, "to_group": "g1", "price_s": 40.0}


@pytest.fixture
def runs(tmp_path):
    """A folder of one group whose job a decodes and whose job b joined; the driver is gone."""
    plan, out = groups_plan({"g1": group({"a": member(), "b": member()})}), tmp_path / "runs"
    (out / "g1").mkdir(parents=True)
    for folder in (out, out / "g1"):
        dump(plan, folder / GROUPS_COPY)
    turn = {"job": "a", "turn": 0, "phase": "rollout", "begun_s": 1.0, "units": [0], "resident": True}
    write(out / "g1" / TURNS, [
        {"event": "group", "t_s": 0.0, "group": "g1", "rule": "multi_rate", "began_s": 1.7e9,
         "seats": [{"job": job, "units": [[0], [1]]} for job in "ab"]},
        {"event": "ready", "t_s": 1.0, "job": "a", "process": "p"},
        {"event": "turns", "t_s": 1.0, "begun": [turn], "waits_for": {}},
    ])  # fmt: skip
    write(out / MOVES, [
        {"event": "groups", "t_s": 0.0, "began_s": 1.7e9},
        {"event": "wanted", "t_s": 1.0, "id": "r", "plan": "b.yaml", "sha256": "0" * 64, "moves": [MOVE]},
        {"event": "in", "t_s": 51.0, "id": "r", "job": "b", "start_s": 50.0, "outage_s": 50.0},
        {"event": "applied", "t_s": 51.0, "id": "r", "seconds": 50.0},
        {"event": "bound", "t_s": 60.0, "job": "a", "group": "g1", "state": "alarm", "slowdown": 1.4, "recent": 1.6,
         "slo": 1.5, "breaks_in": 3},
        {"event": "proposed", "t_s": 61.0, "id": "q", "plan": "proposed-1.yaml", "moves": 1, "price_s": 30.0,
         "applies": False, "reason": "no rlplan.policy.yaml allows it"},
    ])  # fmt: skip
    return out


def write(path, events):
    path.write_text("".join(json.dumps(event) + "\n" for event in events))


def test_status_shows_jobs_moves_alarms_and_the_replan_that_waits(runs):
    shown = rlplan("status", runs)
    assert shown.returncode == 0, shown.stderr
    for text in ("g1 stopped; continue with rlplan execute --resume", "40.0 s", "50.0 s", "applied in 50.0 s",
                 "proposed-1.yaml, 1 move of 30.0 s; not applied: no rlplan.policy.yaml allows it"):  # fmt: skip
        assert text in shown.stdout, shown.stdout
    status = json.loads(rlplan("status", runs, "--json").stdout)
    assert {name: row["bound"] for name, row in status["jobs"].items()} == {"a": "alarm", "b": None}
    assert status["moves"]["moves"][0]["outage_s"] == 50.0 and status["proposed"]["moves"] == 1
    assert not status["running"] and status["groups"]["g1"]["held"] == []


def test_a_job_that_is_still_to_join_has_not_ended_and_a_group_alone_is_not_changed(runs):
    lines = (runs / MOVES).read_text().splitlines()
    (runs / MOVES).write_text("\n".join(lines[:2]) + "\n")
    assert json.loads(rlplan("status", runs, "--json").stdout)["jobs"]["b"]["state"] == "to do"
    alone = "runs one group alone (--group), whose jobs cannot be moved"
    refused(rlplan("apply", runs / GROUPS_COPY, "--out", runs / "g1"), alone)


def test_a_job_on_its_way_out_and_a_damaged_event_are_told(runs):
    plan = groups_plan({"g1": group({"b": member()})})
    for folder in (runs, runs / "g1"):
        dump(plan, folder / GROUPS_COPY)
    wanted = {"event": "wanted", "t_s": 1.0, "id": "r", "plan": "b.yaml", "sha256": "0" * 64,
              "moves": [{**MOVE, "job": "a", "from_group": "g1", "to_group": None}]}  # fmt: skip
    begun = {"event": "groups", "t_s": 0.0, "began_s": 1.7e9}
    write(runs / MOVES, [begun, wanted, {"event": "drain", "t_s": 1.0, "id": "r", "job": "a"}])
    jobs = json.loads(rlplan("status", runs, "--json").stdout)["jobs"]
    assert jobs.keys() == {"a", "b"} and jobs["a"]["slo"] is None
    for command in (("status", runs), ("report", runs)):
        shown = rlplan(*command)
        assert shown.returncode == 0 and "stopping" in shown.stdout, shown.stderr
    write(runs / MOVES, [begun, wanted, {"event": "bound", "t_s": 1.0}])
    refused(rlplan("status", runs), "moves.jsonl: an event lacks 'state'")
    (runs / "g1" / TURNS).write_text(json.dumps({"event": "group", "t_s": 0.0, "group": "g1", "rule": "x",
                                                 "began_s": "abc", "seats": []}) + "\n")  # fmt: skip
    refused(rlplan("status", runs), "its turns cannot be read")


def test_a_folder_without_groups_and_a_damaged_journal_are_refused(runs, tmp_path):
    refused(rlplan("status", tmp_path), "holds no groups that were executed")
    refused(rlplan("apply", runs / GROUPS_COPY, "--out", tmp_path), "holds no groups that were executed")
    (runs / MOVES).write_text("no event\n")
    refused(rlplan("status", runs), "moves.jsonl:1: not a trace event")


def test_a_plan_that_was_not_solved_from_the_running_one_is_refused_with_the_command_to_solve_it(runs, tmp_path):
    solve = f"was solved anew; solve with --from {runs / GROUPS_COPY}"
    refused(rlplan("apply", runs / GROUPS_COPY, "--out", runs), solve)
    file = {"path": "old.yaml", "sha256": "3" * 64}
    inputs = groups_plan({"g1": group({"a": member()})}).inputs.model_dump(mode="json") | {"previous": file}
    dump(groups_plan({"g1": group({"a": member()})}, inputs=inputs), tmp_path / "other.yaml")
    other = "was solved from another plan than the one that runs"
    refused(rlplan("apply", tmp_path / "other.yaml", "--out", runs, "--dry-run"), other)
