"""The layout of slots: how versions and the tensors of buckets lie in a run of bytes, on a host or a device.

A slot begins with a field for each trainer rank, in which stands the version of the bytes that this rank put into the
slot; then comes a bucket.
"""

from __future__ import annotations

import math
import mmap

import torch

from ..transfer.bucket_plan import Bucket

FIELD_BYTES = 256
"""Room for a version, in UTF-8, filled up with zero bytes."""


class SlotMemory:
    """`slots` slots for buckets of up to `bucket_bytes` bytes, of `ranks` trainer ranks.

    Subclasses set `_bytes`, uint8, `nbytes` long.
    """

    copies = True
    """Whether readers must copy tensors before they give a slot back, as these share one storage."""

    _bytes: torch.Tensor

    def __init__(self, slots: int, bucket_bytes: int, ranks: int) -> None:
        self._head = FIELD_BYTES * ranks
        page = mmap.PAGESIZE
        self._stride = -(-(self._head + bucket_bytes) // page) * page
        self._slots = slots
        self.nbytes = self._stride * slots

    def write_version(self, number: int, rank: int, version: bytes) -> None:
        """Write the version of what `rank` puts into the slot of bucket `number` (counted over all transfers)."""
        start = self._start(number) + FIELD_BYTES * rank
        self._bytes[start : start + FIELD_BYTES] = torch.frombuffer(bytearray(version), dtype=torch.uint8)

    def version(self, number: int, rank: int) -> str:
        """The version of the bytes of `rank` in the slot of bucket `number`."""
        start = self._start(number) + FIELD_BYTES * rank
        return bytes(self._bytes[start : start + FIELD_BYTES].tolist()).rstrip(b"\0").decode(errors="replace")

    def tensors(self, number: int, bucket: Bucket, dtype: str) -> list[torch.Tensor]:
        """The tensors of a bucket in its slot, in the slot's memory."""
        start, kind = self._start(number) + self._head, getattr(torch, dtype)
        made = []
        for tensor in bucket.tensors:
            first = start + tensor.offset
            made.append(self._values(self._bytes[first : first + math.prod(tensor.shape) * kind.itemsize], kind))
            made[-1] = self._shaped(made[-1], tensor.shape)
        return made

    def _values(self, raw: torch.Tensor, kind: torch.dtype) -> torch.Tensor:
        return raw.view(kind)

    def _shaped(self, values: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
        return values.view(shape)

    def settle(self) -> None:
        """Wait until what this thread has begun to write or copy is done; call it before the ring is told."""

    def _start(self, number: int) -> int:
        return self._stride * (number % self._slots)


def version_field(version: str) -> bytes:
    """A version as it stands in a slot. Raises ValueError if it is longer than a field."""
    field = version.encode()
    if len(field) > FIELD_BYTES:
        raise ValueError(f"version {version[:40]!r}… has {len(field)} bytes; it may have {FIELD_BYTES}")
    return field.ljust(FIELD_BYTES, b"\0")
