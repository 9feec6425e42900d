"""Slots in memory that all processes of one node share while weights travel.

It is a file without a name (memfd), which the others open through its owner's /proc: it needs no room in /dev/shm,
which containers keep small, and it is gone with the last process that has it, however that ends.
"""

from __future__ import annotations

import mmap
import os

import psutil
import torch

from ..transfer.message_board import TransferBroken
from .slot_memory import SlotMemory

MOST_OF_AVAILABLE = 0.5
"""Share of a machine's available memory that the slots may take."""


class NodeMemory(SlotMemory):
    """See SlotMemory. `path` is that of the memory to attach to; None: it is made. Raises TransferBroken if there is no
    room for it, or it cannot be opened.

    Each tensor in it has a storage of its own.
    """

    copies = False

    def __init__(self, slots: int, bucket_bytes: int, ranks: int, path: str | None = None) -> None:
        super().__init__(slots, bucket_bytes, ranks)
        size = self.nbytes
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

    def _values(self, raw: torch.Tensor, kind: torch.dtype) -> torch.Tensor:
        return torch.frombuffer(raw.numpy(), dtype=kind) if len(raw) else torch.empty(0, dtype=kind)

    def _shaped(self, values: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
        # In place: a view would keep the tensor that it is of.
        return values.resize_(shape)
