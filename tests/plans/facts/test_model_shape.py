"""The shape of a model: from the config.json of its folder, else from the table of public models."""

import json

import pytest

from rlplan.plans.facts.model_shape import ModelShape, shape_from_config, shape_of, shape_of_job, tp_divides
from rlplan.plans.facts.public_models import ARCHITECTURES, FAMILIES
from rlplan.plans.schema.job import load_job

MOE = {"model_type": "qwen3_moe", "num_attention_heads": 32, "num_key_value_heads": 4, "vocab_size": 64}
TEXT = {"model_type": "llama", "num_attention_heads": 8, "vocab_size": 64, "intermediate_size": 32}


@pytest.mark.parametrize(
    ("config", "heads"),
    [
        ({"num_attention_heads": 8, "num_key_value_heads": 2}, (8, 2)),
        ({"num_attention_heads": 8}, (8, 8)),
        ({"num_attention_heads": 8, "num_key_value_heads": None}, (8, 8)),
        ({"n_head": 12}, (12, 12)),
        ({"text_config": {"num_attention_heads": 16, "num_key_value_heads": 4}, "num_attention_heads": 3}, (16, 4)),
        ({"num_attention_heads": "8"}, None),
        ({"d_state": 16}, None),
    ],
)
def test_heads_come_from_the_models_config(tmp_path, config, heads):
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = shape_of(tmp_path)
    assert (None if found is None else (found.heads, found.kv_heads)) == heads


@pytest.mark.parametrize("experts", ["num_experts", "num_local_experts", "n_routed_experts"])
def test_a_mixture_of_experts_has_the_width_of_one_expert(experts):
    sparse = {**MOE, experts: 128, "intermediate_size": 6144, "moe_intermediate_size": 768}
    assert shape_from_config(sparse) == ModelShape("qwen3_moe", 32, 4, vocab=64, intermediate=768, experts=128)
    mixtral = {**MOE, experts: 8, "intermediate_size": 14336}
    assert shape_from_config(mixtral) == ModelShape("qwen3_moe", 32, 4, vocab=64, intermediate=14336, experts=8)
    # A multimodal model is of the family of the whole.
    found = shape_from_config({"model_type": "llava", "text_config": TEXT})
    assert found == ModelShape("llava", 8, 8, vocab=64, intermediate=32, experts=0)


@pytest.mark.parametrize(
    ("name", "family", "heads", "experts"),
    [
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", "qwen3_moe", (32, 4), 128),
        ("../models/DeepSeek-R1-Distill-Llama-3.1-8B/", "llama", (32, 8), 0),
    ],
)
def test_a_model_that_is_not_here_is_known_by_its_name(name, family, heads, experts):
    found = shape_of(name)
    assert (found.family, (found.heads, found.kv_heads), found.experts) == (family, heads, experts)
    assert shape_of("acme/Private-7B") is None, "a shape is not guessed from the sizes in a name"


def test_each_public_model_has_a_family():
    assert FAMILIES.keys() == {row.name for row in ARCHITECTURES} and len(FAMILIES) == len(ARCHITECTURES)
    assert FAMILIES["Qwen3-30B-A3B"] == FAMILIES["Qwen3-235B-A22B"] == "qwen3_moe"
    assert FAMILIES["Qwen3-4B"] == FAMILIES["Qwen3-32B"] == "qwen3"


def test_a_jobs_folder_counts_and_not_the_name_it_has(folder):
    path, local = folder.path("job.yaml"), folder.root / "Qwen2.5-7B"
    folder.edit("job.yaml", "path: model,", "path: Qwen2.5-7B,")
    assert shape_of_job(load_job(path), path) == shape_of("Qwen/Qwen2.5-7B")
    local.mkdir()
    (local / "config.json").write_text(json.dumps({"model_type": "llama", "num_attention_heads": 6}))
    assert shape_of_job(load_job(path), path) == ModelShape("llama", 6, 6, None, None, 0)


@pytest.mark.parametrize(("tp", "divides"), [(1, True), (2, True), (3, False), (4, True), (8, False), (14, True)])
def test_engines_may_hold_key_value_heads_twice(tp, divides):
    assert tp_divides(tp, ModelShape("qwen2", 28, 2, None, None, 0)) is divides
