"""The published placers that every plan of groups is compared with: Solo-D and RollMux's Algorithm 1.

Solo-D gives every job its own rollout and training nodes. Algorithm 1 is the greedy placement of RollMux (arXiv
2512.11306): one arrival at a time; a placed job never moves. For every group that is not saturated (T_load < T_cycle),
the oldest first: pack into existing nodes (price 0), or add the rollout nodes that the job needs; otherwise a group of
its own. A placement must leave host memory on every node and keep the bound of every member, old and new, in a
simulation of the group's schedule. The cheapest placement wins, the first among equals (strict <).
"""

from __future__ import annotations

from collections.abc import Iterator

from ..inputs.group_model import Group, GroupJob, Jobs, NodeTypes, Rules
from ..inputs.groups_state import GroupsState, next_id
from ..simulate.slowdowns import feasible
from .group_nodes import grow, node_choices, pinned, resident, solo_group
from .placer import depart_in_place


class SoloD:
    """Every job on nodes of its own, rollout and training apart."""

    def __init__(self, node_types: NodeTypes) -> None:
        self.node_types = node_types

    def arrive(self, state: GroupsState, job: GroupJob) -> GroupsState:
        """The state with a group of its own for `job`."""
        return state.with_job(job, next_id(state.groups), solo_group(job, self.node_types))

    def depart(self, state: GroupsState, name: str) -> GroupsState:
        """The state without the job and its group."""
        return depart_in_place(state, name, self.node_types)


class Algorithm1:
    """RollMux's greedy placer; `rules.permit_rule` is that of its executor, `first_come`."""

    def __init__(self, node_types: NodeTypes, rules: Rules) -> None:
        self.node_types, self.rules = node_types, rules

    def arrive(self, state: GroupsState, job: GroupJob) -> GroupsState:
        """The state with `job` where it adds the least to the price; no other job moves."""
        jobs = {**state.jobs, job.name: job}
        best, best_key = solo_group(job, self.node_types), next_id(state.groups)
        price = best.usd_per_hour(self.node_types)
        for key, group in state.groups.items():
            if price <= 0.0:
                break  # nothing is strictly cheaper
            if len(group.pins) >= self.rules.group_cap or load_s(group, jobs) >= cycle_s(group, jobs):
                continue
            for added, candidate in packings(group, job, self.node_types):
                if added >= price:
                    break  # ascending in price
                if resident(candidate, jobs, self.node_types) and within_cap_and_bounds(candidate, jobs, self.rules):
                    best, best_key, price = candidate, key, added
                    break
        return state.with_job(job, best_key, best)

    def depart(self, state: GroupsState, name: str) -> GroupsState:
        """The state without the job; no other job moves."""
        return depart_in_place(state, name, self.node_types)


def packings(group: Group, job: GroupJob, node_types: NodeTypes) -> Iterator[tuple[float, Group]]:
    """(added USD per hour, group with the job) in ascending order of price: direct packing, then rollout scaling.

    The job trains on all training nodes of the group, by its first way of that width; a job without one cannot join.
    """
    rollout, pool = job.rollout[0], job.train[0].pool
    width = group.nodes.count(pool)
    ways = [t for r, t in job.pairs() if r == 0]
    way = next((t for t in ways if job.train[t].pool == pool and job.train[t].nodes == width), None)
    if way is None:
        return
    for new in range(rollout.nodes + 1):
        grown, added = grow(group, [rollout.pool] * new, node_types)
        on_train = [node for node, p in enumerate(grown.nodes) if p == pool]
        old = [node for node, p in enumerate(grown.nodes) if p == rollout.pool and node not in added]
        for kept in node_choices(grown, old, rollout.nodes - new, node_types):
            yield (
                new * node_types[rollout.pool].usd_per_hour,
                pinned(grown, job.name, (0, way), (*kept, *added), on_train, node_types),
            )


def load_s(group: Group, jobs: Jobs) -> float:
    """T_load: seconds that the most loaded unit is held if each member does one iteration (RollMux)."""
    load: dict[int, float] = {}
    for pin in group.pins:
        job = jobs[pin.job]
        for unit in pin.rollout_units:
            load[unit] = load.get(unit, 0.0) + job.rollout[pin.rollout].mean_s
        for unit in pin.train_units:
            load[unit] = load.get(unit, 0.0) + job.train[pin.train].mean_s
    return max(load.values())


def cycle_s(group: Group, jobs: Jobs) -> float:
    """T_cycle: seconds of a solo iteration of the longest member (RollMux)."""
    return max(jobs[pin.job].solo_s for pin in group.pins)


def within_cap_and_bounds(group: Group, jobs: Jobs, rules: Rules) -> bool:
    """Whether the group is within the group cap and every member keeps its bound under `rules`."""
    return len(group.pins) <= rules.group_cap and feasible(group, jobs, rules)
