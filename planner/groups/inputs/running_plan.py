"""The running plan as a state that the planner can go on from: who of its jobs is still there, and where."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from pathlib import Path

from ....plans.schema.groups_plan import GroupsPlan
from ....plans.schema.sections.planned_group import PinnedPhase, PlannedGroup
from ....plans.yaml.yaml_io import error_at
from ..place.placing import State, node_of_units, without_idle_nodes
from .group_model import Group, GroupJob, NodeKind, Pin, Way


def running_state(plan: GroupsPlan, path: Path, jobs: Mapping[str, GroupJob], kinds: Mapping[str, NodeKind]) -> State:
    """Jobs of the plan that `jobs` still has, with their phases as `jobs` has them now, on the nodes that they hold.

    Jobs that left are gone, and nodes that nobody holds any more are given back; where those who are left share
    nothing, they are groups of their own, and the one with most jobs keeps the id. A job none of whose ways has the
    pool and width that it runs on has to be placed anew, and is left out like a new one. Raises InputError with the
    plan's line where its nodes are not what the cluster has now.
    """
    groups: dict[str, Group] = {}
    for key, planned in plan.groups.items():
        for index, node in enumerate(planned.nodes):
            kind = kinds.get(node.pool)
            if kind is None or kind.slots != node.slots:
                now = "is gone" if kind is None else f"has nodes of {kind.slots} slot(s), not {node.slots}"
                raise error_at(
                    path,
                    ("groups", key, "nodes", index),
                    f"groups.{key}.nodes.{index}: pool '{node.pool}' {now}; solve without --from",
                )
        found = [
            pin for name in sorted(planned.jobs) if name in jobs and (pin := _pin(name, planned, jobs[name], kinds))
        ]
        if found:
            nodes = tuple(node.pool for node in planned.nodes)
            parts = _parts(Group(nodes, tuple(found)), kinds)
            groups[key] = without_idle_nodes(parts[0], kinds)
            for part in parts[1:]:
                fresh = next(f"g{n}" for n in count(1) if f"g{n}" not in plan.groups and f"g{n}" not in groups)
                groups[fresh] = without_idle_nodes(part, kinds)
    placed = {pin.job for group in groups.values() for pin in group.pins}
    return State({name: job for name, job in jobs.items() if name in placed}, groups)


def _parts(group: Group, kinds: Mapping[str, NodeKind]) -> list[Group]:
    """The group split where no node is shared, most jobs first; nodes are all kept."""
    node = node_of_units(group, kinds)
    parts: list[tuple[set[int], list[Pin]]] = []
    for pin in group.pins:
        held, pins = {node[unit] for unit in (*pin.rollout_units, *pin.train_units)}, [pin]
        for part in [part for part in parts if part[0] & held]:
            parts.remove(part)
            held, pins = held | part[0], pins + part[1]
        parts.append((held, pins))
    ordered = sorted((sorted(pins, key=lambda pin: pin.job) for _, pins in parts), key=lambda p: (-len(p), p[0].job))
    return [Group(group.nodes, tuple(pins)) for pins in ordered]


def _pin(name: str, group: PlannedGroup, job: GroupJob, kinds: Mapping[str, NodeKind]) -> Pin | None:
    member = group.jobs[name]
    rollout, train = _way(member.rollout, job.rollout, group), _way(member.train, job.train, group)
    if rollout is None or train is None:
        return None
    return Pin(name, rollout, member.rollout.units, train, member.train.units)


def _way(pinned: PinnedPhase, ways: tuple[Way, ...], group: PlannedGroup) -> int | None:
    """Index of the way with the pool, nodes and slots that the phase holds: that of the plan if it still has them."""
    nodes = len({group.node_of_unit(unit) for unit in pinned.units})
    order = sorted(range(len(ways)), key=lambda index: (index != pinned.way, index))
    shape = (pinned.pool, nodes, len(pinned.units))
    return next((i for i in order if (ways[i].pool, ways[i].nodes, ways[i].nodes * ways[i].slots) == shape), None)
