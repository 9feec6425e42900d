"""Gradients that no backward pass sums over all ranks; they are summed once, after the last micro-batch of a step.

Of parameters that tensor-parallel ranks hold whole while each sees a share of the heads, norms of heads, transformers
(5.19) sums gradients over the ranks in a hook of every backward pass, and sums what has accumulated: with several
micro-batches the earlier ones would be summed again. So the hook is taken off.

Where there are copies of the states, FSDP sums gradients over the ranks of a copy alone, whose own mesh it has. FSDP's
hybrid sharding would sum them over copies in the step's last micro-batch, which is not known: groups are streamed, and
what was streamed last may have been the last. Copies stay equal to the bit, as an all-reduce gives the same to all.
"""

from __future__ import annotations

import re
from typing import Any

import torch
import torch.distributed as dist

from .local_tensors import local
from .rank_mesh import RankMesh

PARTIAL = "replicated_with_grad_allreduce"  # transformers' name in a model's `tp_plan`


class PartialGradients:
    """The parameters of a model whose gradients are partial on each tensor-parallel rank, or in each copy."""

    def __init__(self, model: Any, mesh: RankMesh) -> None:
        self._model, self._group, self._copies = model, mesh.tensor_group, mesh.copies_group
        self._modules: list[torch.nn.Module] = []
        if self._group is None:
            return
        plan = model.tp_plan or {}
        patterns = [re.escape(name).replace(r"\*", r"\d+") for name, style in plan.items() if style == PARTIAL]
        for name, module in model.named_modules():
            if any(re.fullmatch(rf"(.+\.)?{pattern}", name) for pattern in patterns):
                module._backward_hooks.clear()
                self._modules.append(module)

    def sum(self) -> None:
        """Add up the gradients of this step over copies and tensor-parallel ranks (collective)."""
        if self._copies is not None:
            for parameter in self._model.parameters():
                dist.all_reduce(local(parameter.grad), group=self._copies)
        parts = [local(p.grad) for module in self._modules for p in module.parameters() if p.grad is not None]
        if not parts:
            return
        whole = torch.cat([part.flatten() for part in parts])
        dist.all_reduce(whole, group=self._group)
        for part, total in zip(parts, whole.split([part.numel() for part in parts]), strict=True):
            part.copy_(total.view_as(part))
