"""AdamW over a rank's shards of the parameters, with its moments on the device or in host memory.

Each rank updates what it holds, as plain tensors: AdamW is elementwise, so it needs no collective and no knowledge of
how a parameter is cut. Weight decay leaves out norms and biases (parameters of one dimension): pulling them to zero
does not regularise, it changes the scale of what the network computes.

Offloaded moments come to the device a bucket of parameters at a time and go back after the update, so that few of them
are there at once. On a CPU the host is the device, and nothing moves.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.distributed.tensor import DTensor
from torch.optim.adamw import adamw

from ....plans.schema.sections.algorithm import Algorithm
from .gradient_norm import local
from .learning_rate import learning_rate

BUCKET_ELEMENTS = 64 * 1024**2  # elements of parameters whose moments are on the device at once: 512 MB of moments
EPSILON = 1e-8
MOMENTS = ("exp_avg", "exp_avg_sq")


class ShardedAdamW:
    """The optimizer of one rank.

    `updates` counts those that were made; it decides the learning rate and AdamW's bias correction.
    """

    def __init__(self, model: torch.nn.Module, algorithm: Algorithm, device: torch.device, offload: bool) -> None:
        self._algorithm, self._device, self._offloaded = algorithm, device, offload
        self._parameters = dict(model.named_parameters())
        self._moments = {
            name: {moment: self._zeros(local(parameter)) for moment in MOMENTS}
            for name, parameter in self._parameters.items()
        }
        self.updates = 0

    def _zeros(self, like: torch.Tensor) -> torch.Tensor:
        if self._offloaded and self._device.type == "cuda":
            return torch.zeros(like.shape, dtype=like.dtype, pin_memory=True)
        return torch.zeros_like(like, requires_grad=False)

    def step(self, offload: bool) -> float:
        """Update all parameters by their gradients, and drop these; the moments are in host memory afterwards if
        `offload`. Returns the learning rate."""
        self._place(offload)
        rate = learning_rate(self._algorithm, self.updates)
        for bucket in self._buckets():
            self._update(bucket, rate)
        self.updates += 1
        return rate

    def _update(self, names: list[str], rate: float) -> None:
        """AdamW on the parameters `names`, all of which have weight decay or none has."""
        parameters = [local(self._parameters[name].detach()) for name in names]
        gradients = [local(_gradient(self._parameters[name])) for name in names]
        here = {
            moment: [self._moments[name][moment].to(self._device, non_blocking=True) for name in names]
            for moment in MOMENTS
        }
        steps = [torch.tensor(float(self.updates), device=self._device) for _ in names]
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
            lr=rate,
            weight_decay=self._algorithm.weight_decay if self._decays(names[0]) else 0.0,
            eps=EPSILON,
            maximize=False,
        )
        for moment in MOMENTS:
            for name, updated in zip(names, here[moment], strict=True):
                if updated is not self._moments[name][moment]:
                    self._moments[name][moment].copy_(updated, non_blocking=True)

    def _buckets(self) -> Iterator[list[str]]:
        """Names of parameters that are updated together: all that decay or do not; offloaded, as many as a bucket."""
        most = BUCKET_ELEMENTS if self._offloaded else None
        for decays in (True, False):
            bucket: list[str] = []
            elements = 0
            for name, parameter in self._parameters.items():
                size = local(parameter).numel()
                if self._decays(name) is not decays or size == 0:
                    continue
                if bucket and most is not None and elements + size > most:
                    yield bucket
                    bucket, elements = [], 0
                bucket.append(name)
                elements += size
            if bucket:
                yield bucket

    def _decays(self, name: str) -> bool:
        return self._parameters[name].ndim > 1

    def _place(self, offload: bool) -> None:
        """Have the moments in host memory, or on the device."""
        if offload == self._offloaded:
            return
        self._offloaded = offload
        if self._device.type != "cuda":
            return
        for moments in self._moments.values():
            for moment, values in moments.items():
                moments[moment] = values.cpu().pin_memory() if offload else values.to(self._device)

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
            moment: {name: _as(self._parameters[name], moments[moment]) for name, moments in self._moments.items()}
            for moment in MOMENTS
        }


def _gradient(parameter: torch.nn.Parameter) -> torch.Tensor:
    assert parameter.grad is not None, "every parameter has a gradient after a backward"
    return parameter.grad


def _as(parameter: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """`values`, this rank's part of a tensor that is cut as `parameter` is; it may lie on another device."""
    return DTensor(values, parameter._spec, requires_grad=False) if isinstance(parameter, DTensor) else values
