"""A job on one node of eight GPUs, priced by a shipped profile: one engine stands for all, one law for all updates."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any

from rlplan.planner.solve import solve
from rlplan.planner.solve_options import SolveOptions
from rlplan.planner.what_if import Documents
from rlplan.plans.schema.cluster import Cluster
from rlplan.profiles.library import library_profile

from .conftest import heavy_trace, laptop, small_job
from .synthetic_run import QUICK, solved

GPUS = {"kind": "cuda", "name": "H800", "per_node": 8, "memory_bytes": 80 * 10**9}


def gpu_cluster(**changes: Any) -> Cluster:
    """One node of eight H800, unless `changes` of the pool say otherwise."""
    return laptop(**{"accelerators": GPUS, "cores": 64, "host_memory_bytes": 2 * 10**12, **changes})


@cache
def solved_on_gpus(mode: str = "sync", **options: Any) -> Documents:
    """A job of 8 x 4 with its plan on the shipped profile of a 14B model."""
    base = solved(mode="sync")
    job = small_job(
        {"prompts_per_step": 8, "samples_per_prompt": 4}, search={"tp": [2, 4], "micro_batch_tokens": [4096]}
    )
    documents = dataclasses.replace(
        base, job=job, cluster=gpu_cluster(), profile=library_profile("H800", "Qwen2.5-14B"), trace=heavy_trace()
    )
    plan = solve(
        documents.cluster,
        job,
        documents.profile,
        documents.trace,
        base.plan.inputs,
        SolveOptions(passes=QUICK, mode=mode, **options),
    ).plan
    return dataclasses.replace(documents, plan=plan)
