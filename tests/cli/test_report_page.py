"""`rlplan report` on runs that go on, that died, and that never came to a step: text, JSON and page; exit code 0."""

from __future__ import annotations

import json

from ..plans.conftest import PLAN
from ..plans.page.runs import write_run
from .command_line import refused, rlplan

TEXT = PLAN.replace("DECISIONS", "a" * 64)
for _name in ("CLUSTER", "JOB", "PROFILE", "LENGTHS"):
    TEXT = TEXT.replace(f"{_name}_SHA", "a" * 64)


def test_runs_side_by_side_are_reported_as_text_json_and_page(tmp_path):
    for name, mode, killed in (("plan", "exact", True), ("sync", "sync", False)):
        write_run(tmp_path / "runs" / name, TEXT, mode, steps=12, killed=killed)
    before = {path: path.read_bytes() for path in (tmp_path / "runs").rglob("*") if path.is_file()}
    page = tmp_path / "report.html"
    result = rlplan("report", tmp_path / "runs", "--html", page)
    assert result.returncode == 0 and "Traceback" not in result.stderr, result.stderr
    assert "running or died: 12 of 40 steps; the trace was last written" in result.stdout
    assert "stopped by a signal, with a checkpoint: 12 of 40 steps" in result.stdout
    assert "step 7, " in result.stdout and "restart: engine 1" in result.stdout
    assert "tokens of samples that ended were not trained (deferred" in result.stdout
    assert f"page: {page}" in result.stdout
    text = page.read_text()
    assert text.startswith("<!DOCTYPE html>") and "running or died" in text
    assert "torn last line" in result.stderr
    found = json.loads(rlplan("report", tmp_path / "runs", "--json").stdout)
    assert {name: run["state"] for name, run in found["runs"].items()} == {"plan": "open", "sync": "stopped"}
    detail = found["runs"]["plan"]
    assert len(detail["series"]["total_s"]) == 12 and [i["kind"] for i in detail["incidents"]] == ["restart"]
    assert detail["rounds"]["long"]["measured"]["rollout_s"]["p95"] >= detail["rounds"]["long"]["rollout_s"] > 0
    assert detail["predicted"]["lengths_tokens"][20] == 1024
    after = {path: path.read_bytes() for path in (tmp_path / "runs").rglob("*") if path.is_file()}
    assert before == after, "a run that goes on is not written to"


def test_a_run_before_its_first_step_is_reported_and_exits_with_0(tmp_path):
    (tmp_path / "plan.yaml").write_text(TEXT)
    for trace in ("", '{"event":"ru', '{"event":"run","t_s":1.0,"steps":40}\n{"event":"sample","t_s":2.0,"st'):
        (tmp_path / "trace.jsonl").write_text(trace)
        result = rlplan("report", tmp_path, "--html", tmp_path / "report.html")
        assert result.returncode == 0, result.stderr
        assert "no step was finished" in result.stdout and "predicted 6.40 s a step" in result.stdout
        assert "no step was finished" in (tmp_path / "report.html").read_text()
        assert json.loads(rlplan("report", tmp_path, "--json").stdout)["runs"][tmp_path.name]["steps"] == 0


def test_samples_of_a_step_that_did_not_end_are_not_counted_as_trained(tmp_path):
    home = write_run(tmp_path / "run", TEXT, "sync", steps=3)
    trace = home / "trace.jsonl"
    whole = json.loads(rlplan("report", home, "--json").stdout)["runs"]["run"]["waste"]["tokens"]["trained"]
    lines = trace.read_text().splitlines(keepends=True)
    last = max(index for index, line in enumerate(lines) if '"event": "step"' in line)
    trace.write_text("".join(lines[:last]))
    found = json.loads(rlplan("report", home, "--json").stdout)["runs"]["run"]
    assert found["steps"] == 2 and found["waste"]["tokens"]["trained"] < whole


def test_a_page_overwrites_neither_trace_nor_plan_and_goes_to_a_folder_that_exists(tmp_path):
    home = write_run(tmp_path / "runs" / "a", TEXT, "exact", steps=2)
    for target in (home / "trace.jsonl", home / "plan.yaml"):
        refused(rlplan("report", tmp_path / "runs", "--html", target), target.name, "is an input")
        refused(rlplan("report", home, "--html", target), target.name, "is an input")
    refused(rlplan("report", home, "--html", tmp_path / "none" / "a.html"), "a.html", "does not exist")
