"""Whether a cluster can hold a workload at all: what every placement needs of each pool, and which pool is short.

The needs are proven: whatever shares what, a pool's nodes must have the time that its jobs' phases take at the slowest
pace that their bounds allow, and the memory for all states that are pinned to it; and a job's nodes must exist at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ....plans.yaml.errors import Infeasible
from ..choose.group_columns import Mode, modes
from ..simulate.permit_seats import bound
from .group_model import Group, GroupJob, NodeKind, Rules, Way


@dataclass(frozen=True)
class Shortage:
    """A pool that no placement can do with: `what` takes at least `needed` nodes."""

    pool: str
    what: str
    needed: float
    limit: int

    def __str__(self) -> str:
        needed = math.ceil(100 * self.needed) / 100
        return (
            f"pool '{self.pool}' has {self.limit} node(s), and {self.what} takes at least {needed:.2f}, "
            f"{needed - self.limit:.2f} more"
        )


def shortages(jobs: Mapping[str, GroupJob], kinds: Mapping[str, NodeKind], rules: Rules) -> list[Shortage]:
    """Pools that are certainly too small, the one that is short of most nodes first. A phase that could run elsewhere
    is not counted, so an empty list proves nothing."""
    found = []
    for pool, kind in sorted(kinds.items()):
        if kind.limit is None:
            continue
        time = memory = 0.0
        for name in sorted(jobs):
            job = jobs[name]
            pace_s = bound(job, rules) * job.solo_s
            for ways in (job.rollout, job.train):
                if any(way.pool != pool for way in ways):
                    continue
                tails = job.tail_share if ways is job.rollout else 0.0
                time += min(_held(way, kind, tails, rules) * way.mean_s for way in ways) / pace_s
                memory += min(way.nodes * way.state_bytes for way in ways) / kind.host_memory_bytes
        if time > kind.limit * (1 + 1e-9):
            what = "the time of its phases at the slowest pace that every slo allows"
            found.append(Shortage(pool, what, time, kind.limit))
        if memory > kind.limit * (1 + 1e-9):
            found.append(Shortage(pool, "the host memory of its sleeping states", memory, kind.limit))
    return sorted(found, key=lambda s: (s.limit - s.needed, s.pool, s.what))


def _held(way: Way, kind: NodeKind, tail_share: float, rules: Rules) -> float:
    """Nodes that a way holds, parts of one counted as parts, and units that its tail gives back only until then."""
    units = way.nodes * way.slots
    kept = math.ceil(rules.tail_keep * units) if rules.tail_keep else units
    return (units - tail_share * (units - kept)) / kind.slots


def node_limits(kinds: Mapping[str, NodeKind]) -> dict[str, int]:
    """Nodes of each pool that has no more than so many, by pool in order."""
    return {pool: kind.limit for pool, kind in sorted(kinds.items()) if kind.limit is not None}


def nodes_taken(groups: Iterable[Group], kinds: Mapping[str, NodeKind]) -> dict[str, int]:
    """Nodes that the groups take, by pool."""
    listed = list(groups)
    return {pool: sum(group.nodes.count(pool) for group in listed) for pool in kinds}


def excess(groups: Iterable[Group], kinds: Mapping[str, NodeKind]) -> list[tuple[str, int, int]]:
    """(pool, nodes that the groups take, nodes that there are) where that is more."""
    taken = nodes_taken(groups, kinds)
    return [(pool, taken[pool], limit) for pool, limit in node_limits(kinds).items() if taken[pool] > limit]


class NodesShort(Infeasible):
    """No choice among the groups that were found keeps to the limits of nodes."""


def nodes_short(jobs: int, short: Mapping[str, int], limits: Mapping[str, int]) -> NodesShort:
    """That this many jobs need more nodes of some pools than there are: which, and how many more (`short`)."""
    parts = [f"{n} more of pool {pool} (limit {limits[pool]})" for pool, n in sorted(short.items()) if n]
    return NodesShort(f"{jobs} jobs do not fit into the nodes there are; they would with " + " and ".join(parts))


def modes_within(job: GroupJob, kinds: Mapping[str, NodeKind], rules: Rules) -> list[Mode]:
    """A job's modes within the nodes that there are. Raises Infeasible if there is none."""
    found = modes(job, kinds, rules)
    if not found:
        need = min(
            max(way.state_bytes / kinds[way.pool].host_memory_bytes for way in (r, t))
            for r in job.rollout
            for t in job.train
        )
        raise Infeasible(
            f"job {job.name}: its state takes {need:.2f} of a node's host memory on every way to run it; "
            "add host memory, or nodes to spread it over"
        )
    within = [
        m
        for m in found
        if all(kinds[p].limit is None or n <= (kinds[p].limit or 0) for p, n in zip(m.pools, m.nodes, strict=True))
    ]
    if not within:
        wants = min(((max(m.nodes), m) for m in found), key=lambda pair: pair[0])[1]
        needs = " and ".join(
            f"{n} nodes of pool {p} (limit {kinds[p].limit})"
            for p, n in zip(wants.pools, wants.nodes, strict=True)
            if kinds[p].limit is not None and n > (kinds[p].limit or 0)
        )
        raise Infeasible(
            f"job {job.name} is larger than the pools: it needs {needs}; raise the limit or give it a narrower way"
        )
    return within
