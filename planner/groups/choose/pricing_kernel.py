"""The compiled pricing search (pricing.py): depth first over jobs, then over each job's placements and its nodes.

Jobs come in the order of value over fluid price, so that the first that cannot lift a partial group above the floor
ends its depth.

Nodes of one pool that the same phases hold are alike, so a partial group is a list of *classes* of node: pool, the
phases that hold it, how many there are. A phase takes so many nodes of each class, and the rest of what it needs is
new; which nodes of a class it takes makes no difference. A depth has two levels, one for a job's rollout and one for
its training, and each level is a counter over the nodes taken of each class, the most shared first. So the width of a
phase costs no memory, and no choice of nodes is left out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ....rounds.compiled.numba_options import compiled, entry

# Structure hashes: a 64-bit hash of which placements hold which nodes of a group, and open-addressed sets of them.
#
# A hash is a sum with one summand for each node, so it is the same whatever the order of jobs and nodes, and the same
# for a part of a group as for that part as a group of its own. Two structures of a million collide with a chance of
# 3e-8.

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@compiled
def _mix(x: Any) -> Any:
    """splitmix64's finaliser."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@entry
def token(placement: Any, phase: int) -> Any:
    """Token of a placement's rollout (phase 0) or training (phase 1), from the placement's 64-bit id."""
    return _mix((placement + np.uint64(phase)) * _GOLDEN + np.uint64(1))


@entry
def node_hash(held: Any) -> Any:
    """Hash of a node from the sum of the tokens of the phases that hold it."""
    return _mix(held * np.uint64(0xD1B54A32D192ED03) + _GOLDEN)


@entry
def contains(hashes: Any, structure_hash: Any) -> bool:
    """Whether a set (power-of-two array, 0 is free) has this hash."""
    mask = np.uint64(len(hashes) - 1)
    slot = structure_hash & mask
    while hashes[slot] != 0:
        if hashes[slot] == structure_hash:
            return True
        slot = (slot + np.uint64(1)) & mask
    return False


@entry
def insert(hashes: Any, new: Any) -> int:
    """Insert all hashes of `new` but zeros into a set that has room; how many were not in it."""
    mask = np.uint64(len(hashes) - 1)
    added = 0
    for structure_hash in new:
        if structure_hash == 0:
            continue
        slot = structure_hash & mask
        while hashes[slot] != 0 and hashes[slot] != structure_hash:
            slot = (slot + np.uint64(1)) & mask
        if hashes[slot] == 0:
            hashes[slot] = structure_hash
            added += 1
    return added


@dataclass
class InfeasibleSet:
    """The structures that are infeasible, by hash: an open-addressed set, 0 is free."""

    hashes: NDArray[np.uint64] = field(default_factory=lambda: np.zeros(1 << 16, np.uint64))
    used: int = 0

    def add(self, structure_hash: int) -> None:
        """Remember that a structure is infeasible."""
        if 2 * self.used > len(self.hashes):
            old, self.hashes = self.hashes, np.zeros(2 * len(self.hashes), np.uint64)
            insert(self.hashes, old)
        self.used += insert(self.hashes, np.array([structure_hash], np.uint64))

    def __contains__(self, structure_hash: int) -> bool:
        return contains(self.hashes, np.uint64(structure_hash))


# -- what the search reads and writes ----------------------------------------------------------------------------------


class PlacementArrays(NamedTuple):
    """Placements of all jobs as arrays, those of a job side by side. Shape (placements, 2): rollout, training."""

    first: NDArray[np.int64]
    """(jobs + 1,) where the placements of each job begin."""
    pool: NDArray[np.int64]
    share: NDArray[np.float64]
    """Share of the time that the phase holds each of its nodes."""
    state_bytes: NDArray[np.float64]
    """Host memory that the phase takes of each of its nodes."""
    nodes: NDArray[np.int64]
    tokens: NDArray[np.uint64]
    """From the job's name, the ways and the phase, so that structure hashes outlive these arrays."""
    host_memory_bytes: NDArray[np.float64]
    """(pools,) of a node."""


class GroupPrices(NamedTuple):
    """What jobs are worth and what nodes cost, USD per hour."""

    values: NDArray[np.float64]
    """(jobs,)"""
    nodes: NDArray[np.float64]
    """(pools,) of a node."""
    fluid: NDArray[np.float64]
    """(placements,) of the share of its nodes that a placement holds."""
    gain: NDArray[np.float64]
    """(jobs,) value less the least fluid price, at least 0: the most that the job adds to a group's profit."""
    order: NDArray[np.int64]
    """Jobs in the order of the search."""
    top: NDArray[np.float64]
    """(jobs + 1,) by position in the order: the most that a job from there on is worth."""


