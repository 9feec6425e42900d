"""Norms over parameters that are sharded in different ways: over all ranks, some of them, or not at all."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import Replicate

from ..policy.local_tensors import local


def total_norm(tensors: Iterable[torch.Tensor], ranks: int) -> torch.Tensor:
    """Euclidean norm over all elements of all tensors, each element once; equal on all `ranks` (collective).

    torch's own clip_grad_norm_ cannot mix tensors of several meshes, which tensor parallelism leaves: norms' weights
    are cut by FSDP only. Each rank adds the squares of what it holds, divided by the ranks that hold the same.
    """
    by_copies: dict[int, list[torch.Tensor]] = {}
    for tensor in tensors:
        by_copies.setdefault(_copies(tensor, ranks), []).append(local(tensor))
    device = next(iter(by_copies.values()))[0].device
    squares = torch.zeros((), dtype=torch.float64, device=device)
    for copies, group in sorted(by_copies.items()):
        norms = torch.stack(torch._foreach_norm([tensor.detach() for tensor in group]))
        squares += norms.double().square().sum() / copies
    if ranks > 1:
        dist.all_reduce(squares)
    return squares.sqrt()


def clip(gradients: Iterable[torch.Tensor], norm: torch.Tensor, max_norm: float) -> float:
    """Scale gradients of the total norm `norm` down to `max_norm`, where they are above it. Returns by what."""
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0).float()
    torch._foreach_mul_([local(gradient) for gradient in gradients], factor)
    return factor.item()


def _copies(tensor: torch.Tensor, ranks: int) -> int:
    """Ranks that hold the same elements as this one."""
    if not isinstance(tensor, DTensor):
        return ranks
    parts = 1
    for size, placement in zip(tensor.device_mesh.shape, tensor.placements, strict=True):
        parts *= 1 if isinstance(placement, Replicate) else size
    return ranks // parts
