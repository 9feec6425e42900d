"""The replay's jobs, nodes and prices, from published tables (RollMux, arXiv 2512.11306)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from rlplan.planner.groups.inputs.group_model import GroupJob, NodeType, PhaseWay

from .curve import Stay

ROLLOUT, TRAIN = "H20", "H800"
NODE_TYPES = {
    ROLLOUT: NodeType(ROLLOUT, usd_per_hour=8 * 1.85, host_memory_bytes=1.5e12),
    TRAIN: NodeType(TRAIN, usd_per_hour=8 * 5.28, host_memory_bytes=1.5e12),
}
COLD_S = 82.0
"""The slowest published cold start (32B), for every job."""

WORKLOADS = (
    ("7B", 134.0, 113.0),
    ("8B", 310.0, 120.0),
    ("8B", 580.0, 241.0),
    ("14B", 238.0, 197.0),
    ("4B", 121.0, 51.0),
    ("4B", 496.0, 180.0),
    ("32B", 267.0, 271.0),
    ("8B", 888.0, 559.0),
    ("7B", 80.0, 77.0),
    ("4B", 262.0, 87.0),
)
"""(model, rollout seconds, training seconds) of the ten commonest production jobs (RollMux, arXiv 2512.11306)."""

_FOOTPRINT = {"3B": (113.4, 156.2), "7B": (275.7, 240.0), "14B": (445.4, 456.1), "32B": (490.3, 520.4)}
"""GB of host memory per 8-GPU node of a (rollout, training) actor (RollMux, arXiv 2512.11306, Table 2)."""


@dataclass(frozen=True)
class Arrival:
    """A job and when it is in the system."""

    job: GroupJob
    stay: Stay


def footprint_bytes(model: str) -> tuple[float, float]:
    """Host bytes per node of the (rollout, training) actor; sizes between the published ones are interpolated."""
    size = float(model.removesuffix("B"))
    sizes = [float(name.removesuffix("B")) for name in _FOOTPRINT]
    rollout, train = (np.interp(size, sizes, column) for column in zip(*_FOOTPRINT.values(), strict=True))
    return float(rollout) * 1e9, float(train) * 1e9


def job_of(name: str, workload: tuple[str, float, float], slo: float, nodes: int, spill: float) -> GroupJob:
    """A job of that workload on `nodes` + `nodes` nodes.

    Ways beyond the reference: a rollout on the training pool takes `spill` times its seconds. A job of one node may
    train on two without gaining anything (313 + 120 s on 8 GPUs, 285 + 115 s on 16: RollMux); a job of two
    nodes may train, and roll out, on one in twice the seconds.
    """
    model, rollout_s, train_s = workload
    rollout_bytes, train_bytes = footprint_bytes(model)
    rollout = [
        PhaseWay(ROLLOUT, nodes, 1, rollout_s, rollout_bytes),
        PhaseWay(TRAIN, nodes, 1, rollout_s * spill, rollout_bytes),
    ]
    train = [PhaseWay(TRAIN, nodes, 1, train_s, train_bytes)]
    if nodes == 1:
        train.append(PhaseWay(TRAIN, 2, 1, train_s, train_bytes))
    else:
        rollout.append(PhaseWay(ROLLOUT, 1, 1, 2.0 * rollout_s, rollout_bytes))
        train.append(PhaseWay(TRAIN, 1, 1, 2.0 * train_s, train_bytes))
    return GroupJob(name, slo, tuple(rollout), tuple(train), cold_s=COLD_S)


def arrivals(stays: list[Stay], rng: np.random.Generator, spill: float = 1.0) -> list[Arrival]:
    """One job for each stay: workload uniform over the table, SLO uniform in (1, 2)."""
    digits = len(str(len(stays)))
    return [
        Arrival(
            job_of(
                f"j{number:0{digits}d}",
                WORKLOADS[int(rng.integers(len(WORKLOADS)))],
                float(rng.uniform(1, 2)),
                stay.nodes,
                spill,
            ),
            stay,
        )
        for number, stay in enumerate(stays)
    ]


def without_spill(job: GroupJob) -> GroupJob:
    """The job without its rollout ways on the training pool."""
    return replace(job, rollout=tuple(way for way in job.rollout if way.pool != TRAIN))
