"""Planning without a measurement: a profile that ships, lengths that ship or are stated, and reward seconds by kind.

What is assumed is said, counted in the error, and checked.
"""

import json
import shutil

import pytest

from rlplan.plans.facts.model_names import architecture_of
from rlplan.plans.schema.plan import load_plan
from rlplan.plans.yaml.yaml_io import load
from rlplan.profiles.length_tables import table_names
from rlplan.profiles.profile_schema import Profile

from .command_line import data, printed, refused, rlplan
from .solved_folder import GPU_JOB as JOB
from .solved_folder import code_rows, edit, harmed

ASSUMED = ("--lengths", "short-math-2k")
CODE = JOB.replace("kind: math", "kind: code").replace("deadline_s: 5.0", "deadline_s: 30.0").replace("[1, 2]", "[1]")


@pytest.fixture(scope="module")
def assumed_once(shipped_once, tmp_path_factory):
    """A code job without a length trace, planned on shipped lengths; nobody changes it."""
    folder = shutil.copytree(shipped_once, tmp_path_factory.mktemp("assumed"), dirs_exist_ok=True)
    harmed(folder, [("lengths.jsonl",), ("plan.yaml",), ("job.yaml", None, CODE.replace(": 4096", ": 2048"))])
    code_rows(folder)
    printed("solve", folder, *ASSUMED, "--mode", "exact")
    return folder


@pytest.fixture
def assumed(assumed_once, tmp_path):
    return shutil.copytree(assumed_once, tmp_path, dirs_exist_ok=True)


def test_the_plan_of_a_shipped_profile_runs_as_predicted(shipped_once):
    found = data("simulate", shipped_once / "plan.yaml", "--steps", "30", "--prompts", "2048")
    assert found["predicted"]["step_s"]["mean"] == pytest.approx(found["all"]["step_s"]["mean"], rel=0.25)
    printed("execute", shipped_once / "plan.yaml", "--dry-run")


def test_a_pool_of_other_gpus_is_chosen_with_its_own_profile(shipped):
    other = (shipped / "cluster.yaml").read_text().split("pools:\n")[1].replace("main:", "a100:")
    edit(shipped / "cluster.yaml", "pools:\n", "pools:\n" + other.replace("NVIDIA H800", "A100").replace("40.0", "4.0"))
    lengths = ("--trace", shipped / "lengths.jsonl")
    plan = ("solve", shipped, *lengths, "--mode", "sync", "--objective", "usd")
    found = data(*plan)
    assert found["method"] == "enumeration"
    written = load_plan(shipped / "plan.yaml")
    assert written.job.rounds.short.rollout.pool == "a100" and written.inputs.profile.path == "profile.a100.yaml"
    assert load(shipped / "profile.a100.yaml", Profile).machine.accelerator == "A100"
    assert " more a sample" in written.job.why["rounds.short.rollout.pool"]
    assert printed("check", shipped / "plan.yaml") and data(*plan)["step_s"] == found["step_s"], (
        "the file is read as it was written"
    )
    front = data("solve", shipped, *lengths, "--mode", "sync", "--frontier", "nodes")["frontier"]
    assert [(point["pool"], point["nodes"]) for point in front] == [("a100", 1), ("a100", 2), ("main", 1), ("main", 2)]


def test_a_limit_that_nothing_keeps_names_what_could_be_kept(shipped):
    harmed(shipped, [("job.yaml", "search:", "slo: {step_p95_s: 0.001}\nsearch:")])
    result = rlplan("solve", shipped, "--trace", shipped / "lengths.jsonl", "--mode", "sync")
    assert result.returncode == 3 and result.stderr.startswith("no feasible plan: ") and "lowest p95" in result.stderr


