"""`rlplan simulate` as a user meets it."""

import json

import pytest

from rlplan.plans.schema.job import job_paths, load_job
from rlplan.plans.yaml.yaml_io import load
from rlplan.profiles.fitness import subject_digest
from rlplan.profiles.profile_schema import Profile

from .command_line import refused, rlplan
from .solved_folder import edit, listing, sha


@pytest.fixture
def job(solved):
    """A job that was solved, with data for some epochs of a few steps."""
    rows = [{"id": f"p{i}", "prompt": "1+1", "answer": 2} for i in range(40)]
    (solved / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    at, profile = solved / "job.yaml", solved / "profile.yaml"
    old, was = load(profile, Profile).measured, sha(profile)
    edit(profile, old, subject_digest(load_job(at), job_paths(load_job(at), at)))
    edit(solved / "plan.yaml", was, sha(profile))
    return solved


def simulate(*arguments):
    result = rlplan("simulate", *arguments, "--json")
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("\n") == 1
    return json.loads(result.stdout), result.stderr


def test_a_plan_is_simulated_beside_what_it_predicts_and_nothing_is_written(job):
    before = listing(job)
    result, errors = simulate(job / "plan.yaml", "--steps", 40)
    assert errors == ""
    assert result["all"]["steps"] == 40 and result["long"] is None
    predicted = result["predicted"]["step_s"]["mean"]
    assert result["all"]["step_s"]["mean"] == pytest.approx(predicted, rel=0.2)
    assert result["all"]["step_s"]["p50"] <= result["all"]["step_s"]["p95"]
    phases = sum(phase["mean"] for phase in result["all"]["phases_s"].values())
    assert phases == pytest.approx(result["all"]["step_s"]["mean"])
    assert 0 < result["all"]["bubble"] < 1
    assert result["all"]["tokens"]["wasted"] == 0 and result["length_ratio"] == pytest.approx(1.0, abs=0.2)
    assert result["accelerator_s_per_1k_samples"] == pytest.approx(2000 * result["seconds_per_sample"])
    assert listing(job) == before
    assert simulate(job / "plan.yaml", "--steps", 40)[0] == result


def test_a_what_if_is_of_the_value_that_was_set(job):
    plain, _ = simulate(job / "plan.yaml", "--steps", 30)
    slow, _ = simulate(job / "plan.yaml", "--steps", 30, "--set", "profile.rollout.0.step_s=0.02")
    assert slow["all"]["phases_s"]["rollout"]["mean"] > 5 * plain["all"]["phases_s"]["rollout"]["mean"]
    assert slow["all"]["phases_s"]["train"] == plain["all"]["phases_s"]["train"]
    more, notes = simulate(job / "plan.yaml", "--steps", 30, "--set", "job.rollout.samples_per_prompt=4")
    assert more["all"]["samples"] == 2 * plain["all"]["samples"]
    assert "note: plan.job.rounds.short.issue.samples follows: 2 -> 4" in notes


def test_a_stale_plan_is_simulated_with_a_warning(job):
    edit(job / "job.yaml", "learning_rate: 0.001", "learning_rate: 0.002")
    result, errors = simulate(job / "plan.yaml", "--steps", 5)
    [warning] = errors.splitlines()
    assert warning.startswith("warning: ") and "job.yaml" in warning and result["all"]["steps"] == 5


def test_another_length_trace_takes_the_place_of_the_plans(job):
    rows = [json.loads(line) for line in (job / "lengths.jsonl").read_text().splitlines()]
    for row in rows:
        row["tokens"] = max(1, row["tokens"] // 4)
    (job / "short.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    plain, _ = simulate(job / "plan.yaml", "--steps", 20)
    short, _ = simulate(job / "plan.yaml", "--steps", 20, "--trace", job / "short.jsonl")
    assert short["all"]["tokens"]["decoded"] < 0.4 * plain["all"]["tokens"]["decoded"]


def test_a_timeline_is_chrome_trace_json(job):
    result, _ = simulate(job / "plan.yaml", "--steps", 20, "--timeline", job / "t.json")
    assert result["timeline"] == str(job / "t.json")
    events = json.loads((job / "t.json").read_text())["traceEvents"]
    assert sum(e["ph"] == "X" and e["name"].startswith("short step") for e in events) == 12


def test_the_table_names_every_phase(job):
    result = rlplan("simulate", job / "plan.yaml", "--steps", 5)
    assert result.returncode == 0, result.stderr
    for word in (
        "rollout",
        "waiting for rewards",
        "training",
        "weight transfer",
        "accelerators idle",
        "p95",
        "accelerator",
        "length",
    ):
        assert word in result.stdout, result.stdout


FAULTS = {
    "a misspelt path": (("--set", "plan.job.isue.prompts_per_step=3"), ("did you mean plan.job.issue",)),
    "a wrong type": (("--set", "profile.train.0.step_s=fast"), ("step_s", "fast")),
    "a layout that was not profiled": (("--set", "plan.job.rounds.short.rollout.engines=1"), ("no layout", "2 x tp 1")),
    "no such micro-batch": (
        ("--set", "plan.job.rounds.short.train.micro_batch_tokens=256"),
        ("dp 1, micro-batches of 256 tokens, and the profile has only (dp 1, micro-batches of 128 tokens)",),
    ),
    "no such trace": (("--trace", "/nowhere.jsonl"), ("/nowhere.jsonl", "no such file")),
    "no such profile": (("--profile", "/nowhere.yaml"), ("/nowhere.yaml", "no such file")),
    "a profile that is a plan": (("--profile", "{job}/plan.yaml"), ("plan.yaml:2", "rlplan_profile")),
    "a timeline over the plan": (("--timeline", "{job}/plan.yaml"), ("is an input of this command",)),
    "a timeline nowhere": (("--timeline", "{job}/none/t.json"), ("folder does not exist",)),
    "an epoch of less than a step": (("--prompts", "2"), ("--prompts",)),
    "a folder that is no run": (("--trace", "{job}"), ("trace.jsonl",)),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_bad_input_is_one_line_with_nothing_written(fault, job):
    arguments, words = FAULTS[fault]
    before = listing(job)
    refused(rlplan("simulate", job / "plan.yaml", *(a.replace("{job}", str(job)) for a in arguments)), *words)
    assert listing(job) == before
