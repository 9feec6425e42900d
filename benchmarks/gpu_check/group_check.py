"""The part of the GPU check for jobs that run as one: two jobs of a tiny model, whose engines and trainers take turns.

Nodes are two of Ray, of one GPU each. With one GPU both nodes offer it, so that turns, sleeping engines and waiting
trainers are tried there too; what one phase then takes is no measure, since the other computes on the same GPU.
"""

from __future__ import annotations

import math
import shutil
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlplan.plans.schema.cluster import Cluster, load_cluster
from rlplan.plans.schema.job import Job, load_job
from rlplan.plans.schema.workload import Workload
from rlplan.plans.yaml.errors import InputError
from rlplan.plans.yaml.yaml_io import dump
from rlplan.traces.run_log import TRACE

from ..ray_nodes import RayNodes
from .check_result import Lines, trace_lines, weights_figures
from .command_parts import RLPLAN, Part, Parts, end_of
from .shapes import SHAPES
from .stand_in import guessed_lengths, write_stand_in

JOBS = "one", "other"
SHAPE = SHAPES["tiny"]
"""Two engines that sleep and two trainers must have room beside one that is awake, on one GPU."""

SLO, WARM_S, COLD_S = 4.0, 0.5, 60.0
GROUP = "g1"
GROUP_S = 180.0
"""Seconds that the group takes about, on GPUs: a guess."""


def check_group(parts: Parts, steps: int) -> dict[str, Any]:
    """Write, plan and run two jobs of a group for so many steps, in the new folder of `parts`; what is reported of it:
    `parts`, `jobs`, or `untried` with the reason."""
    folder, device = parts.folder, parts.device

    def reported(**figures: Any) -> dict[str, Any]:
        return {"parts": parts.data()} | figures

    first = folder / JOBS[0]
    policy = (sys.executable, "-m", "benchmarks.gpu_check.random_policy", first)
    if not parts.run("write", *policy, "--shape", SHAPE.name, "--device", device):
        return reported()
    apart(first)
    if device == "cuda":
        try:
            profile = write_stand_in(first, SHAPE)
        except InputError as error:
            return reported(untried=str(error))
        priced: tuple[Any, ...] = ("--profile", profile, "--lengths", guessed_lengths(device))
    elif parts.run("profile", *RLPLAN, "profile", first, "--trace-rounds", 2, "--minutes", 1):
        priced = ()
    else:
        return reported()
    for name in JOBS[1:]:
        shutil.copytree(first, folder / name)
    for name in JOBS:
        job = folder / name
        own = tuple(job / word.name if isinstance(word, Path) else word for word in priced)
        if not parts.run(f"solve {name}", *RLPLAN, "solve", job, *own, "--mode", "sync", "-o", job / "plan.yaml"):
            return reported()
    groups, out = folder / "groups.yaml", folder / "run"
    if not parts.run("solve groups", *RLPLAN, "solve", write_workload(folder), "-o", groups):
        return reported()
    began_s = time.monotonic()
    try:
        with RayNodes([1, 1], pinned=device == "cpu", gpus=device == "cuda") as nodes:
            command = (*RLPLAN, "execute", groups, "--steps", steps, "--out", out, "--json")
            ran = parts.run("execute", *command, RAY_ADDRESS=nodes.address)
    except RuntimeError as error:
        parts.done["nodes"] = Part(False, time.monotonic() - began_s, end_of(str(error)))
        return reported()
    traces = {name: trace_lines(path) for name in JOBS if (path := out / GROUP / name / TRACE).is_file()}
    if ran:
        parts.run("report", *RLPLAN, "report", out, "--json")
    return reported(jobs={name: job_figures(lines) for name, lines in traces.items()})


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
    state_bytes = math.ceil(SHAPE.state_bytes)
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


def job_figures(lines: Lines) -> dict[str, Any]:
    """Of a job's trace: steps, turns, seconds waited for others, medians of the seconds that its switches took, and how
    its weights went."""
    events = [event for _, event in lines]
    steps = [event for event in events if event["event"] == "step"]
    permits = [event for event in events if event["event"] == "permit"]
    return {
        "steps": len(steps),
        "turns": len(permits),
        "waited_s": round(sum(event["waited_s"] for event in permits), 3),
        "switch_in_s": _by_phase(permits, "switch_in_s"),
        "switch_out_s": _by_phase(permits, "switch_out_s"),
        "step_s": statistics.median(step["total_s"] for step in steps) if steps else None,
        "weights": weights_figures(lines),
    }


def _by_phase(permits: Sequence[Mapping[str, Any]], key: str) -> dict[str, float]:
    seconds: dict[str, list[float]] = {}
    for event in permits:
        seconds.setdefault(event["phase"], []).append(event[key])
    return {phase: round(statistics.median(each), 4) for phase, each in seconds.items()}
