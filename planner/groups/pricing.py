"""Pricing of the group program: which groups are worth more to their jobs than they cost.

    find every connected group of at most `cap` jobs with  sum of values - price > floor

by depth-first search over jobs, modes and nodes. What prunes is exact: shares of a node and host memory; the value that
the jobs still to come could add at most; their value over their fluid price, given that what is not filled is wasted;
and structures known to be infeasible, if the column universe says that whoever holds one of them is not in it.

Nothing is simulated here. What is found passes the necessary conditions and may still be infeasible; the caller
simulates, adds what it learnt to `Known`, and searches again. If nothing is left above the floor, that is a proof.

A structure is identified by a 64-bit sum of mixed words, one for each pair of modes with the nodes that they share:
the same whatever the order of jobs and nodes, and the same for the part of a group as for that part alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .columns import FULL, Mode
from .model import NodeKind

MOST_NODES = 24
_OPTIONS = 4096
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Table:
    """Modes of all jobs as arrays; jobs in the order given, the modes of a job side by side."""

    names: tuple[str, ...]
    modes: tuple[Mode, ...]
    first: NDArray[np.int64]
    """(jobs + 1,) where the modes of each job begin."""
    pool: NDArray[np.int64]
    """(modes, 2), as `share`, `bytes`, `count`."""
    share: NDArray[np.float64]
    bytes: NDArray[np.float64]
    count: NDArray[np.int64]
    pools: tuple[str, ...]
    memory: NDArray[np.float64]
    ids: NDArray[np.uint64]
    """(modes,) of the job's name and the ways, so that words outlive the table."""


def table(modes_of: Mapping[str, Sequence[Mode]], kinds: Mapping[str, NodeKind]) -> Table:
    """Arrays of the modes of each job."""
    names, pools = tuple(sorted(modes_of)), tuple(sorted(kinds))
    flat = [mode for name in names for mode in modes_of[name]]
    return Table(
        names,
        tuple(flat),
        np.cumsum([0, *(len(modes_of[name]) for name in names)]),
        np.array([[pools.index(p) for p in mode.pools] for mode in flat], np.int64).reshape(-1, 2),
        np.array([mode.share for mode in flat], float).reshape(-1, 2),
        np.array([mode.state_bytes for mode in flat], float).reshape(-1, 2),
        np.array([mode.nodes for mode in flat], np.int64).reshape(-1, 2),
        pools,
        np.array([kinds[p].host_memory_bytes for p in pools], float),
        np.array([_id(mode) for mode in flat], np.uint64),
    )


def _id(mode: Mode) -> int:
    return int.from_bytes(blake2b(repr((mode.job, mode.ways)).encode(), digest_size=8).digest())


@dataclass
class Known:
    """Structures that are out: an open-addressed set of their words; 0 is free."""

    words: NDArray[np.uint64] = field(default_factory=lambda: np.zeros(1 << 16, np.uint64))
    used: int = 0

    def add(self, word: int) -> None:
        """Remember that a structure is out."""
        if 2 * self.used > len(self.words):
            old, self.words = self.words, np.zeros(2 * len(self.words), np.uint64)
            _insert(self.words, old)
        self.used += int(_insert(self.words, np.array([word], np.uint64)))

    def __contains__(self, word: int) -> bool:
        return bool(_has(self.words, np.uint64(word)))


@dataclass(frozen=True)
class Found:
    """A group above the floor."""

    profit: float
    members: tuple[tuple[int, tuple[int, ...], tuple[int, ...]], ...]
    """(mode by index, rollout nodes, train nodes)."""
    pools: tuple[str, ...]
    """Pool of each node."""
    word: int


@dataclass(frozen=True)
class Pricing:
    """What a search found, the most profitable first."""

    found: list[Found]
    floor: float
    """Every group in the universe with more profit than this is in `found`; inf if the search was cut short."""
    steps: int


