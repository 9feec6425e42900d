"""What a rank holds of a tensor, and memory of the host for copies of it."""

from __future__ import annotations

import contextlib
import mmap

import torch
from torch.distributed.tensor import DTensor


def local(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank holds of a tensor, in the same memory."""
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """The full tensor of a sharded one (collective)."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def cut_as(tensor: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """`values`, this rank's part of a tensor that is cut over ranks as `tensor` is; it may lie on another device."""
    return DTensor(values, tensor._spec, requires_grad=False) if isinstance(tensor, DTensor) else values


def host_zeros(like: torch.Tensor, device: torch.device | None = None) -> torch.Tensor:
    """Zeros in host memory, of the shape and type of `like`.

    If `device`, by default that of `like`, is a GPU, the memory is page-locked, to which a GPU copies several times as
    fast; where the system refuses to lock it, it is usable all the same. Keep the tensor until the process ends: locked
    memory may not be freed. It is registered here, where it lies, since torch's own allocator of page-locked memory
    rounds each size up to a power of two.
    """
    device = device or like.device
    if device.type != "cuda" or like.numel() == 0:
        return torch.zeros(like.shape, dtype=like.dtype)
    # Pages of its own: two registrations must not share one.
    memory = mmap.mmap(-1, like.nbytes)
    tensor = torch.frombuffer(memory, dtype=like.dtype).view(like.shape)
    if int(torch.cuda.cudart().cudaHostRegister(tensor.data_ptr(), tensor.nbytes, 0)) != 0:
        # CUDA reports a failed call once more at the next launch of a kernel: let it be this one.
        with contextlib.suppress(RuntimeError):
            torch.zeros((), device=device)
    return tensor
