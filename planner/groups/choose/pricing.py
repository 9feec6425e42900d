"""Pricing of the group program: which groups are worth more to their jobs than they cost.

    list every connected group of at most `cap` jobs with  sum of values - price > floor

by depth-first search over jobs, placements and nodes (pricing_kernel.py). The search prunes exactly: by shares of a
node and host memory; by the value that the jobs still to come could add at most; by their value over their fluid price,
given that unused room is wasted; and by infeasible structures, if the column universe excludes every group that
contains one.

Nothing is simulated here. A priced group passes the necessary conditions and may still be infeasible; the caller
simulates it, adds what is infeasible to an `InfeasibleSet`, and searches again. If nothing is left above the floor,
that is a proof.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from ..inputs.group_model import Group, NodeTypes
from .group_columns import FULL, WayPair, built
from .pricing_kernel import GroupPrices, InfeasibleSet, PlacementArrays, PricingLimits, PricingSearch, node_hash, token

MOST_NODE_CLASSES = 64
"""Classes of node (pool, and the phases that hold it) in a group; a search that meets more proves nothing."""

Members = Sequence[tuple[int, Sequence[int], Sequence[int]]]
"""(placement by index, rollout nodes, train nodes) of each member."""


@dataclass(frozen=True)
class PlacementTable:
    """Placements of all jobs; jobs by name, the placements of a job side by side."""

    names: tuple[str, ...]
    placements: tuple[WayPair, ...]
    pools: tuple[str, ...]
    arrays: PlacementArrays
    """The placements in the same order."""


def placement_table(placements_of: Mapping[str, Sequence[WayPair]], node_types: NodeTypes) -> PlacementTable:
    """The table of the placements of each job."""
    names, pools = tuple(sorted(placements_of)), tuple(sorted(node_types))
    flat = [placement for name in names for placement in placements_of[name]]
    arrays = PlacementArrays(
        first=np.cumsum([0, *(len(placements_of[name]) for name in names)]),
        pool=np.array([[pools.index(p) for p in placement.pools] for placement in flat], np.int64).reshape(-1, 2),
        share=np.array([placement.share for placement in flat], float).reshape(-1, 2),
        state_bytes=np.array([placement.state_bytes for placement in flat], float).reshape(-1, 2),
        nodes=np.array([placement.nodes for placement in flat], np.int64).reshape(-1, 2),
        tokens=np.array([[token(_id(each), phase) for phase in (0, 1)] for each in flat], np.uint64).reshape(-1, 2),
        host_memory_bytes=np.array([node_types[p].host_memory_bytes for p in pools], float),
    )
    return PlacementTable(names, tuple(flat), pools, arrays)


def _id(placement: WayPair) -> np.uint64:
    return np.uint64(int.from_bytes(blake2b(repr((placement.job, placement.options)).encode(), digest_size=8).digest()))


@dataclass(frozen=True)
class PricedGroup:
    """A group whose profit is above the floor."""

    profit: float
    """USD per hour: sum of the values of its jobs less its price."""
    members: tuple[tuple[int, tuple[int, ...], tuple[int, ...]], ...]
    """(placement by index, rollout nodes, train nodes)."""
    pools: tuple[str, ...]
    """Pool of each node."""
    structure_hash: int


@dataclass(frozen=True)
class Pricing:
    """The result of a pricing search."""

    groups: list[PricedGroup]
    """The most profitable first."""
    floor: float
    """Every group in the universe with more profit than this is in `groups`; inf if the search was cut short."""
    steps: int


def price(
    table: PlacementTable,
    values: NDArray[np.float64],
    usd_per_hour: NDArray[np.float64],
    cap: int,
    floor: float,
    infeasible: InfeasibleSet,
    prune_parts: bool,
    most_groups: int = 4000,
    max_steps: int = 50_000_000,
) -> Pricing:
    """Groups with more profit than `floor`.

    Args:
        values: USD per hour of each job.
        usd_per_hour: of a node of each pool of the table.
        prune_parts: whether a group is out if a pair or three of its members form an infeasible structure, or only as
            a whole.
        most_groups: returned at most; if there are more, the floor is raised to keep the best.
        max_steps: placements tried.
    """
    arrays = table.arrays
    fluid = (usd_per_hour[arrays.pool] * arrays.nodes * arrays.share).sum(axis=1)
    least = np.minimum.reduceat(fluid, arrays.first[:-1]) if len(table.names) else np.zeros(0)
    order = np.argsort(-(values - least), kind="stable")
    top = np.maximum.accumulate(np.append(0.0, values[order][::-1]))[::-1]
    prices = GroupPrices(values, usd_per_hour, fluid, np.maximum(0.0, values - least), order, top)
    classes = min(MOST_NODE_CLASSES, cap * int(arrays.nodes.sum(axis=1).max(initial=1)))
    limits = PricingLimits(cap, prune_parts, max_steps, FULL)
    search = PricingSearch.begin(arrays, prices, limits, floor, infeasible, most_groups, classes)
    search.run()
    (state,) = search.state
    groups = [_priced(search, row, table.pools) for row in range(state["found"])]
    groups.sort(key=lambda group: (-group.profit, group.members))
    return Pricing(groups, float(state["floor"]) if state["complete"] else float("inf"), int(state["steps"]))


def _priced(search: PricingSearch, row: int, names: Sequence[str]) -> PricedGroup:
    """A group that the search has found; `names`: of the pools."""
    profit, structure_hash, count, classes = search.found[row].item()
    held: list[tuple[list[int], list[int]]] = [([], []) for _ in range(count)]
    pools: list[str] = []
    node_classes, holds = search.found_classes[row, :classes].tolist(), search.found_holds[row, :classes].tolist()
    for (pool, width), how_held in zip(node_classes, holds, strict=True):
        nodes = range(len(pools), len(pools) + width)
        pools += [names[pool]] * width
        for on, how in zip(held, how_held, strict=False):
            for phase in (0, 1):
                if how >> phase & 1:
                    on[phase].extend(nodes)
    placements = search.found_members[row, :count].tolist()
    members = tuple((m, tuple(a), tuple(b)) for m, (a, b) in zip(placements, held, strict=True))
    return PricedGroup(profit, members, tuple(pools), structure_hash)


def structure_hash_of(table: PlacementTable, members: Members) -> int:
    """The structure hash of some members, equal to the hash that the search computes."""
    held: dict[int, int] = {}
    for placement, *phases in members:
        for phase, nodes in enumerate(phases):
            phase_token = int(table.arrays.tokens[placement, phase])
            for node in nodes:
                held[node] = held.get(node, 0) + phase_token
    return sum(int(node_hash(np.uint64(tokens % (1 << 64)))) for tokens in held.values()) % (1 << 64)


def connected(members: Members) -> bool:
    """Whether members form one group through the nodes that they share."""
    held = [{*a, *b} for _, a, b in members]
    reach, left = held[0], held[1:]
    while left:
        near = [nodes for nodes in left if nodes & reach]
        if not near:
            return False
        reach = reach.union(*near)
        left = [nodes for nodes in left if not nodes & reach]
    return True


def group_of(table: PlacementTable, members: Members, pools: Sequence[str], node_types: NodeTypes) -> Group:
    """The group of some members of a priced group, on the nodes that they use; `pools`: pool of each node."""
    used = sorted({n for _, a, b in members for n in (*a, *b)})
    index = {old: new for new, old in enumerate(used)}
    placed = [(table.placements[m], [index[n] for n in a], [index[n] for n in b]) for m, a, b in members]
    return built(placed, [pools[n] for n in used], node_types)
