"""Jobs, node types and co-execution groups, as the group planner sees them.

An *option* of a phase is a pool, a width, seconds and resident bytes with which it can run (a `way` in documents). A
job's first options are its reference: it runs by them alone, and its slowdown is relative to them. A node has `slots`
equal parts; a *unit* is one slot of one node of a group, the least for which a permit is given.

Invariants of a group: each job has exactly one pin; a pin has as many units as its options need, in nodes of their
pools; units are numbered node by node in the order of `Group.nodes`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from ....plans.phrases.numbers import count
from ....plans.yaml.errors import Infeasible

# Group ids are stable: a group keeps its id for as long as it has nodes, and an id says nothing else.


@dataclass(frozen=True)
class GroupsState:
    """Jobs in the system and the groups that they run in; every job is pinned in exactly one group."""

    jobs: Jobs = field(default_factory=dict)
    groups: Mapping[str, Group] = field(default_factory=dict)

    def usd_per_hour(self, node_types: NodeTypes) -> float:
        """Price of all nodes of all groups."""
        return sum(group.usd_per_hour(node_types) for group in self.groups.values())

    def group_of(self, name: str) -> str:
        """Id of the group that job `name` runs in; KeyError if none."""
        for key, group in self.groups.items():
            if any(pin.job == name for pin in group.pins):
                return key
        raise KeyError(name)

    def with_job(self, job: GroupJob, key: str, group: Group) -> GroupsState:
        """The state with `job`, which `group` holds, and this group under id `key`."""
        return GroupsState({**self.jobs, job.name: job}, {**self.groups, key: group})


def next_id(groups: Mapping[str, Group]) -> str:
    """A group id that `groups` does not use."""
    return f"g{1 + max((int(key[1:]) for key in groups), default=0):06d}"


# Node capacity. A shortage is proven: however jobs are grouped, a pool's nodes must have the time that its jobs' phases
# take at the slowest pace that their bounds allow, and the memory for all states that are pinned to it.


@dataclass(frozen=True)
class Shortage:
    """A pool that is certainly too small: it needs at least `needed` nodes; `needed_for` says why."""

    pool: str
    needed_for: str
    needed: float
    limit: int

    def __str__(self) -> str:
        needed = math.ceil(100 * self.needed) / 100
        has = count(self.limit, "node")
        return f"pool '{self.pool}' has {has} and needs at least {needed:.2f}, {self.needed_for}"


def shortages(jobs: Jobs, node_types: NodeTypes, rules: Rules) -> list[Shortage]:
    """Pools that are certainly too small, the one that lacks most nodes first. A phase that could run in several pools
    does not count, so an empty list proves nothing."""
    shorts = []
    for pool, node_type in sorted(node_types.items()):
        if node_type.limit is None:
            continue
        time = memory = 0.0
        for _, job in sorted(jobs.items()):
            pace_s = slowdown_bound(job, rules) * job.solo_s
            for options in (job.rollout, job.train):
                if any(option.pool != pool for option in options):
                    continue
                tails = [job.tail_at(n) if options is job.rollout else 0.0 for n in range(len(options))]
                held_s = (
                    _nodes_held(option, node_type, tail, rules) * option.mean_s
                    for option, tail in zip(options, tails, strict=True)
                )
                time += min(held_s) / pace_s
                memory += min(option.nodes * option.state_bytes for option in options) / node_type.host_memory_bytes
        for needed_for, needed in (
            ("even if every job is as slow as its slo allows", time),
            ("for the states of sleeping jobs in host memory", memory),
        ):
            if needed > node_type.limit * (1 + 1e-9):
                shorts.append(Shortage(pool, needed_for, needed, node_type.limit))
    return sorted(shorts, key=lambda s: (s.limit - s.needed, s.pool, s.needed_for))


def _nodes_held(option: PhaseOption, node_type: NodeType, tail_share: float, rules: Rules) -> float:
    """Mean nodes that a phase holds while it runs: a slot is a part of a node, and units that a tail gives back count
    until the tail begins."""
    units = option.nodes * option.slots
    kept = math.ceil(rules.tail_keep * units) if rules.tail_keep else units
    return (units - tail_share * (units - kept)) / node_type.slots


def node_limits(node_types: NodeTypes) -> dict[str, int]:
    """Nodes of each pool that has a limit, by pool in order."""
    return {pool: node_type.limit for pool, node_type in sorted(node_types.items()) if node_type.limit is not None}


def nodes_taken(groups: Iterable[Group], node_types: NodeTypes) -> dict[str, int]:
    """Nodes that the groups take, by pool."""
    listed = list(groups)
    return {pool: sum(group.nodes.count(pool) for group in listed) for pool in node_types}


def excess(groups: Iterable[Group], node_types: NodeTypes) -> list[tuple[str, int, int]]:
    """(pool, nodes that the groups take, limit of the pool) where the groups take more than the limit."""
    taken = nodes_taken(groups, node_types)
    return [(pool, taken[pool], limit) for pool, limit in node_limits(node_types).items() if taken[pool] > limit]


class NodesShort(Infeasible):
    """No choice among the generated groups keeps to the limits of nodes."""


def nodes_short(jobs: int, short: Mapping[str, int], limits: Mapping[str, int]) -> NodesShort:
    """The error that `jobs` jobs need `short` more nodes of each pool than its limit allows."""
    more = [f"{n} more of pool {pool} (limit {limits[pool]})" for pool, n in sorted(short.items()) if n]
    return NodesShort(f"{jobs} jobs do not fit into the nodes there are; they would with " + " and ".join(more))


@dataclass(frozen=True)
class NodeType:
    """The equal nodes of one pool."""

    pool: str
    usd_per_hour: float
    host_memory_bytes: float
    slots: int = 1
    """Equal parts of a node that can be pinned by themselves; 1: whole nodes only."""
    limit: int | None = None
    """Nodes of the pool; None: as many as are paid for."""
    host_cores: bool = False
    """Whether its accelerators are host cores, which the start of a job uses, too."""


NodeTypes = Mapping[str, NodeType]
"""The node type of each pool."""


@dataclass(frozen=True)
class PhaseOption:
    """One option to run a phase of a job."""

    pool: str
    nodes: int
    """Nodes that the phase spans."""
    slots: int
    """Slots of each of these nodes that it holds; the pool's `slots` for whole nodes."""
    mean_s: float
    """Mean seconds of the phase solo on these units, with warm state, and the weight transfer if the SLO counts it."""
    state_bytes: float
    """Host memory per node of the state between two runs of the phase."""
    warm_s: float = 0.0
    """Seconds to load that state into the accelerators, when the phase starts after one of another job."""
    resume_s: float | None = None
    """Seconds lost, beside the warm switch, when multi_rate pauses the phase for a more urgent one (training: a
    micro-batch, and the copy of gradients to host memory; rollout: the copy of the KV cache, or its recomputation);
    None: it is never paused."""


