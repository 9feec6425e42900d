"""What follows the gradients: their norm, the learning rate, AdamW over a rank's shards of the parameters, with its
moments on the device or in host memory.

Each rank updates what it holds, as plain tensors: AdamW is elementwise, so it needs no collective and no knowledge of
how a parameter is cut. Weight decay leaves out norms and biases (parameters of one dimension): pulling them to zero
does not regularise, it changes the scale of what the network computes.

Rounds of two kinds train short and long responses in steps of their own, whose gradients differ in size. In the second
moment a larger gradient would divide itself: a token of it would move weights less than one of the other kind, for as
long as the moment forgets within a cycle, and in a run's first steps. So the second moment takes a step's gradient over
what the plan states for its kind (`norm_share`), and the first moment takes it as it is: a token of either moves
weights alike.

Offloaded moments come to the device a bucket of elements at a time and go back after the update, so that few of them
are there at once. On a CPU the host is the device, and nothing moves.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import Replicate
from torch.optim.adamw import adamw

from ...plans.schema.algorithm import Algorithm
from .policy.adapters import trained_parameters
from .policy.local_tensors import cut_as, host_zeros, local


def learning_rate(algorithm: Algorithm, update: int) -> float:
    """Learning rate of update number `update`, counted from 0.

    It rises linearly over `warmup_steps`, its first value being above 0; then it is constant, or falls to
    `final_share` of `learning_rate` over `decay_steps`, linearly or along half a cosine, and stays there.
    """
    peak, schedule = algorithm.learning_rate, algorithm.schedule
    if update < schedule.warmup_steps:
        return peak * (update + 1) / (schedule.warmup_steps + 1)
    if schedule.kind == "constant":
        return peak
    assert schedule.decay_steps is not None, "the schema demands decay_steps"
    done = min((update - schedule.warmup_steps) / schedule.decay_steps, 1.0)
    left = 1.0 - done if schedule.kind == "linear" else (1.0 + math.cos(math.pi * done)) / 2.0
    return peak * (schedule.final_share + (1.0 - schedule.final_share) * left)


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


BUCKET_ELEMENTS = 64 * 1024**2  # elements of parameters whose moments are on the device at once: 512 MB of moments
EPSILON = 1e-8
MOMENTS = ("exp_avg", "exp_avg_sq")


class _Part(NamedTuple):
    """Elements `start` to `stop` of what this rank holds of the parameter `name`, in the order of memory."""

    name: str
    start: int
    stop: int

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """These elements of a tensor of the parameter's shape: all of it, or a flat view."""
        if self.stop - self.start == tensor.numel():
            return tensor
        return tensor.view(-1)[self.start : self.stop]


