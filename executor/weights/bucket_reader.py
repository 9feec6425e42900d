"""An engine rank as it receives weights, bucket by bucket, and hands them to vLLM; and its engine's word on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch

from .bucket_memory import HOST, BucketMemory, TransferBroken, device_key, put, shared_memory, tensors_in
from .checksum import tensor_checksum
from .transfer import Answer, BroadcastGroup, Transfer

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
    """One engine rank's part in transfers, on `device`. What breaks a transfer is returned as text."""

    def __init__(self, device: torch.device = HOST) -> None:
        self._device = device
        self._transfer: Transfer | None = None
        self._memory: BucketMemory | None = None
        self._group: BroadcastGroup | None = None
        self._load: Load | None = None
        self._sums: dict[str, str] = {}

    def begin(self, text: str, node: str, load: Load) -> str | None:
        """Begin to receive a transfer (`Transfer.text`) on `node`, whose tensors `load` gives to vLLM."""
        transfer = Transfer.of(text)
        self._transfer, self._load, self._sums = transfer, load, {}
        try:
            handle = transfer.places[node if transfer.slots == "host" else device_key(self._device)]
            if transfer.slots == "nccl":
                self._memory = BucketMemory(transfer.largest, self._device)
                if self._group is None or self._group.name != transfer.group:
                    self._group = BroadcastGroup(transfer, int(handle), self._device)
            elif transfer.slots == "ipc":
                self._memory = BucketMemory(transfer.largest, self._device, handle)
            else:
                self._memory = shared_memory(transfer.largest, handle)
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


def fill(memory: BucketMemory, transfer: Transfer, index: int, ranks: Iterable[Any]) -> Answer:
    """Write what trainer ranks on other nodes sent of bucket `index` into the memory of this node."""
    bucket = transfer.buckets[index]
    for parts in ranks:
        put(memory.bucket(index, bucket.nbytes), bucket, getattr(torch, transfer.dtype), parts)
    return Answer()
