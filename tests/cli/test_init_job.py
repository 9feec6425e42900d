"""`rlplan init --gpus --model`: from nothing to a plan, without GPUs and data; and what is refused on the way."""

from __future__ import annotations

import json
import shutil

import pytest

from benchmarks.copula_trace import copula_lengths
from rlplan.plans.facts.node_price import usd_per_node_hour
from rlplan.plans.schema.cluster import load_cluster
from rlplan.plans.schema.job import load_job
from rlplan.plans.schema.plan import load_plan
from rlplan.profiles.length_trace import write_lengths

from .command_line import refused, rlplan


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """A folder as `init` writes it, with the shipped profile and lengths of a small step."""
    folder = tmp_path_factory.mktemp("begun") / "job"
    result = rlplan("init", folder, "--gpus", "1x8xH100", "--model", "Qwen2.5-7B-Instruct", "--json")
    assert result.returncode == 0, result.stderr
    said = json.loads(result.stdout)
    assert said["files"] == ["cluster.yaml", "data.example.jsonl", "job.yaml"]
    assert said["next"][0] == f"rlplan profile {folder} --shipped Qwen2.5-7B"
    assert said["next"][1] == f"rlplan solve {folder} --lengths math-16k"
    checked = rlplan("check", folder / "cluster.yaml", folder / "job.yaml")
    assert checked.returncode == 0, checked.stdout
    assert rlplan("fmt", "--check", folder / "cluster.yaml", folder / "job.yaml").returncode == 0
    job = folder / "job.yaml"
    # A step that solves quickly.
    text = job.read_text().replace("prompts_per_step: 128", "prompts_per_step: 16").replace("tp: [1, 2, 4]", "tp: [1]")
    text = text.replace("max_response_tokens: 16384", "max_response_tokens: 4096").replace("[18432, 36864]", "[8192]")
    job.write_text(text)
    assert rlplan("profile", folder, "--shipped", "Qwen/Qwen2.5-7B-Instruct").returncode == 0
    rows = copula_lengths([(10, 0.05), (200, 0.6), (4096, 0.99)], 0.4, 4096, 48, 8).rows
    write_lengths(folder / "lengths.jsonl", rows)
    result = rlplan("solve", folder, "--trace", folder / "lengths.jsonl", "--mode", "sync", "--json")
    assert result.returncode == 0, result.stderr
    return folder


@pytest.fixture
def copy(begun, tmp_path):
    return shutil.copytree(begun, tmp_path / "job")


def test_a_job_is_planned_and_checked_without_data_at_the_price_per_gpu(begun):
    job, plan = load_job(begun / "job.yaml"), load_plan(begun / "plan.yaml")
    assert not (begun / "data.jsonl").exists() and job.data.prompts == 12_000
    pool = load_cluster(begun / "cluster.yaml").pools["h100"]
    assert pool.usd_per_gpu_hour and plan.predicted.usd_per_hour == pytest.approx(usd_per_node_hour(pool), rel=1e-5)
    checked = rlplan("check", begun / "plan.yaml", begun / "job.yaml", "--json")
    assert json.loads(checked.stdout)["findings"] == 0, checked.stdout
    simulated = rlplan("simulate", begun / "plan.yaml", "--steps", "5", "--json")
    assert simulated.returncode == 0, simulated.stderr


def test_executing_and_measuring_need_the_data_and_say_so_in_one_line(copy):
    for command in (("execute", copy / "plan.yaml", "--dry-run"), ("profile", copy, "--out", copy / "measured.yaml")):
        refused(rlplan(*command), "job.yaml:", "no such file: 'data.jsonl'", "enough to plan", '{"id"')
    (copy / "job.yaml").write_text((copy / "job.yaml").read_text().replace("path: data.jsonl, ", ""))
    refused(rlplan("profile", copy, "--out", copy / "measured.yaml"), "job.yaml:", "data.path: no file is named")


def test_a_policy_that_wants_the_data_finds_it_missing(copy):
    (copy / "policy.yaml").write_text("rlplan_policy: 1\nrequire_job_files: true\n")
    found = rlplan("check", copy / "plan.yaml", "--policy", copy / "policy.yaml")
    assert found.returncode == 1 and "[policy-job-files]" in found.stdout and "data.jsonl" in found.stdout


