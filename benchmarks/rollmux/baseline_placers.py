"""The other placers that RollMux compares with (arXiv 2512.11306), behind the interface of planner/groups/place.

Co-located (veRL) runs all phases on a job's training nodes. Random and Most-Idle share nodes, look at host memory and
at the group cap, and do not check any bound on slowdown. None of them moves a job that is placed.
"""

from __future__ import annotations

import zlib

import numpy as np

from rlplan.planner.groups.choose.group_nodes import depart_in_place, resident, solo_group
from rlplan.planner.groups.choose.placers import SoloD, cycle_s, packings
from rlplan.planner.groups.inputs.group_model import (
    Group,
    GroupJob,
    GroupsState,
    Jobs,
    NodeTypes,
    Rules,
    next_id,
    node_of_units,
)


class Colocated(SoloD):
    """Every job on its training nodes, for which it needs a rollout way of that pool and width."""

    def arrive(self, state: GroupsState, job: GroupJob) -> GroupsState:
        """The state with a group of training nodes for `job`; ValueError if it has no such way."""
        train = job.train[0]
        for index, way in enumerate(job.rollout):
            if way.pool == train.pool and way.nodes == train.nodes:
                return state.with_job(job, next_id(state.groups), solo_group(job, self.node_types, (index, 0)))
        raise ValueError(f"job {job.name} has no rollout way on {train.nodes} nodes of pool {train.pool}")


class _Packer:
    """A placer that packs jobs within the group cap and moves none."""

    def __init__(self, node_types: NodeTypes, rules: Rules) -> None:
        self.node_types, self.rules = node_types, rules

    def depart(self, state: GroupsState, name: str) -> GroupsState:
        """The state without the job; no other job moves."""
        return depart_in_place(state, name, self.node_types)


class Random(_Packer):
    """Places a job at random among all placements that host memory and group cap allow, a new group included."""

    def __init__(self, node_types: NodeTypes, rules: Rules, seed: int) -> None:
        super().__init__(node_types, rules)
        self.seed = seed

    def arrive(self, state: GroupsState, job: GroupJob) -> GroupsState:
        """The state with `job` placed at random; the draw depends only on the seed and the job's name."""
        jobs = {**state.jobs, job.name: job}
        candidates = [(next_id(state.groups), solo_group(job, self.node_types))]
        candidates += [
            (key, candidate)
            for key, group in state.groups.items()
            if len(group.pins) < self.rules.group_cap
            for _, candidate in packings(group, job, self.node_types)
            if resident(candidate, jobs, self.node_types)
        ]
        rng = np.random.default_rng([self.seed, zlib.crc32(job.name.encode())])
        return state.with_job(job, *candidates[int(rng.integers(len(candidates)))])


class MostIdle(_Packer):
    """Places a job in the group, and there on the nodes, that are idle for the largest share of the cycle."""

    def arrive(self, state: GroupsState, job: GroupJob) -> GroupsState:
        """The state with `job` on existing nodes if any group holds it, else in a group of its own."""
        jobs = {**state.jobs, job.name: job}
        busy = {key: self._busy(group, jobs) for key, group in state.groups.items()}
        for key in sorted(state.groups, key=lambda k: (float(np.mean(busy[k])), k)):
            group = state.groups[key]
            if len(group.pins) >= self.rules.group_cap:
                continue
            fits = []
            for added, candidate in packings(group, job, self.node_types):
                if added > 0.0:
                    break
                if resident(candidate, jobs, self.node_types):
                    fits.append(candidate)
            if fits:
                return state.with_job(job, key, min(fits, key=lambda g: self._load(g, job.name, busy[key])))
        return state.with_job(job, next_id(state.groups), solo_group(job, self.node_types))

    def _busy(self, group: Group, jobs: Jobs) -> list[float]:
        """For each node, the share of the cycle in which it is held if each member does one iteration."""
        node_of = node_of_units(group, self.node_types)
        held = [0.0] * len(group.nodes)
        for pin in group.pins:
            job = jobs[pin.job]
            for node in {node_of[unit] for unit in pin.rollout_units}:
                held[node] += job.rollout[pin.rollout].mean_s
            for node in {node_of[unit] for unit in pin.train_units}:
                held[node] += job.train[pin.train].mean_s
        cycle = cycle_s(group, jobs)
        return [seconds / cycle for seconds in held]

    def _load(self, group: Group, name: str, busy: list[float]) -> float:
        pin = next(pin for pin in group.pins if pin.job == name)
        node_of = node_of_units(group, self.node_types)
        return sum(busy[node] for node in {node_of[unit] for unit in pin.rollout_units})
