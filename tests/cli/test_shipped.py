"""Planning by a shipped profile, without GPUs: from `profile --shipped` to a plan that simulates; and its misuse."""

from __future__ import annotations

import json
import shutil

import pytest

from benchmarks.copula_trace import copula_lengths
from rlplan.profiles.length_trace import write_lengths

from .command_line import refused, rlplan
from .solved_folder import listing

CLUSTER = """\
rlplan_cluster: 1
name: gpus
pools:
  main:
    nodes: 2
    accelerators: {kind: cuda, name: NVIDIA H800, per_node: 8, memory_bytes: 80000000000}
    cores: 96
    host_memory_bytes: 1000000000000
    usd_per_node_hour: 40.0
"""
JOB = """\
rlplan_job: 1
name: math-7b
model: {path: Qwen/Qwen2.5-7B-Instruct, dtype: bfloat16}
data: {path: data.jsonl}
reward: {kind: math, workers: 8, deadline_s: 5.0}
rollout: {prompts_per_step: 16, samples_per_prompt: 4, max_prompt_tokens: 256, max_response_tokens: 4096}
algorithm: {name: grpo, learning_rate: 1.0e-6}
search: {tp: [1, 2], micro_batch_tokens: [8192]}
"""


@pytest.fixture(scope="module")
def shipped(tmp_path_factory):
    """A job with the shipped profile and a length trace, solved once."""
    folder = tmp_path_factory.mktemp("shipped")
    (folder / "cluster.yaml").write_text(CLUSTER)
    (folder / "job.yaml").write_text(JOB)
    (folder / "data.jsonl").write_text(
        '{"id": "a", "prompt": "1+1", "answer": 2}\n'
        + "".join(f'{{"id": "b{k}", "prompt": "{k}+2", "answer": {k + 2}}}\n' for k in range(511))
    )
    write_lengths(
        folder / "lengths.jsonl", copula_lengths([(10, 0.05), (200, 0.6), (4096, 0.99)], 0.4, 4096, 48, 8).rows
    )
    result = rlplan("profile", folder, "--shipped", "Qwen2.5-7B")
    assert result.returncode == 0, result.stderr
    assert "not a measurement of your cluster" in result.stdout
    solved = rlplan("solve", folder, "--trace", folder / "lengths.jsonl", "--json")
    assert solved.returncode == 0, solved.stderr
    return folder


@pytest.fixture
def copy(shipped, tmp_path):
    return shutil.copytree(shipped, tmp_path / "job")


def test_the_plan_of_a_shipped_profile_simulates_as_predicted(shipped):
    result = rlplan("simulate", shipped / "plan.yaml", "--steps", "60", "--prompts", "2048", "--json")
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["predicted"]["step_s"]["mean"] == pytest.approx(found["all"]["step_s"]["mean"], rel=0.25)
    dry = rlplan("execute", shipped / "plan.yaml", "--dry-run")
    assert dry.returncode == 0, "of updates that cost as much the one that the executor can run is planned"


def test_a_shipped_profile_needs_a_length_trace(copy):
    refused(rlplan("solve", copy), "profile.yaml", "--trace")


def test_a_profile_of_another_model_or_gpu_is_refused(copy):
    job = copy / "job.yaml"
    job.write_text(JOB.replace("Qwen/Qwen2.5-7B-Instruct", "meta-llama/Llama-3.1-70B-Instruct"))
    refused(rlplan("solve", copy, "--trace", copy / "lengths.jsonl"), "Qwen2.5-7B", "Llama-3.1-70B", "--force")
    refused(rlplan("profile", copy, "--shipped", "Qwen9"), "Qwen9", "profiles on H800 of", "Qwen2.5-7B")
    (copy / "cluster.yaml").write_text(CLUSTER.replace("NVIDIA H800", "TPU v5"))
    refused(rlplan("profile", copy, "--shipped", "Qwen2.5-7B"), "TPU v5", "H800")
    (copy / "cluster.yaml").write_text(CLUSTER.replace("name: NVIDIA H800", "name: H8000"))
    refused(rlplan("profile", copy, "--shipped", "Qwen2.5-7B"), "'H8000' ships; did you mean H800? There are profiles")


def test_gpus_with_less_memory_than_the_profiled_ones_have_no_plan(copy):
    (copy / "cluster.yaml").write_text(CLUSTER.replace("80000000000", "24000000000"))
    result = rlplan("solve", copy, "--trace", copy / "lengths.jsonl")
    assert result.returncode == 3 and "24 GB" in result.stderr and "Traceback" not in result.stderr


def test_dollars_need_a_price(copy):
    (copy / "cluster.yaml").write_text(CLUSTER.replace("40.0", "0.0"))
    refused(rlplan("solve", copy, "--trace", copy / "lengths.jsonl", "--objective", "usd"), "usd_per_node_hour")


def test_no_output_overwrites_an_input(copy):
    before = listing(copy)
    trace = copy / "lengths.jsonl"
    for name in ("lengths.jsonl", "data.jsonl", "profile.yaml", "job.yaml", "cluster.yaml"):
        refused(rlplan("solve", copy, "--trace", trace, "-o", copy / name), name, "is an input")
    for name in ("lengths.jsonl", "plan.yaml", "profile.yaml", "job.yaml", "cluster.yaml"):
        refused(rlplan("simulate", copy / "plan.yaml", "--timeline", copy / name), name, "is an input")
    for name in ("job.yaml", "cluster.yaml", "data.jsonl"):
        refused(rlplan("profile", copy, "--shipped", "Qwen2.5-7B", "--out", copy / name), name, "is an input")
    assert listing(copy) == before


def test_an_engine_that_cannot_hold_a_sequence_is_not_simulated(copy):
    result = rlplan("simulate", copy / "plan.yaml", "--set", "profile.rollout.0.kv_capacity_tokens=10",
                    "--set", "profile.rollout.1.kv_capacity_tokens=10")  # fmt: skip
    refused(result, "10 KV tokens", "4352")


def test_what_a_trace_cannot_show_is_a_warning(copy):
    rows = (copy / "lengths.jsonl").read_text().splitlines()
    (copy / "few.jsonl").write_text("\n".join(rows[:16]) + "\n")
    (copy / "job.yaml").write_text(JOB.replace("max_response_tokens: 4096", "max_response_tokens: 6000"))
    result = rlplan("solve", copy, "--trace", copy / "few.jsonl", "--mode", "sync")
    assert result.returncode == 0, result.stderr
    assert "16 samples of 2 prompts" in result.stderr
    whole = rlplan("solve", copy, "--trace", copy / "lengths.jsonl", "--mode", "sync")
    assert whole.returncode == 0, whole.stderr
    assert "extrapolated" in whole.stderr


def test_an_slo_that_nothing_keeps_names_what_could_be_kept(copy):
    (copy / "job.yaml").write_text(JOB + "slo: {step_p95_s: 0.001}\n")
    result = rlplan("solve", copy, "--trace", copy / "lengths.jsonl")
    assert result.returncode == 3 and "lowest p95" in result.stderr and "Traceback" not in result.stderr
