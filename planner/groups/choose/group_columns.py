"""Candidate columns of the group program: a job's placement attached to a group's nodes, groups built from placements.

What these functions make passes the loads and host memory of its nodes only where they say so, and is feasible if
`slowdowns.feasible_many` says so (group_checker.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..inputs.group_model import Group, Jobs, NodeTypes, Pin, Rules, node_of_units, slowdown_bound, tail_freed
from ..place.group_nodes import grow, node_choices, resident
from .placements import Placement

FULL = 1.0 + 1e-6
"""Share of the time that a unit can be held."""


@dataclass(frozen=True, slots=True)
class Column:
    """A feasible group and its price: one variable of the group program."""

    group: Group
    usd_per_hour: float

    @property
    def jobs(self) -> tuple[str, ...]:
        return tuple(pin.job for pin in self.group.pins)


def unit_shares(group: Group, jobs: Jobs, rules: Rules, node_types: NodeTypes) -> list[float]:
    """Share of the time that each unit of the group must be held."""
    held = [0.0] * len(node_of_units(group, node_types))
    for pin in group.pins:
        job = jobs[pin.job]
        pace = slowdown_bound(job, rules) * job.solo_s
        rollout_s = job.rollout[pin.rollout].mean_s * (1.0 - tail_freed(job, pin.rollout, rules))
        for seconds, units in ((rollout_s, pin.rollout_units), (job.train[pin.train].mean_s, pin.train_units)):
            for unit in units:
                held[unit] += seconds / pace
    return held


def attach(
    group: Group,
    placement: Placement,
    on: tuple[Sequence[int], Sequence[int]],
    held: Sequence[float],
    node_types: NodeTypes,
) -> Group:
    """The group with a job pinned to nodes `on` (rollout, train); of a node cut into slots it takes the least held.

    Args:
        held: share of each unit held by others, by unit; which slots a job takes is this rule and no choice.
    """
    node_of = node_of_units(group, node_types)
    taken: list[tuple[int, ...]] = []
    for nodes, slots in zip(on, placement.slots, strict=True):
        # The job's other phase never runs at the same time: slots that the job has anyway come first.
        rollout_units = set(taken[0]) if taken else set()
        units: list[int] = []
        for node in nodes:
            here = [unit for unit, n in enumerate(node_of) if n == node]
            units += sorted(here, key=lambda unit: (held[unit], unit not in rollout_units, unit))[:slots]
        taken.append(tuple(sorted(units)))
    return group.with_pin(Pin(placement.job, placement.ways[0], taken[0], placement.ways[1], taken[1]))


def built(
    members: Sequence[tuple[Placement, Sequence[int], Sequence[int]]], pools: Sequence[str], node_types: NodeTypes
) -> Group:
    """A group of members (placement, rollout nodes, train nodes); nodes are indices into `pools`, in any order."""
    order = sorted(range(len(pools)), key=lambda node: (pools[node], node))
    sorted_index = {node: new for new, node in enumerate(order)}
    group = Group(tuple(pools[node] for node in order), ())
    held = [0.0] * len(node_of_units(group, node_types))
    # The longest first, so that slots fill evenly.
    for placement, *nodes in sorted(members, key=lambda m: (-sum(m[0].share), m[0].job)):
        on_rollout, on_train = ([sorted_index[node] for node in phase_nodes] for phase_nodes in nodes)
        group = attach(group, placement, (on_rollout, on_train), held, node_types)
        pin = next(p for p in group.pins if p.job == placement.job)
        for units, share, phase in (
            (pin.rollout_units, placement.share[0], 0),
            (pin.train_units, placement.share[1], 1),
        ):
            for unit in units:
                held[unit] += share * node_types[placement.pools[phase]].slots / placement.slots[phase]
    return group


def placed_solo(placement: Placement, node_types: NodeTypes) -> Group:
    """The group of a job on nodes of its own in this placement; phases of one pool share nodes."""
    r, t = placement.nodes
    if placement.pools[0] == placement.pools[1]:
        return built([(placement, range(r), range(t))], [placement.pools[0]] * max(r, t), node_types)
    pools = [placement.pools[0]] * r + [placement.pools[1]] * t
    return built([(placement, range(r), range(r, r + t))], pools, node_types)


def extensions(
    group: Group, placement: Placement, jobs: Jobs, node_types: NodeTypes, rules: Rules
) -> Iterator[tuple[float, Group]]:
    """(added USD per hour, group with the job of `placement`) for each choice of nodes that load and memory allow.

    Args:
        jobs: all members and the new job, by name.
    """
    pools, counts = placement.pools, placement.nodes
    for with_rollout, on_rollout, _ in _grown_choices(group, pools[0], counts[0], (), node_types):
        for grown, on_train, kept in _grown_choices(with_rollout, pools[1], counts[1], on_rollout, node_types):
            held = unit_shares(grown, jobs, rules, node_types)
            candidate = attach(grown, placement, (kept, on_train), held, node_types)
            if max(unit_shares(candidate, jobs, rules, node_types)) <= FULL and resident(candidate, jobs, node_types):
                yield candidate.usd_per_hour(node_types) - group.usd_per_hour(node_types), candidate


def _grown_choices(
    group: Group, pool: str, count: int, keep: Sequence[int], node_types: NodeTypes
) -> Iterator[tuple[Group, tuple[int, ...], tuple[int, ...]]]:
    """(group, grown if need be; `count` of its nodes of the pool; new indices of the nodes `keep`) for each choice."""
    for new in range(count + 1):
        grown, added = grow(group, [pool] * new, node_types)
        old = [node for node in range(len(grown.nodes)) if node not in added]
        among = [node for node in old if grown.nodes[node] == pool]
        for kept in node_choices(grown, among, count - new, node_types):
            yield grown, (*kept, *added), tuple(old[node] for node in keep)
