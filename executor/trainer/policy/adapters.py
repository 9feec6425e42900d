"""Low-rank adapters (LoRA, arXiv 2106.09685) on a policy whose own weights are frozen: W x becomes W x + s B (A x).

They are parameters `lora_A` and `lora_B` of the linear modules themselves, in float32, so that FSDP, which has cut and
wrapped what was there before, knows nothing of them: each rank has all adapters whole, a percent or so of the model,
and their gradients are summed over all ranks once a step (rank_mesh.PartialGradients). The modules' names stay, and
with them those of the checkpoint's tensors. peft puts modules of its own in place of the linear ones and renames what
is in them, which sharded loading, weight transfers and checkpoints would all have to undo; a test holds that outputs
and gradients are peft's (tests/executor/trainer/test_adapters.py).

A is drawn as peft draws it (Kaiming, a = sqrt 5) and B is zero: the first weights are the model's own.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn import functional

from ....plans.schema.levers import LoraSpec
from ...weights.transfer import adapter_delta

DOWN, UP = "lora_A", "lora_B"
"""Names of a module's adapter: A, [rank, inputs], and B, [outputs, rank]."""


class Adapters:
    """The adapters of `model`, which it has from now on, and whose weights have no gradient any more.

    Construct it on all ranks alike, after the model is sharded. `seed`: of A. Raises ValueError if a name of
    `target_modules` is that of no linear module.
    """

    def __init__(self, model: Any, lora: LoraSpec, device: torch.device, seed: int) -> None:
        self.lora, self._on = lora, True
        self._modules: dict[str, torch.nn.Linear] = {}
        model.requires_grad_(False)
        numbers = torch.Generator().manual_seed(seed)
        head = model.get_output_embeddings()
        for name, module in model.named_modules():
            if (
                isinstance(module, torch.nn.Linear)
                and module is not head
                and name.split(".")[-1] in lora.target_modules
            ):
                self._modules[name] = module
                self._adapt(module, device, numbers)
        found = {name.split(".")[-1] for name in self._modules}
        if not lora.of_all and (lost := [name for name in lora.target_modules if name not in found]):
            raise ValueError(f"model.lora.target_modules names {lost[0]}, and the model has no such linear module")

    def _adapt(self, module: Any, device: torch.device, numbers: torch.Generator) -> None:
        rank, scale, plain = self.lora.rank, self.lora.scale, module.forward
        down = torch.empty(rank, module.in_features)
        torch.nn.init.kaiming_uniform_(down, a=math.sqrt(5), generator=numbers)
        module.register_parameter(DOWN, torch.nn.Parameter(down.to(device)))
        module.register_parameter(UP, torch.nn.Parameter(torch.zeros(module.out_features, rank, device=device)))

        def forward(rows: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = plain(rows)
            if not self._on:
                return result
            narrow = functional.linear(rows, module.lora_A.to(rows.dtype))
            return result + functional.linear(narrow, module.lora_B.to(rows.dtype)) * scale

        module.forward = forward

    @contextlib.contextmanager
    def off(self) -> Iterator[None]:
        """Within the block the model is the one that training began with: what it computes is the reference's."""
        self._on = False
        try:
            yield
        finally:
            self._on = True

    def merged(self, name: str, part: torch.Tensor, place: Any = ...) -> torch.Tensor:
        """A part of the parameter `name`, [outputs, inputs], at the indices `place` of it, with its adapter, in
        float32; as it is where it has none. The product is computed whole: the same bits whoever holds which part."""
        module = self._of(name)
        if module is None:
            return part
        return part.float() + adapter_delta(module.lora_A.detach(), module.lora_B.detach(), self.lora.scale)[place]

    def _of(self, name: str) -> Any:
        stem, _, kind = name.rpartition(".")
        return self._modules.get(stem) if kind == "weight" else None


def base_parameters(model: Any) -> dict[str, torch.nn.Parameter]:
    """The model's own parameters by name, without those of adapters."""
    return {name: each for name, each in model.named_parameters() if name.rpartition(".")[2] not in (DOWN, UP)}


def trained_parameters(model: Any) -> dict[str, torch.nn.Parameter]:
    """The parameters that have gradients, by name: those of adapters, if there are any, else all."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