def test_data_that_is_there_counts_by_its_rows(copy):
    rows = [{"id": f"r{k}", "prompt": f"{k} + 1", "answer": k + 1} for k in range(600)]
    (copy / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    trace = ("--trace", copy / "lengths.jsonl", "--mode", "sync")
    refused(rlplan("solve", copy, *trace), "job.yaml:", "is 12000", "has 600 rows; write 600")
    checked = rlplan("check", copy / "job.yaml")
    assert checked.returncode == 1 and "[prompts-miscounted]" in checked.stdout, checked.stdout
    text = (copy / "job.yaml").read_text()
    (copy / "job.yaml").write_text(text.replace(", prompts: 12000", ""))
    assert rlplan("check", copy / "job.yaml").returncode == 0
    assert rlplan("solve", copy, *trace).returncode == 0


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ("{prompts: 15}", ["job.yaml:", "data.prompts: is 15, and a step trains 16"]),
        ("{seed: 1}", ["job.yaml:", "data: names no prompts; add path"]),
        ("{path: data.jsonl}", ["job.yaml:", "no such file: 'data.jsonl'"]),
    ],
)
def test_a_job_whose_prompts_cannot_be_counted_or_are_too_few_is_refused(copy, data, words):
    text = (copy / "job.yaml").read_text()
    (copy / "job.yaml").write_text(text.replace("{path: data.jsonl, prompts: 12000}", data))
    refused(rlplan("solve", copy, "--trace", copy / "lengths.jsonl"), *words)


def test_a_shipped_profile_of_another_model_than_the_jobs_is_refused_at_once(copy):
    out = copy / "other.yaml"
    refused(rlplan("profile", copy, "--shipped", "Llama-3.1-8B", "--out", out), "job.yaml:", "Qwen2.5-7B-Instruct")
    refused(rlplan("profile", copy, "--shipped", "Qwen2.5-32B", "--out", out), "write --shipped Qwen2.5-7B")
    refused(rlplan("profile", copy, "--shipped", "Qwen2.5-8B", "--out", out), "did you mean Qwen2.5-7B")
    assert not out.exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--gpus", "8x8xH101", "--model", "Qwen2.5-7B"], ["no GPU 'H101'", "did you mean H100"]),
        (["--gpus", "8x8xH100", "--model", "Quen2.5-7B"], ["did you mean Qwen2.5-7B"]),
    ],
)
def test_a_command_line_that_cannot_be_followed_is_one_line_and_writes_nothing(options, words, tmp_path):
    refused(rlplan("init", tmp_path / "new", *options), *words)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "name a folder for the example, or --gpus and --model"),
        (["--gpus", "8xH100"], "add the other of the two, as in --model Qwen2.5-32B"),
        (["--model", "Qwen2.5-7B"], "as in --gpus 8x8xH100"),
        (["--gpus", "8xH100", "--model", "Qwen2.5-7B", "--seed", "1"], "--seed is for the example"),
        (["here", "--reward", "code"], "--reward goes with --gpus and --model"),
    ],
)
def test_options_that_belong_together_are_asked_for_together(options, words):
    refused(rlplan("init", *options), words)


def test_a_shipped_profile_has_no_lengths_and_the_line_says_how_to_get_some(copy):
    refused(rlplan("solve", copy), "profile.yaml", "--trace FILE", "--lengths NAME", "math-16k", "rlplan lengths list")


def test_a_folder_that_holds_files_is_left_alone(copy):
    before = sorted(path.name for path in copy.iterdir())
    refused(rlplan("init", copy, "--gpus", "8xH100", "--model", "Qwen2.5-7B"), "is not empty")
    assert sorted(path.name for path in copy.iterdir()) == before


def test_without_a_folder_the_models_name_is_taken(tmp_path, monkeypatch):
    from click.testing import CliRunner

    from rlplan.cli.init import init_command

    monkeypatch.chdir(tmp_path)
    options = ["--gpus", "2x8xA100", "--model", "meta-llama/Llama-3.1-70B", "--reward", "code"]
    result = CliRunner().invoke(init_command, options)
    assert result.exit_code == 0, result.output
    assert sorted(path.name for path in (tmp_path / "llama-3.1-70b").glob("*.yaml")) == ["cluster.yaml", "job.yaml"]
    assert "rlplan profile llama-3.1-70b --shipped Llama-3.1-70B" in result.output
    assert "rlplan solve llama-3.1-70b --lengths code-16k" in result.output
