"""A trainer rank's part in transfers of weights: which of the checkpoint's tensors its parameters are, and how it
writes what it holds of them where engines load it.

With slots `host` a rank writes its pieces into memory of the node: no collective. Else the ranks that hold the model
once all-gather a bucket in one collective; those that share a GPU with an engine rank keep it in memory that this one
opens (`ipc`), or rank 0 broadcasts it to the engine ranks (`nccl`).
"""

from __future__ import annotations

import math
import socket
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard
from transformers.core_model_loading import revert_weight_conversion

from ..processes.host import node_address, node_key
from ..weights.bucket_memory import HOST, BucketMemory, Part, device_key, put, shared_memory
from ..weights.bucket_plan import Box, Bucket, Share, TensorSource, chunk, copies_of, cuts_of, whole_box
from ..weights.transfer import DOWN_SUFFIX, UP_SUFFIX, Holdings, SlotsName, Transfer, answered, tensor_checksum
from .policy.adapters import DOWN, Adapters, base_parameters, trained_parameters
from .policy.local_tensors import local, whole

PROBE = 2  # elements of the last dimension with which the conversion of names is probed


def held_box(tensor: torch.Tensor) -> Box:
    """The part of a tensor that this rank holds, of a sharded tensor or a whole one. Raises ValueError if no box is."""
    box = whole_box(tensor.shape)
    if not isinstance(tensor, DTensor):
        return box
    mesh, placements = tensor.device_mesh, tensor.placements
    coordinates = mesh.get_coordinate()
    assert coordinates is not None, "a rank has parameters of its own mesh only"
    cuts: list[tuple[int, Any]] = [(i, p) for i, p in enumerate(placements) if not isinstance(p, Replicate)]
    # What FSDP cuts it cuts after tensor parallelism has, though its dimension of the mesh comes first.
    strided = [(i, placement) for i, placement in cuts if isinstance(placement, _StridedShard)]
    for i, placement in cuts:
        before = math.prod(mesh.size(j) for j, other in cuts if j > i and other.dim == placement.dim)
        if not isinstance(placement, Shard | _StridedShard) or getattr(placement, "split_factor", before) != before:
            raise ValueError(f"a rank holds a tensor as {placements}, which is no one block of it")
    for i, placement in [cut for cut in cuts if cut not in strided] + strided[::-1]:
        box = chunk(box, placement.dim % len(box.shape), mesh.size(i), coordinates[i])
    if tuple(local(tensor).shape) != box.shape:
        raise ValueError(f"a rank holds {tuple(local(tensor).shape)} of a tensor that it should hold {box.shape} of")
    return box


def checkpoint_sources(model: Any) -> tuple[TensorSource, ...]:
    """The checkpoint's tensors as boxes of the model's parameters, in the order of the parameters.

    transformers keeps the weights of a layer's experts in one parameter, and tells of its inverse only what it does to
    tensors. So it is given tensors that hold the numbers of their own elements, with few elements in the last
    dimension, which it leaves alone. Raises ValueError if what comes out is no box of one parameter, or not all of it.
    """
    shapes = {name: tuple(parameter.shape) for name, parameter in base_parameters(model).items()}
    probes: dict[str, torch.Tensor] = {}
    begins: list[tuple[int, str]] = []
    end = 0
    for name, shape in shapes.items():
        small = (*shape[:-1], min(shape[-1], PROBE)) if len(shape) > 1 else shape
        probes[name] = torch.arange(end, end + math.prod(small), dtype=torch.int64).view(small)
        begins.append((end, name))
        end += math.prod(small)
    sources = []
    for name, numbers in revert_weight_conversion(model, dict(probes)).items():
        first = int(numbers.reshape(-1)[0]) if numbers.numel() else -1
        start, parameter = max(entry for entry in begins if entry[0] <= max(first, 0))
        sources.append((first, _source(name, numbers, first - start, parameter, probes[parameter], shapes)))
    left = {name: math.prod(shape) for name, shape in shapes.items()}
    for _, source in sources:
        left[source.parameter] -= math.prod(source.shape)
    if lost := next((name for name, elements in left.items() if elements), None):
        raise ValueError(f"the checkpoint's tensors hold other elements than parameter {lost}")
    return tuple(source for _, source in sorted(sources, key=lambda entry: entry[0]))


