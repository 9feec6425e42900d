"""Placements of one job in the group program: one rollout way with one train way, within host memory and node limits.

A placement's *share* of a node is the part of all time (times the part of the node's slots) that a phase must hold the
node for the job to keep its bound. No unit is held for more than all of the time under any permit rule, so shares of at
most 1 are a necessary condition, and in dollars they are the least that a job can cost (the fluid bound of
RollMux, arXiv 2512.11306).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ....plans.yaml.errors import Infeasible
from ..inputs.group_model import GroupJob, NodeTypes, Rules, slowdown_bound, tail_freed


@dataclass(frozen=True, slots=True)
class Placement:
    """One way for each phase of a job. Pairs are (rollout, train)."""

    job: str
    ways: tuple[int, int]
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


def job_placements(job: GroupJob, node_types: NodeTypes, rules: Rules) -> list[Placement]:
    """Placements of a job that host memory holds and that keep its bound solo, the cheapest in fluid price first.

    A placement is left out if another holds no more nodes, slots, seconds and bytes of the same pools in both phases.
    """
    pace_s = slowdown_bound(job, rules) * job.solo_s
    placements = []
    for r, t in job.pairs():
        ways = rollout, train = job.rollout[r], job.train[t]
        if (r or t) and rollout.mean_s + train.mean_s > pace_s:
            continue
        if any(way.state_bytes >= node_types[way.pool].host_memory_bytes for way in ways):
            continue
        # Units of a rollout that its tail can do without are certainly held only until then.
        share = [
            held * way.mean_s / pace_s * way.slots / node_types[way.pool].slots
            for held, way in zip((1.0 - tail_freed(job, r, rules), 1.0), ways, strict=True)
        ]
        placements.append(
            Placement(
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
    return sorted(kept, key=lambda p: (p.fluid_usd_per_hour(price), p.ways))


def _dominates(a: Placement, b: Placement, job: GroupJob) -> bool:
    def needs(placement: Placement) -> tuple[float, ...]:
        seconds = tuple(share / slots for share, slots in zip(placement.share, placement.slots, strict=True))
        of_point: tuple[float, ...] = ()
        if job.points:  # their tails and spreads differ too
            way, spread = placement.ways[0], job.spread_at(placement.ways[0])
            of_point = job.rollout[way].mean_s, sum((r - 1.0) ** 2 for r, _ in spread)
        return (*placement.nodes, *placement.slots, *seconds, *placement.state_bytes, *of_point)

    less = all(x <= y for x, y in zip(needs(a), needs(b), strict=True))
    return a.pools == b.pools and less and (needs(a) != needs(b) or a.ways < b.ways)


def placements_within(job: GroupJob, node_types: NodeTypes, rules: Rules) -> list[Placement]:
    """A job's placements that take no more nodes than a pool has. Raises Infeasible if there is none."""
    placements = job_placements(job, node_types, rules)
    if not placements:
        need = min(
            max(way.state_bytes / node_types[way.pool].host_memory_bytes for way in (r, t))
            for r, t in ((job.rollout[r], job.train[t]) for r, t in job.pairs())
        )
        raise Infeasible(
            f"job {job.name}: its state takes {need:.2f} of a node's host memory on every way to run it; "
            "add host memory, or nodes to spread it over"
        )

    def beyond(placement: Placement) -> list[tuple[int, str, int]]:
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


def fluid_bound(placements_of: Mapping[str, Sequence[Placement]], usd_per_hour: Mapping[str, float]) -> float:
    """USD per hour that any plan costs: nodes always busy, every job at its bound (RollMux, arXiv 2512.11306)."""
    return sum(
        min(placement.fluid_usd_per_hour(usd_per_hour) for placement in placements)
        for placements in placements_of.values()
    )
