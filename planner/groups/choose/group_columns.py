"""Candidate columns of the group program: a job's placement attached to a group's nodes, groups built from placements.

What these functions make passes the loads and host memory of its nodes only where they say so, and is feasible if
`slowdowns.feasible_many` says so (`group_solution.GroupChecker`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ....plans.yaml.errors import Infeasible
from ..inputs.group_model import Group, GroupJob, Jobs, NodeTypes, Pin, Rules, node_of_units, slowdown_bound, tail_freed
from .group_nodes import grow, node_choices, resident

# Placements of one job in the group program: one rollout way with one train way, within host memory and node limits.
#
# A placement's *share* of a node is the part of all time (times the part of the node's slots) that a phase must hold
# the node for the job to keep its bound. No unit is held for more than all of the time under any permit rule, so
# shares of at most 1 are a necessary condition, and in dollars they are the least that a job can cost (the fluid
# bound of RollMux, arXiv 2512.11306).


@dataclass(frozen=True, slots=True)
class WayPair:
    """One way for each phase of a job. Pairs are (rollout, train)."""

    job: str
    options: tuple[int, int]
    pools: tuple[str, str]
    nodes: tuple[int, int]
    slots: tuple[int, int]
    share: tuple[float, float]
    """Of each of its nodes."""
    state_bytes: tuple[float, float]
    """On each of its nodes."""

    def fluid_usd_per_hour(self, usd_per_hour: Mapping[str, float]) -> float:
        """Price of the time and slots that it must hold, at these prices of a node."""
        return sum(usd_per_hour[p] * n * s for p, n, s in zip(self.pools, self.nodes, self.share, strict=True))


def job_placements(job: GroupJob, node_types: NodeTypes, rules: Rules) -> list[WayPair]:
    """Placements of a job that host memory holds and that keep its bound solo, the cheapest in fluid price first.

    A placement is left out if another holds no more nodes, slots, seconds and bytes of the same pools in both phases.
    """
    pace_s = slowdown_bound(job, rules) * job.solo_s
    placements = []
    for r, t in job.pairs():
        options = rollout, train = job.rollout[r], job.train[t]
        if (r or t) and rollout.mean_s + train.mean_s > pace_s:
            continue
        if any(option.state_bytes >= node_types[option.pool].host_memory_bytes for option in options):
            continue
        # Units of a rollout that its tail can do without are certainly held only until then.
        share = [
            held * option.mean_s / pace_s * option.slots / node_types[option.pool].slots
            for held, option in zip((1.0 - tail_freed(job, r, rules), 1.0), options, strict=True)
        ]
        placements.append(
            WayPair(
                job.name,
                (r, t),
                (rollout.pool, train.pool),
                (rollout.nodes, train.nodes),
                (rollout.slots, train.slots),
                (share[0], share[1]),
                (rollout.state_bytes, train.state_bytes),
            )
        )
    kept = [p for p in placements if not any(_dominates(rival, p, job) for rival in placements if rival is not p)]
    price = {pool: node_type.usd_per_hour for pool, node_type in node_types.items()}
    return sorted(kept, key=lambda p: (p.fluid_usd_per_hour(price), p.options))


def _dominates(a: WayPair, b: WayPair, job: GroupJob) -> bool:
    def needs(placement: WayPair) -> tuple[float, ...]:
        seconds = tuple(share / slots for share, slots in zip(placement.share, placement.slots, strict=True))
        of_point: tuple[float, ...] = ()
        if job.points:  # their tails and spreads differ too
            option, spread = placement.options[0], job.spread_at(placement.options[0])
            of_point = job.rollout[option].mean_s, sum((r - 1.0) ** 2 for r, _ in spread)
        return (*placement.nodes, *placement.slots, *seconds, *placement.state_bytes, *of_point)

    less = all(x <= y for x, y in zip(needs(a), needs(b), strict=True))
    return a.pools == b.pools and less and (needs(a) != needs(b) or a.options < b.options)


def placements_within(job: GroupJob, node_types: NodeTypes, rules: Rules) -> list[WayPair]:
    """A job's placements that take no more nodes than a pool has. Raises Infeasible if there is none."""
    placements = job_placements(job, node_types, rules)
    if not placements:
        need = min(
            max(option.state_bytes / node_types[option.pool].host_memory_bytes for option in (r, t))
            for r, t in ((job.rollout[r], job.train[t]) for r, t in job.pairs())
        )
        raise Infeasible(
            f"job {job.name}: its state takes {need:.2f} of a node's host memory on every way to run it; "
            "add host memory, or nodes to spread it over"
        )

    def beyond(placement: WayPair) -> list[tuple[int, str, int]]:
        limits = [(n, p, node_types[p].limit) for p, n in zip(placement.pools, placement.nodes, strict=True)]
        return [(n, p, limit) for n, p, limit in limits if limit is not None and n > limit]

    within = [placement for placement in placements if not beyond(placement)]
    if not within:
        narrowest = min(placements, key=lambda placement: max(placement.nodes))
        needs = " and ".join(f"{n} nodes of pool {p} (limit {limit})" for n, p, limit in beyond(narrowest))
        raise Infeasible(
            f"job {job.name} is larger than the pools: it needs {needs}; raise the limit or give it a narrower way"
        )
    return within


def fluid_bound(placements_of: Mapping[str, Sequence[WayPair]], usd_per_hour: Mapping[str, float]) -> float:
    """USD per hour that any plan costs: nodes always busy, every job at its bound (RollMux, arXiv 2512.11306)."""
    return sum(
        min(placement.fluid_usd_per_hour(usd_per_hour) for placement in placements)
        for placements in placements_of.values()
    )


FULL = 1.0 + 1e-6
"""Share of the time that a unit can be held."""


@dataclass(frozen=True, slots=True)
class GroupColumn:
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
    placement: WayPair,
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
    return group.with_pin(Pin(placement.job, placement.options[0], taken[0], placement.options[1], taken[1]))


def built(
    members: Sequence[tuple[WayPair, Sequence[int], Sequence[int]]], pools: Sequence[str], node_types: NodeTypes
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


def placed_solo(placement: WayPair, node_types: NodeTypes) -> Group:
    """The group of a job on nodes of its own in this placement; phases of one pool share nodes."""
    r, t = placement.nodes
    if placement.pools[0] == placement.pools[1]:
        return built([(placement, range(r), range(t))], [placement.pools[0]] * max(r, t), node_types)
    pools = [placement.pools[0]] * r + [placement.pools[1]] * t
    return built([(placement, range(r), range(r, r + t))], pools, node_types)


def extensions(
    group: Group, placement: WayPair, jobs: Jobs, node_types: NodeTypes, rules: Rules
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
