"""Activation recomputation: each layer keeps its input and computes the rest again in the backward pass.

transformers' own checkpointing acts in training mode only, and policies are in evaluation mode (dropout would make the
update off-policy); so layers are wrapped here. A switch turns it on and off between steps: kinds of round differ.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.checkpoint import checkpoint


class Recompute:
    """Whether the layers of a model compute their activations again."""

    def __init__(self, model: torch.nn.Module, on: bool) -> None:
        self.on = on
        for layer in transformer_layers(model):
            self._wrap(layer)

    def _wrap(self, layer: Any) -> None:
        # The forward within the module's call: FSDP's hooks, which gather the weights, then run around both passes.
        forward = layer.forward

        def again(*arguments: Any, **keywords: Any) -> Any:
            if not (self.on and torch.is_grad_enabled()):
                return forward(*arguments, **keywords)
            # Nothing random happens in evaluation mode, so the generator's state need not be kept.
            return checkpoint(forward, *arguments, use_reentrant=False, preserve_rng_state=False, **keywords)

        layer.forward = again


def transformer_layers(model: Any) -> list[torch.nn.Module]:
    """The model's transformer layers, in order: of the classes that transformers says must not be split."""
    blocks = set(model._no_split_modules or ())
    # FSDP makes a subclass of each module's class.
    return [m for m in model.modules() if blocks & {cls.__name__ for cls in type(m).__mro__}]
