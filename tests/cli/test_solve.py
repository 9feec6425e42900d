"""`rlplan solve` of one job: what it takes, writes and says, and for whom a plan is (--for executor|any)."""

import json
import shutil
from pathlib import Path

import pytest

import rlplan as package
from rlplan.planner.check.accelerator_rules import accelerator_fault
from rlplan.plans.facts.digest import job_predictions
from rlplan.plans.facts.executable import FAMILIES
from rlplan.plans.phrases.numbers import percent
from rlplan.plans.schema.cluster import Accelerators
from rlplan.plans.schema.job import job_paths, load_job
from rlplan.plans.schema.plan import Plan, load_plan
from rlplan.plans.yaml.yaml_io import dump, loads
from rlplan.profiles.fitness import subject_digest

from ..planner.check.edits import edit as edit_keys
from ..planner.check.edits import resign
from .command_line import data, printed, refused, rlplan, without_volatile
from .solved_folder import edit, harmed, sha, write_profiled

EXAMPLES = Path(package.__file__).parent / "plans" / "examples"


@pytest.mark.parametrize(
    ("edits", "options"),
    [
        ([("profile.yaml", "accelerators: 2, cores: 2", "accelerators: 4, cores: 4")], ["--force"]),
        ([("job.yaml", "max_response_tokens: 64", "max_response_tokens: 63")], ["--force"]),
        ([("job.yaml", "learning_rate: 0.001", "learning_rate: 0.002")], []),
    ],
    ids=["another machine", "another cap", "what no measurement depends on"],
)
def test_a_profile_of_something_else_is_taken_on_force(edits, options, solved):
    harmed(solved, edits)
    out = solved / "new.yaml"
    assert data("solve", solved, "--mode", "sync", "-o", out, *options)["mode"] == "sync"
    if options:
        refused(
            rlplan("solve", solved, "--mode", "sync", "-o", out), "profile.yaml", "rlplan profile", "or use --force"
        )


def test_a_trace_with_a_torn_last_line_is_read_up_to_it(solved):
    trace = solved / "lengths.jsonl"
    was = sha(trace)
    trace.write_bytes(trace.read_bytes() + b'{"prompt": "p9", "ep')
    edit(solved / "profile.yaml", was, sha(trace))
    result = rlplan("solve", solved, "--mode", "sync", "-o", solved / "new.yaml")
    [warning] = [line for line in result.stderr.splitlines() if line.startswith("warning: ")]
    assert result.returncode == 0 and "lengths.jsonl:97" in warning and "torn" in warning


def test_a_plan_is_written_canonically_with_its_schema_beside_it(solved):
    out = solved / "below" / "new.yaml"
    out.parent.mkdir()
    assert f"see it: rlplan show {out}" in printed("solve", solved, "--mode", "sync", "--out", out)
    assert out.read_text().startswith("# yaml-language-server: $schema=.rlplan/plan.schema.json\n")
    assert (out.parent / ".rlplan" / "plan.schema.json").is_file()
    assert load_plan(out).inputs.job.path == "../job.yaml"
    printed("check", out)


def test_a_dash_for_an_output_is_standard_output(solved):
    result = rlplan("solve", solved, "--mode", "sync", "--out", "-")
    plan = loads(result.stdout, Plan)
    assert plan.job.bias.mode == "sync" and "s a step" in result.stderr and "rlplan show -" not in result.stderr
    assert plan.inputs.job.path == str(solved / "job.yaml").removeprefix("/"), "relative to the folder that one is in"
    page = rlplan("show", solved / "plan.yaml", "--html", "-")
    assert page.stdout.startswith("<!DOCTYPE html>") and page.stdout.endswith("</html>\n") and "a step" in page.stderr
    for command in ("simulate", "show"):
        timeline = rlplan(command, solved / "plan.yaml", "--timeline", "-")
        assert json.loads(timeline.stdout)["traceEvents"] and "sample" in timeline.stderr
        assert "ui.perfetto.dev" not in timeline.stderr
    assert not (solved / "-").exists() and not (solved.parent / "-").exists()


def test_dollars_within_seconds_and_the_front_of_nodes(solved):
    out = ("-o", solved / "new.yaml")
    found = data("solve", solved, "--mode", "sync", "--objective", "usd-within", "1e6", *out)
    assert found["objective"] == "usd_per_sample" and "within_s: 1" in (solved / "new.yaml").read_text()
    refused(rlplan("solve", solved, "--objective", "usd-within", *out), "usd-within", "above 0")
    refused(rlplan("solve", solved, "--objective", "usd-within=3", *out), "none of seconds, usd, usd-within SECONDS")
    front = data("solve", solved, "--mode", "sync", "--frontier", "nodes")
    assert [point["nodes"] for point in front["frontier"]] == [1] and front["cheapest"] == 1
    assert printed("solve", solved, "--mode", "sync", "--frontier", "nodes").startswith("pool")
    refused(rlplan("solve", solved, "--frontier", "nodes", *out), "--out does not apply to --frontier")


