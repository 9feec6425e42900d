"""Planning without a length trace and without measured rewards: what is assumed is said, counted and checked."""

from __future__ import annotations

import json
import shutil

import pytest

from rlplan.plans.schema.plan import load_plan
from rlplan.profiles.length_tables import table_names
from rlplan.profiles.length_trace import read_lengths

from .command_line import refused, rlplan
from .solved_folder import edit, listing
from .test_shipped import CLUSTER
from .test_shipped import JOB as WIDE_JOB

JOB = WIDE_JOB.replace("tp: [1, 2]", "tp: [1]").replace("max_response_tokens: 4096", "max_response_tokens: 2048")
CODE = JOB.replace("kind: math", "kind: code").replace("deadline_s: 5.0", "deadline_s: 30.0")
LENGTHS = ("--lengths", "short-math-2k")


def solve(folder, *more):
    result = rlplan("solve", folder, "--json", *more)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    """A code job with a shipped profile, planned on shipped lengths."""
    folder = tmp_path_factory.mktemp("assumed")
    (folder / "cluster.yaml").write_text(CLUSTER)
    (folder / "job.yaml").write_text(CODE)
    rows = (f'{{"id": "b{k}", "prompt": "{k}+2", "answer": {k + 2}}}\n' for k in range(512))
    (folder / "data.jsonl").write_text("".join(rows))
    assert rlplan("profile", folder, "--shipped", "Qwen2.5-7B").returncode == 0
    solve(folder, *LENGTHS, "--mode", "exact")
    return folder


@pytest.fixture
def copy(planned, tmp_path):
    return shutil.copytree(planned, tmp_path / "job")


def test_a_plan_of_shipped_lengths_names_them_without_a_path_and_holds_their_error(planned):
    plan = load_plan(planned / "plan.yaml")
    assert plan.inputs.lengths.library == "short-math-2k" and plan.inputs.lengths.path is None
    error = plan.predicted.error
    assert error.assumed_lengths > 0
    assert error.total > max(error.assumed_lengths, error.assumed_rewards, error.costs)
    assert "short-math-2k" in plan.job.why["lengths"] and "lengths 1.5x: " in plan.job.why["lengths"]


def test_a_code_job_of_a_shipped_profile_is_planned_with_executions_and_not_with_milliseconds(planned, tmp_path):
    plan = load_plan(planned / "plan.yaml")
    assert plan.inputs.rewards is not None and plan.inputs.rewards.library == "code"
    assert plan.predicted.error.assumed_rewards > 0.01
    assert "run until the deadline; rewards 0.5x: " in plan.job.why["reward.seconds"]
    assert plan.predicted.phases_s.reward_exposed > 1, "what hangs exposes most of a deadline of 30 s"
    other = shutil.copytree(planned, tmp_path / "math")
    (other / "job.yaml").write_text(JOB)
    solve(other, *LENGTHS, "--mode", "exact")
    checked = load_plan(other / "plan.yaml")
    assert checked.inputs.rewards is not None and checked.inputs.rewards.library == "math"
    assert checked.predicted.phases_s.reward_exposed < 0.2
    error = checked.predicted.error
    assert error.assumed_lengths > 0.1, "no waiting for what hangs hides what lengths do"
    assert error.assumed_rewards < 0.02, "twice some milliseconds are nothing"


def test_solve_prints_what_it_assumed(copy):
    result = rlplan("solve", copy, *LENGTHS, "--mode", "sync")
    assert result.returncode == 0, result.stderr
    assert "lengths: assumed, not of this job: 'short-math-2k'" in result.stdout
    assert "reward.seconds: assumed, not of this job, for kind code" in result.stdout
    assert "assumed lengths" in result.stdout and "assumed reward times" in result.stdout
    notes = solve(copy, *LENGTHS, "--mode", "sync")["assumed"]
    assert [note.partition(":")[0] for note in notes] == ["lengths-assumed", "rewards-assumed"]


def test_a_function_of_ones_own_is_planned_with_a_warning(copy):
    (copy / "job.yaml").write_text(JOB.replace("kind: math", "kind: function, function: 'mine:score'"))
    result = rlplan("solve", copy, *LENGTHS, "--mode", "sync")
    assert result.returncode == 0, result.stderr
    assert "warning: the job's reward function was not measured" in result.stderr


