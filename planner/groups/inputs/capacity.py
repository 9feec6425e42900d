"""Node capacity: whether a cluster can hold a workload at all, what groups take of each pool, which pool is short.

The needs are proven: whatever shares what, a pool's nodes must have the time that its jobs' phases take at the slowest
pace that their bounds allow, and the memory for all states that are pinned to it; and a job's nodes must exist at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ....plans.phrases.numbers import count
from ....plans.yaml.errors import Infeasible
from .group_model import Group, Jobs, NodeType, NodeTypes, PhaseWay, Rules, slowdown_bound


@dataclass(frozen=True)
class Shortage:
    """A pool that is certainly too small: it needs at least `needed` nodes, `needed_for` what."""

    pool: str
    needed_for: str
    needed: float
    limit: int

    def __str__(self) -> str:
        needed = math.ceil(100 * self.needed) / 100
        has = count(self.limit, "node")
        return f"pool '{self.pool}' has {has} and needs at least {needed:.2f}, {self.needed_for}"


def shortages(jobs: Jobs, node_types: NodeTypes, rules: Rules) -> list[Shortage]:
    """Pools that are certainly too small, the one that is short of most nodes first. A phase that could run elsewhere
    is not counted, so an empty list proves nothing."""
    shorts = []
    for pool, node_type in sorted(node_types.items()):
        if node_type.limit is None:
            continue
        time = memory = 0.0
        for _, job in sorted(jobs.items()):
            pace_s = slowdown_bound(job, rules) * job.solo_s
            for ways in (job.rollout, job.train):
                if any(way.pool != pool for way in ways):
                    continue
                tails = [job.tail_at(n) if ways is job.rollout else 0.0 for n in range(len(ways))]
                held_s = (
                    _nodes_held(way, node_type, tail, rules) * way.mean_s for way, tail in zip(ways, tails, strict=True)
                )
                time += min(held_s) / pace_s
                memory += min(way.nodes * way.state_bytes for way in ways) / node_type.host_memory_bytes
        for needed_for, needed in (
            ("even if every job is as slow as its slo allows", time),
            ("for the states of sleeping jobs in host memory", memory),
        ):
            if needed > node_type.limit * (1 + 1e-9):
                shorts.append(Shortage(pool, needed_for, needed, node_type.limit))
    return sorted(shorts, key=lambda s: (s.limit - s.needed, s.pool, s.needed_for))


def _nodes_held(way: PhaseWay, node_type: NodeType, tail_share: float, rules: Rules) -> float:
    """Mean nodes that a phase holds while it runs: slots count as parts of a node, and units that a tail gives back
    count only until the tail begins."""
    units = way.nodes * way.slots
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