class PricingLimits(NamedTuple):
    """Limits of a search (`pricing.price`); `full`: share of the time that a node may be held."""

    cap: int
    prune_parts: bool
    max_steps: int
    full: float


NODE_CLASS = np.dtype(
    [("pool", "i8"), ("nodes", "i8"), ("load", "f8"), ("state_bytes", "f8"), ("room", "i8"), ("taken", "i8")]
)
"""A class of node in a partial group; of it, nodes that the next phase may take, and those that it takes."""

FOUND = np.dtype([("profit", "f8"), ("structure_hash", "u8"), ("members", "i8"), ("classes", "i8")])
"""A group above the floor: USD per hour, its hash, how many members and classes of node it has."""

STATE = np.dtype([("level", "i8"), ("floor", "f8"), ("found", "i8"), ("steps", "i8"), ("complete", "?")])
"""Where the search is: profits up to `floor` are of no use; `complete` until a limit cuts the search short."""

MEMBER = np.dtype([("position", "i8"), ("placement", "i8"), ("value", "f8"), ("excess", "f8")])
"""A member: its job's position in the order, its placement; the value of the members up to it, and that less their
fluid price."""

LEVEL = np.dtype([("begun", "?"), ("classes", "i8"), ("usd", "f8")])
"""Whether nodes were taken at the level; the classes of the partial group before that, and what its nodes cost."""


class PricingSearch(NamedTuple):
    """Everything, as one argument. A *level* is a phase of a member: 2k the rollout of member k, 2k + 1 its training.

    How a member holds a node of a class: 1 for its rollout, 2 for its training, 3 for both.
    """

    placements: PlacementArrays
    prices: GroupPrices
    limits: PricingLimits
    infeasible: NDArray[np.uint64]
    """Set of hashes of infeasible structures."""
    state: NDArray[Any]
    """(1,) of STATE."""
    members: NDArray[Any]
    """(cap,) of MEMBER."""
    meets: NDArray[np.bool_]
    """(cap, cap) whether two members share a node."""
    part: NDArray[np.int64]
    """(cap,) scratch of `_parts`: the number of each member's part."""
    levels: NDArray[Any]
    """(levels,) of LEVEL."""
    classes: NDArray[Any]
    """(levels, most classes) of NODE_CLASS."""
    holds: NDArray[np.int8]
    """(levels, most classes, cap) how each member holds the nodes of a class."""
    found: NDArray[Any]
    """(twice the most groups,) of FOUND, as what follows."""
    found_members: NDArray[np.int32]
    """(found, cap) the placement of each member."""
    found_classes: NDArray[np.int32]
    """(found, most classes, 2) pool and number of nodes of each class."""
    found_holds: NDArray[np.int8]
    """(found, most classes, cap) as `holds`."""

    @classmethod
    def begin(
        cls, placements: PlacementArrays, prices: GroupPrices, limits: PricingLimits, floor: float,
        infeasible: InfeasibleSet, most_groups: int, most_classes: int,
    ) -> PricingSearch:  # fmt: skip
        """A search that has found nothing yet."""
        cap, levels, rows = limits.cap, 2 * limits.cap + 1, 2 * most_groups
        return cls(
            placements,
            prices,
            limits,
            infeasible.hashes,
            state=np.array([(0, floor, 0, 0, True)], STATE),
            members=np.array([(-1, -1, 0.0, 0.0)] * cap, MEMBER),
            meets=np.zeros((cap, cap), np.bool_),
            part=np.zeros(cap, np.int64),
            levels=np.zeros(levels, LEVEL),
            classes=np.zeros((levels, most_classes), NODE_CLASS),
            holds=np.zeros((levels, most_classes, cap), np.int8),
            found=np.zeros(rows, FOUND),
            found_members=np.zeros((rows, cap), np.int32),
            found_classes=np.zeros((rows, most_classes, 2), np.int32),
            found_holds=np.zeros((rows, most_classes, cap), np.int8),
        )

    def run(self) -> None:
        """Search to the end."""
        while advance(self):
            self._keep_better_half()

    def _keep_better_half(self) -> None:
        """Forget the worse half of the groups, and look for nothing worse than the others from here on."""
        rank, half = np.argsort(-self.found["profit"], kind="stable"), len(self.found) // 2
        # Of equals any will do: the floor says that what has its profit may be missing.
        better, self.state["floor"], self.state["found"] = rank[:half], self.found["profit"][rank[half]], half
        for rows in (self.found, self.found_members, self.found_classes, self.found_holds):
            rows[:half] = rows[better]


# -- the search --------------------------------------------------------------------------------------------------------


