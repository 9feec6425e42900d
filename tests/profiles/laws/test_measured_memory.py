"""Memory of a trainer rank as it is computed, against what torch allocates for real models on a CPU."""

import gc

import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config

from rlplan.executor.trainer.optimizer import BUCKET_ELEMENTS
from rlplan.executor.trainer.policy.attention import VARLEN, PackedSequences
from rlplan.executor.trainer.policy.chunked_head import BLOCK_ELEMENTS, CHUNK_ROWS, ChunkedHead
from rlplan.executor.trainer.policy.load_policy import LayerForwards, load_policy
from rlplan.executor.trainer.policy.rank_mesh import join
from rlplan.plans.facts.model_shape import architecture_from_config
from rlplan.plans.schema.levers import UpdateLayout
from rlplan.profiles.laws.rank_memory import (
    BUCKET_PARAMETERS,
    LOGIT_BLOCK,
    LOGIT_CHUNK_TOKENS,
    MOMENT_BYTES,
    layer_parameters,
    rank_parameters,
    rank_peak_bytes,
    token_bytes,
    train_memory,
)

FAMILIES = {"qwen2": Qwen2Config, "qwen3": Qwen3Config, "llama": LlamaConfig}
search = pytest.mark.search


def config(family, **changes):
    sizes = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2}
    sizes |= {"head_dim": 32, "intermediate_size": 768, "vocab_size": 4096, "tie_word_embeddings": False}
    made = FAMILIES[family](**(sizes | changes))
    made._attn_implementation = VARLEN
    return made


