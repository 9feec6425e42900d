"""The part of the GPU check for jobs that run as one: two jobs of a tiny model, whose engines and trainers take turns.

Nodes are two of Ray, of one GPU each. With one GPU both nodes offer it, so that turns, sleeping engines and waiting
trainers are tried there too; what one phase then takes is no measure, since the other computes on the same GPU.
"""

from __future__ import annotations

import math
import shutil
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlplan.plans.schema.cluster import Cluster, load_cluster
from rlplan.plans.schema.job import Job, load_job
from rlplan.plans.schema.workload import Workload
from rlplan.plans.yaml.yaml_io import dump
from rlplan.profiles.laws.rank_memory import STATE_BYTES

from .command_parts import RLPLAN, JsonLines, Parts
from .plans_part import solve
from .random_policy import TINY

JOBS = "one", "other"
SLO, WARM_S, COLD_S = 4.0, 0.5, 60.0
GROUP = "g1"


def plan_group(parts: Parts, folder: Path) -> bool:
    """Plan two jobs as a group, from the job in `folder`/one; whether that could be done."""
    first = folder / JOBS[0]
    apart(first)
    if not solve(parts, first, TINY, ["sync"], "groups solve"):
        return False
    (first / "sync.yaml").rename(first / "plan.yaml")
    for name in JOBS[1:]:
        shutil.copytree(first, folder / name)
    return parts.run("groups solve both", *RLPLAN, "solve", write_workload(folder), "-o", folder / "groups.yaml")


def run_group(parts: Parts, folder: Path, steps: int) -> None:
    """Run the jobs of the group for so many steps; tells each job's figures."""
    from ..ray_nodes import RayNodes  # brings Ray, without which attention and updates are measured

    out = folder / "run"
    with RayNodes([1, 1], pinned=parts.device == "cpu", gpus=parts.device == "cuda") as nodes:
        command = (*RLPLAN, "execute", folder / "groups.yaml", "--steps", steps, "--out", out, "--json")
        parts.run("groups execute", *command, RAY_ADDRESS=nodes.address)
    parts.tell({"groups": {name: job_figures(JsonLines(out / GROUP / name / "trace.jsonl").new()) for name in JOBS}})


def apart(folder: Path) -> None:
    """Give the trainers of the job in a folder a pool to themselves; its pools have one node of one device each."""
    cluster = load_cluster(folder / "cluster.yaml").model_dump(mode="json")
    pool = cluster["pools"]["main"]
    pool["accelerators"]["per_node"] = 1
    cluster["pools"]["train"] = pool
    dump(Cluster.model_validate(cluster), folder / "cluster.yaml")
    job = load_job(folder / "job.yaml").model_dump(mode="json")
    dump(Job.model_validate(job | {"placement": {"train_pool": "train", "streams": False}}), folder / "job.yaml")


def write_workload(folder: Path) -> Path:
    """Write the workload of the jobs, which are solved; returns its path."""
    shutil.copy2(folder / JOBS[0] / "cluster.yaml", folder)
    state_bytes = math.ceil(STATE_BYTES * TINY.parameters)
    phases = {
        phase: {"pool": pool, "nodes": 1, "resident_bytes": state_bytes, "warm_s": WARM_S}
        for phase, pool in (("rollout", "main"), ("train", "train"))
    }
    jobs = {
        name: {"slo": SLO, "cold_s": COLD_S, "source": {"plan": f"{name}/plan.yaml"}, "phases": phases} for name in JOBS
    }
    workload = {"rlplan_workload": 1, "cluster": "cluster.yaml", "jobs": jobs}
    dump(Workload.model_validate(workload), folder / "workload.yaml")
    return folder / "workload.yaml"


def job_figures(events: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Of a job's trace: steps, turns, seconds waited for others, medians of the seconds that its switches took."""
    steps = [event for event in events if event["event"] == "step"]
    permits = [event for event in events if event["event"] == "permit"]

    def median_s(key: str) -> dict[str, float]:
        phases = sorted({str(event["phase"]) for event in permits})
        each = {phase: [event[key] for event in permits if event["phase"] == phase] for phase in phases}
        return {phase: round(statistics.median(seconds), 4) for phase, seconds in each.items()}

    return {
        "steps": len(steps),
        "turns": len(permits),
        "waited_s": round(sum(event["waited_s"] for event in permits), 3),
        "switch_in_s": median_s("switch_in_s"),
        "switch_out_s": median_s("switch_out_s"),
        "step_s": statistics.median(step["total_s"] for step in steps) if steps else None,
    }
