"""Fabricated inputs: a heavy-tailed length trace, the profile of a small CPU machine, a job of 16 x 8."""

from functools import cache
from typing import Any

import numpy as np

from rlplan.plans.schema.cluster import Cluster
from rlplan.plans.schema.job import Job
from rlplan.plans.schema.plan import InputFile, Inputs, LengthsInput, ProfileFile
from rlplan.profiles.length_trace import LengthRow, LengthTrace
from rlplan.profiles.phase_schema import DecodePoint, Reward, Rollout, Spread, Train
from rlplan.profiles.profile_schema import Machine, Profile, ProfileLengths, RoundCheck

CAP = 1024


@cache
def heavy_trace(
    prompts: int = 64, samples: int = 16, sigma: float = 1.3, icc: float = 0.6, seed: int = 0
) -> LengthTrace:
    """Log-normal lengths: `icc` of the log variance lies between prompts; about 1 % reach the cap."""
    rng = np.random.default_rng(seed)
    rows = []
    for p in range(prompts):
        location = 3.8 + sigma * np.sqrt(icc) * rng.normal()
        for s in range(samples):
            tokens = 1 + int(np.exp(location + sigma * np.sqrt(1 - icc) * rng.normal()))
            reward = float(rng.random() < 0.5)
            rows.append(LengthRow(f"k{p:04d}", 0, s, min(tokens, CAP), tokens >= CAP, reward, 18))
    return LengthTrace(rows, CAP)


def spread(seconds: float) -> Spread:
    return Spread(p50=seconds, p95=1.1 * seconds, repeats=5)


def rollout(tp: int, engines: int, a: float, b: float, kv_capacity_tokens: int = 200_000) -> Rollout:
    points = tuple(DecodePoint(sequences=n, kv_tokens=100.0 * n, step_s=a + b * n, spread=0.01) for n in (1, 16, 192))
    return Rollout(
        tp=tp,
        engines=engines,
        step_s=a,
        step_s_per_sequence=b,
        step_s_per_kv_token=2e-8,
        prefill_s=2e-4,
        prefill_s_per_token=1e-5,
        kv_capacity_tokens=kv_capacity_tokens,
        kv_bytes_per_token=4096,
        start=spread(9.0),
        sync=spread(0.15),
        error=0.03,
        points=points,
    )


def small_profile(**changes: Any) -> Profile:
    fields: dict[str, Any] = {
        "rlplan_profile": 1,
        "job": "toy",
        "measured": "0" * 64,
        "provenance": "measured",
        "machine": Machine(accelerator="cpu", kind="cpu", accelerators=2, cores=2, host_memory_bytes=24 * 10**9),
        "model_parameters": 2_000_000,
        "rollout": (rollout(1, 2, 7e-3, 3e-5), rollout(2, 1, 5.5e-3, 3e-5)),
        "train": tuple(
            Train(
                dp=1,
                micro_batch_tokens=tokens,
                step_s=0.05,
                step_s_per_token=per_token,
                step_s_per_token_squared=1e-9,
                error=0.03,
            )
            for tokens, per_token in ((1024, 7e-5), (2048, 4e-5), (4096, 3e-5), (8192, 3.4e-5))
        ),
        "reward": Reward(workers=1, latency=spread(3e-3), per_sample_s=1e-4),
        "lengths": ProfileLengths(
            path="lengths.jsonl", sha256="0" * 64, prompts=64, samples=1024, cap_tokens=CAP, icc=0.6
        ),
        "checks": (
            RoundCheck(tp=1, engines=2, rounds=5, overhead_s=0.0, overhead_s_per_sample=0.0, factor=1.02, error=0.02),
        ),
        "volatile": {"measured_at": "now", "measuring_s": 1.0, "versions": {}},
    }
    return Profile(**{**fields, **changes})


def laptop(**changes: Any) -> Cluster:
    pool = {
        "nodes": 1,
        "accelerators": {"kind": "cpu", "name": "cpu", "per_node": 2, "memory_bytes": 10**9},
        "cores": 2,
        "host_memory_bytes": 24 * 10**9,
        "usd_per_node_hour": 0.36,
    }
    return Cluster.model_validate({"rlplan_cluster": 1, "name": "laptop", "pools": {"main": {**pool, **changes}}})


def small_job(rollout: dict[str, Any] | None = None, **changes: Any) -> Job:
    sizes = {"prompts_per_step": 16, "samples_per_prompt": 8, "max_prompt_tokens": 96, "max_response_tokens": CAP}
    fields: dict[str, Any] = {
        "rlplan_job": 1,
        "name": "toy",
        "model": {"path": "m", "dtype": "bfloat16"},
        "data": {"path": "d.jsonl"},
        "reward": {"kind": "math", "workers": 1, "deadline_s": 2.0},
        "rollout": {**sizes, **(rollout or {})},
        "algorithm": {"name": "grpo", "learning_rate": 1e-3},
        "search": {"tp": [1, 2], "micro_batch_tokens": [1024, 2048, 4096, 8192]},
    }
    return Job.model_validate({**fields, **changes})


def some_inputs() -> Inputs:
    """Names of files that no test opens."""
    profile = ProfileFile(path="profile.yaml", sha256="0" * 64, provenance="measured")
    cluster, job = (InputFile(path=name, sha256="0" * 64) for name in ("cluster.yaml", "job.yaml"))
    lengths = LengthsInput(path="lengths.jsonl", sha256="0" * 64)
    return Inputs(cluster=cluster, job=job, profile=profile, lengths=lengths)
