"""Layers compute their activations again in the backward pass: only while that is on, and only where gradients are."""

import pytest
import torch
import transformers

from rlplan.executor.trainer.policy.attention import VARLEN, PackedSequences
from rlplan.executor.trainer.policy.load_policy import LayerForwards, transformer_layers


def test_layers_compute_again_while_it_is_on_and_gradients_are_taken():
    torch.manual_seed(0)
    sizes = {"vocab_size": 11, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 2}
    config = transformers.LlamaConfig(**sizes, num_attention_heads=2, num_key_value_heads=2)
    model = transformers.LlamaForCausalLM(config).eval()
    passes = []
    for layer in transformer_layers(model):
        layer.mlp.register_forward_pre_hook(lambda *_: passes.append(1))
    layers = LayerForwards(model, recompute=True)

    def gradients():
        passes.clear()
        model.zero_grad()
        model(torch.arange(5)[None]).logits.square().sum().backward()
        return [parameter.grad.clone() for parameter in model.parameters()]

    again = gradients()
    assert len(passes) == 4, "each of the two layers, forward and once more for its backward pass"
    layers.recompute = False
    kept = gradients()
    assert len(passes) == 2 and all(map(torch.equal, kept, again))
    layers.recompute = True
    passes.clear()
    with torch.no_grad():
        model(torch.arange(5)[None])
    assert len(passes) == 2


@pytest.fixture
def graphs(monkeypatch):
    """What was compiled; torch traces as ever, and runs the traced operations as they are."""
    found, compile_ = [], torch.compile
    torch._dynamo.reset()  # other tests compile the same layers, and torch compiles one function so many times only

    def backend(graph, _inputs):
        found.append(graph)
        return graph.forward

    monkeypatch.setattr(torch, "compile", lambda f, **options: compile_(f, **options, backend=backend))
    return found


@pytest.mark.parametrize("recompute", [False, True])
def test_compiled_layers_give_the_same_gradients_for_rows_of_all_lengths(graphs, recompute):
    torch.manual_seed(0)
    sizes = {"vocab_size": 11, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 3}
    config = transformers.Qwen2Config(**sizes, num_attention_heads=2, num_key_value_heads=1)
    config._attn_implementation = VARLEN
    model = transformers.Qwen2ForCausalLM(config).eval()
    layers = LayerForwards(model, recompute)

    def gradients(lengths):
        model.zero_grad()
        ids, positions = torch.arange(sum(lengths)) % 11, torch.cat([torch.arange(length) for length in lengths])
        packed = PackedSequences.of(lengths, torch.device("cpu"))
        logits = model(input_ids=ids[None], position_ids=positions[None], use_cache=False, packed=packed).logits
        logits.square().sum().backward()
        return [parameter.grad.clone() for parameter in model.parameters()]

    made = []
    for lengths in ((3, 4), (9,), (2, 5, 1, 8)):
        layers.compiled = False
        plain = gradients(lengths)
        layers.compiled = True
        for found, expected in zip(gradients(lengths), plain, strict=True):
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
        made.append(len(graphs))
    assert made[0] == made[1] == made[2] > 0, "rows of other lengths are compiled anew"
