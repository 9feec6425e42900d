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
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

# Structure hashes: a 64-bit hash of which placements hold which nodes of a group, and open-addressed sets of them.
#
# A hash is a sum with one summand for each node, so it is the same whatever the order of jobs and nodes, and the same
# for a part of a group as for that part as a group of its own. Two structures of a million collide with a chance of
# 3e-8.

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@njit(cache=True)  # type: ignore[untyped-decorator]
def _mix(x: Any) -> Any:
    """splitmix64's finaliser."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@njit(cache=True)  # type: ignore[untyped-decorator]
def token(placement: Any, phase: int) -> Any:
    """Token of a placement's rollout (phase 0) or training (phase 1), from the placement's 64-bit id."""
    return _mix((placement + np.uint64(phase)) * _GOLDEN + np.uint64(1))


@njit(cache=True)  # type: ignore[untyped-decorator]
def node_hash(held: Any) -> Any:
    """Hash of a node from the sum of the tokens of the phases that hold it."""
    return _mix(held * np.uint64(0xD1B54A32D192ED03) + _GOLDEN)


@njit(cache=True)
def contains(hashes, structure_hash):  # type: ignore[no-untyped-def]
    """Whether a set (power-of-two array, 0 is free) has this hash."""
    mask = np.uint64(len(hashes) - 1)
    slot = structure_hash & mask
    while hashes[slot] != 0:
        if hashes[slot] == structure_hash:
            return True
        slot = (slot + np.uint64(1)) & mask
    return False


@njit(cache=True)
def insert(hashes, new):  # type: ignore[no-untyped-def]
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
        self.used += int(insert(self.hashes, np.array([structure_hash], np.uint64)))

    def __contains__(self, structure_hash: int) -> bool:
        return bool(contains(self.hashes, np.uint64(structure_hash)))


@njit(cache=True)  # type: ignore[untyped-decorator]
def _first(take: Any, room: Any, classes: int, need: int) -> None:
    """The first choice: as many old nodes as there are, of the first classes."""
    for c in range(classes):
        take[c] = min(room[c], need)
        need -= take[c]


@njit(cache=True)  # type: ignore[untyped-decorator]
def _next(take: Any, room: Any, classes: int, need: int) -> bool:
    """The next choice, with as many old nodes or fewer; whether there was one."""
    total = 0
    for c in range(classes):
        total += take[c]
    # As many as before, in another way: one less of some class, the rest moved to the classes after it.
    tail, space = 0, 0
    for c in range(classes - 1, -1, -1):
        if take[c] > 0 and space > tail:
            take[c] -= 1
            left = tail + 1
            for d in range(c + 1, classes):
                take[d] = min(room[d], left)
                left -= take[d]
            return True
        tail += take[c]
        space += room[c]
    if total == 0:
        return False
    _first(take, room, classes, total - 1)
    return True


@njit(cache=True)  # type: ignore[untyped-decorator]
def _joined(k: int, meets: Any, left: Any) -> int:
    """Number of connected parts of the first k members; `left` is scratch."""
    for i in range(k):
        left[i] = True
    components = 0
    for first in range(k):
        if not left[first]:
            continue
        components += 1
        left[first] = False
        grew = True
        while grew:
            grew = False
            for i in range(k):
                if not left[i]:
                    continue
                for j in range(k):
                    if not left[j] and meets[i, j]:
                        # A member of this part, or of one before; but those are complete, so it meets none of them.
                        left[i] = False
                        grew = True
                        break
    return components


@njit(cache=True)
def search(  # type: ignore[no-untyped-def]
    order, first, tokens, pool, share, size, count, fluid, least, values, usd, memory, full, cap, floor, infeasible,
    prune_parts, max_steps, most_classes, rows, profits, hashes,
):  # fmt: skip
    """(groups stored in `rows`, floor, steps, whether every choice could be tried: no more than `most_classes`
    occurred).

    A row of `rows` is: members, classes of node; the placement of each member; of each class its pool, its number of
    nodes, and how each member holds it (1: rollout, 2: training, 3: both).
    """
    jobs = len(order)
    # By position in the order: the most that a job from there on is worth.
    top = np.zeros(jobs + 1)
    for q in range(jobs - 1, -1, -1):
        top[q] = max(top[q + 1], values[order[q]])
    # By level: what the group is before the level's phase is placed.
    levels = 2 * cap + 1
    classes = np.zeros(levels, np.int64)
    pools, number = np.zeros((levels, most_classes), np.int64), np.zeros((levels, most_classes), np.int64)
    load, used = np.zeros((levels, most_classes)), np.zeros((levels, most_classes))
    holds = np.zeros((levels, most_classes, cap), np.int64)
    cost = np.zeros(levels)
    take, room = np.zeros((levels, most_classes), np.int64), np.zeros((levels, most_classes), np.int64)
    begun = np.zeros(levels, np.bool_)
    # By depth.
    value, excess = np.zeros(cap + 1), np.zeros(cap + 1)
    position, placement = np.full(cap + 1, -1, np.int64), np.full(cap + 1, -1, np.int64)
    meets, scratch = np.zeros((cap, cap), np.bool_), np.zeros(cap, np.bool_)
    stored, steps, complete = 0, 0, True
    level = 0
    while level >= 0:
        k, phase = level >> 1, level & 1
        left = cap - k
        if phase == 0 and not begun[level]:
            # The next placement of the job at this depth, or the next job.
            q = position[k]
            if q < 0 or placement[k] + 1 >= first[order[q] + 1]:
                q = position[k - 1] + 1 if q < 0 and k > 0 else q + 1
                position[k] = q
                if (
                    q >= jobs
                    or excess[k] + left * max(0.0, values[order[q]] - least[order[q]]) <= floor
                    or value[k] - cost[level] + left * top[q] <= floor
                ):
                    level -= 1
                    continue
                placement[k] = first[order[q]]
            else:
                placement[k] += 1
        q = position[k]
        j, m = order[q], placement[k]
        need = count[m, phase]
        new_value = value[k] + values[j]
        new_excess = excess[k] + values[j] - fluid[m]
        if not begun[level]:
            more = max(0.0, values[order[q + 1]] - least[order[q + 1]]) if q + 1 < jobs else 0.0
            if phase == 0 and new_excess + (left - 1) * more <= floor:
                continue
            for c in range(classes[level]):
                fits = (
                    pools[level, c] == pool[m, phase]
                    and load[level, c] + share[m, phase] <= full
                    and used[level, c] + size[m, phase] < memory[pool[m, phase]]
                )
                room[level, c] = number[level, c] if fits else 0
            _first(take[level], room[level], classes[level], need)
            begun[level] = True
        elif not _next(take[level], room[level], classes[level], need):
            begun[level] = False
            if phase == 1:
                level -= 1
            continue
        steps += 1
        if steps >= max_steps:
            break
        # What the group is with this phase placed.
        new = need
        for c in range(classes[level]):
            new -= take[level, c]
        after = level + 1
        cost[after] = cost[level] + new * usd[pool[m, phase]]
        if new_value - cost[after] + (left - 1) * top[q + 1] <= floor:
            # The choices to come take as many new nodes or more.
            begun[level] = False
            if phase == 1:
                level -= 1
            continue
        n = 0
        for c in range(classes[level]):
            for taken in range(2):
                nodes = take[level, c] if taken else number[level, c] - take[level, c]
                if nodes == 0:
                    continue
                if n == most_classes:
                    complete = False
                    break
                pools[after, n], number[after, n] = pools[level, c], nodes
                load[after, n] = load[level, c] + (share[m, phase] if taken else 0.0)
                used[after, n] = used[level, c] + (size[m, phase] if taken else 0.0)
                for i in range(k):
                    holds[after, n, i] = holds[level, c, i]
                holds[after, n, k] = (holds[level, c, k] if phase else 0) | (1 << phase if taken else 0)
                n += 1
        if new > 0:
            if n < most_classes:
                pools[after, n], number[after, n] = pool[m, phase], new
                load[after, n], used[after, n] = share[m, phase], size[m, phase]
                for i in range(k):
                    holds[after, n, i] = 0
                holds[after, n, k] = 1 << phase
                n += 1
            else:
                complete = False
        if not complete:
            break
        classes[after] = n
        if phase == 0:
            begun[after] = False
            level = after
            continue
        for i in range(k):
            meet = False
            for c in range(n):
                if holds[after, c, k] and holds[after, c, i]:
                    meet = True
                    break
            meets[k, i] = meet
            meets[i, k] = meet
        if k > 0 and _joined(k + 1, meets, scratch) > left:
            continue
        out = False
        if prune_parts:
            numbers, held_by = number[after], holds[after]
            for i in range(k):
                if meets[k, i] and contains(infeasible, _part_hash(tokens, placement, numbers, held_by, n, k, i, i)):
                    out = True
                    break
                for l in range(i):  # noqa: E741
                    links = int(meets[k, i]) + int(meets[k, l]) + int(meets[i, l])
                    if links > 1 and contains(infeasible, _part_hash(tokens, placement, numbers, held_by, n, k, i, l)):
                        out = True
                        break
                if out:
                    break
        if out:
            continue
        if new_value - cost[after] > floor and _joined(k + 1, meets, scratch) == 1:
            structure_hash = np.uint64(0)
            for c in range(n):
                held = np.uint64(0)
                for i in range(k + 1):
                    held += _held(tokens, placement[i], holds[after, c, i])
                structure_hash += np.uint64(number[after, c]) * node_hash(held)
            if k == 0 or not contains(infeasible, structure_hash):
                profits[stored], hashes[stored] = new_value - cost[after], structure_hash
                row = rows[stored]
                row[0], row[1] = k + 1, n
                for i in range(k + 1):
                    row[2 + i] = placement[i]
                cell = 2 + cap
                for c in range(n):
                    row[cell], row[cell + 1] = pools[after, c], number[after, c]
                    for i in range(k + 1):
                        row[cell + 2 + i] = holds[after, c, i]
                    cell += 2 + cap
                stored += 1
                if stored == len(profits):
                    # Keep the better half, and look for nothing worse from here on.
                    half = stored // 2
                    rank = np.argsort(-profits)
                    floor = profits[rank[half]]
                    # Of equals any will do: the floor says that what has its profit may be missing.
                    stored = 0
                    for better in np.sort(rank[:half]):
                        profits[stored], hashes[stored] = profits[better], hashes[better]
                        rows[stored] = rows[better]
                        stored += 1
        if left == 1:
            continue
        value[k + 1], excess[k + 1] = new_value, new_excess
        position[k + 1], placement[k + 1] = -1, -1
        begun[after] = False
        level = after
    return stored, floor, steps, complete


@njit(cache=True)  # type: ignore[untyped-decorator]
def _held(tokens: Any, placement: int, how: int) -> Any:
    """Sum of a member's tokens on a node that it holds so (1: rollout, 2: training, 3: both)."""
    held = np.uint64(0)
    if how & 1:
        held += tokens[placement, 0]
    if how & 2:
        held += tokens[placement, 1]
    return held


@njit(cache=True)  # type: ignore[untyped-decorator]
def _part_hash(tokens: Any, placement: Any, number: Any, holds: Any, classes: int, a: int, b: int, c: int) -> Any:
    """Structure hash of the part of a group that members a, b and c form (b may be c)."""
    structure_hash = np.uint64(0)
    for n in range(classes):
        held = _held(tokens, placement[a], holds[n, a]) + _held(tokens, placement[b], holds[n, b])
        if c != b:
            held += _held(tokens, placement[c], holds[n, c])
        if held:
            structure_hash += np.uint64(number[n]) * node_hash(held)
    return structure_hash
