"""Whether a cluster can hold a workload at all: what every placement needs of each pool, and which pool is short.

The needs are proven: whatever shares what, a pool's nodes must have the time that its jobs' phases take at the slowest
pace that their bounds allow, and the memory for all states that are pinned to it; and a job's nodes must exist at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ...plans.errors import Infeasible
from .columns import Mode, modes
from .model import Group, GroupJob, NodeKind, Rules, Way
from .seats import bound


@dataclass(frozen=True)
class Shortage:
    """A pool that no placement can do with: `what` takes `needed` nodes; `remedy`: what helps besides more nodes."""

    pool: str
    what: str
    needed: float
    limit: int
    remedy: str

    def __str__(self) -> str:
        more = math.ceil(self.needed - 1e-9) - self.limit
        return (
            f"pool '{self.pool}' has {self.limit} node(s), and {self.what} takes {self.needed:.2f}, "
            f"{self.needed - self.limit:.2f} more; add {more} node(s) to it, or {self.remedy}"
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
                time += min(_share(way, kind) * way.mean_s for way in ways) / pace_s
                memory += min(way.nodes * way.state_bytes for way in ways) / kind.host_memory_bytes
        if time > kind.limit * (1 + 1e-9):
            what = "the time of its phases at the slowest pace that every slo allows"
            looser = f"make every slo {time / kind.limit:.3g} times as loose"
            found.append(Shortage(pool, what, time, kind.limit, looser))
        if memory > kind.limit * (1 + 1e-9):
            what, smaller = "the host memory of its sleeping states", "write host_copies: one, or raise tp"
            found.append(Shortage(pool, what, memory, kind.limit, smaller))
    return sorted(found, key=lambda s: (s.limit - s.needed, s.pool, s.what))


def _share(way: Way, kind: NodeKind) -> float:
    """Nodes that a way holds, parts of one counted as parts."""
    return way.nodes * way.slots / kind.slots


def excess(groups: Iterable[Group], kinds: Mapping[str, NodeKind]) -> list[tuple[str, int, int]]:
    """(pool, nodes that the groups take, nodes that there are) where that is more."""
    listed = list(groups)
    taken = {pool: sum(group.nodes.count(pool) for group in listed) for pool in kinds}
    return [(p, taken[p], k.limit) for p, k in sorted(kinds.items()) if k.limit is not None and taken[p] > k.limit]


def nodes_short(jobs: int, short: Mapping[str, int], limits: Mapping[str, int]) -> Infeasible:
    """That this many jobs need more nodes of some pools than there are: which, and how many more (`short`)."""
    parts = [f"{n} more of pool {pool} (limit {limits[pool]})" for pool, n in sorted(short.items()) if n]
    return Infeasible(f"{jobs} jobs do not fit into the nodes there are; they would with " + " and ".join(parts))


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
