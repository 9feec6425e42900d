"""The message with which a trainer rank sends its pieces of one bucket: the version, then the pieces' elements."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..slots.slot_memory import FIELD_BYTES
from ..transfer.bucket_plan import Piece


def packed_bytes(pieces: Sequence[Piece], dtype: torch.dtype) -> int:
    """Bytes of the message with which a rank sends its pieces of one bucket."""
    return FIELD_BYTES + sum(piece.box.numel for piece in pieces) * dtype.itemsize


def pack(
    message: torch.Tensor, version: bytes, pieces: Sequence[Piece], parts: Sequence[torch.Tensor], dtype: torch.dtype
) -> None:
    """Write a version, and the elements of `pieces`, which are `parts`, into a message."""
    message[:FIELD_BYTES] = torch.frombuffer(bytearray(version), dtype=torch.uint8)
    for place, part in zip(unpacked(message, pieces, dtype), parts, strict=True):
        place.copy_(part)


def unpacked(message: torch.Tensor, pieces: Sequence[Piece], dtype: torch.dtype) -> list[torch.Tensor]:
    """The pieces in a message, in its memory, each of the shape of its box."""
    made, first = [], FIELD_BYTES
    for piece in pieces:
        last = first + piece.box.numel * dtype.itemsize
        made.append(message[first:last].view(dtype).view(piece.box.shape))
        first = last
    return made


def put(tensors: Sequence[torch.Tensor], pieces: Sequence[Piece], parts: Sequence[torch.Tensor]) -> None:
    """Write the elements of `pieces`, which are `parts`, to where they belong in the tensors of their bucket."""
    for piece, part in zip(pieces, parts, strict=True):
        tensors[piece.tensor].view(piece.shape)[piece.box.slices].copy_(part)