def price(
    modes: Table,
    values: NDArray[np.float64],
    usd_per_hour: NDArray[np.float64],
    cap: int,
    floor: float,
    known: Known,
    parts: bool,
    most: int = 4000,
    max_steps: int = 50_000_000,
    full: float = FULL,
) -> Pricing:
    """Groups with more profit than `floor`.

    Args:
        values: USD per hour of each job.
        usd_per_hour: of a node of each pool of the table.
        parts: whether a group is out if a pair or three of its members form a known structure, or only as a whole.
        most: found at a time; if there are more, the floor is raised to keep the best.
        max_steps: placements tried.
        full: share of the time that a node may be held; below `FULL` the search proves nothing, but finds what is likelier
            to be feasible.
    """
    fluid = (usd_per_hour[modes.pool] * modes.count * modes.share).sum(axis=1)
    least = np.minimum.reduceat(fluid, modes.first[:-1]) if len(modes.names) else np.zeros(0)
    order = np.argsort(-(values - least), kind="stable")
    rows = np.zeros((2 * most, 1 + 3 * cap), np.int64)
    node_pools = np.zeros((2 * most, MOST_NODES), np.int64)
    profits, words = np.zeros(2 * most), np.zeros(2 * most, np.uint64)
    scratch = np.zeros((cap, _OPTIONS, 3), np.int64)
    count, floor, steps = _search(
        order,
        modes.first,
        modes.ids,
        modes.pool,
        modes.share,
        modes.bytes,
        modes.count,
        fluid,
        least,
        values,
        usd_per_hour,
        modes.memory,
        full,
        cap,
        floor,
        known.words,
        parts,
        max_steps,
        scratch,
        rows,
        node_pools,
        profits,
        words,
    )
    found = []
    for at in sorted(range(count), key=lambda i: (-profits[i], rows[i].tolist())):
        k = int(rows[at, 0])
        members = tuple(
            (int(rows[at, 1 + i]), _bits(int(rows[at, 1 + cap + i])), _bits(int(rows[at, 1 + 2 * cap + i])))
            for i in range(k)
        )
        nodes = 1 + max(n for _, a, b in members for n in a + b)
        pools = tuple(modes.pools[p] for p in node_pools[at, :nodes])
        found.append(Found(float(profits[at]), members, pools, int(words[at])))
    return Pricing(found, floor if steps < max_steps else float("inf"), steps)


def word_of(modes: Table, members: Sequence[tuple[int, Sequence[int], Sequence[int]]]) -> int:
    """The word of a structure, as the search makes it."""
    total = 0
    bits = [(modes.ids[m], sum(1 << n for n in a), sum(1 << n for n in b)) for m, a, b in members]
    for i, (m, a, b) in enumerate(bits):
        for n, c, d in bits[:i]:
            total += int(_pair_word(m, a, b, n, c, d))
    return total % (1 << 64)


def _bits(mask: int) -> tuple[int, ...]:
    return tuple(at for at in range(MOST_NODES) if mask >> at & 1)


