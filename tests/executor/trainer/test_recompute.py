"""Layers compute their activations again in the backward pass: only while that is on, and only where gradients are."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
import transformers

from rlplan.executor.trainer.policy.recompute import Recompute, transformer_layers


def test_layers_compute_again_while_it_is_on_and_gradients_are_taken():
    torch.manual_seed(0)
    sizes = {"vocab_size": 11, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 2}
    config = transformers.LlamaConfig(**sizes, num_attention_heads=2, num_key_value_heads=2)
    model = transformers.LlamaForCausalLM(config).eval()
    passes = []
    for layer in transformer_layers(model):
        layer.mlp.register_forward_pre_hook(lambda *_: passes.append(1))
    recompute = Recompute(model, True)

    def gradients():
        passes.clear()
        model.zero_grad()
        model(torch.arange(5)[None]).logits.square().sum().backward()
        return [parameter.grad.clone() for parameter in model.parameters()]

    again = gradients()
    assert len(passes) == 4, "each of the two layers, forward and once more for its backward pass"
    recompute.on = False
    kept = gradients()
    assert len(passes) == 2 and all(map(torch.equal, kept, again))
    recompute.on = True
    passes.clear()
    with torch.no_grad():
        model(torch.arange(5)[None])
    assert len(passes) == 2
