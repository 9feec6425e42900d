"""Boxes of tensors: which part of a tensor a rank holds, which rank sends it, and that each element is sent once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple


class Box(NamedTuple):
    """A block of a tensor: its first index and its extent, in elements, for each dimension; () and () of a scalar."""

    offset: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def numel(self) -> int:
        """Elements in the box."""
        return math.prod(self.shape)

    @property
    def slices(self) -> tuple[slice, ...]:
        """What to index a tensor with to get the box."""
        return tuple(slice(first, first + size) for first, size in zip(self.offset, self.shape, strict=True))

    def within(self, outer: Box) -> Box:
        """The same box, counted from the first index of `outer`."""
        return Box(tuple(a - b for a, b in zip(self.offset, outer.offset, strict=True)), self.shape)


def whole(shape: Sequence[int]) -> Box:
    """The box of all elements."""
    return Box((0,) * len(shape), tuple(shape))


def chunk(box: Box, dim: int, parts: int, index: int) -> Box:
    """Part `index` of `box` cut into `parts` along `dim` as `torch.chunk` cuts: last parts may be short or empty."""
    step = -(-box.shape[dim] // parts)
    first = min(index * step, box.shape[dim])
    size = min(step, box.shape[dim] - first)
    offset, shape = list(box.offset), list(box.shape)
    offset[dim] += first
    shape[dim] = size
    return Box(tuple(offset), tuple(shape))


def intersection(one: Box, other: Box) -> Box | None:
    """The elements that both have; None if there are none."""
    first = [max(a, b) for a, b in zip(one.offset, other.offset, strict=True)]
    last = [min(a + m, b + n) for a, m, b, n in zip(one.offset, one.shape, other.offset, other.shape, strict=True)]
    if any(b <= a for a, b in zip(first, last, strict=True)):
        return None
    return Box(tuple(first), tuple(b - a for a, b in zip(first, last, strict=True)))


def owners(shape: Sequence[int], held: Sequence[Box | None], loads: list[int]) -> dict[int, Box]:
    """Which rank sends which box of a tensor of `shape`, such that each element is sent once.

    Args:
        held: the box that each rank holds; None: it holds nothing.
        loads: elements that each rank sends already; what it sends of this tensor is added.

    A box that several ranks hold is sent by the one with the least to send. Raises ValueError if the boxes overlap
    without being equal, or leave a gap.
    """
    holders: dict[Box, list[int]] = {}
    for rank, box in enumerate(held):
        if box is not None and (box.numel or not shape):
            holders.setdefault(box, []).append(rank)
    if not _tile(shape, list(holders)):
        raise ValueError(f"boxes {list(holders)} do not cover a tensor of shape {tuple(shape)} once")
    sent: dict[int, Box] = {}
    for box, ranks in holders.items():
        owner = min(ranks, key=lambda rank: (loads[rank], rank))
        loads[owner] += box.numel
        sent[owner] = box
    return sent


def _tile(shape: Sequence[int], boxes: list[Box]) -> bool:
    """Whether each element of a tensor is in exactly one of the boxes: they fill it, and no two of them meet."""
    if sum(box.numel for box in boxes) != math.prod(shape):
        return False
    # Sorted by their first indices, boxes that meet in one dimension only are many, so all pairs are looked at.
    return all(intersection(one, other) is None for i, one in enumerate(boxes) for other in boxes[:i])
