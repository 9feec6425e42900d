"""Plans that no memory holds: `execute`, with --dry-run or without, `simulate` and `show` say what `check` says."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from rlplan.cli.main import cli
from rlplan.cli.screens.solved import plan_summary, plan_text
from rlplan.plans.schema.plan import load_plan
from rlplan.plans.yaml.errors import Infeasible

from ..planner.check.edits import edit, resign
from .command_line import rlplan

EXAMPLES = Path(__file__).resolve().parents[2] / "plans" / "examples"
KINDS = ("job.rounds.short", "job.rounds.long")


@pytest.fixture
def impossible(tmp_path):
    """A 32B model trained by data parallelism alone, without recomputation: hundreds of GB on an accelerator."""
    shutil.copytree(EXAMPLES / "math-32b", tmp_path / "math-32b")
    plan = Path(shutil.copy(EXAMPLES / "math-32b.yaml", tmp_path / "plan.yaml"))
    edit(plan, {f"{kind}.train": lambda t: {**t, "dp": 64, "tp": 1, "pp": 1, "recompute": "none"} for kind in KINDS})
    resign(tmp_path)
    return plan


@pytest.fixture
def pipeline(impossible):
    """The shipped plan with trainers that have a pipeline: memory holds them, and only other frameworks run them."""
    shutil.copy(EXAMPLES / "math-32b.yaml", impossible)
    sizes = {"dp": 1, "tp": 8, "pp": 8, "recompute": "full", "micro_batch_tokens": 16896}
    edit(impossible, {f"{kind}.train": lambda t: {**t, **sizes} for kind in KINDS})
    resign(impossible.parent)
    return impossible


def told(result, rule):
    """Lines that tell of a rule's findings."""
    return [line for line in (result.stdout + result.stderr).splitlines() if f"[{rule}]" in line]


def test_a_dry_run_finds_what_check_finds_and_a_run_is_not_started(impossible, tmp_path):
    check = rlplan("check", impossible)
    dry = rlplan("execute", impossible, "--dry-run")
    assert check.returncode == dry.returncode == 1
    assert len(told(check, "train-memory")) == 2 and told(dry, "train-memory") == told(check, "train-memory")
    assert "while trainers train, an accelerator holds" in dry.stdout and "trainer activations" in dry.stdout
    assert all("; shard further (dp, tp, sp), recompute" in line for line in told(dry, "train-memory")), (
        "what is advised is what execute runs"
    )
    as_data = json.loads(rlplan("execute", impossible, "--dry-run", "--json").stdout)
    assert not as_data["ok"] and "train-memory" in {finding["rule"] for finding in as_data["findings"]}
    run = rlplan("execute", impossible, "--out", tmp_path / "run")
    assert run.returncode == 1 and run.stderr.count("\n") == 1
    assert run.stderr.startswith("run failed: ") and "[train-memory]" in run.stderr and "(and 1 more)" in run.stderr
    assert not (tmp_path / "run").exists()


def test_a_refresh_of_it_is_refused_at_the_decisions_with_the_remedy_and_nothing_is_simulated(impossible, monkeypatch):
    def never(*arguments, **options):
        raise AssertionError("simulated")

    monkeypatch.setattr("rlplan.planner.refresh.refresh", never)
    with pytest.raises(Infeasible) as caught:
        cli.main(["refresh", str(impossible)], standalone_mode=False)
    lines = str(caught.value).splitlines()
    assert [line.split(": ")[1] for line in lines] == [f"{kind}.train" for kind in KINDS]
    assert all(line.startswith(f"{impossible}:") and "recompute activations" in line for line in lines)
    told_of = rlplan("refresh", impossible)
    assert told_of.returncode == 3 and told_of.stderr.splitlines() == [f"no feasible plan: {line}" for line in lines]


def all_told(result, plan):
    """What is said of a plan, by place and key: of findings of `check` and of lines of a dry run alike."""
    lines = [line.removeprefix("error: ") for line in (result.stdout + result.stderr).splitlines()]
    return [re.sub(r": \[[a-z-]+\] ", ": ", line) for line in lines if re.match(rf"{re.escape(str(plan))}:\d+: ", line)]


