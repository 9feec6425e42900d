"""Structure hashes: a 64-bit hash of which placements hold which nodes of a group, and open-addressed sets of them.

A hash is a sum with one summand for each node, so it is the same whatever the order of jobs and nodes, and the same for
a part of a group as for that part as a group of its own. Two structures of a million collide with a chance of 3e-8.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

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