def test_options_of_a_solve_reach_the_plan(solved):
    out = solved / "new.yaml"
    budget = data(
        "solve", solved, "--mode", "race", "--bias-budget", "0.9", "--seed", "3", "--objective", "usd", "-o", out
    )
    assert (budget["mode"], budget["forced_mode"], budget["bias_budget"]) == ("race", "race", 0.9)
    assert budget["objective"] == "usd_per_sample"
    other = data("solve", solved, "--mode", "race", "--bias-budget", "0.9", "--objective", "usd", "-o", out)
    assert other["step_s"] != budget["step_s"], "another seed"
    shutil.copy(solved / "cluster.yaml", solved / "dear.yaml")
    edit(solved / "dear.yaml", "usd_per_node_hour: 0.1", "usd_per_node_hour: 0.2")
    dear = data("solve", solved, "--mode", "sync", "--cluster", solved / "dear.yaml", "-o", out)
    assert dear["usd_per_1k_samples"] == pytest.approx(
        2 * data("solve", solved, "--mode", "sync", "-o", out)["usd_per_1k_samples"], rel=1e-4
    )


@pytest.mark.parametrize(
    ("name", "gigabytes", "fits"),
    [("H100", 80, True), ("NVIDIA H100 NVL", 94, True), ("H100", 85.9, True), ("H100", 160, False), ("A100", 40, True),
     ("A100-40GB", 40, True), ("A100-SXM4-40GB", 80, False), ("A100-80GB", 40, False), ("A100-80GB", 20, False),
     ("H20", 141, True), ("B200", 192, True), ("B200", 1440, False), ("MI300X", 1536, True)],
)  # fmt: skip
def test_memory_that_some_card_of_the_name_has_is_believed(name, gigabytes, fits):
    accelerators = Accelerators(kind="cuda", name=name, per_node=8, memory_bytes=int(gigabytes * 1e9))
    assert (accelerator_fault(accelerators) is None) == fits


# -- what the length trace does not show -------------------------------------------------------------------------------


@pytest.fixture
def thin(solved):
    """A plan whose trace, it says, has fewer prompts than tell rare lengths."""
    path = solved / "plan.yaml"
    edit(path, "prompts: 24", "prompts: 19")
    plan = load_plan(path)
    dump(plan.model_copy(update={"predicted_sha256": job_predictions(plan.predicted)}), path)
    return path


