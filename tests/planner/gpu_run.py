"""A job on one node of eight GPUs, priced by a shipped profile: one engine stands for all, one law for all updates."""

from typing import Any

from rlplan.planner.what_if import Documents
from rlplan.plans.schema.cluster import Cluster
from rlplan.profiles.library import library_profile

from .conftest import heavy_trace, laptop
from .solutions import eight_by_four, once, solution

GPUS = {"kind": "cuda", "name": "H800", "per_node": 8, "memory_bytes": 80 * 10**9}


def gpu_cluster(**changes: Any) -> Cluster:
    """One node of eight H800, unless `changes` of the pool say otherwise."""
    return laptop(**{"accelerators": GPUS, "cores": 64, "host_memory_bytes": 2 * 10**12, **changes})


@once
def solved_on_gpus(mode: str = "sync", **options: Any) -> Documents:
    """A job of 8 x 4 with its plan on the shipped profile of a 14B model."""
    job, cluster, profile = eight_by_four((2, 4), (4096,)), gpu_cluster(), library_profile("H800", "Qwen2.5-14B")
    plan = solution(job, cluster=cluster, profile=profile, mode=mode, **options).plan
    return Documents(plan, job, cluster, profile, heavy_trace(), None)
