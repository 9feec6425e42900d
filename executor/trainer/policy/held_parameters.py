"""What a trainer rank holds of each parameter, and which of the checkpoint's tensors the parameters are."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard
from transformers.core_model_loading import revert_weight_conversion

from ...weights.bucket_plan import Box, Source, chunk, whole_box
from .local_tensors import local

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


def checkpoint_sources(model: Any) -> tuple[Source, ...]:
    """The checkpoint's tensors as boxes of the model's parameters, in the order of the parameters.

    transformers keeps the weights of a layer's experts in one parameter, and tells of its inverse only what it does to
    tensors. So it is given tensors that hold the numbers of their own elements, with few elements in the last
    dimension, which it leaves alone. Raises ValueError if what comes out is no box of one parameter, or not all of it.
    """
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
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
) -> Source:
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
    return Source(name, full.shape[missing:], parameter, full)
