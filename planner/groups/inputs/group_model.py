"""Jobs, node types and co-execution groups, as the group planner sees them.

Vocabulary: a *way* is one manner to run a phase (pool, width, seconds, resident bytes). A job's first ways are its
reference: it runs by them solo, and its slowdown is measured against them. A node is cut into `slots` equal parts; a
*unit* is one slot of one node of a group, the smallest thing that a permit is given for.

Invariants of a group: every job of it has exactly one pin; a pin's units are as many as its ways ask for, a way's
units lie in nodes of the way's pool; units are numbered node by node in the order of `Group.nodes`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class NodeType:
    """The equal nodes of one pool."""

    pool: str
    usd_per_hour: float
    host_memory_bytes: float
    slots: int = 1
    """Parts that a node can be cut into for sub-node pinning; 1: whole nodes only."""
    limit: int | None = None
    """Nodes of the pool; None: as many as are paid for."""
    host_cores: bool = False
    """Whether its accelerators are host cores, on which the start of a job computes too."""


NodeTypes = Mapping[str, NodeType]
"""The node type of each pool."""


@dataclass(frozen=True)
class PhaseWay:
    """One way to run a phase of a job."""

    pool: str
    nodes: int
    """Nodes that the phase spans."""
    slots: int
    """Slots of each of these nodes that it holds; the pool's `slots` for whole nodes."""
    mean_s: float
    """Mean seconds of the phase solo on these units, with warm state, and the weight transfer if the SLO counts it."""
    state_bytes: float
    """Host memory per node that the resident state takes between turns."""
    warm_s: float = 0.0
    """Seconds to load that state into the accelerators, paid at the start of a turn unless the job had the last one."""
    resume_s: float | None = None
    """Seconds lost, beside the warm switch, when multi_rate puts a turn aside for a more urgent one (training: a
    micro-batch and the gradients' way to host memory; rollout: the KV cache's way, or its recomputation); None: never.
    """


Spread = tuple[tuple[float, float], ...]
"""Joint (rollout, train) seconds over their means, one pair an iteration, means 1; (): always the mean."""


@dataclass(frozen=True)
class Point:
    """A plan of a job on so many nodes, whose ways have its number: one point of the job's front."""

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
    rollout: tuple[PhaseWay, ...]
    train: tuple[PhaseWay, ...]
    spread: Spread = ()
    cold_s: float = 0.0
    """Seconds from nothing to the first phase on nodes that hold no state of the job: the price of moving it."""
    tail_share: float = 0.0
    """Last share of a rollout's seconds that few sequences need, so that few units can do it (migration)."""
    tail_finished: float = 0.8
    """Share of a round's samples that have ended when these seconds begin (RollMux, arXiv 2512.11306, section 4.3)."""
    points: tuple[Point, ...] = ()
    """Where the job is planned for several numbers of nodes: of each plan, whose rollout way goes with its train way
    only; the first is that of the reference. Empty: each rollout way goes with each train way."""

    def pairs(self) -> Iterator[tuple[int, int]]:
        """The (rollout, train) ways that go together."""
        for r in range(len(self.rollout)):
            for t in [r] if self.points else range(len(self.train)):
                yield r, t

    def spread_at(self, way: int) -> Spread:
        """The spread of iterations by rollout way `way`."""
        return self.points[way].spread if self.points else self.spread

    def tail_at(self, way: int) -> float:
        """The tail's share of a rollout by way `way`."""
        return self.points[way].tail_share if self.points else self.tail_share

    def at_reference(self) -> GroupJob:
        """The job by its reference point only."""
        return replace(self, rollout=self.rollout[:1], train=self.train[:1], points=self.points[:1])

    def with_spread(self, spread: Spread) -> GroupJob:
        """The job with this spread, whatever its ways."""
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
        return sum(way.nodes * node_types[way.pool].usd_per_hour for way in (rollout, train))


Jobs = Mapping[str, GroupJob]
"""Jobs by name."""


@dataclass(frozen=True)
class Pin:
    """Where a job's phases run and its state is cached, in a group."""

    job: str
    rollout: int
    """Index of its rollout way."""
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
    """The slowdown that must obey the bound: of this share of stretches of `stretch` iterations (spread known)."""
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


def tail_freed(job: GroupJob, way: int, rules: Rules) -> float:
    """Share of a rollout's seconds by way `way` in which it needs only some of its units: its tail's, unless the units
    that it keeps are all."""
    units = job.rollout[way].nodes * job.rollout[way].slots
    return job.tail_at(way) if rules.tail_keep and math.ceil(rules.tail_keep * units) < units else 0.0