def _source(
    name: str, numbers: torch.Tensor, first: int, parameter: str, probe: torch.Tensor, shapes: Mapping[str, Any]
) -> TensorSource:
    shape = shapes[parameter]
    offset = []
    for stride in probe.stride():
        offset.append(first // stride)
        first %= stride
    missing = len(shape) - numbers.ndim
    small = ((1,) * missing) + tuple(numbers.shape) if missing >= 0 else ()
    fits = missing >= 0 and (len(shape) <= 1 or (small[-1] == probe.shape[-1] and offset[-1] == 0))
    if not fits or not torch.equal(probe[Box(tuple(offset), small).slices].reshape(numbers.shape), numbers):
        raise ValueError(f"the checkpoint's {name} is no block of the trainer's {parameter}")
    full = Box(tuple(offset), (*small[:-1], shape[-1]) if len(shape) > 1 else small)
    return TensorSource(name, full.shape[missing:], parameter, full)


def adapter_sources(model: Any) -> tuple[TensorSource, ...]:
    """The tensors of a model's adapters, by the names of the checkpoint's tensors that they belong to, as peft names
    them. Raises ValueError if one of them belongs to no single tensor."""
    whole_of = {
        source.parameter: source.name
        for source in checkpoint_sources(model)
        if source.name.endswith(".weight") and source.box == whole_box(source.shape)
    }
    sources = []
    for name, parameter in trained_parameters(model).items():
        stem, _, kind = name.rpartition(".")
        if (weight := whole_of.get(f"{stem}.weight")) is None:
            raise ValueError(f"the adapter of {stem} belongs to no one tensor of the checkpoint")
        suffix = DOWN_SUFFIX if kind == DOWN else UP_SUFFIX
        shape = tuple(parameter.shape)
        sources.append(TensorSource(weight.removesuffix(".weight") + suffix, shape, name, whole_box(shape)))
    return tuple(sources)


class RankTransfers:
    """The transfers of rank `rank`, which holds its part of `model` on `device`; `dtype` is that of the job.

    With `adapters` what travels is the model with these added, in the job's dtype, or they alone, in float32.
    """

    def __init__(
        self, model: Any, rank: int, dtype: str, device: torch.device = HOST, adapters: Adapters | None = None
    ) -> None:
        self._model, self._rank, self._device = model, rank, device
        alone = adapters is not None and adapters.lora.sent == "adapter"
        self._adapters = None if alone else adapters
        self._scale = adapters.lora.scale if adapters is not None and alone else None
        self._dtype = "float32" if alone else dtype
        self._sources = adapter_sources if alone else checkpoint_sources
        self._parameters: Mapping[str, torch.nn.Parameter] = (
            trained_parameters(model) if alone else base_parameters(model)
        )
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
        sources, own, obstacle = tuple[TensorSource, ...](), dict[str, Box](), None
        try:
            own = {name: held_box(parameter.detach()) for name, parameter in self._parameters.items()}
            sources = self._sources(self._model) if self._rank == 0 else ()
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
        here = node_key(), device_key(self._device)
        return Holdings(*here, self._dtype, sources, elements, obstacle, self._scale)

    def checksums(self) -> dict[str, str]:
        """The checksum of each tensor as it travels, on rank 0; else {} (collective)."""
        sums = dict[str, str]()
        sources = self._sources(self._model) if self._rank == 0 else ()
        for name, parameter in self._parameters.items():
            values = whole(parameter.detach())
            if self._adapters is not None and self._rank == 0:
                values = self._adapters.merged(name, values)
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
        if self._store is None:  # it listens on the cluster's interface alone
            listener = socket.create_server((node_address(), 0))
            port = listener.getsockname()[1]
            self._store = TCPStore(node_address(), port, None, True, master_listen_fd=listener.detach())
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

    def _held(self, source: TensorSource, share: Share) -> torch.Tensor:
        part = local(self._parameters[source.parameter].detach())[share[0]]
        if self._adapters is None:
            return part
        offset = held_box(self._parameters[source.parameter].detach()).offset
        place = tuple(slice(at + s.start, at + s.stop) for at, s in zip(offset, share[0], strict=True))
        return self._adapters.merged(source.parameter, part, place)

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
