"""A model's shape from its config.json, against the models that transformers makes of it."""

import warnings

import pytest

from rlplan.plans.facts.model_shape import architecture_from_config
from rlplan.plans.facts.public_models import word_set

LLAMA = {
    "model_type": "llama", "num_hidden_layers": 8, "hidden_size": 512, "num_attention_heads": 8,
    "num_key_value_heads": 2, "intermediate_size": 1024, "vocab_size": 1000,
}  # fmt: skip
FAMILIES = sorted(
    word_set(
        "apertus arcee cohere cohere2 cwm deepseek_v2 deepseek_v3 ernie4_5 ernie4_5_moe exaone4 falcon "
        "flex_olmo gemma gemma2 gemma3_text glm4 glm4_moe gpt2 gpt_neox gpt_oss granite llama llama4_text "
        "minimax_m2 mistral mixtral olmo2 olmo3 olmoe phi phi3 phimoe qwen2 qwen2_moe qwen3 qwen3_moe "
        "seed_oss smollm3 stablelm starcoder2"
    )
)


@pytest.mark.parametrize("family", FAMILIES)
def test_parameters_are_those_of_the_model_that_transformers_makes(family):
    """Of the family's default sizes, from the config as it is saved: without what is the family's default."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = CONFIG_MAPPING[family]()
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
    saved = config.to_diff_dict() | {"model_type": family}
    saved["num_experts_per_tok"] = saved.get("num_experts_per_tok") or 2  # DeepSeek-V2's default is none
    found = architecture_from_config(saved)
    assert found.parameters == pytest.approx(sum(p.numel() for p in model.parameters()), rel=0.01)
    assert not found.guessed
    windows = [kind for kind in getattr(config, "layer_types", None) or [] if kind != "full_attention"]
    assert found.window_layers in (len(windows), 0 if len(windows) == config.num_hidden_layers else len(windows))


@pytest.mark.parametrize(
    ("keys", "found"),
    [
        ({}, {"tied": False, "head_dim": 64, "kv_heads": 2}),
        ({"model_type": "gemma"}, {"tied": True, "head_dim": 256}),
        ({"model_type": "qwen3"}, {"head_dim": 128}),
        ({"model_type": "qwen3", "head_dim": None}, {"head_dim": 64}),
        ({"model_type": "starcoder2", "tie_word_embeddings": False}, {"tied": False, "gated": False}),
        ({"model_type": "mistral", "sliding_window": 128}, {"window_layers": 0}),
        ({"model_type": "qwen2", "sliding_window": 128, "use_sliding_window": False}, {"window_layers": 0}),
        ({"model_type": "qwen2", "sliding_window": 128, "use_sliding_window": True, "max_window_layers": 6},
         {"window_layers": 2, "window_tokens": 128}),
        ({"model_type": "gemma3_text", "sliding_window": 128}, {"window_layers": 7}),
        ({"layer_types": ["sliding_attention"] * 3 + ["full_attention"] * 5, "sliding_window": 9},
         {"window_layers": 3}),
        ({"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2},
         {"experts": 4, "expert_intermediate": 1024, "intermediate": 0, "active_experts": 2}),
        ({"model_type": "qwen2_moe", "num_experts": 4, "moe_intermediate_size": 96, "decoder_sparse_step": 2,
          "mlp_only_layers": [7], "shared_expert_intermediate_size": 200, "num_experts_per_tok": 1},
         {"dense_layers": 5, "intermediate": 1024, "shared_intermediate": 200, "expert_intermediate": 96}),
        ({"model_type": "ernie4_5_moe", "moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 96,
          "moe_num_shared_experts": 2, "moe_layer_start_index": 1},
         {"experts": 4, "active_experts": 2, "shared_intermediate": 192, "dense_layers": 1}),
        ({"model_type": "hunyuan_v1_moe", "num_experts": 4, "moe_topk": [2] * 8, "moe_intermediate_size": [96] * 8,
          "num_shared_expert": [1] * 8}, {"active_experts": 2, "shared_intermediate": 96}),
        ({"model_type": "granitemoeshared", "num_local_experts": 4, "shared_intermediate_size": 300, "moe_topk": 2},
         {"shared_intermediate": 300, "expert_intermediate": 1024}),
        ({"model_type": "deepseek_v3", "kv_lora_rank": 64, "q_lora_rank": None, "qk_rope_head_dim": 16,
          "qk_nope_head_dim": 32, "v_head_dim": 48}, {"latent_kv": 80, "latent_q": 0, "head_dim": 32, "value_dim": 48}),
    ],
)  # fmt: skip
def test_what_a_config_leaves_out_is_as_its_family_has_it(keys, found):
    a = architecture_from_config({**LLAMA, **keys})
    assert {name: getattr(a, name) for name in found} == found
    assert not a.guessed


def test_a_multimodal_model_has_its_language_models_heads():
    vision = {"model_type": "siglip_vision_model", "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 128}
    whole = {"model_type": "gemma3", "num_attention_heads": 3, "text_config": LLAMA, "vision_config": vision}
    a, text = architecture_from_config(whole), architecture_from_config(LLAMA)
    assert (a.heads, a.common_parameters) == (8, text.common_parameters)
    assert a.parameters - text.parameters == a.tower == 2 * (4 * 64**2 + 2 * 64 * 128) + 64 * (64 + 512)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"layer_types": ["linear_attention"] * 6 + ["full_attention"] * 2}, "states layer_types linear_attention"),
        ({"model_type": "nemotron_h", "hybrid_override_pattern": "M-M*"}, "states hybrid_override_pattern"),
        ({"block_configs": [{"attention": {}}]}, "states block_configs"),
        ({"attn_type_list": [0, 1, 0, 1]}, "states attn_type_list"),
        ({"hidden_size": None, "vocab_size": "many"}, "states no hidden_size, vocab_size"),
        ({"num_attention_heads": [8, 4]}, "states no num_attention_heads"),
        ({"num_experts": 8}, "states no num_experts_per_tok"),
        ({"num_hidden_layers": 8.0}, "states no num_hidden_layers that is a whole number above 0"),
        ({"num_key_value_heads": 3}, "states 8 heads, which 3 of keys and values cannot serve evenly"),
    ],
)
def test_layers_that_differ_are_refused_by_the_key_that_says_so(keys, words):
    with pytest.raises(ValueError, match=words):
        architecture_from_config({**LLAMA, **keys})


def test_a_family_that_is_not_known_is_a_guess():
    for kind in ("novel", None):
        assert architecture_from_config({**LLAMA, "model_type": kind}).guessed
