"""What a rank holds of a tensor, memory of the host for copies of it, and parameters that are parked there while
engines have the device, or set aside while a reference's weights stand in for them.

What a parameter holds changes its memory, and the parameter itself stays the same object, as the optimizer and FSDP
refer to it. FSDP2 keeps a second reference to each shard, which its own method renews (`reset_sharded_param`, as
`FSDPModule._apply` does after `model.to`).
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule
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


class ParkedParameters:
    """Moves the parameters of a sharded or a plain model; no rank waits for another one."""

    def __init__(self, model: torch.nn.Module, device: torch.device) -> None:
        self._model, self._device = model, device
        # Page-locked memory may not be freed: it is kept from the first time on (local_tensors.host_zeros).
        self._host: dict[str, torch.Tensor] = {}
        self.on_device = True

    def place(self, on_device: bool) -> int:
        """Have all parameters on the device, or else in host memory; returns the bytes that moved."""
        if on_device == self.on_device:
            return 0
        units = resharded(self._model)
        moved = 0
        for name, parameter in self._model.named_parameters():
            assert parameter.grad is None, "parameters move between updates"
            moved += self._move(name, parameter, on_device)
        for shard in _shards(units):
            shard.reset_sharded_param()
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        self.on_device = on_device
        return moved

    def _move(self, name: str, parameter: torch.nn.Parameter, on_device: bool) -> int:
        held = local(parameter.detach())
        if on_device:
            there = torch.empty_like(held, device=self._device)
        else:
            if name not in self._host:
                self._host[name] = host_zeros(held)
            there = self._host[name]
        there.copy_(held, non_blocking=True)
        _hold(parameter, there)
        return held.nbytes


class ReferenceWeights:
    """The weights that a model has when this is made, frozen, which stand in for its own while `active`.

    They are kept in `dtype`, which they are computed in, on the device or else in page-locked host memory, from where
    each `active` brings a copy. A rank keeps what it holds of the model, whatever is loaded into that later.
    """

    def __init__(self, model: torch.nn.Module, device: torch.device, dtype: torch.dtype, on_device: bool) -> None:
        self._model, self._device, self._on_device = model, device, on_device
        self._weights: dict[str, torch.Tensor] = {}
        for name, parameter in model.named_parameters():
            held = local(parameter.detach()).to(dtype, copy=True)
            self._weights[name] = held if on_device else host_zeros(held, device).copy_(held)

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Have the model compute with these weights, in forwards without a gradient; summed gradients stay."""
        own = {name: local(parameter.detach()) for name, parameter in self._model.named_parameters()}
        here = self._weights
        if not self._on_device:
            here = {name: held.to(self._device, non_blocking=True, copy=True) for name, held in here.items()}
        self._hold(here)
        try:
            yield
        finally:
            self._hold(own)

    def _hold(self, weights: Mapping[str, torch.Tensor]) -> None:
        units = resharded(self._model)
        for name, parameter in self._model.named_parameters():
            _hold(parameter, weights[name])
        for shard in _shards(units):
            shard.reset_sharded_param()


def _hold(parameter: torch.nn.Parameter, values: torch.Tensor) -> None:
    """Have a parameter hold `values` as this rank's part of it."""
    if isinstance(parameter, DTensor):
        parameter._local_tensor = values
    else:
        parameter.data = values


def resharded(model: torch.nn.Module) -> list[FSDPModule]:
    """FSDP2's units, none of which is gathered: a unit that is would come back as it was."""
    units: list[FSDPModule] = [module for module in model.modules() if isinstance(module, FSDPModule)]
    for unit in units:
        unit.reshard()
    return units


def _shards(units: Sequence[FSDPModule]) -> Iterator[Any]:
    """FSDP2's own records of the parameters of its units."""
    for unit in units:
        state: Any = unit._get_fsdp_state()
        # One group of parameters a unit in older versions of torch, several in newer ones.
        groups = getattr(state, "_fsdp_param_groups", None) or [getattr(state, "_fsdp_param_group", None)]
        for group in groups:
            if group is not None:
                yield from group.fsdp_params
