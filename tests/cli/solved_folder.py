"""A folder with a job that was profiled and solved, which tests of commands break or change."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from rlplan.planner.solve import solve
from rlplan.planner.solve_options import SolveOptions
from rlplan.plans.schema.cluster import load_cluster
from rlplan.plans.schema.job import job_paths, load_job
from rlplan.plans.schema.sections.origin import InputFile, Inputs, ProfileFile
from rlplan.plans.yaml.yaml_io import dump, load
from rlplan.profiles.fitness import subject_digest
from rlplan.profiles.length_trace import read_lengths
from rlplan.profiles.profile_schema import Profile

from ..documents import CLUSTER

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
    names = ("cluster", "job", "profile", "lengths")
    files = {n: folder / (f"{n}.yaml" if n != "lengths" else "lengths.jsonl") for n in names}

    def digest(name: str) -> dict[str, str]:
        return {"path": files[name].name, "sha256": sha(files[name])}

    inputs = Inputs(
        cluster=InputFile(**digest("cluster")),
        job=InputFile(**digest("job")),
        profile=ProfileFile(**digest("profile"), provenance="measured"),
        lengths=InputFile(**digest("lengths")),
    )
    trace = read_lengths(files["lengths"], cap_tokens=64)
    plan = solve(
        load_cluster(files["cluster"]), load_job(files["job"]), load(files["profile"], Profile), trace, inputs,
        SolveOptions(mode="sync"),
    ).plan  # fmt: skip
    dump(plan, folder / "plan.yaml")
    return folder


def listing(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def edit(path: Path, old: str, new: str) -> int:
    """Replace the one occurrence; its line."""
    text = path.read_text()
    assert text.count(old) == 1, f"{old!r} occurs {text.count(old)} times"
    path.write_text(text.replace(old, new))
    return text[: text.index(old)].count("\n") + 1