def test_check_passes_a_plan_that_owns_up_to_what_it_assumes_and_notes_it(planned):
    result = rlplan("check", planned / "plan.yaml", "--json")
    assert result.returncode == 0, result.stdout + result.stderr
    (file,) = json.loads(result.stdout)["files"]
    assert [note.partition(":")[0] for note in file["notes"]] == ["lengths-assumed", "rewards-assumed"]


def test_check_finds_shipped_figures_that_have_changed_since(copy):
    plan = load_plan(copy / "plan.yaml")
    assert plan.inputs.rewards is not None
    edit(copy / "plan.yaml", plan.inputs.lengths.sha256, "a" * 64)
    edit(copy / "plan.yaml", plan.inputs.rewards.sha256, "b" * 64)
    result = rlplan("check", copy / "plan.yaml", "--json")
    assert result.returncode == 1
    (file,) = json.loads(result.stdout)["files"]
    assert [(f["rule"], f["key"]) for f in file["findings"]] == [
        ("input-changed", "inputs.lengths"), ("input-changed", "inputs.rewards")
    ]  # fmt: skip


def test_a_plan_of_shipped_lengths_simulates_shows_and_compares(copy):
    result = rlplan("simulate", copy / "plan.yaml", "--steps", "40", "--prompts", "512", "--json")
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["all"]["step_s"]["mean"] == pytest.approx(found["predicted"]["step_s"]["mean"], rel=0.25)
    shown = rlplan("show", copy / "plan.yaml")
    assert shown.returncode == 0 and "assumed lengths" in " ".join(shown.stdout.split())
    page = rlplan("show", copy / "plan.yaml", "--html", copy / "plan.html")
    assert page.returncode == 0 and "short-math-2k" in (copy / "plan.html").read_text()
    other = copy / "other.yaml"
    solve(copy, "--lengths", "p50=500,p95=2000,max=4096", "--mode", "sync", "-o", other)
    diff = rlplan("diff", copy / "plan.yaml", other, "--json")
    assert diff.returncode == 0, diff.stderr
    (change,) = json.loads(diff.stdout)["inputs"]
    assert change["name"] == "lengths" and "p50=500,p95=2000,max=4096,icc=0.5" in json.dumps(change["changes"])
    assert json.loads(diff.stdout)["stale"] == {}
    assert rlplan("check", other).returncode == 0


def test_three_quantiles_are_a_plan_with_a_wider_error_than_a_table(planned, tmp_path):
    folder = shutil.copytree(planned, tmp_path / "job")
    table = load_plan(planned / "plan.yaml").predicted.error.assumed_lengths
    solve(folder, "--lengths", "p50=440,p95=1850,max=2048,icc=0.22", "--mode", "exact")
    plan = load_plan(folder / "plan.yaml")
    assert plan.inputs.lengths.assumed == "p50=440,p95=1850,max=2048,icc=0.22"
    assert plan.predicted.error.assumed_lengths > table


def test_the_same_shipped_lengths_give_the_same_plan_byte_for_byte(copy):
    texts = []
    for _ in range(2):
        solve(copy, *LENGTHS, "--mode", "sync")
        texts.append((copy / "plan.yaml").read_text().partition("volatile:")[0])
    assert texts[0] == texts[1]


def test_lengths_that_are_none_are_refused_and_nothing_is_written(copy):
    (copy / "plan.yaml").unlink()
    before = listing(copy)
    refused(rlplan("solve", copy, "--lengths", "math-17k"), "math-17k", "did you mean 'math-16k'")
    refused(rlplan("solve", copy, "--lengths", "p50=800"), "p50, a higher percentile and max")
    refused(rlplan("solve", copy, *LENGTHS, "--trace", copy / "x.jsonl"), "--trace and --lengths")
    refused(rlplan("solve", copy), "profile.yaml", "--trace", "--lengths", "math-16k")
    refused(rlplan("solve", copy, "--trace", copy / "x.jsonl"), "x.jsonl", "no such file", "rlplan lengths import")
    assert listing(copy) == before


def test_a_plan_names_lengths_in_one_way(copy):
    text = (copy / "plan.yaml").read_text()
    assert "library: short-math-2k" in text
    (copy / "plan.yaml").write_text(text.replace("library: short-math-2k", "library: short-math-2k, path: l.jsonl"))
    refused(rlplan("show", copy / "plan.yaml"), "plan.yaml:", "exactly one of path, library and assumed")


