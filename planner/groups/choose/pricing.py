"""Pricing of the group program: which groups are worth more to their jobs than they cost.

    find every connected group of at most `cap` jobs with  sum of values - price > floor

by depth-first search over jobs, modes and nodes. What prunes is exact: shares of a node and host memory; the value that
the jobs still to come could add at most; their value over their fluid price, given that what is not filled is wasted;
and structures known to be infeasible, if the column universe says that whoever holds one of them is not in it.

Nothing is simulated here. What is found passes the necessary conditions and may still be infeasible; the caller
simulates, adds what it learnt to `Known`, and searches again. If nothing is left above the floor, that is a proof.

A structure is identified by a 64-bit sum of mixed words, one for each node with the modes that hold it: the same
whatever the order of jobs and nodes, and the same for the part of a group as for that part alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from ..inputs.group_model import NodeKind
from .group_columns import FULL, Mode
from .pricing_kernel import search
from .pricing_words import has, insert, node_word, token

MOST_KINDS = 64
"""Kinds of node (pool, and who holds it in which phase) in a group; a search that meets more proves nothing."""


Members = Sequence[tuple[int, Sequence[int], Sequence[int]]]
"""(mode by index, rollout nodes, train nodes) of each member."""


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
    tokens: NDArray[np.uint64]
    """(modes, 2) of the job's name, the ways and the phase, so that words outlive the table."""


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
        np.array([[token(_id(mode), phase) for phase in (0, 1)] for mode in flat], np.uint64).reshape(-1, 2),
    )


def _id(mode: Mode) -> np.uint64:
    return np.uint64(int.from_bytes(blake2b(repr((mode.job, mode.ways)).encode(), digest_size=8).digest()))


@dataclass
class Known:
    """Structures that are out: an open-addressed set of their words; 0 is free."""

    words: NDArray[np.uint64] = field(default_factory=lambda: np.zeros(1 << 16, np.uint64))
    used: int = 0

    def add(self, word: int) -> None:
        """Remember that a structure is out."""
        if 2 * self.used > len(self.words):
            old, self.words = self.words, np.zeros(2 * len(self.words), np.uint64)
            insert(self.words, old)
        self.used += int(insert(self.words, np.array([word], np.uint64)))

    def __contains__(self, word: int) -> bool:
        return bool(has(self.words, np.uint64(word)))


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
        full: share of the time that a node may be held; below `FULL` the search proves nothing, but finds what is
            likelier to be feasible.
    """
    fluid = (usd_per_hour[modes.pool] * modes.count * modes.share).sum(axis=1)
    least = np.minimum.reduceat(fluid, modes.first[:-1]) if len(modes.names) else np.zeros(0)
    order = np.argsort(-(values - least), kind="stable")
    widest = int(modes.count.sum(axis=1).max(initial=1))
    kinds = min(MOST_KINDS, cap * widest)
    rows = np.zeros((2 * most, 2 + cap + kinds * (2 + cap)), np.int32)
    profits, words = np.zeros(2 * most), np.zeros(2 * most, np.uint64)
    count, floor, steps, complete = search(
        order,
        modes.first,
        modes.tokens,
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
        kinds,
        rows,
        profits,
        words,
    )
    found = []
    for at in range(count):
        members, pools = _members(rows[at], cap, modes.pools)
        found.append(Found(float(profits[at]), members, pools, int(words[at])))
    found.sort(key=lambda one: (-one.profit, one.members))
    return Pricing(found, floor if complete and steps < max_steps else float("inf"), steps)


def _members(
    row: NDArray[np.int32], cap: int, names: Sequence[str]
) -> tuple[tuple[tuple[int, tuple[int, ...], tuple[int, ...]], ...], tuple[str, ...]]:
    """(members, pool of each node) of a row of the search."""
    count, kinds = int(row[0]), int(row[1])
    held: list[tuple[list[int], list[int]]] = [([], []) for _ in range(count)]
    pools: list[str] = []
    for kind in row[2 + cap :].reshape(-1, 2 + cap)[:kinds].tolist():
        nodes = range(len(pools), len(pools) + kind[1])
        pools += [names[kind[0]]] * kind[1]
        for on, how in zip(held, kind[2:], strict=False):
            for phase in (0, 1):
                if how >> phase & 1:
                    on[phase].extend(nodes)
    members = tuple((int(m), tuple(a), tuple(b)) for m, (a, b) in zip(row[2:].tolist(), held, strict=False))
    return members, tuple(pools)


def word_of(modes: Table, members: Members) -> int:
    """The word of a structure, as the search makes it."""
    held: dict[int, int] = {}
    for m, *phases in members:
        for phase, nodes in enumerate(phases):
            mine = int(modes.tokens[m, phase])
            for node in nodes:
                held[node] = held.get(node, 0) + mine
    return sum(int(node_word(np.uint64(sum_ % (1 << 64)))) for sum_ in held.values()) % (1 << 64)


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
