"""How a model's layers run: their activations kept or computed again in the backward pass, compiled or as they are.

transformers' own checkpointing acts in training mode only, and policies are in evaluation mode (dropout would make the
update off-policy); so layers are wrapped here. Switches turn both on and off between steps: kinds of round differ.

Layers are compiled one by one, as torchtitan does: they are alike, so one is compiled for all, and FSDP gathers weights
around each. The number of tokens is a variable of what is compiled: rows of other lengths use it as well.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint


class LayerForwards:
    """The switches: `recompute`: activations are computed again; `compiled`: layers run compiled."""

    def __init__(self, model: torch.nn.Module, recompute: bool) -> None:
        self.recompute, self.compiled = recompute, False
        for layer in transformer_layers(model):
            self._wrap(layer)

    def _wrap(self, layer: Any) -> None:
        # The forward within the module's call: FSDP's hooks, which gather the weights, then run around both passes.
        plain: Callable[..., Any] = layer.forward
        compiled: list[Callable[..., Any]] = []

        def run(*arguments: Any, **keywords: Any) -> Any:
            if self.compiled and not compiled:
                compiled.append(torch.compile(plain, dynamic=True))
            forward = compiled[0] if self.compiled else plain
            if not (self.recompute and torch.is_grad_enabled()):
                return forward(*arguments, **keywords)
            # Nothing random happens in evaluation mode, so the generator's state need not be kept.
            return checkpoint(forward, *arguments, use_reentrant=False, preserve_rng_state=False, **keywords)

        layer.forward = run


def transformer_layers(model: Any) -> list[torch.nn.Module]:
    """The model's transformer layers, in order: of the classes that transformers says must not be split."""
    blocks = set(model._no_split_modules or ())
    # FSDP makes a subclass of each module's class.
    return [m for m in model.modules() if blocks & {cls.__name__ for cls in type(m).__mro__}]