def test_a_dry_run_tells_all_that_check_tells_and_what_cannot_run_each_once(pipeline):
    impossible = pipeline
    edit(impossible.parent / "math-32b" / "cluster.yaml", {"pools.h100.nodes": 4})
    for rule, count in (("input-changed", 5), ("decisions-edited", 2)):
        check, dry = rlplan("check", impossible), rlplan("execute", impossible, "--dry-run")
        assert len(told(check, rule)) == 1 and len(all_told(check, impossible)) == count
        assert dry.returncode == 2 and not dry.stdout
        said = all_told(dry, impossible)
        assert len(said) == len(set(said)) and set(all_told(check, impossible)) <= set(said)
        beside = set(said) - set(all_told(check, impossible))
        assert len(beside) == 2 and all("the executor's trainers have no pipeline" in line for line in beside)
        assert not any("write none" in line for line in said)
        shutil.copytree(EXAMPLES / "math-32b", impossible.parent / "math-32b", dirs_exist_ok=True)
        edit(impossible, {"job.rounds.short.rollout.max_num_seqs": 100_000})


def test_check_says_once_that_only_other_frameworks_run_a_plan(pipeline):
    fault = "is 8, and the executor's trainers have no pipeline"
    why = f"job.rounds.short.train.pp {fault} (likewise job.rounds.long.train.pp)"
    result = rlplan("check", pipeline)
    assert result.returncode == 0 and result.stdout.count(f"{pipeline}: runs on: other frameworks only: {why}\n") == 1
    (file,) = json.loads(rlplan("check", pipeline, "--json").stdout)["files"]
    assert file["runs_on"] == "other frameworks only" and file["findings"] == []
    lines = pipeline.read_text().splitlines()
    assert [(f["key"], f["message"]) for f in file["not_executable"]] == [(f"{k}.train.pp", fault) for k in KINDS]
    assert all("pp: 8" in lines[f["line"] - 1] and f["remedy"].startswith("write 1") for f in file["not_executable"])
    plan = load_plan(pipeline)  # what solve prints of a plan that it has written
    assert plan_text(plan, pipeline).count(f"note: other frameworks only: {why}\n") == 1
    assert plan_summary(plan, pipeline)["not_executable"] == [why]


def test_check_for_the_executor_finds_what_execute_refuses_line_by_line(pipeline):
    shipped = [EXAMPLES / "math-32b.yaml", EXAMPLES / "cpu-demo.yaml"]
    runs = rlplan("check", *shipped, "--executor")
    assert runs.returncode == 0 and runs.stdout.count(": runs on: rlplan execute\n") == 2
    data = json.loads(rlplan("check", shipped[1], "--executor", "--json").stdout)
    assert data["ok"] and (data["files"][0]["runs_on"], data["files"][0]["not_executable"]) == ("rlplan execute", [])
    refused = rlplan("check", pipeline, shipped[1], "--executor")
    dry = rlplan("execute", pipeline, "--dry-run")
    assert (refused.returncode, dry.returncode) == (1, 2)
    found = told(refused, "not-executable")
    assert len(found) == 2 and "other frameworks only" not in refused.stdout
    assert [re.sub(r": \[not-executable\] ", ": ", line) for line in found] == all_told(dry, pipeline)
    as_data = json.loads(rlplan("check", pipeline, "--executor", "--json").stdout)
    assert not as_data["ok"] and as_data["findings"] == 2
    github = rlplan("check", pipeline, "--executor", "--format", "github")
    assert github.returncode == 1 and github.stdout.count("title=rlplan not-executable") == 2


