"""Slowdowns under locks of whole pools, by hand where they can be counted."""

from __future__ import annotations

import pytest

from rlplan.planner.groups.inputs.group_model import GroupJob, NodeType, PhaseWay, Rules
from rlplan.planner.groups.inputs.workload_jobs import Problem
from rlplan.planner.groups.simulate.lock_slowdowns import lock_slowdowns
from rlplan.plans.export.node_locks import node_locks

from ....group_documents import group, groups_plan, member, pinned


def job(name: str, rollout_s: float, train_s: float, slo: float, nodes: int = 1) -> GroupJob:
    return GroupJob(name, slo, (PhaseWay("roll", nodes, 1, rollout_s, 0.0),), (PhaseWay("train", 1, 1, train_s, 0.0),))


def simulated(jobs: list[GroupJob], units: dict[str, list[int]], roll_nodes: int):
    """Slowdowns under locks, of jobs whose rollouts hold these units."""
    members = {name: member() | {"rollout": pinned("roll", 0) | {"units": held}} for name, held in units.items()}
    planned = groups_plan({"g1": group(members, roll_nodes)}).groups["g1"]
    node_types = {pool: NodeType(pool, 1.0, 1e12) for pool in ("roll", "train")}
    problem = Problem({one.name: one for one in jobs}, node_types, Rules(permit_rule="multi_rate", tail_keep=0.5))
    return lock_slowdowns(planned, node_locks("g1", planned), problem)


def test_two_jobs_that_alternate_on_both_pools_lose_nothing():
    rows = simulated([job("a", 60, 60, 1.1), job("b", 60, 60, 1.1)], {"a": [0], "b": [0]}, 1)
    assert {name: row.slowdown.mean for name, row in rows.items()} == {"a": pytest.approx(1), "b": pytest.approx(1)}
    assert all(row.keeps for row in rows.values())


def test_a_job_over_two_nodes_makes_two_that_the_plan_runs_at_once_take_turns():
    jobs = [job("a", 100, 10, 2.0), job("b", 100, 10, 2.0), job("c", 100, 10, 9.0, nodes=2)]
    rows = simulated(jobs, {"a": [0], "b": [1], "c": [0, 1]}, 2)
    # One lock: rollouts of 100 s in turns of three, training beside them.
    assert rows["a"].slowdown.mean == pytest.approx(300 / 110, rel=0.01)
    assert not rows["a"].keeps and not rows["b"].keeps and rows["c"].keeps


def test_jobs_on_nodes_of_their_own_keep_their_own_locks():
    rows = simulated([job("a", 100, 10, 1.2), job("b", 100, 10, 1.2)], {"a": [0], "b": [1]}, 2)
    assert rows["a"].slowdown.mean < 1.1 and rows["a"].keeps
