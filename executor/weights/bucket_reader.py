"""An engine rank as it receives weights, bucket by bucket, and hands them to vLLM; and its engine's word on them."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch

from .bucket_memory import HOST, BucketMemory, device_key, shared_memory, tensors_in
from .transfer import Transfer, answered, tensor_checksum

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
    """The part of rank `rank` of an engine in transfers, on `device`."""

    def __init__(self, rank: int = 0, device: torch.device = HOST) -> None:
        self._rank, self._device = rank, device
        self._transfer: Transfer | None = None
        self._memory: BucketMemory | None = None
        self._place = 0
        self._load: Load | None = None
        self._sums: dict[str, str] = {}

    @answered
    def begin(self, text: str, engine: str, load: Load) -> None:
        """Begin to receive a transfer (`Transfer.text`) in this engine, whose tensors `load` gives to vLLM."""
        transfer: Transfer = pickle.loads(bytes.fromhex(text))
        self._transfer, self._load, self._sums = transfer, load, {}
        if transfer.slots == "host":
            self._memory = shared_memory(transfer.largest, transfer.meeting)
        else:
            handle = transfer.handles[device_key(self._device)] if transfer.slots == "ipc" else None
            self._memory = BucketMemory(transfer.largest, self._device, handle)
        if transfer.slots == "nccl":
            self._place = 1 + transfer.members.index(engine) + self._rank

    @answered
    def load(self, index: int) -> None:
        """Load bucket `index`."""
        assert self._transfer and self._memory and self._load, "begin() comes first"
        bucket, dtype = self._transfer.buckets[index], getattr(torch, self._transfer.dtype)
        room = self._memory.bucket(index, bucket.nbytes)
        if self._transfer.slots == "nccl":
            self._transfer.broadcast(room, self._place, self._device)
        names = [source.name for source in bucket.sources]
        tensors = dict(zip(names, tensors_in(room, bucket, dtype), strict=True))
        if self._transfer.checked:
            self._sums |= {name: tensor_checksum(tensor) for name, tensor in tensors.items()}
        self._load(tensors.items(), self._memory)
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def finish(self) -> RankAnswer:
        """End the transfer: all of it is loaded."""
        assert self._transfer is not None, "begin() comes first"
        answer = RankAnswer(self._transfer.version, self._sums)
        self._transfer = self._memory = None
        return answer
