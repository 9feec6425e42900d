"""Jobs, nodes and groups that tests of the planner of many jobs are made of, and what is true of every sound group."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from rlplan.planner.groups.choose.group_columns import FULL, unit_shares
from rlplan.planner.groups.choose.group_nodes import resident
from rlplan.planner.groups.choose.group_solution import GroupChecker
from rlplan.planner.groups.inputs.group_model import Group, GroupJob, Jobs, NodeType, NodeTypes, PhaseWay, Pin, Rules
from rlplan.planner.groups.inputs.workload_jobs import Problem, problem_of
from rlplan.planner.groups.solve_workload import solve_workload
from rlplan.plans.schema.groups_plan import GroupsInputs, GroupsPlan
from rlplan.plans.schema.plan import InputFile
from rlplan.plans.schema.workload import load_workload

POLICIES = ("round_robin", "first_come", "multi_rate")


def node_types(roll: float = 14.8, train: float = 42.24, memory: float = 1.5e12, **roll_fields: Any) -> NodeTypes:
    """Nodes to roll out and to train, by default an H20 and an H800, at these prices an hour."""
    return {"roll": NodeType("roll", roll, memory, **roll_fields), "train": NodeType("train", train, memory)}


def limited(roll: int | None, train: int | None, memory: float = 1.5e12) -> NodeTypes:
    """The same nodes, of which there are so many."""
    kinds = node_types(memory=memory)
    return {
        "roll": NodeType("roll", kinds["roll"].usd_per_hour, memory, limit=roll),
        "train": NodeType("train", kinds["train"].usd_per_hour, memory, limit=train),
    }


NODE_TYPES = node_types()


def job(
    name: str,
    rollout_s: float = 100.0,
    train_s: float = 100.0,
    slo: float = 2.0,
    *,
    gb: float = 100.0,
    nodes: tuple[int, int] = (1, 1),
    spill: float = 0.0,
    wide: float = 0.0,
    **fields: Any,
) -> GroupJob:
    """A job of two phases with so much state.

    `spill`: its rollout also runs on a training node, in so many times the seconds; `wide`: its training on two.
    """
    rollout = [PhaseWay("roll", nodes[0], 1, float(rollout_s), gb * 1e9)]
    train = [PhaseWay("train", nodes[1], 1, float(train_s), gb * 1e9)]
    rollout += [PhaseWay("train", nodes[0], 1, spill * rollout_s, gb * 1e9)] * bool(spill)
    train += [PhaseWay("train", 2, 1, wide * train_s, gb * 1e9)] * bool(wide)
    return GroupJob(name, slo, tuple(rollout), tuple(train), **fields)


def named(*jobs: GroupJob) -> dict[str, GroupJob]:
    return {each.name: each for each in jobs}


def group(jobs: Iterable[str], rollout_nodes: Iterable[int], train_nodes: Iterable[int] | None = None) -> Group:
    """Jobs on one rollout node each, by number, and on one training node each (None: all on the same)."""
    names, on = list(jobs), list(rollout_nodes)
    count = max(on) + 1
    trained = [0] * len(names) if train_nodes is None else list(train_nodes)
    pins = [Pin(name, 0, (r,), 0, (count + t,)) for name, r, t in zip(names, on, trained, strict=True)]
    return Group(("roll",) * count + ("train",) * (max(trained) + 1), tuple(pins))


def assert_sound(
    groups: Iterable[Group], jobs: Jobs, kinds: NodeTypes = NODE_TYPES, rules: Rules | None = None
) -> None:
    """Every job is in one group; groups are within the cap, fit their nodes and keep all bounds."""
    rules, groups = rules or Rules(), list(groups)
    assert sorted(pin.job for each in groups for pin in each.pins) == sorted(jobs)
    for each in groups:
        assert len(each.pins) <= rules.group_cap and resident(each, jobs, kinds)
        assert max(unit_shares(each, jobs, rules, kinds)) <= FULL
    assert GroupChecker(rules).keeps(groups, jobs) == [True] * len(groups)
    for pool, kind in kinds.items():
        assert kind.limit is None or sum(each.nodes.count(pool) for each in groups) <= kind.limit


def usd(groups: Iterable[Group], kinds: NodeTypes = NODE_TYPES) -> Any:
    """The price of groups an hour, to be compared up to rounding."""
    return pytest.approx(sum(each.usd_per_hour(kinds) for each in groups))


def problem(path: Path) -> Problem:
    """What the workload at a path asks for."""
    workload, cluster = load_workload(path)
    return problem_of(workload, path, cluster)


def solved(path: Path, running: tuple[GroupsPlan, Path] | None = None, moving: bool = True) -> GroupsPlan:
    """The plan of the workload at a path, from a running one if there is any."""
    file = InputFile(path="x.yaml", sha256="a" * 64)
    inputs = GroupsInputs(workload=file, cluster=file, sources={}, previous=file if running else None)
    return solve_workload(load_workload(path)[0], problem(path), inputs, running, moving)
