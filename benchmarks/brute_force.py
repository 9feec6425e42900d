"""The cheapest groups of up to eight jobs, by trying every grouping, every placement and every way of a phase.

The brute force shares `slowdowns`, residency and group cap with the placers, but no search code. So a program whose
result differs from the brute force is wrong. Jobs hold whole nodes; each job has its own choice of nodes for rollout
and for training. With `shared_training`, all jobs of a group train on all its training nodes (RollMux).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from rlplan.planner.groups.choose.group_nodes import grow, pinned, resident
from rlplan.planner.groups.choose.group_solution import GroupChecker
from rlplan.planner.groups.choose.placers import within_cap_and_bounds
from rlplan.planner.groups.inputs.group_model import Group, GroupJob, GroupsState, Jobs, NodeTypes, Rules, next_id

MOST_JOBS = 8
"""The most jobs that are accepted; so many take seconds."""


class BruteForce:
    """A placer that groups all jobs anew at every arrival and departure, at the lowest price; moves are free."""

    def __init__(self, node_types: NodeTypes, rules: Rules, shared_training: bool = False) -> None:
        self.node_types = node_types
        self.rules = rules
        self.shared_training = shared_training

    def arrive(self, state: GroupsState, job: GroupJob) -> GroupsState:
        """The cheapest groups of the running jobs and `job`."""
        return self._solved({**state.jobs, job.name: job})

    def depart(self, state: GroupsState, name: str) -> GroupsState:
        """The cheapest groups of the running jobs without job `name`."""
        return self._solved({key: job for key, job in state.jobs.items() if key != name})

    def _solved(self, jobs: Jobs) -> GroupsState:
        groups: dict[str, Group] = {}
        for group in cheapest_groups(jobs, self.node_types, self.rules, self.shared_training):
            groups[next_id(groups)] = group
        return GroupsState(jobs, groups)


def cheapest_groups(jobs: Jobs, node_types: NodeTypes, rules: Rules, shared_training: bool = False) -> list[Group]:
    """Groups that hold every job once at the lowest sum of prices; ValueError for more than `MOST_JOBS` jobs.

    Dynamic programming over subsets: the best of a subset is one group of all its jobs, or its best split in two.
    """
    names = sorted(jobs)
    if len(names) > MOST_JOBS:
        raise ValueError(f"{len(names)} jobs are too many to try all groupings (at most {MOST_JOBS})")
    best: dict[int, tuple[float, list[Group]]] = {0: (0.0, [])}
    for mask in sorted(range(1, 1 << len(names)), key=lambda m: (m.bit_count(), m)):
        members = [name for bit, name in enumerate(names) if mask >> bit & 1]
        price, chosen = float("inf"), list[Group]()
        part = (mask - 1) & mask
        while part > mask ^ part:  # each split once
            total = best[part][0] + best[mask ^ part][0]
            if total < price:
                price, chosen = total, best[part][1] + best[mask ^ part][1]
            part = (part - 1) & mask
        if len(members) <= rules.group_cap:
            group = cheapest_group([jobs[n] for n in members], node_types, rules, price, shared_training)
            if group is not None:
                price, chosen = group.usd_per_hour(node_types), [group]
        best[mask] = (price, chosen)
    return best[(1 << len(names)) - 1][1]


def cheapest_group(
    jobs: list[GroupJob], node_types: NodeTypes, rules: Rules, below_usd_per_hour: float, shared_training: bool = False
) -> Group | None:
    """The cheapest feasible group of exactly these jobs, cheaper than `below_usd_per_hour`; None if there is none."""
    by_name = {job.name: job for job in jobs}
    candidates = [
        group
        for group in placements_of_all(Group((), ()), jobs, node_types, below_usd_per_hour)
        if not shared_training or _trains_everywhere(group, by_name)
    ]
    for group in sorted(candidates, key=lambda g: g.usd_per_hour(node_types)):
        # The quick verdict passes a few groups whose long-run mean is just above a bound: `holds` is exact.
        if (
            resident(group, by_name, node_types)
            and within_cap_and_bounds(group, by_name, rules)
            and GroupChecker(rules).holds(group, by_name)
        ):
            return group
    return None


def placements_of_all(group: Group, jobs: list[GroupJob], node_types: NodeTypes, below: float) -> Iterator[Group]:
    """Yield the group with `jobs` placed in every way that costs less than `below`; the group may get new nodes."""
    if not jobs:
        yield group
        return
    job, rest = jobs[0], jobs[1:]
    for r, rollout in enumerate(job.rollout):
        for t, train in enumerate(job.train):
            for grown, on_rollout in _nodes(group, rollout.pool, rollout.nodes, (), node_types):
                for last, on_train in _nodes(grown, train.pool, train.nodes, on_rollout, node_types):
                    if last.usd_per_hour(node_types) >= below - 1e-9:
                        continue
                    placed = pinned(
                        last, job.name, (r, t), on_train[train.nodes :], on_train[: train.nodes], node_types
                    )
                    yield from placements_of_all(placed, rest, node_types, below)


def _nodes(
    group: Group, pool: str, count: int, kept: tuple[int, ...], node_types: NodeTypes
) -> Iterator[tuple[Group, tuple[int, ...]]]:
    """Yield (group, with new nodes if needed; `count` nodes of the pool, then the new indices of the nodes `kept`)."""
    for new in range(count + 1):
        grown, added = grow(group, [pool] * new, node_types)
        old = [node for node in range(len(grown.nodes)) if node not in added]
        for chosen in combinations([node for node in old if grown.nodes[node] == pool], count - new):
            yield grown, (*chosen, *added, *(old[node] for node in kept))


def _trains_everywhere(group: Group, jobs: Jobs) -> bool:
    return len({pin.train_units for pin in group.pins}) == 1
