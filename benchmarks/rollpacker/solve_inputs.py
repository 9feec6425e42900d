"""The documents of a published run as `rlplan solve` takes them: cluster, job, profile, length trace."""

from __future__ import annotations

import dataclasses

from benchmarks.copula_trace import copula_lengths
from rlplan.plans.schema.cluster import Cluster
from rlplan.plans.schema.job import Job
from rlplan.plans.schema.plan import InputFile, Inputs, ProfileFile
from rlplan.profiles.hardware import GPUS
from rlplan.profiles.length_trace import LengthTrace
from rlplan.profiles.phase_schema import Reward, Spread
from rlplan.profiles.profile_schema import Profile, RoundCheck

from .case import Case
from .published_figures import Figures

GPUS_PER_NODE = 8
PROMPT_TOKENS = 256
# Prompts of a task and samples of each in the trace: enough that the tail beyond 1 % is known.
_TRACED, _SAMPLES = 240, 16
# USD per GPU-hour: H800 as in RollMux (arXiv 2512.11306), others do not matter to any ratio here.
_USD = {"H800": 5.28}
# Sandbox calls take 0.31 s at the median (figure 7a); one CPU worker per GPU.
_REWARD_S = 0.31


def cluster_of(case: Case) -> Cluster:
    """The GPUs of the case, eight to a node."""
    pool = {
        "nodes": -(-case.gpus // GPUS_PER_NODE),
        "accelerators": {
            "kind": "cuda",
            "name": case.gpu,
            "per_node": min(GPUS_PER_NODE, case.gpus),
            "memory_bytes": GPUS[case.gpu].memory_bytes,
        },
        "cores": 128,
        "host_memory_bytes": 2 * 10**12,
        "usd_per_node_hour": min(GPUS_PER_NODE, case.gpus) * _USD.get(case.gpu, 2.0),
    }
    return Cluster.model_validate({"rlplan_cluster": 1, "name": "published", "pools": {"main": pool}})


def job_of(case: Case) -> Job:
    """The job of the case."""
    longest = PROMPT_TOKENS + case.cap_tokens
    budgets = [tokens for tokens in (8192, 16384, 32768, 65536, 131072) if tokens >= longest][:2]
    return Job.model_validate(
        {
            "rlplan_job": 1,
            "name": "published",
            "model": {"path": case.model, "dtype": "bfloat16"},
            "data": {"path": "published.jsonl"},
            "reward": {"kind": "code", "workers": case.gpus, "deadline_s": 30.0},
            "rollout": {
                "prompts_per_step": case.prompts_per_step,
                "samples_per_prompt": case.samples_per_prompt,
                "max_prompt_tokens": PROMPT_TOKENS,
                "max_response_tokens": case.cap_tokens,
            },
            "algorithm": {"name": "grpo", "learning_rate": 1e-6},
            "search": {"tp": [1, 2, 4, 8], "micro_batch_tokens": budgets},
        }
    )


def profile_of(
    case: Case, shipped: Profile, factor: float, overhead_s: float, sync_s: float, reward_s: float
) -> Profile:
    """The shipped profile at the calibrated speed, with the published sync and reward latency."""
    sync = Spread(p50=sync_s, p95=sync_s, repeats=0)
    check = RoundCheck(
        tp=case.rollout_tp,
        engines=1,
        rounds=1,
        overhead_s=overhead_s,
        overhead_s_per_sample=0.0,
        factor=factor,
        error=0.0,
    )
    latency = Spread(p50=max(reward_s, _REWARD_S), p95=max(reward_s, _REWARD_S), repeats=0)
    return shipped.model_copy(
        update={
            "rollout": tuple(r.model_copy(update={"sync": sync}) for r in shipped.rollout),
            "checks": (check,),
            "reward": Reward(workers=case.gpus, latency=latency, per_sample_s=_REWARD_S),
        }
    )


def trace_of(case: Case, figures: Figures, rho: float) -> LengthTrace:
    """Published lengths of all tasks in equal shares, with one dependence within prompts."""
    rows = []
    for number, task in enumerate(figures.tasks()):
        trace = copula_lengths(
            figures.cdf(task), rho, case.cap_tokens, _TRACED, _SAMPLES, seed=number, prompt_tokens=PROMPT_TOKENS
        )
        rows += [dataclasses.replace(row, prompt=f"{task}-{row.prompt}") for row in trace.rows]
    return LengthTrace(rows, case.cap_tokens)


def no_inputs() -> Inputs:
    """Placeholder for the input files of a plan: these documents are in no file."""

    def file(name: str) -> InputFile:
        return InputFile(path=name, sha256="0" * 64)

    profile = ProfileFile(path="profile.yaml", sha256="0" * 64, provenance="derived")
    return Inputs(cluster=file("cluster.yaml"), job=file("job.yaml"), profile=profile, lengths=file("lengths.jsonl"))
