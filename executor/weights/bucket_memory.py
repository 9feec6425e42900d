"""Memory of two buckets that processes share while weights travel: of a node's host, or of one GPU.

On a host it is a file without a name (memfd), which others open through its owner's /proc: containers keep /dev/shm
small, and this is gone with the last process that has it. On a GPU it is opened by a CUDA IPC handle, which is for one
process and names the device by its maker's number of it (torch's reductions.py).
"""

from __future__ import annotations

import functools
import math
import mmap
import os
import pickle
import uuid
import weakref
from collections.abc import Iterable
from pathlib import Path

import psutil
import torch

from .bucket_plan import ALIGNMENT, Bucket, Slices, TensorSource

SLOTS = 2
"""Buckets in the memory: while engines load one, the next one arrives."""

DEVICE_INDEX = 6
"""Which of the arguments of torch's `rebuild_cuda_tensor` is the number of the device."""

HOST = torch.device("cpu")

Part = tuple[TensorSource, Slices, torch.Tensor]
"""A tensor of a bucket, where in it the values belong, the values in any shape."""


class TransferBroken(RuntimeError):
    """The transfer did not come to its end; what was received of it must not be used. It may be tried again."""


def device_key(device: torch.device) -> str:
    """UUID of a GPU, the same in all processes; "" of a CPU."""
    return str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else ""


class BucketMemory:
    """Room for SLOTS buckets of up to `bucket_bytes` bytes on `device`.

    `handle`: of the memory to open; None: it is made. Raises TransferBroken if there is no room, or it is gone.
    """

    def __init__(self, bucket_bytes: int, device: torch.device = HOST, handle: str | None = None) -> None:
        self._stride = -(-max(bucket_bytes, 1) // ALIGNMENT) * ALIGNMENT
        self._device, self.nbytes = device, SLOTS * self._stride
        try:
            self._bytes = self._on_host(handle) if device.type == "cpu" else self._on_gpu(handle)
        except (OSError, AttributeError, RuntimeError) as error:  # memfd is Linux's; torch's "out of memory"
            what = "taken" if handle is None else "opened"
            raise TransferBroken(f"{self.nbytes / 1e6:.0f} MB of {device} could not be {what}: {error}") from error

    def _on_host(self, handle: str | None) -> torch.Tensor:
        if handle is None:
            # What is asked for is taken at once, from everybody on the machine, so it is looked at before.
            available = psutil.virtual_memory().available
            if 2 * self.nbytes > available:
                raise OSError(f"{available / 1e6:.0f} MB are available, of which half may be taken")
            self._name = f"rlplan-weights-{uuid.uuid4().hex}"
            self._file = os.memfd_create(self._name)
        else:
            path, self._name = handle.split(" ")
            if self._name not in str(Path(path).readlink()):
                raise OSError("the process that made it has ended or closed it")
            self._file = os.open(path, os.O_RDWR)
        weakref.finalize(self, os.close, self._file)
        os.posix_fallocate(self._file, 0, self.nbytes)  # now, and not by a signal when a page is written
        return torch.frombuffer(mmap.mmap(self._file, self.nbytes), dtype=torch.uint8)

    def _on_gpu(self, handle: str | None) -> torch.Tensor:
        if handle is None:
            return torch.empty(self.nbytes, dtype=torch.uint8, device=self._device)
        from torch.multiprocessing.reductions import rebuild_cuda_tensor

        arguments = list(pickle.loads(bytes.fromhex(handle)))
        arguments[DEVICE_INDEX] = torch.cuda.current_device() if self._device.index is None else self._device.index
        opened: torch.Tensor = rebuild_cuda_tensor(*arguments)
        return opened

    def handle(self) -> str:
        """What one other process needs to open this memory. Raises TransferBroken if the driver gives no handle."""
        if self._device.type == "cpu":
            return f"/proc/{os.getpid()}/fd/{self._file} {self._name}"
        from torch.multiprocessing.reductions import reduce_tensor

        try:
            return pickle.dumps(reduce_tensor(self._bytes)[1]).hex()
        except RuntimeError as error:
            raise TransferBroken(f"no CUDA IPC handle on {self._device}: {error}") from error

    def bucket(self, number: int, nbytes: int) -> torch.Tensor:
        """The bytes of bucket `number` of a transfer, `nbytes` of them."""
        start = self._stride * (number % SLOTS)
        return self._bytes[start : start + nbytes]

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor lies in this memory."""
        return 0 <= tensor.data_ptr() - self._bytes.data_ptr() < self.nbytes


@functools.lru_cache(maxsize=1)  # to map the same memory anew for each transfer takes a while
def shared_memory(bucket_bytes: int, handle: str) -> BucketMemory:
    """The memory of this node with that handle. Raises TransferBroken as BucketMemory does."""
    return BucketMemory(bucket_bytes, handle=handle)


def tensors_in(room: torch.Tensor, bucket: Bucket, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """The tensors of a bucket by name, in the bytes that it has in memory."""
    found = {}
    for source, offset in zip(bucket.sources, bucket.offsets, strict=True):
        values = room[offset : offset + math.prod(source.shape) * dtype.itemsize].view(dtype)
        found[source.name] = values.view(source.shape)
    return found


def put(room: torch.Tensor, bucket: Bucket, dtype: torch.dtype, parts: Iterable[Part]) -> None:
    """Write parts of a bucket's tensors into its room."""
    tensors = tensors_in(room, bucket, dtype)
    for source, place, values in parts:
        target = tensors[source.name].view(source.box.shape)[place]
        target.copy_(values.view(target.shape))
