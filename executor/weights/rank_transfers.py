"""A trainer rank's part in transfers of weights: it writes what it holds where engines load it.

With slots `host` a rank writes its pieces into memory of the node: no collective. Else the ranks that hold the model
once all-gather a bucket in one collective; those that share a GPU with an engine rank keep it in memory that this one
opens (`ipc`), or rank 0 broadcasts it to the engine ranks (`nccl`).
"""

from __future__ import annotations

import math
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

from ..host import node_address, node_key
from ..trainer.policy.held_parameters import checkpoint_sources, held_box
from ..trainer.policy.local_tensors import local, whole
from .bucket_memory import HOST, BucketMemory, Part, device_key, put, shared_memory
from .bucket_plan import Box, Bucket, Share, Source, copies_of, cuts_of
from .transfer import Holdings, SlotsName, Transfer, answered, tensor_checksum


class RankTransfers:
    """The transfers of rank `rank`, which holds its part of `model` on `device`; `dtype` is that of the job."""

    def __init__(self, model: Any, rank: int, dtype: str, device: torch.device = HOST) -> None:
        self._model, self._rank, self._dtype, self._device = model, rank, dtype, device
        self._parameters: Mapping[str, torch.nn.Parameter] = dict(model.named_parameters())
        self._transfer: Transfer | None = None
        self._memory: BucketMemory | None = None
        self._shared: BucketMemory | None = None
        self._store: TCPStore | None = None
        self._first: dict[str, Box] = {}
        """What this rank is the first to hold of parameters."""
        self._members: list[dict[str, Box]] = []
        """What the ranks hold with which this one gathers, as few as hold the model once; it is number `_place`."""
        self._place = 0
        self._gathering: dist.ProcessGroup | None = None
        self._own = self._all = torch.empty(0)
        self._cut: tuple[Bucket, ...] = ()
        self._cuts: list[list[dict[int, Share]]] = []
        """How the ranks that gather hold each bucket of `_cut`."""

    def holdings(self) -> Holdings:
        """What this rank holds of the model, and where it runs (collective)."""
        sources, own, obstacle = tuple[Source, ...](), dict[str, Box](), None
        try:
            own = {name: held_box(parameter.detach()) for name, parameter in self._parameters.items()}
            sources = checkpoint_sources(self._model) if self._rank == 0 else ()
        except ValueError as error:
            obstacle = str(error)
        if not self._members:
            ranks, me = [own], 0
            if dist.is_initialized() and dist.get_world_size() > 1:
                ranks, me = [own] * dist.get_world_size(), self._rank
                dist.all_gather_object(ranks, own)
            self._first = {name: box for name, box in own.items() if all(of.get(name) != box for of in ranks[:me])}
            size = copies_of(ranks)
            if size < len(ranks):
                self._gathering, _ = dist.new_subgroups(size)
            self._members, self._place = ranks[me // size * size :][:size], me % size
        elements = sum(math.prod(box.shape) for box in self._first.values())
        return Holdings(node_key(), device_key(self._device), self._dtype, sources, elements, obstacle)

    def checksums(self) -> dict[str, str]:
        """The checksum of each of the checkpoint's tensors in the job's dtype, on rank 0; else {} (collective)."""
        sums = dict[str, str]()
        sources = checkpoint_sources(self._model) if self._rank == 0 else ()
        for name, parameter in self._parameters.items():
            values = whole(parameter.detach())
            for source in sources:
                if source.parameter == name:
                    part = values[source.box.slices].to("cpu", getattr(torch, self._dtype))
                    sums[source.name] = tensor_checksum(part.reshape(source.shape))
        return sums

    @answered
    def meet(self, slots: SlotsName, bucket_bytes: int) -> str:
        """Have rank 0 make what all parties need of slots `host` and `nccl`; returns `Transfer.meeting`."""
        if self._rank > 0:
            return ""
        if slots == "host":
            self._shared = BucketMemory(bucket_bytes)
            return self._shared.handle()
        self._store = self._store or TCPStore(node_address(), 0, None, True)
        return f"{self._store.host}:{self._store.port}/{uuid.uuid4().hex}"

    @answered
    def begin(self, transfer: Transfer) -> tuple[str, dict[str, str]]:
        """Take part in a transfer; returns the version that it will send, and by its GPU the handle of memory that an
        engine rank opens there."""
        self.end()
        self._transfer, handles = transfer, dict[str, str]()
        if transfer.slots == "host":
            self._memory = shared_memory(transfer.largest, transfer.meeting)
            return transfer.version, handles
        if self._cut != transfer.buckets:
            self._cut, self._cuts = transfer.buckets, [cuts_of(each, self._members) for each in transfer.buckets]
        # All memory is taken now: a rank that finds none later would leave the others in a collective.
        if transfer.slots == "nccl" and self._rank == 0:
            self._memory = BucketMemory(transfer.largest, self._device)
        elif (device := device_key(self._device)) in transfer.handles:
            self._memory = BucketMemory(transfer.largest, self._device)
            handles[device] = self._memory.handle()
        room, dtype = max(map(_room, self._cuts)), getattr(torch, transfer.dtype)
        self._own = torch.zeros(room, dtype=dtype, device=self._device)
        self._all = torch.empty(room * len(self._members), dtype=dtype, device=self._device)
        return transfer.version, handles

    @answered
    @torch.no_grad()
    def send(self, index: int) -> None:
        """Write this rank's pieces of bucket `index`; collective but with slots `host`."""
        assert self._transfer is not None, "begin() comes first"
        bucket, dtype = self._transfer.buckets[index], getattr(torch, self._transfer.dtype)
        room = None if self._memory is None else self._memory.bucket(index, bucket.nbytes)
        parts = self._own_parts(bucket) if self._transfer.slots == "host" else self._gathered(bucket, self._cuts[index])
        if room is not None:
            put(room, bucket, dtype, parts)
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)
            if self._transfer.slots == "nccl":
                self._transfer.broadcast(room, 0, self._device, self._store)

    def end(self) -> None:
        """Give back what a transfer took on the device: training needs the room."""
        self._transfer = self._memory = None
        self._own = self._all = torch.empty(0)
        if self._device.type == "cuda":
            torch.cuda.ipc_collect()  # what engines have closed

    def _held(self, source: Source, share: Share) -> torch.Tensor:
        return local(self._parameters[source.parameter].detach())[share[0]]

    def _own_parts(self, bucket: Bucket) -> Iterator[Part]:
        """What this rank is the first to hold of a bucket."""
        for source, shares in zip(bucket.sources, cuts_of(bucket, [self._first]), strict=True):
            for share in shares.values():
                yield source, share[1], self._held(source, share)

    def _gathered(self, bucket: Bucket, cuts: list[dict[int, Share]]) -> Iterator[Part]:
        """All of a bucket: one collective, to which each rank gives as many elements as the one with most has."""
        size, members, end = _room(cuts), len(self._members), 0
        own, every = self._own[:size], self._all[: members * size]
        for source, shares in zip(bucket.sources, cuts, strict=True):
            if (share := shares.get(self._place)) is not None:
                part = self._held(source, share)
                own[end : end + share[2]].view(part.shape).copy_(part)
                end += share[2]
        if members > 1:
            dist.all_gather_into_tensor(every, own, self._gathering)
        return _parts_in((every if members > 1 else own).view(members, size), bucket, cuts)


def _room(cuts: list[dict[int, Share]]) -> int:
    """Elements of the rank that holds most of a bucket."""
    held = Counter[int]()
    for shares in cuts:
        held.update({rank: numel for rank, (_, _, numel) in shares.items()})
    return max(held.values())


def _parts_in(gathered: torch.Tensor, bucket: Bucket, cuts: list[dict[int, Share]]) -> Iterator[Part]:
    ends = [0] * len(gathered)
    for source, shares in zip(bucket.sources, cuts, strict=True):
        for rank, (_, place, numel) in shares.items():
            yield source, place, gathered[rank, ends[rank] : ends[rank] + numel]
            ends[rank] += numel