@entry
def advance(search: Any) -> bool:
    """Search to the end, or until there is no room for another group; whether there is more to search."""
    state = search.state[0]
    while state.complete and state.level >= 0:
        if state.found == len(search.found):
            return True
        level = state.level
        k, phase = level >> 1, level & 1
        if phase == 0 and not search.levels[level].begun and not _next_placement(search, k):
            state.level -= 1
        elif not _take_nodes(search, level):
            state.level -= phase
        elif _divide_classes(search, level) and (phase == 0 or _complete_member(search, k)):
            state.level += 1
            search.levels[state.level].begun = False
    return False


@compiled
def _next_placement(search: Any, k: int) -> bool:
    """Go to the next placement of member k, of its job or of one behind that in the order; whether there was one that
    may lift the group above the floor."""
    placements, prices, floor = search.placements, search.prices, search.state[0].floor
    member, left = search.members[k], search.limits.cap - k
    value = excess = 0.0
    if k > 0:
        value, excess = search.members[k - 1].value, search.members[k - 1].excess
    while True:
        member.placement += 1
        if member.placement == 0 or member.placement == placements.first[prices.order[member.position] + 1]:
            member.position += 1
            if member.position == len(prices.order):
                return False
            job = prices.order[member.position]
            if excess + left * prices.gain[job] <= floor:
                return False
            if value - search.levels[2 * k].usd + left * prices.top[member.position] <= floor:
                return False
            member.placement = placements.first[job]
        job, after = prices.order[member.position], member.position + 1
        member.value = value + prices.values[job]
        member.excess = excess + prices.values[job] - prices.fluid[member.placement]
        next_gain = prices.gain[prices.order[after]] if after < len(prices.order) else 0.0
        if member.excess + (left - 1) * next_gain > floor:
            return True


@compiled
def _take_nodes(search: Any, level: int) -> bool:
    """Take the next choice of nodes for the level's phase; whether there was one that may lift the group above the
    floor."""
    placements, prices, state = search.placements, search.prices, search.state[0]
    member, phase, left = search.members[level >> 1], level & 1, search.limits.cap - (level >> 1)
    classes, here = search.classes[level], search.levels[level]
    need = placements.nodes[member.placement, phase]
    if not here.begun:
        _find_room(search, level)
        _take_first(classes, here.classes, need)
        here.begun = True
    elif not _take_next(classes, here.classes, need):
        here.begun = False
        return False
    state.steps += 1
    if state.steps >= search.limits.max_steps:
        state.complete = False
        return False
    new = need
    for c in range(here.classes):
        new -= classes[c].taken
    usd = here.usd + new * prices.nodes[placements.pool[member.placement, phase]]
    search.levels[level + 1].usd = usd
    if member.value - usd + (left - 1) * prices.top[member.position + 1] <= state.floor:
        # The choices to come take as many new nodes or more.
        here.begun = False
        return False
    return True


@compiled
def _find_room(search: Any, level: int) -> None:
    """Note how many nodes of each class the level's phase may take."""
    placements, phase, placement = search.placements, level & 1, search.members[level >> 1].placement
    pool, share = placements.pool[placement, phase], placements.share[placement, phase]
    size, memory = placements.state_bytes[placement, phase], placements.host_memory_bytes[pool]
    for c in range(search.levels[level].classes):
        of = search.classes[level, c]
        fits = of.pool == pool and of.load + share <= search.limits.full and of.state_bytes + size < memory
        of.room = of.nodes if fits else 0


@compiled
def _take_first(classes: Any, count: int, need: int) -> None:
    """The first choice: as many old nodes as there are, of the first classes."""
    for c in range(count):
        classes[c].taken = min(classes[c].room, need)
        need -= classes[c].taken


@compiled
def _take_next(classes: Any, count: int, need: int) -> bool:
    """The next choice, with as many old nodes or fewer; whether there was one."""
    # As many as before, in another way: one less of some class, the rest moved to the classes after it.
    taken, space = 0, 0  # of the classes after c
    for c in range(count - 1, -1, -1):
        if classes[c].taken > 0 and space > taken:
            classes[c].taken -= 1
            _take_first(classes[c + 1 :], count - c - 1, taken + 1)
            return True
        taken += classes[c].taken
        space += classes[c].room
    if taken == 0:
        return False
    _take_first(classes, count, taken - 1)
    return True