def test_tables_are_listed_and_shown_with_their_source_and_error():
    listed = rlplan("lengths", "list", "--json")
    tables = json.loads(listed.stdout)["tables"]
    assert [t["name"] for t in tables] == table_names()
    text = rlplan("lengths", "list").stdout
    assert all(name in text for name in table_names())
    shown = rlplan("lengths", "show", "math-16k")
    assert shown.returncode == 0 and "arXiv 2509.21009" in shown.stdout and "one standard deviation" in shown.stdout
    figures = json.loads(rlplan("lengths", "show", "p50=800,p95=4000,max=16384", "--json").stdout)
    assert (figures["p50_tokens"], figures["p95_tokens"], figures["cap_tokens"]) == (800, 4000, 16384)
    scaled = rlplan("lengths", "show", "p50=800,p95=4000,max=16384,scale=0.5")
    assert scaled.returncode == 0, scaled.stderr
    assert "p50 400, " in scaled.stdout and "all lengths of the table times 0.5" in scaled.stdout
    assert json.loads(rlplan("lengths", "show", "math-16k,scale=0.8", "--json").stdout)["scale"] == 0.8
    refused(rlplan("lengths", "show", "math-16k,icc=0.3"), "a table takes only ,scale=F after its name")
    refused(rlplan("lengths", "show", "math"), "no lengths ship as 'math'")
    refused(rlplan("lengths", "show"), "show what?")
    refused(rlplan("lengths", "list", "--cap", "5"), "--cap does not apply")


def test_a_log_of_ones_own_becomes_a_trace_that_solve_takes(copy):
    rows = "".join(f"p{p},{40 + (7 * p * (s + 1)) % 1000},{s % 2}\n" for p in range(40) for s in range(4))
    (copy / "log.csv").write_text("uid,completion,score\n" + rows)
    out = copy / "lengths.jsonl"
    result = rlplan("lengths", "import", copy / "log.csv", "--column", "tokens=completion", "-o", out, "--json")
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert (found["prompts"], found["samples"], found["mean_reward"]) == (40, 160, 0.5)
    assert [text.partition(";")[0] for text in found["cautions"]] == ["no response is marked as truncated"]
    assert found["max_tokens"] == max(row.tokens for row in read_lengths(out).rows)
    solve(copy, "--trace", out, "--mode", "sync")
    plan = load_plan(copy / "plan.yaml")
    assert plan.inputs.lengths.path == "lengths.jsonl" and plan.predicted.error.assumed_lengths == 0
    assert "lengths" not in plan.job.why
    refused(rlplan("lengths", "import", copy / "log.csv", "-o", out), "log.csv:2:", "--column tokens=NAME")
    refused(rlplan("lengths", "import", copy / "log.csv"), "-o lengths.jsonl")
    refused(rlplan("lengths", "import", copy / "log.csv", "-o", copy / "log.csv"), "is an input")


def test_reward_times_of_ones_own_replace_the_assumption(copy):
    rows = "".join(f"p{i // 4},{0.2 + 0.01 * i},{i % 4 != 0}\n" for i in range(80))
    (copy / "times.csv").write_text("prompt,exec_s,passed\n" + rows)
    profile = copy / "profile.yaml"
    result = rlplan("rewards", "import", copy / "times.csv", "--profile", profile, "--json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["samples"] == 80
    solve(copy, *LENGTHS, "--mode", "sync")
    plan = load_plan(copy / "plan.yaml")
    assert plan.inputs.rewards is None and plan.predicted.error.assumed_rewards == 0
    assert "reward.seconds" not in plan.job.why
    refused(rlplan("rewards", "import", copy / "times.csv"), "--profile")
    refused(rlplan("rewards", "import", copy / "none.csv", "--profile", profile), "none.csv", "no such file")


def test_kinds_of_reward_are_listed_and_shown():
    assert [t["kind"] for t in json.loads(rlplan("rewards", "list", "--json").stdout)["tables"]] == [
        "code", "format", "function", "math"
    ]  # fmt: skip
    assert "until the deadline" in rlplan("rewards", "list").stdout
    assert "KodCode" in rlplan("rewards", "show", "code").stdout
    assert json.loads(rlplan("rewards", "show", "math", "--json").stdout)["per_sample_s"] < 0.1
    refused(rlplan("rewards", "show", "judge"), "there are: code, format, function, math")


def test_the_schema_of_a_line_of_a_trace_is_printed():
    schema = json.loads(rlplan("schema", "lengths").stdout)
    assert schema["title"] == "LengthLine" and "tokens" in schema["required"]