def test_a_thin_trace_is_a_warning_and_hides_no_finding(thin, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    text = printed("check", thin)
    assert "[thin-trace] warning: predicted.length_basis: the length trace holds 96 samples of 19 prompts" in text
    assert "1 finding in 1 of 1 file, 1 of them a warning" in text
    found = data("check", thin)
    assert (found["findings"], found["warnings"], found["ok"]) == (1, 1, True)
    assert found["files"][0]["findings"][0]["warning"] is True
    assert printed("check", thin, "--format", "github").startswith("::warning file=")
    dry = printed("execute", thin, "--dry-run")
    assert "[thin-trace]" in dry and "can be started" in dry
    extrapolated, few = [line for line in printed("show", thin).splitlines() if line.startswith("trace    ")]
    basis = load_plan(thin).predicted.length_basis
    assert f"{basis.longest_seen_tokens:,} tokens; longer ones, of up to" in extrapolated
    assert "the length trace holds 96 samples of 19 prompts" in few
    edit(thin, "max_num_seqs: 4", "max_num_seqs: 3")
    assert not data("check", thin, code=1)["ok"]


def test_solve_says_what_is_extrapolated(solved):
    text = printed("solve", solved, "--mode", "exact")
    basis = load_plan(solved / "plan.yaml").predicted.length_basis
    assert basis.longest_seen_tokens == 62 and basis.extrapolated
    assert "note: the longest response in the length trace has 62 tokens; " in text
    summary = data("solve", solved, "--mode", "exact")
    assert summary["length_basis"] == pytest.approx(basis.model_dump(), rel=1e-5) and summary["baseline_nodes"] == 1


def test_responses_that_reach_the_cap_are_told(solved, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    rows = [json.loads(line) for line in (solved / "lengths.jsonl").read_text().splitlines()]
    long = "".join(json.dumps({**row, "tokens": min(64, 2 * row["tokens"])}) + "\n" for row in rows)
    (solved / "long.jsonl").write_text(long)
    plan = solved / "plan.yaml"
    for trace, said in (("long.jsonl", True), ("lengths.jsonl", False)):
        result = rlplan("solve", solved, "--trace", solved / trace, "--mode", "sync")
        assert ("% of the responses reach the cap of 64 tokens (rollout.max_response_tokens)" in result.stderr) is said
        assert ("% of the trained samples cut at 64 tokens (rollout" in printed("check", plan)) is said
        share = data("show", plan)["cut_share"]
        assert (share > 0.3) is said
        assert f"{percent(share)} of the trained samples cut at 64 tokens" in printed("show", plan)


# -- for whom a plan is ------------------------------------------------------------------------------------------------

SELECTIVE = (
    "{dp: 2, micro_batch_tokens: 128, step_s: 0.0, step_s_per_token: 1.0e-09, step_s_per_token_squared: 0.0, "
    "error: 0.01, recompute: selective}"
)


@pytest.fixture
def selective(tmp_path):
    """A profiled job whose fastest update only other frameworks run, solved for any of them."""
    write_profiled(tmp_path)
    edit(tmp_path / "profile.yaml", "train: [", f"train: [{SELECTIVE}, ")
    printed("solve", tmp_path, "--mode", "sync", "--for", "any")
    return tmp_path


def test_updates_that_cannot_run_are_planned_on_request_only(selective):
    plan = selective / "plan.yaml"
    assert load_plan(plan).job.rounds.short.train.recompute == "selective", "it takes no time"
    assert "for_any: true" in plan.read_text()
    asked = printed("check", plan, "--executor", code=1)
    assert "[not-executable] job.rounds.short.train.recompute: is selective" in asked
    before = without_volatile(plan)
    assert any("selective" in reason for reason in data("refresh", plan)["not_executable"])
    assert without_volatile(plan) == before, "it is solved again for others"
    vary = ("compare", selective, "--mode", "sync", "--vary", "job.rollout.samples_per_prompt=2,4")
    here, anywhere, usual = (
        data(*vary, *for_whom)["points"] for for_whom in (("--for", "executor"), ("--for", "any"), ())
    )
    assert here != anywhere and usual == here
    assert "other frameworks only" not in printed("solve", selective, "--mode", "sync")
    assert data("solve", selective, "--mode", "sync", "--for", "executor")["not_executable"] == []
    assert "for_any" not in plan.read_text()
    printed("check", plan, "--executor")
    printed("execute", plan, "--dry-run")


@pytest.mark.parametrize(
    ("model", "layout", "reasons"),
    [
        ("Qwen/Qwen2.5-32B-Instruct", {"dp": 2, "tp": 4, "sp": 2}, []),
        ("Qwen/Qwen2.5-32B-Instruct", {"dp": 1, "tp": 16}, ["train.tp is 16, which does not divide 40"]),
        ("Qwen/Qwen3-30B-A3B", {"dp": 2, "tp": 8}, ["train.tp is 8, and the model is a mixture of experts"]),
        ("openai/gpt-oss-20b", {}, ["inputs.job: the model is of the family gpt_oss, and the executor trains only"]),
    ],
)
def test_commands_agree_on_whether_a_plan_is_executable(tmp_path, model, layout, reasons):
    shutil.copytree(EXAMPLES / "math-32b", tmp_path / "math-32b")
    plan = Path(shutil.copy(EXAMPLES / "math-32b.yaml", tmp_path / "plan.yaml"))
    rows = (json.dumps({"id": f"m{n}", "prompt": f"What is {n} + {n}?", "answer": f"{2 * n}"}) for n in range(20000))
    (tmp_path / "math-32b" / "data.jsonl").write_text("\n".join(rows))
    edit_keys(tmp_path / "math-32b" / "job.yaml", {"model.path": model})
    keys = {"dp": 16, "tp": 1, "sp": 1, "recompute": "full", **layout}
    edit_keys(plan, {f"job.rounds.{kind}.train": lambda old: {**old, **keys} for kind in ("short", "long")})
    resign(tmp_path)
    cannot = json.loads(rlplan("check", plan, "--executor", "--json").stdout)["files"][0]["not_executable"]
    shown, dry = data("show", plan)["not_executable"], rlplan("execute", plan, "--dry-run")
    assert (dry.returncode == 2, bool(cannot), len(shown)) == (bool(reasons), bool(reasons), len(reasons)), dry.stderr
    for reason in reasons:
        key, text = reason.split(" ", 1)
        assert any(reason in each for each in shown) and text in dry.stderr
        assert any(key.rstrip(":") in each["key"] and text in each["message"] for each in cannot)


def test_a_model_of_an_untrained_family_is_planned_for_others_only(tmp_path):
    write_profiled(tmp_path)
    (tmp_path / "model" / "config.json").write_text('{"model_type": "gpt_oss", "num_attention_heads": 3}')
    job = load_job(tmp_path / "job.yaml")
    edit_keys(tmp_path / "profile.yaml", {"measured": subject_digest(job, job_paths(job, tmp_path / "job.yaml"))})
    told = rlplan("solve", tmp_path, "--mode", "sync")
    refused(told, "job.yaml:3: model.path: the model is of the family gpt_oss, and", *FAMILIES, "solve --for any")
    others = data("solve", tmp_path, "--mode", "sync", "--for", "any")
    assert any("family gpt_oss" in reason for reason in others["not_executable"])
    asked = printed("check", tmp_path / "plan.yaml", "--executor", code=1)
    assert "[not-executable] inputs.job: the model is of the family gpt_oss" in asked
    refused(rlplan("execute", tmp_path / "plan.yaml", "--dry-run"), "plan.yaml:", "family gpt_oss", *FAMILIES)
