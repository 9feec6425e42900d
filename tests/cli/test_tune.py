"""`rlplan tune` as a user meets it, on a run that was simulated and written as the executor writes one."""

import hashlib
import json
import re
from pathlib import Path

import pytest

from rlplan.planner.lengths.table_lengths import named_lengths
from rlplan.plans.schema.job import load_job
from rlplan.plans.schema.plan import load_plan
from rlplan.plans.yaml.yaml_io import load
from rlplan.profiles.length_trace import read_lengths
from rlplan.profiles.profile_schema import Profile

from ..planner.synthetic_run import synthesize
from .command_line import refused, rlplan
from .solved_folder import edit, listing


@pytest.fixture
def job(solved):
    """A job with a heavy tail and a plain plan, and a run of it in `run`."""
    rows = [json.loads(line) for line in (solved / "lengths.jsonl").read_text().splitlines()]
    for number, row in enumerate(rows):
        row["tokens"] = 60 if number % 17 == 0 else 3 + number % 4
    (solved / "lengths.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    edit(solved / "profile.yaml", (solved / "profile.yaml").read_text().split("sha256: ")[1][:64], sha(solved))
    plain = rlplan("solve", solved, "--mode", "sync", "--bias-budget", 0)
    assert plain.returncode == 0, plain.stderr
    # A plain plan that nobody forced, as one of a time when it was the best.
    edit(solved / "plan.yaml", "  forced_mode: sync\n", "")
    synthesize(
        solved / "run",
        load_plan(solved / "plan.yaml"),
        load_job(solved / "job.yaml"),
        load(solved / "profile.yaml", Profile),
        read_lengths(solved / "lengths.jsonl", cap_tokens=64),
        steps=60,
        prompts=100,
        plan_path="../plan.yaml",
    )
    return solved


def sha(folder):
    return hashlib.sha256((folder / "lengths.jsonl").read_bytes()).hexdigest()


def tune(*arguments):
    result = rlplan("tune", *arguments, "--json")
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("\n") == 1
    return json.loads(result.stdout)


def without_volatile(path):
    return path.read_text().split("\nvolatile:")[0]


def test_a_better_plan_is_written_with_what_it_was_solved_from_and_then_kept(job):
    result = tune(job / "run")
    assert result["decision"] == "change" and result["gain"] > result["error"] > 0
    new = job / "plan.tuned.yaml"
    assert Path("/", result["plan"]) == new and Path("/", result["in_force"]) == job / "plan.yaml"
    assert set(result["phases"]) == {"rollout", "reward_exposed", "train", "sync"}
    for phase in result["phases"].values():
        assert phase["measured"] >= 0 and phase["predicted"] >= 0 and phase["why"]
    checked = rlplan("execute", new, "--dry-run")
    assert checked.returncode == 0, checked.stderr
    reviewed = rlplan("check", new, job / "plan.tuned.profile.yaml")
    assert reviewed.returncode == 0, reviewed.stdout
    # What was proposed is what solving from the files gives.
    again = rlplan("solve", job, "--profile", job / "plan.tuned.profile.yaml", "-o", job / "again.yaml")
    assert again.returncode == 0, again.stderr
    assert without_volatile(job / "again.yaml") == without_volatile(new)
    before = listing(job)
    second = tune(job / "run")
    assert second["decision"] == "keep" and second["plan"] is None and Path("/", second["in_force"]) == new
    assert listing(job) == before


def test_the_plan_in_force_can_be_named_and_the_text_says_decision_phases_and_error(job):
    result = rlplan("tune", job / "run", "--plan", job / "plan.yaml", "--out", job / "mine.yaml")
    assert result.returncode == 0, result.stderr
    for word in ("rollout", "training", "weight transfer", "predicted", "measured", "change: ", "error", "mine.yaml"):
        assert word in result.stdout, result.stdout
    assert load_plan(job / "mine.yaml").inputs.profile.path == "mine.profile.yaml"
    assert tune(job / "run", "--plan", job / "mine.yaml")["decision"] == "keep"
    assert tune(job / "run", "--plan", job / "plan.yaml", "--out", job / "mine.yaml")["decision"] == "keep"


def test_a_plan_of_assumed_lengths_goes_on_to_say_what_a_short_run_did_not_measure(job):
    words = "p50=4,p85=6,p87=60,max=64,icc=0.7"
    plain = rlplan("solve", job, "--mode", "sync", "--lengths", words)
    assert plain.returncode == 0, plain.stderr
    edit(job / "plan.yaml", "  forced_mode: sync\n", "")
    synthesize(
        job / "short",
        load_plan(job / "plan.yaml"),
        load_job(job / "job.yaml"),
        load(job / "profile.yaml", Profile),
        named_lengths(f"{words},scale=1.3")[0],
        steps=15,
        prompts=100,
        plan_path="../plan.yaml",
    )
    result = tune(job / "short")
    assert result["decision"] == "change", result
    new = load_plan(job / "plan.tuned.yaml")
    assert new.inputs.lengths.assumed == words and new.inputs.lengths.path is None
    assert new.inputs.lengths.scale == pytest.approx(result["factors"]["lengths"], rel=1e-3)
    assert 1.05 < new.inputs.lengths.scale < 1.6
    assert new.predicted.error.assumed_lengths > 0
    assert ", as stated; " in new.job.why["lengths"]
    own = load(job / "plan.tuned.profile.yaml", Profile).lengths
    assert own is not None and read_lengths(job / own.path).rows == read_lengths(job / "lengths.jsonl").rows
    checked = rlplan("check", job / "plan.tuned.yaml")
    assert checked.returncode == 0, checked.stdout
    assert f"all lengths times {new.inputs.lengths.scale:g}" in checked.stdout
    # The words of its lengths are those of --lengths, and solving from what it names gives it again.
    again = ("--profile", job / "plan.tuned.profile.yaml", "--lengths", new.inputs.lengths.name)
    resolved = rlplan("solve", job, *again, "-o", job / "again.yaml")
    assert resolved.returncode == 0, resolved.stderr
    assert without_volatile(job / "again.yaml") == without_volatile(job / "plan.tuned.yaml")


def damage(job, pattern, text):
    trace = job / "run" / "trace.jsonl"
    trace.write_text(re.sub(pattern, text, trace.read_text(), count=1))


FAULTS = {
    "no such run": (lambda job: None, ("{job}/none",), ("no such run folder",)),
    "a folder of runs": (lambda job: None, ("{job}",), ("holds the runs run",)),
    "a damaged trace": (lambda job: damage(job, '"tokens":', '"tokens"'), ("{job}/run",), ("trace.jsonl:2",)),
    "an event without its key": (lambda job: damage(job, '"train_s":', '"trian_s":'), ("{job}/run",), ("train_s",)),
    "no plan beside the trace": (lambda job: (job / "run" / "plan.yaml").unlink(), ("{job}/run",), ("plan.yaml",)),
    "a run whose plan is gone": (lambda job: (job / "plan.yaml").unlink(), ("{job}/run",), ("--plan",)),
    "a plan that is none": (lambda job: None, ("{job}/run", "--plan", "{job}/job.yaml"), ("job.yaml",)),
    "a new plan over the old": (
        lambda job: None, ("{job}/run", "--out", "{job}/plan.yaml"), ("is an input of this command",),
    ),
    "a job of another size": (
        lambda job: edit(job / "job.yaml", "prompts_per_step: 4", "prompts_per_step: 8"),
        ("{job}/run",), ("4 prompts x 2 samples a step, the job now has 8 x 2",),
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_bad_input_is_refused_with_nothing_written(fault, job):
    harm, arguments, words = FAULTS[fault]
    harm(job)
    before = listing(job)
    result = rlplan("tune", *(a.replace("{job}", str(job)) for a in arguments))
    assert result.returncode == 2, result.stdout + result.stderr
    errors = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 and "Traceback" not in result.stderr
    for word in words:
        assert word in errors[0]
    assert listing(job) == before


def test_a_missing_run_is_one_line(job):
    refused(rlplan("tune", job / "none"), "none")
