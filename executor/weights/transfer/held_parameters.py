"""What a trainer rank holds of each parameter, and which of the checkpoint's tensors the parameters are."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard
from transformers.core_model_loading import revert_weight_conversion

from ...trainer.policy.local_tensors import local
from .boxes import Box, chunk, whole
from .bucket_plan import Holdings, Source

PROBE = 2  # elements of the last dimension with which the conversion of names is probed


def holdings(model: torch.nn.Module, rank: int, node: str, dtype: str, device: str = "") -> Holdings:
    """What this rank holds of `model`; `dtype` is the job's, `device` the UUID of its GPU ("" on a CPU)."""
    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}
    shapes = {name: tuple(parameter.shape) for name, parameter in parameters.items()}
    try:
        held = {name: held_box(parameter) for name, parameter in parameters.items()}
        sources = checkpoint_sources(model, shapes) if rank == 0 else ()
    except ValueError as error:
        return Holdings(node, dtype, shapes, {}, (), str(error))
    return Holdings(node, dtype, shapes, held, sources, device=device)


def by_parameter(model: torch.nn.Module) -> dict[str, list[Source]]:
    """The checkpoint's tensors by the parameter of `model` that they are part of. Raises ValueError."""
    found: dict[str, list[Source]] = {}
    for source in checkpoint_sources(model, {name: tuple(p.shape) for name, p in model.named_parameters()}):
        found.setdefault(source.parameter, []).append(source)
    return found


def held_box(tensor: torch.Tensor) -> Box:
    """The part of a tensor that this rank holds, of a sharded tensor or a whole one. Raises ValueError if no box is."""
    box = whole(tensor.shape)
    if not isinstance(tensor, DTensor):
        return box
    mesh, placements = tensor.device_mesh, tensor.placements
    coordinates = mesh.get_coordinate()
    assert coordinates is not None, "a rank has parameters of its own mesh only"
    if not all(isinstance(placement, Shard | _StridedShard | Replicate) for placement in placements):
        raise ValueError(f"a rank holds a tensor as {placements}, which is no one block of it")
    cuts: list[tuple[int, Any]] = [(i, p) for i, p in enumerate(placements) if not isinstance(p, Replicate)]
    # What FSDP cuts it cuts after tensor parallelism has, though its dimension of the mesh comes first.
    strided = [(i, placement) for i, placement in cuts if isinstance(placement, _StridedShard)]
    for i, placement in strided:
        before = math.prod(mesh.size(j) for j, other in cuts if j > i and other.dim == placement.dim)
        if placement.split_factor != before:
            raise ValueError(f"a rank holds a tensor as {placements}, which is no one block of it")
    for i, placement in [cut for cut in cuts if cut not in strided] + strided[::-1]:
        box = chunk(box, placement.dim % len(box.shape), mesh.size(i), coordinates[i])
    if tuple(local(tensor).shape) != box.shape:
        raise ValueError(f"a rank holds {tuple(local(tensor).shape)} of a tensor that it should hold {box.shape} of")
    return box


def checkpoint_sources(model: Any, shapes: Mapping[str, tuple[int, ...]]) -> tuple[Source, ...]:
    """The checkpoint's tensors as boxes of the model's parameters, in the order of the parameters.

    transformers keeps the weights of a layer's experts in one parameter, and tells of its inverse only what it does to
    tensors. So it is given tensors that hold the numbers of their own elements, with few elements in the last
    dimension, which it leaves alone. Raises ValueError if what comes out is no box of one parameter.
    """
    probes: dict[str, torch.Tensor] = {}
    begins: list[tuple[int, str]] = []
    end = 0
    for name, shape in shapes.items():
        small = (*shape[:-1], min(shape[-1], PROBE)) if len(shape) > 1 else shape
        size = math.prod(small)
        probes[name] = torch.arange(end, end + size, dtype=torch.int64).view(small)
        begins.append((end, name))
        end += size
    by_name = dict(probes)
    sources = []
    for name, numbers in revert_weight_conversion(model, probes).items():
        first = int(numbers.reshape(-1)[0]) if numbers.numel() else -1
        start, parameter = max(entry for entry in begins if entry[0] <= max(first, 0))
        sources.append((first, _source(name, numbers, first - start, parameter, by_name[parameter], shapes)))
    return tuple(source for _, source in sorted(sources, key=lambda entry: entry[0]))


def _source(
    name: str, numbers: torch.Tensor, first: int, parameter: str, probe: torch.Tensor, shapes: Mapping[str, Any]
) -> Source:
    shape = shapes[parameter]
    offset = []
    for stride in probe.stride():
        offset.append(first // stride)
        first %= stride
    missing = len(shape) - numbers.ndim
    small = ((1,) * missing) + tuple(numbers.shape) if missing >= 0 else ()
    if missing < 0 or (len(shape) > 1 and (small[-1] != probe.shape[-1] or offset[-1] != 0)):
        raise ValueError(f"the checkpoint's {name} is no block of the trainer's {parameter}")
    box = Box(tuple(offset), small)
    if not torch.equal(probe[box.slices].reshape(numbers.shape), numbers):
        raise ValueError(f"the checkpoint's {name} is no block of the trainer's {parameter}")
    full = Box(box.offset, (*small[:-1], shape[-1]) if len(shape) > 1 else small)
    return Source(name, full.shape[missing:], parameter, full)
