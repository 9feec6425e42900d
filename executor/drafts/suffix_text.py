"""Tokens with their suffixes in order, so that what followed a context before is found at once: a suffix array.

8 bytes a token: the token and its place in the order. Suffixes are ordered by their first `ORDERED` tokens, by prefix
doubling (Manber and Myers 1993), which is as far as any query looks.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.int32]

BREAK = -1
"""Stands behind each response: no context holds it, so that no match and no draft goes over the end of one."""

ORDERED = 32
"""Tokens by which suffixes are ordered: more than a context and a draft that is looked up have together."""


class SuffixText(NamedTuple):
    """Responses one after another, each with a `BREAK` behind it.

    Attributes:
        tokens: int32 [n].
        order: int32 [n]; the beginnings of all suffixes, in their order.
        starts: int32 [responses]; where each response begins.
        weights: float32 [responses]; what a response counts beside others, above 0.
    """

    tokens: Tokens
    order: Tokens
    starts: Tokens
    weights: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(array.nbytes for array in self[:])


def suffix_text(responses: list[Tokens], weights: list[float]) -> SuffixText:
    """Index responses, each an int32 array of tokens, with what each counts."""
    ends = np.array([BREAK], np.int32)
    parts = [part for response in responses for part in (response, ends)]
    tokens = np.concatenate(parts).astype(np.int32, copy=False) if parts else np.empty(0, np.int32)
    lengths = np.array([len(response) + 1 for response in responses], np.int64)
    starts = (np.cumsum(lengths) - lengths).astype(np.int32)
    return SuffixText(tokens, suffix_order(tokens), starts, np.array(weights, np.float32))


def suffix_order(tokens: Tokens) -> Tokens:
    """The beginnings of all suffixes, ordered by their first `ORDERED` tokens at least; int32 [n]."""
    size = len(tokens)
    if size == 0:
        return np.empty(0, np.int32)
    ranks = tokens.astype(np.int64) + 2  # 0 stands behind the end
    length = 1
    while True:
        behind = np.zeros(size, np.int64)
        behind[:-length] = ranks[length:]
        keys = ranks * (int(ranks.max()) + 1) + behind
        order = np.argsort(keys)
        in_order = keys[order]
        steps = np.concatenate(([1], (np.diff(in_order) != 0).astype(np.int64)))
        length *= 2
        if length >= ORDERED or steps.all() or length >= size:
            return order.astype(np.int32)
        ranks = np.empty(size, np.int64)
        ranks[order] = np.cumsum(steps)
