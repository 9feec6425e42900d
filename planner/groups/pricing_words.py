"""Words of structures, 64-bit sums with a summand for each pair of modes and the nodes that they share; sets of words.

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
def ones(x: Any) -> Any:
    n = 0
    while x:
        x &= x - 1
        n += 1
    return n


@njit(cache=True)
def pair_word(m, a, b, n, c, d):  # type: ignore[no-untyped-def]
    """Word of two modes on nodes (rollout, train) a, b and c, d."""
    if m > n:
        m, a, b, n, c, d = n, c, d, m, a, b
    shared = ((ones(a & c) * 16 + ones(b & d)) * 16 + ones(a & d)) * 16 + ones(b & c)
    # Whether each job's own phases meet on a node is part of the structure too.
    shared = (shared * 16 + ones(a & b)) * 16 + ones(c & d)
    x = _mix(m * _GOLDEN + np.uint64(1))
    return _mix(x ^ _mix(n * _GOLDEN + np.uint64(shared) * np.uint64(0xD1B54A32D192ED03)))


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
