"""Bad input at the command line: one line, exit code 2, nothing written. The loaders' own cases are in tests/plans."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .command_line import refused, rlplan
from .solved_folder import edit, listing, sha

EXAMPLES = Path(__file__).resolve().parents[2] / "plans" / "examples"


def test_the_documents_are_sound_before_they_are_broken(solved):
    result = rlplan("execute", solved / "plan.yaml", "--dry-run", "--json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout) == {"checked": ["plan"], "findings": [], "shortage": None, "ok": True}


def test_a_plan_of_several_nodes_is_checked_without_a_cluster_and_told_to_need_one(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    plan = EXAMPLES / "math-32b.yaml"
    result = rlplan("execute", plan, "--dry-run")
    needs = "needs 8 nodes: set RAY_ADDRESS to the head of a Ray cluster that has them"
    assert result.returncode == 0 and f"a start {needs}\n" in result.stdout
    assert "can be started" not in result.stdout and "in order: math-32b\n" in result.stdout
    data = json.loads(rlplan("execute", plan, "--dry-run", "--json").stdout)
    assert data["ok"] and data["shortage"] == needs


def test_a_ray_address_that_is_none_is_refused_before_anything_is_written(solved, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1")
    before = listing(solved)
    execute = ("execute", solved / "plan.yaml", "--out", solved / "run")
    for command in ((*execute, "--dry-run", "--json"), execute, ("profile", solved, "--force")):
        refused(rlplan(*command), "RAY_ADDRESS: is '10.0.0.1'; write HOST:PORT")
    assert listing(solved) == before


def test_minutes_without_an_end_are_refused(solved):
    for minutes in ("inf", "nan"):
        result = rlplan("profile", solved / "job.yaml", "--minutes", minutes)
        assert result.returncode == 2 and "is no finite number" in result.stderr


FAULTS = {
    "unknown key": ("prompts_per_step: 4", "prompts_per_step: 4, fast: 1", "unknown key"),
    "wrong unit": ("deadline_s: 2.0", "deadline_ms: 2000", "wrong unit"),
    "more engines than cores": ("engines: 2,", "engines: 3,", "engines"),
    "another plan's job": ("job: {path: job.yaml", "job: {path: nowhere.yaml", "nowhere.yaml"),
    "no such layout": ("engines: 2, tp: 1", "engines: 1, tp: 2", "heads"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_broken_plan_is_refused_at_its_line_with_nothing_written(fault, solved):
    old, new, word = FAULTS[fault]
    line = edit(solved / "plan.yaml", old, new)
    before = listing(solved)
    refused(rlplan("execute", solved / "plan.yaml", "--out", solved / "out"), f"plan.yaml:{line}", word)
    assert listing(solved) == before


def test_a_plan_whose_job_changed_is_stale(solved):
    edit(solved / "job.yaml", "learning_rate: 0.001", "learning_rate: 0.002")
    refused(rlplan("execute", solved / "plan.yaml", "--out", solved / "out"), "plan.yaml:", "job.yaml", "solve")
    assert not (solved / "out").exists()


def test_a_plan_cut_off_anywhere_is_refused(solved):
    text = (solved / "plan.yaml").read_text()
    for share in (0.2, 0.5, 0.9):
        (solved / "cut.yaml").write_text(text[: int(share * len(text))])
        refused(rlplan("execute", solved / "cut.yaml", "--out", solved / "out"), "cut.yaml:")
    assert not (solved / "out").exists()


def test_a_profile_of_another_machine_is_refused_unless_forced(solved):
    edit(solved / "profile.yaml", "accelerators: 2, cores: 2", "accelerators: 4, cores: 4")
    before = listing(solved)
    refused(rlplan("solve", solved, "-o", solved / "new.yaml"), "profile.yaml", "another machine", "--force")
    assert listing(solved) == before
    forced = rlplan("solve", solved, "--mode", "sync", "-o", solved / "new.yaml", "--force", "--json")
    assert forced.returncode == 0, forced.stderr
    assert json.loads(forced.stdout)["mode"] == "sync"


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("job.yaml", "max_response_tokens: 64", "max_response_tokens: 32"),
        ("job.yaml", "kind: math", "kind: code"),
        ("data.jsonl", "1+1", "1+2"),
        ("model/config.json", '"num_key_value_heads": 3', '"num_key_value_heads": 1'),
    ],
)
def test_a_profile_of_what_the_job_no_longer_is_is_refused_unless_forced(name, old, new, solved):
    edit(solved / name, old, new)
    refused(rlplan("solve", solved, "-o", solved / "new.yaml"), "profile.yaml", "rlplan profile", "--force")
    assert not (solved / "new.yaml").exists()


def test_changes_that_no_measurement_depends_on_need_no_new_profile(solved):
    edit(solved / "job.yaml", "learning_rate: 0.001", "learning_rate: 0.002")
    result = rlplan("solve", solved, "--mode", "sync", "-o", solved / "new.yaml", "--json")
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("target", ["none/plan.yaml", ".", "job.yaml"])
def test_a_plan_is_never_written_where_it_cannot_or_must_not_be(target, solved):
    before = listing(solved)
    refused(rlplan("solve", solved, "-o", solved / target))
    assert listing(solved) == before


def test_a_run_folder_that_is_a_file_and_an_empty_data_file_are_refused_by_a_dry_run(solved):
    (solved / "afile").write_text("")
    refused(rlplan("execute", solved / "plan.yaml", "--out", solved / "afile", "--dry-run"), "afile")
    (solved / "data.jsonl").write_text("")
    refused(rlplan("execute", solved / "plan.yaml", "--dry-run"), "data.jsonl")


def test_a_dry_run_tells_each_fault_of_the_data_once(solved):
    good = (solved / "data.jsonl").read_text()
    bad = [f":{good.count(chr(10)) + number}" for number in (1, 2)]
    few = "".join(good.splitlines(keepends=True)[:3])
    for data, places in ((good + "nonsense\n{}\n", bad), ("", [""]), (few, [""])):
        (solved / "data.jsonl").write_text(data)
        lines = rlplan("execute", solved / "plan.yaml", "--dry-run").stderr.splitlines()
        told = [line for line in lines if "data.jsonl" in line]  # others say that the profile is of other data
        assert len(told) == len(places), told
        assert all(f"{solved}/data.jsonl{place}: " in line for line, place in zip(told, places, strict=True))


def test_data_with_fewer_prompts_than_a_step_trains_is_refused_by_all_that_would_use_it(solved):
    rows = (solved / "data.jsonl").read_text().splitlines(keepends=True)
    (solved / "data.jsonl").write_text("".join(rows[:3]))
    for command in (
        ("solve", solved, "-o", solved / "new.yaml"),
        ("execute", solved / "plan.yaml", "--dry-run"),
        ("simulate", solved / "plan.yaml"),
    ):
        refused(rlplan(*command), "data.jsonl", "has 3 prompts", "trains 4", "prompts_per_step")
    checked = rlplan("check", solved / "plan.yaml")
    assert checked.returncode == 1 and "has 3 prompts" in checked.stdout + checked.stderr


def test_a_length_trace_with_a_torn_last_line_is_read_up_to_it_with_a_warning(solved):
    trace = solved / "lengths.jsonl"
    trace.write_bytes(trace.read_bytes() + b'{"prompt": "p9", "ep')
    edit(solved / "profile.yaml", (solved / "profile.yaml").read_text().split("sha256: ")[1][:64], sha(trace))
    result = rlplan("solve", solved, "--mode", "sync", "-o", solved / "new.yaml", "--json")
    assert result.returncode == 0, result.stderr
    [warning] = [line for line in result.stderr.splitlines() if line.startswith("warning: ")]
    assert "lengths.jsonl:97" in warning and "torn" in warning


@pytest.mark.parametrize(
    ("command", "name"), [("profile", "job.yaml"), ("solve", "profile.yaml"), ("solve", "job.yaml")]
)
def test_an_unknown_key_is_refused_by_every_command_that_reads_the_file(command, name, solved):
    (solved / name).write_text("surprise: 1\n" + (solved / name).read_text())
    before = listing(solved)
    refused(rlplan(command, solved), f"{name}:1", "surprise")
    assert listing(solved) == before


def test_tp_sizes_that_do_not_divide_the_heads_are_refused_before_anything_is_measured(solved):
    line = edit(solved / "job.yaml", "tp: [1]", "tp: [2]")
    refused(rlplan("profile", solved), f"job.yaml:{line}", "search.tp", "3 attention")


def test_a_profile_that_could_not_be_written_is_refused_before_anything_is_measured(solved):
    refused(rlplan("profile", solved, "--out", solved / "none" / "profile.yaml"), "none/profile.yaml", "folder")


def test_a_run_folder_that_holds_a_run_is_not_overwritten(solved):
    (solved / "out").mkdir()
    (solved / "out" / "trace.jsonl").write_text('{"event":"step","t_s":1.0}\n')
    refused(rlplan("execute", solved / "plan.yaml", "--out", solved / "out"), "--resume")
    refused(rlplan("execute", solved / "plan.yaml", "--out", solved / "none", "--resume"), "no run")