@njit(cache=True)  # type: ignore[untyped-decorator]
def _mix(x: Any) -> Any:
    """splitmix64's finaliser."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@njit(cache=True)  # type: ignore[untyped-decorator]
def _ones(x: Any) -> Any:
    n = 0
    while x:
        x &= x - 1
        n += 1
    return n


@njit(cache=True)  # type: ignore[untyped-decorator]
def _pair_word(m, a, b, n, c, d):  # type: ignore[no-untyped-def]
    """Word of two modes on nodes (rollout, train) a, b and c, d."""
    if m > n:
        m, a, b, n, c, d = n, c, d, m, a, b
    shared = ((_ones(a & c) * 16 + _ones(b & d)) * 16 + _ones(a & d)) * 16 + _ones(b & c)
    # Whether each job's own phases meet on a node is part of the structure too.
    shared = (shared * 16 + _ones(a & b)) * 16 + _ones(c & d)
    x = _mix(m * _GOLDEN + np.uint64(1))
    return _mix(x ^ _mix(n * _GOLDEN + np.uint64(shared) * np.uint64(0xD1B54A32D192ED03)))


@njit(cache=True)  # type: ignore[untyped-decorator]
def _has(words, word):  # type: ignore[no-untyped-def]
    mask = np.uint64(len(words) - 1)
    at = word & mask
    while words[at] != 0:
        if words[at] == word:
            return True
        at = (at + np.uint64(1)) & mask
    return False


@njit(cache=True)  # type: ignore[untyped-decorator]
def _insert(words, new):  # type: ignore[no-untyped-def]
    """Insert all but zeros; how many were not there."""
    mask = np.uint64(len(words) - 1)
    added = 0
    for word in new:
        if word == 0:
            continue
        at = word & mask
        while words[at] != 0 and words[at] != word:
            at = (at + np.uint64(1)) & mask
        if words[at] == 0:
            words[at] = word
            added += 1
    return added


@njit(cache=True)  # type: ignore[untyped-decorator]
def _node_sets(p, need, share, size, pools, load, memory_used, memory, full, used, out):  # type: ignore[no-untyped-def]
    """Sets of `need` nodes of pool p with room, as bit sets; new nodes are the next numbers. How many."""
    n = 0
    if need == 1:
        for at in range(used):
            if pools[at] == p and load[at] + share <= full and memory_used[at] + size < memory[p]:
                out[n] = 1 << at
                n += 1
        if used < MOST_NODES:
            out[n] = 1 << used
            n += 1
        return n
    fits = 0
    for at in range(used):
        if pools[at] == p and load[at] + share <= full and memory_used[at] + size < memory[p]:
            fits |= 1 << at
    old = fits
    while True:
        new = need - _ones(old)
        if new >= 0 and used + new <= MOST_NODES and n < len(out):
            out[n] = old | (((1 << new) - 1) << used)
            n += 1
        if old == 0:
            break
        old = (old - 1) & fits
    return n


@njit(cache=True)  # type: ignore[untyped-decorator]
def _joined(k, a, b):  # type: ignore[no-untyped-def]
    """Number of connected parts of k members on nodes a, b."""
    left = (1 << k) - 1
    parts = 0
    while left:
        parts += 1
        reach = 0
        grew = True
        for i in range(k):
            if left >> i & 1:
                reach = a[i] | b[i]
                left &= ~(1 << i)
                break
        while grew:
            grew = False
            for i in range(k):
                if left >> i & 1 and reach & (a[i] | b[i]):
                    reach |= a[i] | b[i]
                    left &= ~(1 << i)
                    grew = True
    return parts


@njit(cache=True)  # type: ignore[untyped-decorator]
def _search(  # type: ignore[no-untyped-def]
    order, first, ids, pool, share, size, count, fluid, least, values, usd, memory, full, cap, floor, known, parts, max_steps,
    scratch, rows, node_pools, profits, words,
):  # fmt: skip
    jobs = len(order)
    # By position in the order: the most that a job from there on is worth, and is worth above its fluid price.
    top = np.zeros(jobs + 1)
    for q in range(jobs - 1, -1, -1):
        top[q] = max(top[q + 1], values[order[q]])
    load, used_bytes = np.zeros((cap + 1, MOST_NODES)), np.zeros((cap + 1, MOST_NODES))
    pools = np.zeros((cap + 1, MOST_NODES), np.int64)
    used, cost = np.zeros(cap + 1, np.int64), np.zeros(cap + 1)
    value, excess = np.zeros(cap + 1), np.zeros(cap + 1)
    options, tried, position = np.zeros(cap + 1, np.int64), np.zeros(cap + 1, np.int64), np.full(cap + 1, -1, np.int64)
    mode, a, b = np.zeros(cap, np.int64), np.zeros(cap, np.int64), np.zeros(cap, np.int64)
    pair = np.zeros((cap, cap), np.uint64)
    whole = np.zeros(cap + 1, np.uint64)
    sets, sets2 = np.zeros(256, np.int64), np.zeros(256, np.int64)
    found, steps, k = 0, 0, 0
    t_load, t_bytes, t_pools = np.zeros(MOST_NODES), np.zeros(MOST_NODES), np.zeros(MOST_NODES, np.int64)
    while k >= 0:
        if tried[k] >= options[k]:
            # The next job at this depth, with all its modes and nodes.
            position[k] += 1
            q = position[k]
            left = cap - k
            if (
                q >= jobs
                or excess[k] + left * max(0.0, values[order[q]] - least[order[q]]) <= floor
                or value[k] - cost[k] + left * top[q] <= floor
            ):
                k -= 1
                continue
            j = order[q]
            options[k] = 0
            tried[k] = 0
            for m in range(first[j], first[j + 1]):
                n = _node_sets(
                    pool[m, 0],
                    count[m, 0],
                    share[m, 0],
                    size[m, 0],
                    pools[k],
                    load[k],
                    used_bytes[k],
                    memory,
                    full,
                    used[k],
                    sets,
                )
                for s in range(n):
                    top_node = used[k]
                    for at in range(MOST_NODES):
                        t_load[at], t_bytes[at], t_pools[at] = load[k, at], used_bytes[k, at], pools[k, at]
                    for at in range(MOST_NODES):
                        if sets[s] >> at & 1:
                            t_load[at] += share[m, 0]
                            t_bytes[at] += size[m, 0]
                            t_pools[at] = pool[m, 0]
                            if at >= top_node:
                                top_node = at + 1
                    n2 = _node_sets(
                        pool[m, 1],
                        count[m, 1],
                        share[m, 1],
                        size[m, 1],
                        t_pools,
                        t_load,
                        t_bytes,
                        memory,
                        full,
                        top_node,
                        sets2,
                    )
                    for s2 in range(n2):
                        if options[k] < len(scratch[k]):
                            scratch[k, options[k], 0] = m
                            scratch[k, options[k], 1] = sets[s]
                            scratch[k, options[k], 2] = sets2[s2]
                            options[k] += 1
            continue
        m, x, y = scratch[k, tried[k], 0], scratch[k, tried[k], 1], scratch[k, tried[k], 2]
        tried[k] += 1
        steps += 1
        if steps >= max_steps:
            break
        j = order[position[k]]
        left = cap - k - 1
        new_cost = cost[k]
        at = used[k]
        while (x | y) >> at:
            new_cost += usd[pool[m, 0]] if x >> at & 1 else usd[pool[m, 1]]
            at += 1
        new_value = value[k] + values[j]
        new_excess = excess[k] + values[j] - fluid[m]
        q = position[k] + 1
        more = max(0.0, values[order[q]] - least[order[q]]) if q < jobs else 0.0
        if new_excess + left * more <= floor or new_value - new_cost + left * top[q] <= floor:
            continue
        mode[k], a[k], b[k] = m, x, y
        if k > 0 and _joined(k + 1, a, b) - 1 > left:
            continue
        out = False
        whole[k + 1] = whole[k]
        for i in range(k):
            meets = (a[i] | b[i]) & (x | y)
            pair[k, i] = _pair_word(ids[m], x, y, ids[mode[i]], a[i], b[i])
            whole[k + 1] += pair[k, i]
            if parts and meets and _has(known, pair[k, i]):
                out = True
                break
        if not out and parts and k > 1:
            for i in range(k):
                for l in range(i):  # noqa: E741
                    links = 0
                    links += 1 if (a[i] | b[i]) & (x | y) else 0
                    links += 1 if (a[l] | b[l]) & (x | y) else 0
                    links += 1 if (a[i] | b[i]) & (a[l] | b[l]) else 0
                    if links > 1 and _has(known, pair[k, i] + pair[k, l] + pair[i, l]):
                        out = True
                        break
                if out:
                    break
        if out:
            continue
        connected = _joined(k + 1, a, b) == 1
        if connected and new_value - new_cost > floor and not (k > 0 and _has(known, whole[k + 1])):
            profits[found] = new_value - new_cost
            words[found] = whole[k + 1]
            rows[found, 0] = k + 1
            for i in range(k + 1):
                rows[found, 1 + i] = mode[i]
                rows[found, 1 + cap + i] = a[i]
                rows[found, 1 + 2 * cap + i] = b[i]
            for at in range(MOST_NODES):
                node_pools[found, at] = pools[k, at]
                if at >= used[k]:
                    node_pools[found, at] = pool[m, 0] if x >> at & 1 else pool[m, 1]
            found += 1
            if found == len(profits):
                # Keep the better half, and look for nothing worse from here on.
                half = found // 2
                rank = np.argsort(-profits)
                floor = profits[rank[half]]
                # Of equals any will do: the floor says that what has its profit may be missing.
                n = 0
                for at in np.sort(rank[:half]):
                    profits[n], words[n] = profits[at], words[at]
                    rows[n] = rows[at]
                    node_pools[n] = node_pools[at]
                    n += 1
                found = n
        if left == 0:
            continue
        for at in range(MOST_NODES):
            load[k + 1, at], used_bytes[k + 1, at], pools[k + 1, at] = load[k, at], used_bytes[k, at], pools[k, at]
        used[k + 1] = used[k]
        for at in range(MOST_NODES):
            if x >> at & 1:
                load[k + 1, at] += share[m, 0]
                used_bytes[k + 1, at] += size[m, 0]
                pools[k + 1, at] = pool[m, 0]
            if y >> at & 1:
                load[k + 1, at] += share[m, 1]
                used_bytes[k + 1, at] += size[m, 1]
                pools[k + 1, at] = pool[m, 1]
            if (x | y) >> at & 1 and at >= used[k + 1]:
                used[k + 1] = at + 1
        cost[k + 1], value[k + 1], excess[k + 1] = new_cost, new_value, new_excess
        position[k + 1] = position[k]
        options[k + 1] = 0
        tried[k + 1] = 0
        k += 1
    return found, floor, steps
