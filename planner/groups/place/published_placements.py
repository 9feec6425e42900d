"""The other policies that published work compares with, behind the interface of placing.py (refs/rollmux.md 6).

Solo-D gives every job its own rollout and training nodes; co-located (veRL) runs all phases on its training nodes.
Random and Most-Idle share nodes, look at host memory and at the group cap, and do not check any bound on slowdown.
`SoloD` and `Colocated` need no simulation. None of them moves a job that is placed.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping

import numpy as np

from ..inputs.group_model import Group, GroupJob, NodeKind, Rules
from .assemble import alone, cycle_s, resident
from .greedy import placements
from .placing import State, depart_in_place, next_id, node_of_units


class SoloD:
    """Every job on nodes of its own, rollout and training apart."""

    def __init__(self, kinds: Mapping[str, NodeKind]) -> None:
        self.kinds = kinds

    def arrive(self, state: State, job: GroupJob) -> State:
        """The state with a group of its own for `job`."""
        return _added(state, job, next_id(state.groups), self._own(job))

    def depart(self, state: State, name: str) -> State:
        """The state without the job and its group."""
        return depart_in_place(state, name, self.kinds)

    def _own(self, job: GroupJob) -> Group:
        return alone(job, self.kinds)


class Colocated(SoloD):
    """Every job on its training nodes, for which it needs a rollout way of that pool and width."""

    def _own(self, job: GroupJob) -> Group:
        train = job.train[0]
        for at, way in enumerate(job.rollout):
            if way.pool == train.pool and way.nodes == train.nodes:
                return alone(job, self.kinds, (at, 0))
        raise ValueError(f"job {job.name} has no rollout way on {train.nodes} nodes of pool {train.pool}")


class Random:
    """A random group and placement among all that host memory and group cap allow, a group of its own included."""

    def __init__(self, kinds: Mapping[str, NodeKind], rules: Rules, seed: int) -> None:
        self.kinds = kinds
        self.rules = rules
        self.seed = seed

    def arrive(self, state: State, job: GroupJob) -> State:
        """The state with `job` somewhere; the draw depends on the seed and the job's name alone."""
        jobs = {**state.jobs, job.name: job}
        candidates = [(next_id(state.groups), alone(job, self.kinds))]
        candidates += [
            (key, candidate)
            for key, group in state.groups.items()
            if len(group.pins) < self.rules.group_cap
            for _, candidate in placements(group, job, self.kinds)
            if resident(candidate, jobs, self.kinds)
        ]
        rng = np.random.default_rng([self.seed, zlib.crc32(job.name.encode())])
        return _added(state, job, *candidates[int(rng.integers(len(candidates)))])

    def depart(self, state: State, name: str) -> State:
        """The state without the job; nobody moves."""
        return depart_in_place(state, name, self.kinds)


class MostIdle:
    """The group, then in it the nodes, that are idle for the largest share of the group's cycle."""

    def __init__(self, kinds: Mapping[str, NodeKind], rules: Rules) -> None:
        self.kinds = kinds
        self.rules = rules

    def arrive(self, state: State, job: GroupJob) -> State:
        """The state with `job` on existing nodes if any group holds it, else in a group of its own."""
        jobs = {**state.jobs, job.name: job}
        busy = {key: self._busy(group, jobs) for key, group in state.groups.items()}
        for key in sorted(state.groups, key=lambda k: (float(np.mean(busy[k])), k)):
            group = state.groups[key]
            if len(group.pins) >= self.rules.group_cap:
                continue
            fits = []
            for added, candidate in placements(group, job, self.kinds):
                if added > 0.0:
                    break
                if resident(candidate, jobs, self.kinds):
                    fits.append(candidate)
            if fits:
                return _added(state, job, key, min(fits, key=lambda g: self._load(g, job.name, busy[key])))
        return _added(state, job, next_id(state.groups), alone(job, self.kinds))

    def depart(self, state: State, name: str) -> State:
        """The state without the job; nobody moves."""
        return depart_in_place(state, name, self.kinds)

    def _busy(self, group: Group, jobs: Mapping[str, GroupJob]) -> list[float]:
        """Share of the group's cycle that each node is held, one iteration of each member (may exceed 1)."""
        node = node_of_units(group, self.kinds)
        held = [0.0] * len(group.nodes)
        for pin in group.pins:
            job = jobs[pin.job]
            for at in {node[u] for u in pin.rollout_units}:
                held[at] += job.rollout[pin.rollout].mean_s
            for at in {node[u] for u in pin.train_units}:
                held[at] += job.train[pin.train].mean_s
        cycle = cycle_s(group, jobs)
        return [seconds / cycle for seconds in held]

    def _load(self, group: Group, name: str, busy: list[float]) -> float:
        pin = next(pin for pin in group.pins if pin.job == name)
        node = node_of_units(group, self.kinds)
        return sum(busy[at] for at in {node[u] for u in pin.rollout_units})


def _added(state: State, job: GroupJob, key: str, group: Group) -> State:
    return State({**state.jobs, job.name: job}, {**state.groups, key: group})