Spread = tuple[tuple[float, float], ...]
"""Joint (rollout, train) seconds over their means, one pair an iteration, means 1; (): always the mean."""


@dataclass(frozen=True)
class PhasesPoint:
    """A plan of a job on some number of nodes: one point of the job's front. Its number is that of its options."""

    name: str
    """Its nodes and its mode, as in `2+1-exact`."""
    spread: Spread
    tail_share: float
    reward_cores: int
    """Host cores of its rollout nodes that score."""


@dataclass(frozen=True)
class GroupJob:
    """A job as the group planner sees it."""

    name: str
    slo: float
    """Bound on slowdown, >= 1: mean iteration seconds in the group over `solo_s`."""
    rollout: tuple[PhaseOption, ...]
    train: tuple[PhaseOption, ...]
    spread: Spread = ()
    cold_s: float = 0.0
    """Seconds from nothing to the first phase on nodes that hold no state of the job: the price of moving it."""
    tail_share: float = 0.0
    """Share of a rollout's seconds, at its end, in which so few sequences run that few units suffice (migration)."""
    tail_finished: float = 0.8
    """Share of a round's samples that have ended when these seconds begin (RollMux, arXiv 2512.11306, section 4.3)."""
    points: tuple[PhasesPoint, ...] = ()
    """The plans of a job that is planned for several numbers of nodes, the reference first: the rollout option of each
    goes with its own train option only. Empty: each rollout option goes with each train option."""

    def pairs(self) -> Iterator[tuple[int, int]]:
        """The (rollout, train) options that go together."""
        for r in range(len(self.rollout)):
            for t in [r] if self.points else range(len(self.train)):
                yield r, t

    def spread_at(self, option: int) -> Spread:
        """The spread of iterations by a rollout option."""
        return self.points[option].spread if self.points else self.spread

    def tail_at(self, option: int) -> float:
        """The tail's share of a rollout by an option."""
        return self.points[option].tail_share if self.points else self.tail_share

    def at_reference(self) -> GroupJob:
        """The job by its reference point only."""
        return replace(self, rollout=self.rollout[:1], train=self.train[:1], points=self.points[:1])

    def with_spread(self, spread: Spread) -> GroupJob:
        """The job with this spread for all options."""
        return replace(self, spread=spread, points=tuple(replace(point, spread=spread) for point in self.points))

    @property
    def solo_s(self) -> float:
        """Seconds of a solo iteration: reference rollout, then reference training (RollMux, arXiv 2512.11306)."""
        return self.rollout[0].mean_s + self.train[0].mean_s

    def solo_usd_per_hour(self, node_types: NodeTypes) -> float:
        """Price of the job's own nodes if it shares none (Solo-D); phases of one pool take turns on the same nodes."""
        rollout, train = self.rollout[0], self.train[0]
        if rollout.pool == train.pool:
            return max(rollout.nodes, train.nodes) * node_types[rollout.pool].usd_per_hour
        return sum(option.nodes * node_types[option.pool].usd_per_hour for option in (rollout, train))


