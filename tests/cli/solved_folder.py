"""A folder with a job that was profiled and solved, which tests of commands break or change."""

import hashlib
import json
from pathlib import Path

from benchmarks.copula_trace import copula_lengths
from rlplan.planner.choose.candidates.solve_options import SolveOptions
from rlplan.planner.solve import solve
from rlplan.plans.schema.cluster import load_cluster
from rlplan.plans.schema.job import job_paths, load_job
from rlplan.plans.schema.plan import Inputs
from rlplan.plans.yaml.yaml_io import dump, load
from rlplan.profiles.length_trace import read_lengths, write_lengths
from rlplan.profiles.library.fitness import subject_digest
from rlplan.profiles.profile_schema import Profile

from ..documents import CLUSTER
from ..workloads import edit as edit

JOB = """\
rlplan_job: 1
name: toy
model: {path: model, dtype: float32}
data: {path: data.jsonl, seed: 0}
reward: {kind: math, workers: 1, deadline_s: 2.0}
rollout: {prompts_per_step: 4, samples_per_prompt: 2, max_prompt_tokens: 8, max_response_tokens: 64}
algorithm: {name: grpo, learning_rate: 0.001}
search: {tp: [1], micro_batch_tokens: [128]}
"""

PROFILE = """\
rlplan_profile: 1
job: toy
measured: SUBJECT
provenance: measured
machine: {accelerator: core, kind: cpu, accelerators: 2, cores: 2, host_memory_bytes: 24000000000}
model_parameters: 1000
rollout:
  - tp: 1
    engines: 2
    step_s: 0.002
    step_s_per_sequence: 0.00003
    step_s_per_kv_token: 0.0000001
    prefill_s: 0.0004
    prefill_s_per_token: 0.00001
    kv_capacity_tokens: 100000
    kv_bytes_per_token: 512
    start: {p50: 9.0, p95: 9.0, repeats: 1}
    sync: {p50: 0.03, p95: 0.04, repeats: 5}
    error: 0.02
    points: [{sequences: 16, kv_tokens: 900.0, step_s: 0.0025, spread: 0.01}]
train: [{dp: 1, micro_batch_tokens: 128, step_s: 0.02, step_s_per_token: 0.00004, step_s_per_token_squared: 0.0, error: 0.02}]
reward: {workers: 1, latency: {p50: 0.001, p95: 0.002, repeats: 20}, per_sample_s: 0.0001}
lengths: {path: lengths.jsonl, sha256: LENGTHS, prompts: 24, samples: 96, cap_tokens: 64, icc: 0.5}
checks: []
volatile: {measured_at: "2026-01-02T03:04:05Z", measuring_s: 1.0, versions: {}}
"""  # noqa: E501


def sha(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def write_profiled(folder: Path) -> None:
    """Write a job that was profiled (cluster, job, data, model, profile, lengths)."""
    (folder / "cluster.yaml").write_text(CLUSTER)
    (folder / "job.yaml").write_text(JOB)
    (folder / "data.jsonl").write_text(
        '{"id": "a", "prompt": "1+1", "answer": 2}\n'
        + "".join(f'{{"id": "b{k}", "prompt": "{k}+2", "answer": {k + 2}}}\n' for k in range(63))
    )
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text('{"num_attention_heads": 3, "num_key_value_heads": 3}')
    rows = [
        {"prompt": f"p{p}", "epoch": 0, "sample": s, "tokens": 3 + (7 * p * (s + 1)) % 60, "truncated": False,
         "reward": 1.0, "prompt_tokens": 5}
        for p in range(24) for s in range(4)
    ]  # fmt: skip
    (folder / "lengths.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    job = load_job(folder / "job.yaml")
    subject = subject_digest(job, job_paths(job, folder / "job.yaml"))
    profile = PROFILE.replace("LENGTHS", sha(folder / "lengths.jsonl")).replace("SUBJECT", subject)
    (folder / "profile.yaml").write_text(profile)


def write_solved(folder: Path) -> Path:
    """Write a job that was profiled and solved; the folder."""
    write_profiled(folder)
    files = {n: folder / f"{n}.yaml" for n in ("cluster", "job", "profile")} | {"lengths": folder / "lengths.jsonl"}
    digests = {name: {"path": path.name, "sha256": sha(path)} for name, path in files.items()}
    digests["profile"]["provenance"] = "measured"
    plan = solve(
        load_cluster(files["cluster"]), load_job(files["job"]), load(files["profile"], Profile),
        read_lengths(files["lengths"], cap_tokens=64), Inputs.model_validate(digests), SolveOptions(mode="sync"),
    ).plan  # fmt: skip
    dump(plan, folder / "plan.yaml")
    return folder


GPU_CLUSTER = """\
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

GPU_JOB = """\
rlplan_job: 1
name: math-7b
model: {path: Qwen/Qwen2.5-7B-Instruct, dtype: bfloat16}
data: {path: data.jsonl}
reward: {kind: math, workers: 8, deadline_s: 5.0}
rollout: {prompts_per_step: 16, samples_per_prompt: 4, max_prompt_tokens: 256, max_response_tokens: 4096}
algorithm: {name: grpo, learning_rate: 1.0e-6}
search: {tp: [1, 2], micro_batch_tokens: [8192]}
"""


def write_shipped(folder: Path) -> Path:
    """Write a job on GPUs that nobody profiled: cluster, job, data, and a length trace; the folder."""
    (folder / "cluster.yaml").write_text(GPU_CLUSTER)
    (folder / "job.yaml").write_text(GPU_JOB)
    (folder / "data.jsonl").write_text(
        "".join(f'{{"id": "b{k}", "prompt": "{k}+2", "answer": {k + 2}}}\n' for k in range(512))
    )
    trace = copula_lengths([(10, 0.05), (200, 0.6), (4096, 0.99)], 0.4, 4096, 48, 8)
    write_lengths(folder / "lengths.jsonl", trace.rows)
    return folder


def code_rows(folder: Path) -> None:
    """Have the rows of a job's data hold tests of code in place of numbers."""
    rows = [json.loads(line) for line in (folder / "data.jsonl").read_text().splitlines()]
    rows = [{**row, "answer": f"assert add() == {row['answer']}"} for row in rows]
    (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def listing(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def harmed(folder: Path, edits: list[tuple[str | None, ...]]) -> None:
    """Make edits of files: (file, old text, new text), (file, None, whole text), or (file,) to remove it."""
    for name, *texts in edits:
        path = folder / name
        if not texts:
            path.unlink()
        elif texts[0] is None:
            path.write_text(texts[1])
        else:
            before = path.read_text()
            assert texts[0] in before, (name, texts[0])
            path.write_text(before.replace(*texts, 1))
