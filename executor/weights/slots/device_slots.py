"""Slots in memory of a device, which another process on the same device may open.

The CUDA part has never been run: no GPU was at hand when it was written. Facts that it rests on, from torch's
reductions.py and vLLM's ipc_engine.py: a handle counts its users, so each is for one process that opens it; it names
the device by the number that it has for who made it, which is another one where CUDA_VISIBLE_DEVICES differs.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import torch

from ..transfer.message_board import TransferBroken
from .node_memory import NodeMemory
from .slot_memory import SlotMemory

_PLAIN, _BYTES = (3, 8, 9, 12, 14), (7, 11, 13)
"""Which of the arguments of torch's `rebuild_cuda_tensor` differ between handles: numbers, and bytes."""


def device_key(device: torch.device) -> str:
    """UUID of a GPU, the same in all processes; "" of a CPU."""
    return str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else ""


def device_slots(device: torch.device, slots: int, bucket_bytes: int, ranks: int) -> SlotMemory:
    """Slots on `device`, which for a CPU are shared memory. Raises TransferBroken if there is no room."""
    if device.type == "cuda":
        return CudaMemory(device, slots, bucket_bytes, ranks)
    return NodeMemory(slots, bucket_bytes, ranks)


def exported(memory: SlotMemory) -> str:
    """What one other process needs to open slots that `device_slots` made."""
    if isinstance(memory, NodeMemory):
        return memory.path
    assert isinstance(memory, CudaMemory), "there are two kinds"
    return memory.handle()


def opened_slots(device: torch.device, slots: int, bucket_bytes: int, ranks: int, handle: str) -> SlotMemory:
    """The slots that another process has made on the same device. Raises TransferBroken if they cannot be opened."""
    if device.type == "cuda":
        return CudaMemory(device, slots, bucket_bytes, ranks, handle)
    return NodeMemory(slots, bucket_bytes, ranks, handle)


class CudaMemory(SlotMemory):
    """See SlotMemory. `handle` is that of the memory to open; None: it is made. Raises TransferBroken."""

    def __init__(
        self, device: torch.device, slots: int, bucket_bytes: int, ranks: int, handle: str | None = None
    ) -> None:
        super().__init__(slots, bucket_bytes, ranks)
        self._device = device
        try:
            if handle is None:
                self._bytes = torch.empty(self.nbytes, dtype=torch.uint8, device=device)
            else:
                from torch.multiprocessing.reductions import rebuild_cuda_tensor

                rebuild: Any = rebuild_cuda_tensor
                index = torch.cuda.current_device() if device.index is None else device.index
                self._bytes = rebuild(*arguments_of(handle, index))
        except RuntimeError as error:  # out of memory too
            what = "taken" if handle is None else "opened"
            raise TransferBroken(f"{self.nbytes / 1e6:.0f} MB of {device} could not be {what}: {error}") from error

    def handle(self) -> str:
        """For one process that opens this memory; raises TransferBroken if the driver gives none."""
        from torch.multiprocessing.reductions import reduce_tensor

        reduce: Any = reduce_tensor
        try:
            _, arguments = reduce(self._bytes)
        except RuntimeError as error:
            raise TransferBroken(f"no CUDA IPC handle on {self._device}: {error}") from error
        return handle_text(arguments)

    def settle(self) -> None:
        """See SlotMemory: what was begun on the stream of this thread."""
        torch.cuda.current_stream(self._device).synchronize()


def handle_text(arguments: Sequence[Any]) -> str:
    """The arguments of torch's `rebuild_cuda_tensor` for a uint8 tensor of one dimension, as text.

    No pickle: who reaches the driver's store could run code by one.
    """
    size = int(arguments[1][0])
    return json.dumps([size, [arguments[i] for i in _PLAIN], [arguments[i].hex() for i in _BYTES]])


def arguments_of(text: str, index: int) -> list[Any]:
    """The arguments that `handle_text` wrote, for a process in which the device has the number `index`."""
    size, plain, raw = json.loads(text)
    storage = torch.storage.TypedStorage
    arguments = [torch.Tensor, (size,), (1,), 0, storage, torch.uint8, index, b"", 0, 0, False, b"", 0, b"", False]
    for place, value in zip(_PLAIN, plain, strict=True):
        arguments[place] = value
    for place, value in zip(_BYTES, raw, strict=True):
        arguments[place] = bytes.fromhex(value)
    return arguments
