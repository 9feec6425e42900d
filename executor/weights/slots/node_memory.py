"""Memory that all processes of one node share while weights travel: slots, each of which holds one bucket.

It is a file without a name (memfd), which the others open through its owner's /proc: it needs no room in /dev/shm,
which containers keep small, and it is gone with the last process that has it, however that ends. A slot begins with a
field for each trainer rank, in which stands the version of the bytes that this rank put into the slot.
"""

from __future__ import annotations

import math
import mmap
import os

import psutil
import torch

from ..transfer.bucket_plan import Bucket
from ..transfer.message_board import TransferBroken

FIELD_BYTES = 256
"""Room for a version, in UTF-8, filled up with zero bytes."""

MOST_OF_AVAILABLE = 0.5
"""Share of a machine's available memory that the slots may take."""


class NodeMemory:
    """`slots` slots for buckets of up to `bucket_bytes` bytes, of `ranks` trainer ranks.

    `path` is that of the memory to attach to; None: it is made. Raises TransferBroken if there is no room for it, or it
    cannot be opened.
    """

    def __init__(self, slots: int, bucket_bytes: int, ranks: int, path: str | None = None) -> None:
        self._ranks = ranks
        self._head = FIELD_BYTES * ranks
        page = mmap.PAGESIZE
        self._stride = -(-(self._head + bucket_bytes) // page) * page
        self._slots = slots
        size = self._stride * slots
        try:
            if path is None:
                # What is asked for is taken at once, from everybody on the machine, so it is looked at before.
                available = psutil.virtual_memory().available
                if size > MOST_OF_AVAILABLE * available:
                    raise OSError(f"{available / 1e6:.0f} MB are available, of which half may be taken")
                self._file = os.memfd_create("rlplan-weights")
                os.posix_fallocate(self._file, 0, size)  # now, and not by a signal when a page is written
                self.path = f"/proc/{os.getpid()}/fd/{self._file}"
            else:
                self._file = os.open(path, os.O_RDWR)
                self.path = path
            if os.fstat(self._file).st_size != size:
                raise OSError(f"{os.fstat(self._file).st_size} bytes instead of {size}")
            self._bytes = torch.frombuffer(mmap.mmap(self._file, size), dtype=torch.uint8)
        except (OSError, AttributeError) as error:  # memfd is Linux's
            raise TransferBroken(f"no shared memory of {size / 1e6:.0f} MB on this node: {error}") from error

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            os.close(self._file)

    def write_version(self, number: int, rank: int, version: bytes) -> None:
        """Write the version of what `rank` puts into the slot of bucket `number` (counted over all transfers)."""
        start = self._start(number) + FIELD_BYTES * rank
        self._bytes[start : start + FIELD_BYTES] = torch.frombuffer(bytearray(version), dtype=torch.uint8)

    def version(self, number: int, rank: int) -> str:
        """The version of the bytes of `rank` in the slot of bucket `number`."""
        start = self._start(number) + FIELD_BYTES * rank
        return bytes(self._bytes[start : start + FIELD_BYTES].tolist()).rstrip(b"\0").decode(errors="replace")

    def tensors(self, number: int, bucket: Bucket, dtype: str) -> list[torch.Tensor]:
        """The tensors of a bucket in its slot, in the shared memory, each with a storage of its own."""
        start, kind = self._start(number) + self._head, getattr(torch, dtype)
        made = []
        for tensor in bucket.tensors:
            count = math.prod(tensor.shape)
            values = torch.empty(0, dtype=kind)
            if count:
                first = start + tensor.offset
                raw = self._bytes[first : first + count * kind.itemsize]
                values = torch.frombuffer(raw.numpy(), dtype=kind)
            # In place: a view would keep the tensor that it is of.
            made.append(values.resize_(tensor.shape))
        return made

    def _start(self, number: int) -> int:
        return self._stride * (number % self._slots)


def version_field(version: str) -> bytes:
    """A version as it stands in a slot. Raises ValueError if it is longer than a field."""
    field = version.encode()
    if len(field) > FIELD_BYTES:
        raise ValueError(f"version {version[:40]!r}… has {len(field)} bytes; it may have {FIELD_BYTES}")
    return field.ljust(FIELD_BYTES, b"\0")
