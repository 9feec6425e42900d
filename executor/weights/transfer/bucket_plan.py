"""Where each tensor lies while it travels: buckets of whole tensors, and the pieces that each trainer rank puts there.

Invariants:
- each element of each tensor is written by exactly one rank;
- a tensor lies in one bucket, as vLLM's loaders take whole tensors; a bucket is larger than asked for only if one
  tensor is;
- tensors are in the order of the model's parameters, so that those of a layer are together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from .boxes import Box, intersection, owners, whole

ALIGNMENT = 64
"""Bytes between the first bytes of tensors are a multiple of it, as vector instructions like them."""

ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


class Source(NamedTuple):
    """A tensor of the checkpoint: box `box` of the trainer's parameter `parameter`, seen with shape `shape`."""

    name: str
    shape: tuple[int, ...]
    parameter: str
    box: Box


class Holdings(NamedTuple):
    """What one rank says of itself before weights travel.

    Attributes:
        node: Ray's id of the node that it runs on.
        dtype: the job's, in which weights travel.
        shapes: of all parameters.
        held: the box of each parameter that it holds.
        sources: the checkpoint's tensors (of rank 0 only).
        obstacle: why its weights cannot travel in pieces; None if they can.
        device: UUID of its GPU; "" on a CPU.
    """

    node: str
    dtype: str
    shapes: dict[str, tuple[int, ...]]
    held: dict[str, Box]
    sources: tuple[Source, ...]
    obstacle: str | None = None
    device: str = ""


class Placed(NamedTuple):
    """A tensor in a bucket: `offset` is the byte at which it begins."""

    name: str
    shape: tuple[int, ...]
    offset: int


class Bucket(NamedTuple):
    """Tensors that travel together, in `nbytes` bytes."""

    tensors: tuple[Placed, ...]
    nbytes: int


class Piece(NamedTuple):
    """What one rank puts into one bucket at once.

    Attributes:
        parameter: the trainer's parameter that it comes from.
        local: the box within what the rank holds of the parameter.
        tensor: number of the tensor in the bucket.
        shape: of that tensor as a box of the parameter: the tensor's, perhaps with ones in front.
        box: where the piece belongs in the tensor of that shape.
    """

    parameter: str
    local: Box
    tensor: int
    shape: tuple[int, ...]
    box: Box


class BucketPlan(NamedTuple):
    """All buckets of a model, and the pieces of each: `pieces[rank][bucket]`. `dtype` is that of all tensors."""

    dtype: str
    buckets: tuple[Bucket, ...]
    pieces: tuple[tuple[tuple[Piece, ...], ...], ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors, without what lies between them."""
        items = sum(math.prod(tensor.shape) for bucket in self.buckets for tensor in bucket.tensors)
        return items * ITEM_BYTES[self.dtype]

    @property
    def largest(self) -> int:
        """Bytes of the largest bucket."""
        return max(bucket.nbytes for bucket in self.buckets)


def bucket_plan(
    sources: Sequence[Source],
    parameters: Mapping[str, tuple[int, ...]],
    held: Sequence[Mapping[str, Box]],
    dtype: str,
    bucket_bytes: int,
) -> BucketPlan:
    """Lay out a model's tensors for a transfer.

    Args:
        sources: the checkpoint's tensors.
        parameters: shape of each of the trainer's parameters.
        held: for each rank, the box that it holds of each parameter.
        dtype: in which tensors travel.
        bucket_bytes: room of a bucket.

    Raises ValueError if the ranks do not hold each element, or tensors are no partition of a parameter.
    """
    buckets = _buckets(sources, ITEM_BYTES[dtype], bucket_bytes)
    place = {tensor.name: (number, i) for number, each in enumerate(buckets) for i, tensor in enumerate(each.tensors)}
    pieces: list[list[list[Piece]]] = [[[] for _ in buckets] for _ in held]
    loads = [0] * len(held)
    sent = {name: owners(shape, [of_rank.get(name) for of_rank in held], loads) for name, shape in parameters.items()}
    taken = dict.fromkeys(parameters, 0)
    for source in sources:
        taken[source.parameter] += source.box.numel
        for rank, box in sent[source.parameter].items():
            part = box if not box.shape else intersection(box, source.box)
            if part is None:
                continue
            bucket, tensor = place[source.name]
            pieces[rank][bucket].append(
                Piece(source.parameter, part.within(box), tensor, source.box.shape, part.within(source.box))
            )
    lost = [name for name, shape in parameters.items() if taken[name] != math.prod(shape)]
    if lost:
        raise ValueError(f"the checkpoint's tensors hold other elements than parameter {lost[0]}")
    frozen = tuple(tuple(tuple(of_bucket) for of_bucket in of_rank) for of_rank in pieces)
    return BucketPlan(dtype, buckets, frozen)


def _buckets(sources: Sequence[Source], item_bytes: int, bucket_bytes: int) -> tuple[Bucket, ...]:
    """Tensors in order, a new bucket whenever the next one does not fit."""
    buckets: list[Bucket] = []
    placed: list[Placed] = []
    end = 0
    for source in sources:
        size = math.prod(source.shape) * item_bytes
        offset = -(-end // ALIGNMENT) * ALIGNMENT
        if placed and offset + size > bucket_bytes:
            buckets.append(Bucket(tuple(placed), end))
            placed, offset = [], 0
        placed.append(Placed(source.name, source.shape, offset))
        end = offset + size
    if placed:
        buckets.append(Bucket(tuple(placed), end))
    return tuple(buckets)


def whole_source(name: str, shape: tuple[int, ...]) -> Source:
    """A tensor that is a parameter under its own name."""
    return Source(name, shape, name, whole(shape))