def test_what_a_trace_does_not_show_is_a_warning(shipped):
    rows = (shipped / "lengths.jsonl").read_text().splitlines()
    (shipped / "few.jsonl").write_text("\n".join(rows[:40]) + "\n")
    edit(shipped / "job.yaml", "max_response_tokens: 4096", "max_response_tokens: 6000")
    for name, said in (("few", "40 samples of 5 prompts"), ("lengths", "extrapolated")):
        result = rlplan("solve", shipped, "--trace", shipped / f"{name}.jsonl", "--mode", "sync")
        assert result.returncode == 0 and said in result.stderr


def test_a_model_whose_shape_nothing_tells_is_refused_unless_forced(shipped):
    edit(shipped / "job.yaml", "Qwen/Qwen2.5-7B-Instruct", "lab/our-own")
    said = "the shape of lab/our-own is not known: its name does not tell its size; name its folder in its place"
    solve = ("solve", shipped, "--trace", shipped / "lengths.jsonl", "--mode", "sync")
    refused = rlplan(*solve)
    assert refused.returncode == 2 and f"model.path: {said}" in refused.stderr
    assert "or use --force to plan it as Qwen2.5-7B" in refused.stderr
    result = rlplan(*solve, "--force")
    assert result.returncode == 0 and f"warning: {said}" in result.stderr


def test_a_guessed_shape_is_said_by_solve_and_check(shipped):
    edit(shipped / "job.yaml", "Qwen/Qwen2.5-7B-Instruct", "lab/our-7b")
    said = "the shape of lab/our-7b is guessed from its name (7B parameters, 34 layers, 28 heads"
    result = rlplan("solve", shipped, "--trace", shipped / "lengths.jsonl", "--mode", "sync")
    assert result.returncode == 0 and result.stderr.count(said) == 1
    for file in ("job.yaml", "plan.yaml"):
        checked = rlplan("check", shipped / file)
        assert checked.returncode == 0 and checked.stdout.count("[model-guessed] warning: ") == 1, file
        assert said in checked.stdout


def test_costs_scaled_from_another_model_are_said_by_every_command(shipped):
    edit(shipped / "job.yaml", "Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen3-8B")
    said = "costs of Qwen2.5-7B scaled to Qwen/Qwen3-8B (KV 147 kB a token in place of 57, weights 16.4 GB in place"
    out = shipped / "again.yaml"
    assert said in printed("profile", shipped, "--shipped", "Qwen2.5-7B", "--out", out)
    assert data("profile", shipped, "--shipped", "Qwen2.5-7B", "--out", out, "--force")["scaled"].startswith(said)
    solve = ("solve", shipped, "--trace", shipped / "lengths.jsonl", "--mode", "sync")
    assert f"note: {said}" in printed(*solve)
    found = data(*solve)
    assert found["scaled"].startswith(said) and found["suspicious"] == []
    plan = load_plan(shipped / "plan.yaml")
    assert plan.job.why["model"] == found["scaled"]
    kv = plan.predicted.rounds.short.memory.kv
    assert plan.predicted.limit.kv_bytes_per_token == 147456
    tp, weights = plan.job.rounds.short.rollout.tp, 2 * architecture_of("Qwen3-8B").parameters
    assert kv.capacity_bytes == pytest.approx(tp * (0.9 * 80e9 - 4e9) - weights, rel=1e-4)
    (checked,) = data("check", shipped / "plan.yaml")["files"]
    assert [(f["rule"], f["key"]) for f in checked["findings"]] == [("profile-scaled", "inputs.profile")]
    assert checked["findings"][0]["message"].startswith(said)
    assert f"note: {said}" in " ".join(printed("show", shipped / "plan.yaml").split())
    shown = data("show", shipped / "plan.yaml")
    assert sum(said in note for note in shown["notes"]) == 1 and shown["scaled"] == found["scaled"]
    simulated = data("simulate", shipped / "plan.yaml", "--steps", "20", "--prompts", "1024")
    assert simulated["all"]["step_s"]["mean"] == pytest.approx(plan.predicted.step_s.mean, rel=0.3)
    printed("refresh", shipped / "plan.yaml")
    assert load_plan(shipped / "plan.yaml").predicted == plan.predicted


