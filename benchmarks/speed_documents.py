"""Documents of the 64-GPU job that `planner_speed` solves: a 14B model, 128 prompts x 8 samples of up to 16k tokens."""

from __future__ import annotations

import math

import numpy as np

from rlplan.plans.schema.cluster import Cluster
from rlplan.plans.schema.job import Job
from rlplan.profiles.length_trace import LengthRow, LengthTrace
from rlplan.profiles.phase_schema import DecodePoint, Reward, Rollout, Spread, Train
from rlplan.profiles.profile_schema import Machine, Profile, ProfileLengths

CAP = 16384
PROMPTS, SAMPLES = 128, 8


def trace(prompts: int = 256, samples: int = 16, seed: int = 0) -> LengthTrace:
    """Lengths like those published of a 14B model under a cap of 16k: heavy tails, half of it between prompts."""
    rng = np.random.default_rng(seed)
    rows = []
    for p in range(prompts):
        location = 6.5 + 0.8 * rng.normal()
        for s in range(samples):
            tokens = 1 + int(np.exp(location + 0.8 * rng.normal()))
            reward = float(rng.random() < 0.5)
            rows.append(LengthRow(f"p{p:04d}", 0, s, min(tokens, CAP), tokens >= CAP, reward, 256))
    return LengthTrace(rows, CAP)


def spread(seconds: float) -> Spread:
    """A duration with p95 10 % above the median."""
    return Spread(p50=seconds, p95=1.1 * seconds, repeats=5)


def rollout(tp: int) -> Rollout:
    """One engine of 14B parameters in 16 bits on `tp` GPUs of 80 GB and 3.35 TB/s: weights and KV are read at 75 %."""
    a = 4e-3 + 29.5e9 / (tp * 2.5e12) + 5e-4 * math.log2(tp)
    return Rollout(
        tp=tp,
        engines=64 // tp,
        step_s=a,
        step_s_per_sequence=2e-5,
        step_s_per_kv_token=196608 / (tp * 2.5e12),
        prefill_s=2e-4,
        prefill_s_per_token=6e-5 / tp,
        kv_capacity_tokens=int((68e9 * tp - 29.5e9) / 196608),
        kv_bytes_per_token=196608,
        start=spread(60.0),
        sync=spread(15.0),
        error=0.03,
        points=(DecodePoint(sequences=256, kv_tokens=1e5, step_s=a + 0.02, spread=0.01),),
    )


def profile() -> Profile:
    """Costs of the 64-GPU job."""
    return Profile(
        rlplan_profile=1,
        job="math-14b",
        measured="0" * 64,
        provenance="measured",
        machine=Machine(accelerator="H800", kind="cuda", accelerators=8, cores=96, host_memory_bytes=2 * 10**12),
        model_parameters=14_800_000_000,
        rollout=tuple(rollout(tp) for tp in (1, 2, 4, 8)),
        train=tuple(
            Train(
                dp=64,
                micro_batch_tokens=tokens,
                step_s=4.0,
                step_s_per_token=(4e-6 + 0.02 / tokens),
                step_s_per_token_squared=1e-11,
                error=0.03,
            )
            for tokens in (16896, 20480, 24576, 32768)
        ),
        reward=Reward(workers=64, latency=spread(0.35), per_sample_s=0.05),
        lengths=ProfileLengths(
            path="lengths.jsonl", sha256="0" * 64, prompts=256, samples=4096, cap_tokens=CAP, icc=0.5
        ),
        checks=(),
        volatile={"measured_at": "never", "measuring_s": 0.0, "versions": {}},
    )


def cluster() -> Cluster:
    """8 nodes of 8 GPUs."""
    pool = {
        "nodes": 8,
        "accelerators": {"kind": "cuda", "name": "H800", "per_node": 8, "memory_bytes": 80 * 10**9},
        "cores": 96,
        "host_memory_bytes": 2 * 10**12,
        "usd_per_node_hour": 20.0,
    }
    return Cluster.model_validate({"rlplan_cluster": 1, "name": "pod", "pools": {"gpu": pool}})


def job() -> Job:
    """128 prompts x 8 samples of up to 16k tokens."""
    return Job.model_validate(
        {
            "rlplan_job": 1,
            "name": "math-14b",
            "model": {"path": "m", "dtype": "bfloat16"},
            "data": {"path": "d.jsonl"},
            "reward": {"kind": "math", "workers": 64, "deadline_s": 2.0},
            "rollout": {
                "prompts_per_step": PROMPTS,
                "samples_per_prompt": SAMPLES,
                "max_prompt_tokens": 512,
                "max_response_tokens": CAP,
            },
            "algorithm": {"name": "grpo", "learning_rate": 1e-6},
            "search": {"tp": [1, 2, 4, 8], "micro_batch_tokens": [16896, 20480, 24576, 32768]},
        }
    )
