"""Words of structures, 64-bit sums with a summand for each node, mixed from who holds it; sets of words.

A structure has the same word whatever the order of its jobs and nodes. Two structures can have the same: of a million,
some two do with a chance of 3e-8.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@njit(cache=True)  # type: ignore[untyped-decorator]
def _mix(x: Any) -> Any:
    """splitmix64's finaliser."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@njit(cache=True)  # type: ignore[untyped-decorator]
def token(mode: Any, phase: int) -> Any:
    """Of a mode's rollout (0) or training (1)."""
    return _mix((mode + np.uint64(phase)) * _GOLDEN + np.uint64(1))


@njit(cache=True)  # type: ignore[untyped-decorator]
def node_word(held: Any) -> Any:
    """Word of a node that the phases hold whose tokens have this sum."""
    return _mix(held * np.uint64(0xD1B54A32D192ED03) + _GOLDEN)


@njit(cache=True)
def has(words, word):  # type: ignore[no-untyped-def]
    mask = np.uint64(len(words) - 1)
    at = word & mask
    while words[at] != 0:
        if words[at] == word:
            return True
        at = (at + np.uint64(1)) & mask
    return False


@njit(cache=True)
def insert(words, new):  # type: ignore[no-untyped-def]
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
