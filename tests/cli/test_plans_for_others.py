"""`rlplan solve --for executor|any`: whom a plan is for, in what is printed and in what is solved again from it."""

from __future__ import annotations

import json
import shutil

import pytest

from rlplan.plans.schema.plan import load_plan

from .command_line import refused, rlplan
from .solved_folder import edit, write_profiled

LEVERS = "hand_over: [0.5], drafts: {tokens: [2], acceptance: 0.9}"


@pytest.fixture(scope="module")
def levers_once(tmp_path_factory):
    """A profiled job that names both levers, solved for any framework."""
    folder = tmp_path_factory.mktemp("levers")
    write_profiled(folder)
    edit(folder / "job.yaml", "micro_batch_tokens: [128]}", f"micro_batch_tokens: [128], {LEVERS}}}")
    solved = rlplan("solve", folder, "--mode", "exact", "--for", "any", "--json")
    assert solved.returncode == 0 and json.loads(solved.stdout)["left_out"] == [], solved.stderr
    return folder


@pytest.fixture
def levers(levers_once, tmp_path):
    return shutil.copytree(levers_once, tmp_path, dirs_exist_ok=True)


def without_volatile(path):
    return path.read_text().split("\nvolatile:")[0]


def test_levers_that_cannot_run_are_left_out_with_a_note_each_unless_they_are_asked_for(levers):
    assert load_plan(levers / "plan.yaml").job.rounds.short.rollout.drafts is not None, (
        "they are accepted nearly always"
    )
    asked = rlplan("check", levers / "plan.yaml", "--executor")
    assert asked.returncode == 1 and "[not-executable] job.rounds.short.rollout.drafts: the executor's" in asked.stdout
    told = rlplan("solve", levers, "--mode", "exact")
    assert told.returncode == 0
    for lever in ("drafts", "hand_over"):
        assert told.stdout.count(f"note: search.{lever} is left out: the executor") == 1
    assert told.stdout.count("; --for any plans it\n") == 2 and "other frameworks only" not in told.stdout
    data = json.loads(rlplan("solve", levers, "--mode", "exact", "--for", "executor", "--json").stdout)
    assert [text.split(" ")[0] for text in data["left_out"]] == ["search.drafts", "search.hand_over"]
    assert data["not_executable"] == [] and "for_any" not in (levers / "plan.yaml").read_text()
    assert rlplan("check", levers / "plan.yaml", "--executor").returncode == 0
    assert rlplan("execute", levers / "plan.yaml", "--dry-run").returncode == 0


def test_a_plan_for_any_framework_is_refreshed_into_itself_and_is_still_one(levers):
    before = without_volatile(levers / "plan.yaml")
    assert "for_any: true" in before
    result = rlplan("refresh", levers / "plan.yaml", "--json")
    assert result.returncode == 0, result.stderr
    assert without_volatile(levers / "plan.yaml") == before
    assert any("drafts" in reason for reason in json.loads(result.stdout)["not_executable"])


def test_compare_takes_the_option_as_solve_does(levers):
    vary = ("compare", levers, "--mode", "sync", "--vary", "job.rollout.samples_per_prompt=2,4", "--json")
    here, anywhere = (json.loads(rlplan(*vary, "--for", whom).stdout)["points"] for whom in ("executor", "any"))
    assert all(any("search.drafts is left out" in note for note in point["notes"]) for point in here)
    assert not any("left out" in note for point in anywhere for note in point["notes"])
    assert json.loads(rlplan(*vary).stdout)["points"] == here


def test_a_workload_is_not_solved_for_anyone(levers):
    (levers / "workload.yaml").write_text("rlplan_workload: 1\n")
    refused(rlplan("solve", levers / "workload.yaml", "--for", "any"), "--for does not apply to a workload")
