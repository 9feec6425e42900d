"""`rlplan solve --for executor|any`: whom a plan is for, in what is printed and in what is solved again from it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import rlplan as package
from rlplan.plans.facts.executable import FAMILIES
from rlplan.plans.schema.job import job_paths, load_job
from rlplan.plans.schema.plan import load_plan
from rlplan.profiles.fitness import subject_digest

from ..planner.check.edits import edit as edit_keys
from ..planner.check.edits import resign
from .command_line import refused, rlplan
from .solved_folder import edit, write_profiled

EXAMPLES = Path(package.__file__).parent / "plans" / "examples"

SELECTIVE = (
    "{dp: 1, micro_batch_tokens: 128, step_s: 0.0, step_s_per_token: 1.0e-09, step_s_per_token_squared: 0.0, "
    "error: 0.01, recompute: selective}"
)


@pytest.fixture(scope="module")
def selective_once(tmp_path_factory):
    """A profiled job whose fastest update only other frameworks run, solved for any of them."""
    folder = tmp_path_factory.mktemp("selective")
    write_profiled(folder)
    edit(folder / "profile.yaml", "train: [", f"train: [{SELECTIVE}, ")
    solved = rlplan("solve", folder, "--mode", "exact", "--for", "any", "--json")
    assert solved.returncode == 0, solved.stderr
    return folder


@pytest.fixture
def selective(selective_once, tmp_path):
    return shutil.copytree(selective_once, tmp_path, dirs_exist_ok=True)


def without_volatile(path):
    return path.read_text().split("\nvolatile:")[0]


def test_updates_that_cannot_run_are_planned_only_where_they_are_asked_for(selective):
    assert load_plan(selective / "plan.yaml").job.rounds.short.train.recompute == "selective", "it takes no time"
    asked = rlplan("check", selective / "plan.yaml", "--executor")
    assert asked.returncode == 1 and "[not-executable] job.rounds.short.train.recompute: is selective" in asked.stdout
    told = rlplan("solve", selective, "--mode", "exact")
    assert told.returncode == 0 and "other frameworks only" not in told.stdout
    data = json.loads(rlplan("solve", selective, "--mode", "exact", "--for", "executor", "--json").stdout)
    assert data["not_executable"] == [] and "for_any" not in (selective / "plan.yaml").read_text()
    assert rlplan("check", selective / "plan.yaml", "--executor").returncode == 0
    assert rlplan("execute", selective / "plan.yaml", "--dry-run").returncode == 0


def test_a_plan_for_any_framework_is_refreshed_into_itself_and_is_still_one(selective):
    before = without_volatile(selective / "plan.yaml")
    assert "for_any: true" in before
    result = rlplan("refresh", selective / "plan.yaml", "--json")
    assert result.returncode == 0, result.stderr
    assert without_volatile(selective / "plan.yaml") == before
    assert any("selective" in reason for reason in json.loads(result.stdout)["not_executable"])


def test_compare_takes_the_option_as_solve_does(selective):
    vary = ("compare", selective, "--mode", "sync", "--vary", "job.rollout.samples_per_prompt=2,4", "--json")
    here, anywhere = (json.loads(rlplan(*vary, "--for", whom).stdout)["points"] for whom in ("executor", "any"))
    assert here != anywhere
    assert json.loads(rlplan(*vary).stdout)["points"] == here


def test_a_workload_is_not_solved_for_anyone(selective):
    (selective / "workload.yaml").write_text("rlplan_workload: 1\n")
    refused(rlplan("solve", selective / "workload.yaml", "--for", "any"), "--for does not apply to a workload")


@pytest.mark.parametrize(
    ("model", "layout", "reasons"),
    [
        ("Qwen/Qwen2.5-32B-Instruct", {}, []),
        ("Qwen/Qwen2.5-32B-Instruct", {"dp": 2, "tp": 4, "sp": 2}, []),
        (
            "Qwen/Qwen2.5-32B-Instruct",
            {"dp": 1, "tp": 16},
            ["train.tp is 16, which does not divide 40"],
        ),
        ("Qwen/Qwen3-30B-A3B", {"dp": 2, "tp": 8}, ["train.tp is 8, and the model is a mixture of experts"]),
        ("openai/gpt-oss-20b", {}, ["inputs.job: the model is of the family gpt_oss, and the executor trains only"]),
    ],
)
def test_check_dry_run_and_show_give_one_answer_of_a_model_that_is_not_here(tmp_path, model, layout, reasons):
    shutil.copytree(EXAMPLES / "math-32b", tmp_path / "math-32b")
    shutil.copy(EXAMPLES / "math-32b.yaml", tmp_path / "plan.yaml")
    edit_keys(tmp_path / "math-32b" / "job.yaml", {"model.path": model})
    for kind in ("short", "long"):
        keys = {"dp": 16, "tp": 1, "sp": 1, "recompute": "full", **layout}
        edit_keys(tmp_path / "plan.yaml", {f"job.rounds.{kind}.train": lambda old, new=keys: {**old, **new}})
    resign(tmp_path)
    check = rlplan("check", tmp_path / "plan.yaml", "--executor", "--json")
    cannot = json.loads(check.stdout)["files"][0]["not_executable"]
    shown = json.loads(rlplan("show", tmp_path / "plan.yaml", "--json").stdout)["not_executable"]
    dry = rlplan("execute", tmp_path / "plan.yaml", "--dry-run")
    assert (dry.returncode == 2, bool(cannot), len(shown)) == (bool(reasons), bool(reasons), len(reasons)), dry.stderr
    for reason in reasons:
        assert any(reason in text for text in shown)
        key, text = reason.split(" ", 1)
        assert any(key.rstrip(":") in each["key"] and text in each["message"] for each in cannot)
        assert text in dry.stderr


def test_a_model_of_a_family_that_is_not_trained_here_is_planned_for_others_only(tmp_path):
    write_profiled(tmp_path)
    (tmp_path / "model" / "config.json").write_text('{"model_type": "gpt_oss", "num_attention_heads": 3}')
    job = load_job(tmp_path / "job.yaml")
    subject = subject_digest(job, job_paths(job, tmp_path / "job.yaml"))
    edit_keys(tmp_path / "profile.yaml", {"measured": subject})
    line = (tmp_path / "job.yaml").read_text().split("model: {path:")[0].count("\n") + 1
    told = rlplan("solve", tmp_path, "--mode", "sync")
    refused(told, f"job.yaml:{line}: model.path: the model is of the family gpt_oss, and", *FAMILIES, "solve --for any")
    others = rlplan("solve", tmp_path, "--mode", "sync", "--for", "any", "--json")
    assert others.returncode == 0, others.stderr
    assert any("family gpt_oss" in reason for reason in json.loads(others.stdout)["not_executable"])
    asked = rlplan("check", tmp_path / "plan.yaml", "--executor")
    assert asked.returncode == 1 and "[not-executable] inputs.job: the model is of the family gpt_oss" in asked.stdout
    refused(rlplan("execute", tmp_path / "plan.yaml", "--dry-run"), "plan.yaml:", "family gpt_oss", *FAMILIES)
    assert rlplan("refresh", tmp_path / "plan.yaml").returncode == 0, "it is solved again for others"