Jobs = Mapping[str, GroupJob]
"""Jobs by name."""


@dataclass(frozen=True)
class Pin:
    """Where a job's phases run and its state is cached, in a group."""

    job: str
    rollout: int
    """Index of its rollout option."""
    rollout_units: tuple[int, ...]
    """Units of the group that its rollout holds, ascending."""
    train: int
    train_units: tuple[int, ...]

    def renumbered(self, unit: Mapping[int, int]) -> Pin:
        """The same pin where the group's units have other numbers: `unit` gives the new one of each."""
        return replace(
            self,
            rollout_units=tuple(unit[u] for u in self.rollout_units),
            train_units=tuple(unit[u] for u in self.train_units),
        )


@dataclass(frozen=True)
class Group:
    """Jobs on nodes of their own that no other group uses."""

    nodes: tuple[str, ...]
    """Pool of each node, sorted."""
    pins: tuple[Pin, ...]
    """Sorted by job."""

    def with_pin(self, pin: Pin) -> Group:
        """The group with one more job on its nodes."""
        return Group(self.nodes, tuple(sorted((*self.pins, pin), key=lambda p: p.job)))

    def usd_per_hour(self, node_types: NodeTypes) -> float:
        """Price of all its nodes, used or not."""
        return sum(node_types[pool].usd_per_hour for pool in self.nodes)


@dataclass(frozen=True)
class Rules:
    """The rules of every group, whichever placer forms it; the same for our placers and the published ones."""

    permit_rule: str = "multi_rate"
    """The rule by which jobs get shared units: `round_robin`, `first_come` or `multi_rate`
    (rounds/permits/permit_rules.py)."""
    group_cap: int = 5
    """Most jobs in a group."""
    margin: float = 0.0
    """A job's slowdown must stay this share below its bound's excess: slowdown <= slo - margin * (slo - 1)."""
    quantile: float = 0.95
    """Quantile, over stretches of `stretch` iterations, of the slowdown that must keep the bound (spread known)."""
    stretch: int = 20
    interference: float = 0.0
    """Share by which a phase is slower while another job's phase runs in the group (2-10 %, RollMux)."""

    tail_keep: float = 0.0
    """Share of its units on which a rollout's last responses continue once its tail is reached; 0: no migration."""


@dataclass(frozen=True)
class Slowdown:
    """Iteration seconds of a job in its group over its `solo_s`."""

    mean: float
    p50: float
    p95: float
    """Over stretches of `Rules.stretch` iterations; all three are equal if durations are exactly known."""


def node_of_units(group: Group, node_types: NodeTypes) -> tuple[int, ...]:
    """Index into `group.nodes` of each unit of the group."""
    return tuple(node for node, pool in enumerate(group.nodes) for _ in range(node_types[pool].slots))


def nodes_of_pins(group: Group, node_types: NodeTypes) -> dict[str, tuple[frozenset[int], frozenset[int]]]:
    """Nodes (indices into `group.nodes`) that each job's rollout and training hold."""
    node_of = node_of_units(group, node_types)
    return {
        pin.job: (frozenset(node_of[u] for u in pin.rollout_units), frozenset(node_of[u] for u in pin.train_units))
        for pin in group.pins
    }


def without_idle_nodes(group: Group, node_types: NodeTypes) -> Group:
    """The group without nodes that no pin uses; units are numbered anew, jobs stay where they are."""
    node_of = node_of_units(group, node_types)
    used = {node_of[unit] for pin in group.pins for unit in pin.rollout_units + pin.train_units}
    if len(used) == len(group.nodes):
        return group
    kept = {unit: new for new, unit in enumerate(unit for unit, node in enumerate(node_of) if node in used)}
    pins = tuple(pin.renumbered(kept) for pin in group.pins)
    return Group(tuple(pool for node, pool in enumerate(group.nodes) if node in used), pins)


def slowdown_bound(job: GroupJob, rules: Rules) -> float:
    """The slowdown that a job must stay below."""
    return job.slo - rules.margin * (job.slo - 1.0)


def tail_freed(job: GroupJob, option: int, rules: Rules) -> float:
    """Share of a rollout's seconds by an option in which it needs only some of its units: its tail, unless it keeps all
    of its units."""
    units = job.rollout[option].nodes * job.rollout[option].slots
    return job.tail_at(option) if rules.tail_keep and math.ceil(rules.tail_keep * units) < units else 0.0
