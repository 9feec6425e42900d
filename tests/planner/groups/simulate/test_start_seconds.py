"""A start on host cores is slowed by the phases that run on them; a start on GPUs is not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rlplan.planner.groups.inputs.group_model import Group, GroupJob, NodeType, PhaseWay, Pin, Rules
from rlplan.planner.groups.simulate.start_seconds import start_s

CPU = {pool: NodeType(pool, 1.0, 1e12, host_cores=True) for pool in "ab"}
GROUP = Group(("a", "b"), (Pin("x", 0, (0,), 0, (1,)), Pin("y", 0, (0,), 0, (1,))))


def job(name: str, rollout_s: float, train_s: float) -> GroupJob:
    ways = (PhaseWay("a", 1, 1, rollout_s, 0.0),), (PhaseWay("b", 1, 1, train_s, 0.0),)
    return GroupJob(name, 2.0, *ways, cold_s=30.0)


@pytest.mark.parametrize("rollout_s, train_s, busy", [(60.0, 40.0, 0.6), (25.0, 75.0, 0.75)])
def test_a_start_takes_longer_by_the_busy_share_of_the_busier_node(rollout_s, train_s, busy):
    jobs = {"x": job("x", rollout_s, train_s), "y": job("y", 1.0, 1.0)}
    assert start_s("y", GROUP, jobs, CPU, Rules()) == pytest.approx(30.0 * (1 + busy))


def test_a_start_is_not_slowed_on_gpus_nor_alone_nor_on_nodes_that_no_other_job_has():
    jobs = {"x": job("x", 60.0, 40.0), "y": job("y", 1.0, 1.0)}
    gpus = {pool: replace(node_type, host_cores=False) for pool, node_type in CPU.items()}
    assert start_s("y", GROUP, jobs, gpus, Rules()) == 30.0
    assert start_s("y", replace(GROUP, pins=GROUP.pins[1:]), jobs, CPU, Rules()) == 30.0
    apart = Group(("a", "a", "b", "b"), (Pin("x", 0, (0,), 0, (2,)), Pin("y", 0, (1,), 0, (3,))))
    assert start_s("y", apart, jobs, CPU, Rules()) == 30.0


def test_only_the_phase_on_host_cores_counts():
    jobs = {"x": job("x", 60.0, 40.0), "y": job("y", 1.0, 1.0)}
    mixed = {**CPU, "a": replace(CPU["a"], host_cores=False)}
    assert start_s("y", GROUP, jobs, mixed, Rules()) == pytest.approx(30.0 * 1.4)