def test_of_changed_machines_the_host_is_named_once_and_no_figure_that_is_of_the_old_ones(impossible):
    shutil.copy(EXAMPLES / "math-32b.yaml", impossible)
    edit(impossible.parent / "math-32b" / "cluster.yaml", {"pools.h100.host_memory_bytes": 100_000_000_000})
    found = json.loads(rlplan("check", impossible, "--json").stdout)["files"][0]["findings"]
    assert [(finding["rule"], finding["key"]) for finding in found] == [
        ("input-changed", "inputs.cluster"), ("host-memory", "job.rounds"),
    ]  # fmt: skip
    edit(impossible.parent / "math-32b" / "cluster.yaml", {"pools.h100.host_memory_bytes": 4_000_000_000_000})
    found = json.loads(rlplan("check", impossible, "--json").stdout)["files"][0]["findings"]
    assert [finding["rule"] for finding in found] == ["input-changed"]
    resign(impossible.parent)
    found = json.loads(rlplan("check", impossible, "--json").stdout)["files"][0]["findings"]
    assert [finding["rule"] for finding in found] == ["capacity-contradicts-inputs"]


def test_simulate_tells_what_memory_does_not_hold_and_ends_as_check_does(impossible):
    plain = rlplan("simulate", impossible, "--steps", 3, "--json")
    assert plain.returncode == 1
    assert {finding["rule"] for finding in json.loads(plain.stdout)["findings"]} >= {"train-memory"}
    assert len(told(plain, "train-memory")) == 2 and "finding: " in plain.stderr


def test_simulate_judges_the_values_that_were_set_and_not_those_of_the_file(impossible):
    settings = [
        option
        for kind in KINDS
        for key, value in (("dp", 8), ("tp", 8), ("recompute", "full"))
        for option in ("--set", f"plan.{kind}.train.{key}={value}")
    ]
    sound = rlplan("simulate", impossible, "--steps", 3, *settings)
    assert sound.returncode == 0 and not told(sound, "train-memory"), sound.stderr
    less = rlplan(
        "simulate", impossible, "--steps", 3, *settings, "--set", "cluster.pools.h100.host_memory_bytes=60000000000"
    )
    assert less.returncode == 1 and len(told(less, "host-memory")) == 1, less.stderr
    assert "checkpoint copy" in less.stderr and "weights under way" not in less.stderr


def test_show_notes_memory_that_does_not_hold_and_has_the_table(impossible):
    shown = json.loads(rlplan("show", impossible, "--json").stdout)
    assert any("memory does not hold it" in note and "while trainers train" in note for note in shown["notes"])
    bars = {(bar["round"], bar["place"], bar["phase"]): bar for bar in shown["memory"]}
    assert len(bars) == 12
    training = bars["short", "device", "train"]
    assert training["needed_bytes"] == pytest.approx(sum(training["holds_bytes"].values()))
    assert training["needed_bytes"] > 2 * training["capacity_bytes"]


def test_a_plan_says_who_holds_the_memory_that_it_needs(solved):
    shown = rlplan("show", solved / "plan.yaml")
    assert shown.returncode == 0 and "held by" in shown.stdout and "engine processes 6 GB" in shown.stdout
    plan = json.loads(rlplan("show", solved / "plan.yaml", "--json").stdout)
    host = plan["predicted"]["host_memory"]
    assert sum(host["holds_bytes"].values()) == pytest.approx(host["needed_bytes"], rel=1e-5)
    assert host["needed_bytes"] == pytest.approx(max(b["needed_bytes"] for b in plan["memory"]), rel=1e-5)


def test_a_tail_on_engines_of_its_own_is_shown_and_has_bars_of_its_own(impossible):
    shutil.copy(EXAMPLES / "math-32b.yaml", impossible)
    tail = {"engines": 8, "tp": 8, "at_finished": 0.9}
    edit(impossible, {
        "job.rounds.long.rollout": lambda engines: {**engines, "engines": 32, "tp": 2}, "job.rounds.long.tail": tail,
    })  # fmt: skip
    resign(impossible.parent)
    shown = rlplan("show", impossible)
    assert shown.returncode == 0 and "8 x tp 8 at 90%" in shown.stdout, shown.stderr
    bars = json.loads(rlplan("show", impossible, "--json").stdout)["memory"]
    assert {bar["round"] for bar in bars} == {"short", "long", "tail"}
