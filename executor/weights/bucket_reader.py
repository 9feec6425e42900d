"""An engine rank as it receives weights, bucket by bucket, and hands them to vLLM; and its engine's word on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch

from .bucket_memory import HOST, BucketMemory, TransferBroken, device_key, shared_memory, tensors_in
from .checksum import tensor_checksum
from .transfer import BroadcastGroup, Transfer

Load = Callable[[Iterable[tuple[str, torch.Tensor]], BucketMemory], None]
"""Loads tensors that lie in some memory, of which nothing is used any more afterwards."""


class RankAnswer(NamedTuple):
    """What an engine rank tells of weights that it received: their version, and checksums if asked for."""

    version: str
    sums: dict[str, str]


def agreed(engine: str, answers: Sequence[RankAnswer], version: str, source: str) -> dict[str, str]:
    """The checksums of what all ranks of an engine received from `source`. Raises RuntimeError if a rank received
    another version, or ranks received different weights."""
    for answer in answers:
        if answer.version != version:
            raise RuntimeError(f"{engine}: {source} holds weights {answer.version!r}, not {version!r}")
    if any(answer.sums != answers[0].sums for answer in answers[1:]):
        raise RuntimeError(f"{engine}: ranks received different weights from {source}")
    return answers[0].sums


class BucketReader:
    """The part of rank `rank` of an engine in transfers, on `device`. What breaks a transfer is returned as text."""

    def __init__(self, rank: int = 0, device: torch.device = HOST) -> None:
        self._rank, self._device = rank, device
        self._transfer: Transfer | None = None
        self._memory: BucketMemory | None = None
        self._group: BroadcastGroup | None = None
        self._load: Load | None = None
        self._sums: dict[str, str] = {}

    def begin(self, text: str, engine: str, load: Load) -> str | None:
        """Begin to receive a transfer (`Transfer.text`) in this engine, whose tensors `load` gives to vLLM."""
        transfer = Transfer.of(text)
        self._transfer, self._load, self._sums = transfer, load, {}
        try:
            if transfer.slots == "host":
                self._memory = shared_memory(transfer.largest, transfer.meeting)
            elif transfer.slots == "ipc":
                handle = transfer.handles[device_key(self._device)]
                self._memory = BucketMemory(transfer.largest, self._device, handle)
            else:
                self._memory = BucketMemory(transfer.largest, self._device)
                if self._group is None or self._group.meeting != transfer.meeting:
                    place = 1 + transfer.members.index(engine) + self._rank
                    self._group = BroadcastGroup(transfer, place, self._device)
        except TransferBroken as broken:
            return str(broken)
        return None

    def load(self, index: int) -> str | None:
        """Load bucket `index`."""
        assert self._transfer and self._memory and self._load, "begin() comes first"
        bucket, dtype = self._transfer.buckets[index], getattr(torch, self._transfer.dtype)
        room = self._memory.bucket(index, bucket.nbytes)
        try:
            if self._transfer.slots == "nccl" and self._group is not None:
                self._group.broadcast(room)
        except TransferBroken as broken:
            self._group = None
            return str(broken)
        names = [source.name for source in bucket.sources]
        tensors = dict(zip(names, tensors_in(room, bucket, dtype), strict=True))
        if self._transfer.checked:
            self._sums |= {name: tensor_checksum(tensor) for name, tensor in tensors.items()}
        self._load(tensors.items(), self._memory)
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return None

    def finish(self) -> RankAnswer:
        """End the transfer: all of it is loaded."""
        assert self._transfer is not None, "begin() comes first"
        answer = RankAnswer(self._transfer.version, self._sums)
        self._transfer = self._memory = None
        return answer
