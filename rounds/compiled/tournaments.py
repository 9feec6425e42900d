"""Which engine has something to tell first, and which is the least loaded: two tournaments over a round's engines.

A tournament is a binary tree of winners: node k has the better of nodes 2k and 2k + 1, the leaves are the engines in
order, and -1 is none. Of equals the engine with the lower number wins, as in a walk over all engines in order; but an
engine that changes costs as many steps as the tree is high, and a round of thousands of engines has millions of events.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .numba_options import compiled


def tournament(engines: int, first: int | None = None) -> Any:
    """A tournament of engines that are all alike, shape (2 x leaves,); with `first`, only so many of them take part."""
    leaves = 1
    while leaves < engines:
        leaves *= 2
    tree = np.full(2 * leaves, -1, dtype=np.int32)
    taking_part = engines if first is None else first
    tree[leaves : leaves + taking_part] = np.arange(taking_part)
    for node in range(leaves - 1, 0, -1):
        tree[node] = tree[2 * node]
    return tree


@compiled
def note_upcoming(E: Any, tree: Any, e: int) -> None:
    """The engine's `upcoming` may have changed."""
    node = (len(tree) // 2 + e) >> 1
    while node >= 1:
        a, b = tree[2 * node], tree[2 * node + 1]
        winner = a
        if a < 0 or (b >= 0 and E[b].upcoming < E[a].upcoming):
            winner = b
        # An engine that neither was nor is the winner here changes nothing above.
        if tree[node] == winner and winner != e:
            return
        tree[node] = winner
        node >>= 1


@compiled
def note_load(E: Any, tree: Any, e: int) -> None:
    """The engine's `load` may have changed."""
    node = (len(tree) // 2 + e) >> 1
    while node >= 1:
        a, b = tree[2 * node], tree[2 * node + 1]
        winner = a
        if a < 0 or (b >= 0 and E[b].load < E[a].load):
            winner = b
        if tree[node] == winner and winner != e:
            return
        tree[node] = winner
        node >>= 1


@compiled
def leave_out(E: Any, tree: Any, e: int) -> None:
    """The engine gets no more samples."""
    tree[len(tree) // 2 + e] = -1
    note_load(E, tree, e)


@compiled
def bring_in(E: Any, tree: Any, e: int) -> None:
    """The engine gets samples from now on."""
    tree[len(tree) // 2 + e] = e
    note_load(E, tree, e)