# -- lengths and rewards that nobody measured --------------------------------------------------------------------------


def test_a_plan_names_what_it_assumes_and_holds_the_error(assumed_once, tmp_path):
    plan = load_plan(assumed_once / "plan.yaml")
    assert (plan.inputs.lengths.library, plan.inputs.lengths.path) == ("short-math-2k", None)
    assert plan.inputs.rewards.library == "code"
    error = plan.predicted.error
    assert error.assumed_lengths > 0 and error.assumed_rewards > 0.01
    assert error.total > max(error.assumed_lengths, error.assumed_rewards, error.costs)
    assert "short-math-2k" in plan.job.why["lengths"] and "responses are 1.5x as long: " in plan.job.why["lengths"]
    assert "run until the deadline; if rewards take 0.5x as long: " in plan.job.why["reward.seconds"]
    assert plan.predicted.phases_s.reward_exposed > 1, "what hangs exposes most of a deadline of 30 s"
    other = shutil.copytree(assumed_once, tmp_path / "math")
    (other / "job.yaml").write_text(JOB.replace(": 4096", ": 2048"))
    printed("solve", other, *ASSUMED, "--mode", "exact")
    of_math = load_plan(other / "plan.yaml")
    assert of_math.inputs.rewards.library == "math" and of_math.predicted.phases_s.reward_exposed < 0.2
    assert of_math.predicted.error.assumed_rewards < 0.02, "twice some milliseconds are nothing"
    # Three quantiles say less than a table.
    printed("solve", other, "--lengths", "p50=440,p95=1850,max=2048,icc=0.22", "--mode", "exact")
    stated = load_plan(other / "plan.yaml")
    assert stated.inputs.lengths.assumed == "p50=440,p95=1850,max=2048,icc=0.22"
    assert stated.predicted.error.assumed_lengths > of_math.predicted.error.assumed_lengths > 0.1


def test_solve_and_check_note_what_is_assumed(assumed):
    said = printed("solve", assumed, *ASSUMED, "--mode", "sync")
    assert "lengths: assumed, not of this job: table 'short-math-2k'" in said
    assert "reward.seconds: assumed, not of this job: table of kind code" in said
    assert "assumed lengths" in said and "assumed reward times" in said
    first = (assumed / "plan.yaml").read_text().partition("volatile:")[0]
    notes = data("solve", assumed, *ASSUMED, "--mode", "sync")["assumed"]
    assert (assumed / "plan.yaml").read_text().partition("volatile:")[0] == first, "the same inputs, the same plan"
    checked = data("check", assumed / "plan.yaml")["files"][0]["notes"]
    for noted in (notes, checked):
        assert [note.partition(":")[0] for note in noted] == ["lengths-assumed", "rewards-assumed"]


def test_a_reward_function_of_ones_own_is_a_warning(assumed):
    edit(assumed / "job.yaml", "kind: code", "kind: function, function: 'mine:score'")
    result = rlplan("solve", assumed, *ASSUMED, "--mode", "sync")
    assert result.returncode == 0 and "warning: the job's reward function was not measured" in result.stderr


def test_check_finds_shipped_figures_that_changed_since(assumed):
    inputs = load_plan(assumed / "plan.yaml").inputs
    edit(assumed / "plan.yaml", inputs.lengths.sha256, "a" * 64)
    edit(assumed / "plan.yaml", inputs.rewards.sha256, "b" * 64)
    found = data("check", assumed / "plan.yaml", code=1)["files"][0]["findings"]
    assert [(f["rule"], f["key"]) for f in found] == [
        ("input-changed", "inputs.lengths"), ("input-changed", "inputs.rewards"),
    ]  # fmt: skip