class ShardedAdamW:
    """The optimizer of one rank.

    `updates` counts those that were made; it decides the learning rate and AdamW's bias correction.
    """

    def __init__(self, model: torch.nn.Module, algorithm: Algorithm, device: torch.device, offload: bool) -> None:
        self._algorithm, self._device, self._offloaded = algorithm, device, offload
        self._parameters = trained_parameters(model)
        # Memory of the host for moments, once it was needed (by parameter and moment); a trainer on a GPU only.
        self._host: dict[tuple[str, str], torch.Tensor] = {}
        self._moments = {name: {moment: self._zeros(name, moment) for moment in MOMENTS} for name in self._parameters}
        self.updates = 0

    def _zeros(self, name: str, moment: str) -> torch.Tensor:
        like = local(self._parameters[name].detach())
        if self._offloaded and self._device.type == "cuda":
            return self._host.setdefault((name, moment), host_zeros(like))
        return torch.zeros_like(like)

    def step(self, norm_share: float = 1.0) -> float:
        """Update all parameters by their gradients, with the moments where they are. Returns the learning rate.

        `norm_share`: expected norm of the gradients over that of a synchronous step. Gradients are not kept.
        """
        rate = learning_rate(self._algorithm, self.updates)
        for bucket in self._buckets():
            self._update(bucket, rate, norm_share)
        self.updates += 1
        return rate

    def _update(self, parts: list[_Part], rate: float, norm_share: float) -> None:
        """AdamW on parts of parameters, all of which have weight decay or none has."""
        parameters = [part.of(local(self._parameters[part.name].detach())) for part in parts]
        gradients = [part.of(local(_gradient(self._parameters[part.name]))) for part in parts]
        held = {moment: [part.of(self._moments[part.name][moment]) for part in parts] for moment in MOMENTS}
        here = {moment: [x.to(self._device, non_blocking=True) for x in held[moment]] for moment in MOMENTS}
        steps = list(torch.full((len(parts),), float(self.updates), device=self._device).unbind())
        # With gradients and first moment over the share, and the rate times it, only the second moment differs.
        if norm_share != 1.0:
            torch._foreach_mul_([*gradients, *here["exp_avg"]], 1.0 / norm_share)
        decay = self._algorithm.weight_decay / norm_share if self._decays(parts[0].name) else 0.0
        adamw(
            parameters,
            gradients,
            here["exp_avg"],
            here["exp_avg_sq"],
            [],
            steps,
            fused=True,
            amsgrad=False,
            beta1=self._algorithm.betas[0],
            beta2=self._algorithm.betas[1],
            lr=rate * norm_share,
            weight_decay=decay,
            eps=EPSILON,
            maximize=False,
        )
        if norm_share != 1.0:
            torch._foreach_mul_(here["exp_avg"], norm_share)
        for moment in MOMENTS:
            for before, updated in zip(held[moment], here[moment], strict=True):
                if updated is not before:
                    before.copy_(updated, non_blocking=True)

    def _buckets(self) -> Iterator[list[_Part]]:
        """Parts of parameters that are updated together: all that decay or do not; offloaded, a bucket of elements."""
        for decays in (True, False):
            names = [name for name in self._parameters if self._decays(name) is decays]
            sizes = {name: size for name in names if (size := local(self._parameters[name]).numel())}
            room = BUCKET_ELEMENTS if self._offloaded else sum(sizes.values())
            bucket: list[_Part] = []
            left = room
            for name, size in sizes.items():
                start = 0
                while start < size:
                    stop = min(size, start + left)
                    bucket.append(_Part(name, start, stop))
                    left -= stop - start
                    start = stop
                    if left == 0:
                        yield bucket
                        bucket, left = [], room
            if bucket:
                yield bucket

    def _decays(self, name: str) -> bool:
        return self._parameters[name].ndim > 1

    def place(self, offload: bool) -> None:
        """Have the moments in host memory (`offload`), or on the device."""
        if offload == self._offloaded:
            return
        self._offloaded = offload
        if self._device.type != "cuda":
            return
        for name, moments in self._moments.items():
            for moment, values in moments.items():
                if not offload:
                    moments[moment] = values.to(self._device)
                    continue
                if (name, moment) not in self._host:
                    self._host[name, moment] = host_zeros(values)
                moments[moment] = self._host[name, moment].copy_(values)

    @property
    def host_bytes(self) -> int:
        """Bytes of moments in host memory; on a CPU, those that would be there on a GPU."""
        tensors = [tensor for moments in self._moments.values() for tensor in moments.values()]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors) if self._offloaded else 0

    def tensors(self) -> Iterator[torch.Tensor]:
        """This rank's part of all moments."""
        for moments in self._moments.values():
            yield from moments.values()

    def state(self) -> dict[str, dict[str, torch.Tensor]]:
        """By moment and parameter name: the moments, laid out as their parameters are, in this rank's memory: loading
        into them loads the optimizer."""
        return {
            moment: {name: cut_as(self._parameters[name], moments[moment]) for name, moments in self._moments.items()}
            for moment in MOMENTS
        }


def _gradient(parameter: torch.nn.Parameter) -> torch.Tensor:
    assert parameter.grad is not None, "every parameter has a gradient after a backward"
    return parameter.grad