@compiled
def _divide_classes(search: Any, level: int) -> bool:
    """List the next level's classes: of each class what the phase takes and what it leaves, and new nodes for the rest
    of what it needs; whether there is room for them all."""
    placements, k, phase = search.placements, level >> 1, level & 1
    placement, after, n, most = search.members[k].placement, level + 1, 0, len(search.classes[level])
    new = placements.nodes[placement, phase]
    share, size = placements.share[placement, phase], placements.state_bytes[placement, phase]
    for c in range(search.levels[level].classes):
        of = search.classes[level, c]
        new -= of.taken
        for taken in range(2):
            nodes = of.taken if taken else of.nodes - of.taken
            if nodes == 0:
                continue
            if n == most:
                search.state[0].complete = False
                return False
            to = search.classes[after, n]
            to.pool, to.nodes, to.load, to.state_bytes = of.pool, nodes, of.load, of.state_bytes
            for i in range(k):
                search.holds[after, n, i] = search.holds[level, c, i]
            search.holds[after, n, k] = search.holds[level, c, k] if phase else 0
            if taken:
                to.load += share
                to.state_bytes += size
                search.holds[after, n, k] |= 1 << phase
            n += 1
    if new > 0:
        if n == most:
            search.state[0].complete = False
            return False
        to = search.classes[after, n]
        to.pool, to.nodes, to.load, to.state_bytes = placements.pool[placement, phase], new, share, size
        for i in range(k):
            search.holds[after, n, i] = 0
        search.holds[after, n, k] = 1 << phase
        n += 1
    search.levels[after].classes = n
    return True


@compiled
def _complete_member(search: Any, k: int) -> bool:
    """Member k is placed: keep the group if it is looked for; whether it may become one with further members."""
    meets, holds, count = search.meets, search.holds[2 * k + 2], search.levels[2 * k + 2].classes
    left = search.limits.cap - k - 1
    for i in range(k):
        meets[k, i] = False
        for c in range(count):
            if holds[c, k] and holds[c, i]:
                meets[k, i] = True
                break
        meets[i, k] = meets[k, i]
    # Each further member can join one more part to the others at most.
    parts = _parts(search, k + 1)
    if parts > left + 1 or (search.limits.prune_parts and _has_infeasible_part(search, k)):
        return False
    if parts == 1:
        _keep(search, k)
    if left > 0:
        search.members[k + 1].position, search.members[k + 1].placement = search.members[k].position, -1
    return bool(left > 0)


@compiled
def _has_infeasible_part(search: Any, k: int) -> bool:
    """Whether member k forms an infeasible structure with one or two of the members before it."""
    meets = search.meets
    for i in range(k):
        if meets[k, i] and contains(search.infeasible, _part_hash(search, k, i, i)):
            return True
        for j in range(i):
            links = int(meets[k, i]) + int(meets[k, j]) + int(meets[i, j])
            if links > 1 and contains(search.infeasible, _part_hash(search, k, i, j)):
                return True
    return False


@compiled
def _parts(search: Any, count: int) -> int:
    """Number of connected parts of the first `count` members."""
    part, parts = search.part, count
    for i in range(count):
        part[i] = i
        for j in range(i):
            if search.meets[i, j] and part[i] != part[j]:
                joined, parts = part[i], parts - 1
                for other in range(i + 1):
                    if part[other] == joined:
                        part[other] = part[j]
    return parts


@compiled
def _part_hash(search: Any, k: int, a: int, b: int) -> Any:
    """Structure hash of the part of members 0 to k that members k, a and b form (a may be b)."""
    level, structure_hash = 2 * k + 2, np.uint64(0)
    for c in range(search.levels[level].classes):
        held = _held(search, level, c, k) + _held(search, level, c, a)
        if a != b:
            held += _held(search, level, c, b)
        if held:
            structure_hash += np.uint64(search.classes[level, c].nodes) * node_hash(held)
    return structure_hash


@compiled
def _held(search: Any, level: int, c: int, i: int) -> Any:
    """Sum of the tokens of member i on a node of class c."""
    held, how, placement = np.uint64(0), search.holds[level, c, i], search.members[i].placement
    if how & 1:
        held += search.placements.tokens[placement, 0]
    if how & 2:
        held += search.placements.tokens[placement, 1]
    return held


@compiled
def _keep(search: Any, k: int) -> None:
    """Keep the connected group of members 0 to k if it is above the floor and not infeasible."""
    state, level = search.state[0], 2 * k + 2
    profit, count = search.members[k].value - search.levels[level].usd, search.levels[level].classes
    if profit <= state.floor:
        return
    structure_hash = np.uint64(0)
    for c in range(count):
        held = np.uint64(0)
        for i in range(k + 1):
            held += _held(search, level, c, i)
        structure_hash += np.uint64(search.classes[level, c].nodes) * node_hash(held)
    if k > 0 and contains(search.infeasible, structure_hash):
        return
    row = state.found
    state.found += 1
    found = search.found[row]
    found.profit, found.structure_hash, found.members, found.classes = profit, structure_hash, k + 1, count
    for i in range(k + 1):
        search.found_members[row, i] = search.members[i].placement
    for c in range(count):
        search.found_classes[row, c, 0] = search.classes[level, c].pool
        search.found_classes[row, c, 1] = search.classes[level, c].nodes
        for i in range(k + 1):
            search.found_holds[row, c, i] = search.holds[level, c, i]
