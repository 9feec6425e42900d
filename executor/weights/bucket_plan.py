"""Where the tensors of a checkpoint lie while they travel: buckets of whole tensors, and the pieces of a rank in them.

A tensor lies in one bucket, as vLLM's loaders take whole tensors; they are in the order of the model's parameters, so
that those of a layer are together. A bucket is larger than asked for only if one tensor is.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

ALIGNMENT = 64
"""Bytes between the first bytes of tensors are a multiple of it, as vector instructions like them."""

ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}

Slices = tuple[slice, ...]
Share = tuple[Slices, Slices, int]
"""Elements of a tensor that a rank holds: as indices of what it holds of the parameter, as indices of the tensor (seen
with the shape of its box), and their number."""


class Box(NamedTuple):
    """A block of a tensor: its first index and its extent, in elements, for each dimension; () and () of a scalar."""

    offset: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def slices(self) -> Slices:
        """What to index a tensor with to get the box."""
        return tuple(slice(first, first + size) for first, size in zip(self.offset, self.shape, strict=True))


class TensorSource(NamedTuple):
    """A tensor of the checkpoint: box `box` of the trainer's parameter `parameter`, seen with shape `shape`."""

    name: str
    shape: tuple[int, ...]
    parameter: str
    box: Box


class Bucket(NamedTuple):
    """Tensors that travel together, in `nbytes` bytes; `offsets` are the bytes at which they begin."""

    sources: tuple[TensorSource, ...]
    offsets: tuple[int, ...]
    nbytes: int


def whole_box(shape: Sequence[int]) -> Box:
    """The box of all elements."""
    return Box((0,) * len(shape), tuple(shape))


def chunk(box: Box, dim: int, parts: int, index: int) -> Box:
    """Part `index` of `box` cut into `parts` along `dim` as `torch.chunk` cuts: last parts may be short or empty."""
    step = -(-box.shape[dim] // parts)
    first = min(index * step, box.shape[dim])
    offset, shape = list(box.offset), list(box.shape)
    offset[dim] += first
    shape[dim] = min(step, box.shape[dim] - first)
    return Box(tuple(offset), tuple(shape))


def buckets_of(sources: Sequence[TensorSource], item_bytes: int, bucket_bytes: int) -> tuple[Bucket, ...]:
    """Tensors in order, a new bucket whenever the next one does not fit into `bucket_bytes`."""
    buckets: list[Bucket] = []
    first, offsets, end = 0, list[int](), 0
    for number, source in enumerate(sources):
        size = math.prod(source.shape) * item_bytes
        offset = -(-end // ALIGNMENT) * ALIGNMENT
        if offsets and offset + size > bucket_bytes:
            buckets.append(Bucket(tuple(sources[first:number]), tuple(offsets), end))
            first, offsets, offset = number, [], 0
        offsets.append(offset)
        end = offset + size
    return (*buckets, Bucket(tuple(sources[first:]), tuple(offsets), end)) if offsets else ()


def cuts_of(bucket: Bucket, held: Sequence[Mapping[str, Box]]) -> list[dict[int, Share]]:
    """How ranks that hold these boxes hold a bucket: of each tensor, by number of a rank, its share; a parameter of
    which a rank has nothing may lack."""
    return [_shares(tuple([of_rank.get(each.parameter) for of_rank in held]), each.box) for each in bucket.sources]


@functools.cache  # layers are alike: a model of thousands of tensors is cut in a few ways
def _shares(held: tuple[Box | None, ...], wanted: Box) -> dict[int, Share]:
    found = {}
    for rank, box in enumerate(held):
        if box is None:
            continue
        first = [max(a, b) for a, b in zip(box.offset, wanted.offset, strict=True)]
        ends = zip(box.offset, box.shape, wanted.offset, wanted.shape, strict=True)
        sizes = tuple(min(a + m, b + n) - at for at, (a, m, b, n) in zip(first, ends, strict=True))
        if all(size > 0 for size in sizes):
            local, place = (
                Box(tuple(at - begin for at, begin in zip(first, seen.offset, strict=True)), sizes).slices
                for seen in (box, wanted)
            )
            found[rank] = local, place, math.prod(sizes)
    return found


def copies_of(held: Sequence[Mapping[str, Box]]) -> int:
    """Ranks in which the model is whole once, of ranks that hold these boxes: ranks are in blocks of so many, each of
    which holds the same (hybrid sharding)."""
    ranks = len(held)
    sizes = (size for size in range(1, ranks) if ranks % size == 0)
    return next((size for size in sizes if all(held[r] == held[r - size] for r in range(size, ranks))), ranks)