def test_a_plan_of_shipped_lengths_is_simulated_shown_and_compared(assumed):
    plan, other = assumed / "plan.yaml", assumed / "other.yaml"
    found = data("simulate", plan, "--steps", "30", "--prompts", "512")
    assert found["all"]["step_s"]["mean"] == pytest.approx(found["predicted"]["step_s"]["mean"], rel=0.3)
    assert "assumed lengths" in " ".join(printed("show", plan, "--html", assumed / "plan.html").split())
    assert "short-math-2k" in (assumed / "plan.html").read_text()
    printed("solve", assumed, "--lengths", "p50=500,p95=2000,max=4096", "--mode", "sync", "-o", other)
    diff = data("diff", plan, other)
    (change,) = diff["inputs"]
    assert change["name"] == "lengths" and "p50=500,p95=2000,max=4096,icc=0.5" in json.dumps(change["changes"])
    assert diff["stale"] == {}
    printed("check", other)
    short = data("simulate", plan, "--steps", "5", "--prompts", "512", "--lengths", "p50=100,p95=200,max=2048")
    assert short["all"]["tokens"]["decoded"] < 0.5 * found["all"]["tokens"]["decoded"] / 6


def test_times_and_lengths_of_ones_own_replace_the_assumptions(assumed):
    rows = "".join(f"p{p},{40 + (7 * p * (s + 1)) % 1000},{s % 2}\n" for p in range(40) for s in range(4))
    (assumed / "log.csv").write_text("uid,completion,score\n" + rows)
    trace = assumed / "lengths.jsonl"
    printed("lengths", "import", assumed / "log.csv", "--column", "tokens=completion", "-o", trace)
    times = "".join(f"p{i // 4},{0.2 + 0.01 * i},{i % 4 != 0}\n" for i in range(80))
    (assumed / "times.csv").write_text("prompt,exec_s,passed\n" + times)
    printed("rewards", "import", assumed / "times.csv", "--profile", assumed / "profile.yaml")
    printed("solve", assumed, "--trace", trace, "--mode", "sync")
    plan = load_plan(assumed / "plan.yaml")
    assert plan.inputs.lengths.path == "lengths.jsonl" and plan.inputs.rewards is None
    assert plan.predicted.error.assumed_lengths == plan.predicted.error.assumed_rewards == 0
    assert not {"lengths", "reward.seconds"} & plan.job.why.keys()


def test_tables_are_data_too():
    tables = data("lengths", "list")["tables"]
    assert [table["name"] for table in tables] == table_names()
    figures = data("lengths", "show", "p50=800,p95=4000,max=16384")
    assert (figures["p50_tokens"], figures["p95_tokens"], figures["cap_tokens"]) == (800, 4000, 16384)
    assert figures["quantiles"] and figures["scale"] is None
    kinds = data("rewards", "list")["tables"]
    assert [table["kind"] for table in kinds] == ["code", "format", "function", "math"]
    assert data("rewards", "show", "code") == kinds[0]


def test_times_of_rewards_are_imported_into_a_profile(solved):
    times, profile = solved / "times.csv", solved / "profile.yaml"
    rows = "".join(f"p{i // 4},{0.2 + 0.01 * i},{i % 4 != 0 and i < 40}\n" for i in range(80))
    times.write_text("prompt,exec_s,passed\n" + rows)
    out = solved / "new.yaml"
    before = profile.read_bytes()
    result = data("rewards", "import", times, "--profile", profile, "--out", out)
    assert (result["profile"], result["samples"], result["unsolved"]) == (str(out), 80, 0.5)
    assert result["p50_s"] == pytest.approx(0.6) and result["p95_s"] == pytest.approx(0.96)
    assert result["longest_s"] == pytest.approx(0.99) and result["mean_s"] == pytest.approx(0.595)
    assert profile.read_bytes() == before and load(out, Profile).reward != load(profile, Profile).reward
    text = printed("rewards", "import", times, "--profile", profile)
    assert text.startswith(
        f"80 executions -> {profile}\np50 0.600 s, p95 0.960 s, longest 0.990 s, mean 0.595 s; 50% of"
    )
    refused(rlplan("rewards", "import", solved / "none.csv", "--profile", profile), "none.csv", "no such file")