def allocated(work):
    """(peak, end) of the bytes that torch allocates on the CPU while `work` runs, beyond those at its start."""
    gc.collect()
    gc.disable()  # a tensor of before that goes meanwhile would be counted as freed
    try:
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
            work()
    finally:
        gc.enable()
    events = [e for e in profiled.profiler.kineto_results.events() if e.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak, held


class Policy:
    """A model with packed rows, the executor's head, and perhaps layers that are computed again."""

    def __init__(self, family, tokens, recompute=False, dtype=torch.float32, **changes):
        self.config = config(family, **changes)
        self.model = AutoModelForCausalLM.from_config(self.config, dtype=dtype).eval()
        self.head = ChunkedHead(self.model, temperature=1.0)
        self.ids = torch.randint(0, self.config.vocab_size, (1, tokens))
        self.lengths = (tokens // 2, tokens // 4, tokens - tokens // 2 - tokens // 4)
        self.positions = torch.cat([torch.arange(length) for length in self.lengths])[None]
        for layer in self.model.model.layers if recompute else ():
            layer.forward = _again(layer.forward)
        self.architecture = architecture_from_config(self.config.to_dict())

    def hidden(self):
        return self.model.model(
            input_ids=self.ids,
            position_ids=self.positions,
            use_cache=False,
            packed=PackedSequences.of(self.lengths, torch.device("cpu")),
        )[0][0]

    def loss(self):
        self.head.expect(self.ids[0])
        return -self.model.lm_head(self.hidden()[None])[0, :, 0].sum()


def _again(forward):
    return lambda *given, **named: checkpoint(forward, *given, use_reentrant=False, **named)


@pytest.mark.parametrize(
    ("family", "dtype"),
    [
        ("qwen2", torch.float32),
        ("qwen3", torch.bfloat16),
        *(pytest.param(f, d, marks=search) for f in FAMILIES for d in (torch.float32, torch.bfloat16)),
    ],
)
def test_a_layer_keeps_as_many_bytes_of_a_token_as_are_counted(family, dtype):
    tokens, kept = 64, []
    for layers in (1, 3):
        policy = Policy(family, tokens, dtype=dtype, num_hidden_layers=layers, vocab_size=64)
        states = []
        kept.append(allocated(lambda p=policy, s=states: s.append(p.hidden()))[1])
    counted = token_bytes(policy.architecture, 1, 4 if dtype == torch.float32 else 2)
    assert (kept[1] - kept[0]) / 2 / tokens == pytest.approx(counted.layer, rel=1e-3)


CASES = [
    ("qwen3", 1024, {}),
    ("llama", 512, {"intermediate_size": 2048, "num_hidden_layers": 6}),
    ("qwen2", 3072, {"num_hidden_layers": 2, "vocab_size": 512}),
    ("qwen2", 256, {"vocab_size": 16384}),
]


@pytest.mark.parametrize(
    ("family", "tokens", "changes", "recompute"),
    [
        (*CASES[3], "none"),
        (*CASES[3], "full"),
        *(pytest.param(*case, recompute, marks=search) for case in CASES[:3] for recompute in ("none", "full")),
    ],
)
def test_the_peak_of_an_update_is_predicted_within_a_tenth(family, tokens, changes, recompute):
    policy = Policy(family, tokens, recompute == "full", **changes)
    optimizer = torch.optim.AdamW(policy.model.parameters(), lr=1e-3, fused=True)

    def update():
        policy.loss().backward()
        torch.nn.utils.clip_grad_norm_(policy.model.parameters(), 1.0)
        optimizer.step()

    update()
    parameters = sum(p.numel() for p in policy.model.parameters())
    # Weights, gradients of an earlier micro-batch and moments are there at the start.
    measured = 16 * parameters + allocated(update)[0]
    layout = UpdateLayout(dp=1, micro_batch_tokens=tokens, recompute=recompute)
    assert rank_peak_bytes(policy.architecture, layout, "float32", "cpu") == pytest.approx(measured, rel=0.1)
    # Offloaded moments have no other place on this CPU; the device that is predicted has none of them.
    offloaded = rank_peak_bytes(policy.architecture, layout.model_copy(update={"offload": True}), "float32", "cpu")
    assert offloaded == pytest.approx(measured - 8 * parameters, rel=0.1)
    assert MOMENT_BYTES * rank_parameters(policy.architecture, layout) == pytest.approx(8 * parameters, rel=2e-3)


def test_the_output_matrix_stays_whole_until_the_last_layer_went_backward(tmp_path):
    made = config("qwen2")
    AutoModelForCausalLM.from_config(made).save_pretrained(tmp_path)
    cpu, seen = torch.device("cpu"), {}
    mesh = join(0, 1, 1, 1, cpu, None)
    try:
        policy = load_policy(str(tmp_path), "bfloat16", cpu, mesh)
        LayerForwards(policy, recompute=True)

        def look(*_):  # in the first layer's second forward, which is part of its backward pass
            if policy.lm_head.weight.grad is not None:
                seen["weight"] = policy.lm_head.weight.untyped_storage().size()
                seen["gradient"] = policy.lm_head.weight.grad.nbytes

        policy.model.layers[0].input_layernorm.register_forward_pre_hook(look)
        ids, positions = torch.randint(0, made.vocab_size, (1, 64)), torch.arange(64)[None]
        packed = PackedSequences.of((64,), cpu)
        policy(input_ids=ids, position_ids=positions, use_cache=False, packed=packed).logits.sum().backward()
    finally:
        torch.distributed.destroy_process_group()
    matrix = 2 * made.vocab_size * made.hidden_size
    assert seen == {"weight": matrix, "gradient": matrix}
    a = architecture_from_config(made.to_dict())
    held = train_memory(a, UpdateLayout(dp=1, micro_batch_tokens=64, recompute="full")).moments
    layer = layer_parameters(a)
    backward, last = held["backward"], held["embedding"]
    # Beside it: this layer and the embedding, which is gathered ahead; the layer's gradient, and the last one's sum.
    assert backward["trainer_gathered_weights"] == pytest.approx(2 * matrix + 2 * layer)
    assert backward["trainer_unsharded_gradients"] == pytest.approx(matrix + (2 + 4) * layer)
    assert last["trainer_unsharded_gradients"] == pytest.approx(2 * matrix + 4 * layer)


def test_chunks_and_buckets_that_are_counted_are_the_executors():
    assert (LOGIT_CHUNK_TOKENS, LOGIT_BLOCK, BUCKET_PARAMETERS) == (CHUNK_ROWS, BLOCK_ELEMENTS, BUCKET_ELEMENTS)


def test_a_configuration_that_states_no_width_is_refused_by_name():
    with pytest.raises(ValueError, match="states no hidden_size, vocab_size"):
        architecture_from_config({"num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 8}, "c.json")
