"""Which model a name means: exact names, rules over the whole name, guesses that say so; and the local cache."""

import json

import pytest

from rlplan.plans.facts.model_names import architecture_of
from rlplan.plans.facts.model_shape import model_of_job, named_model
from rlplan.plans.facts.public_models import ARCHITECTURES
from rlplan.plans.schema.job import load_job
from rlplan.plans.yaml.errors import InputError

CONFIG = {
    "model_type": "qwen2", "num_hidden_layers": 28, "hidden_size": 1536, "num_attention_heads": 12,
    "num_key_value_heads": 2, "intermediate_size": 8960, "vocab_size": 151936, "tie_word_embeddings": True,
}  # fmt: skip


def test_each_row_is_found_by_its_name_and_variants():
    for row in ARCHITECTURES:
        for name in (row.name, row.name.upper(), f"owner/{row.name}-Instruct", f"/models/{row.name.lower()}/"):
            assert architecture_of(name) == row, name


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("acme/Qwen-32B-RL", "Qwen2.5-32B"),
        ("acme/Qwen3-8B-to-Llama-3.1-8B", "Qwen3-8B"),
        ("acme/Qwen2.5-7B-from-72B", "Qwen2.5-7B"),
        ("acme/Qwen2.5-7B-pruned", "Qwen2.5-7B"),
        ("mistralai/Ministral-3-8B", "Ministral-8B"),
        ("acme/llama-qwen-7b-mix", "Llama-7b"),
        ("acme/foo-8x7b", "Mixtral-8x7B"),
        ("acme/foo-13b", "foo-13b"),
        ("nvidia/Llama-3.1-Minitron-4B-Width-Base", "llama-3.1-minitron-4b-width-base"),
    ],
)
def test_a_name_that_leaves_a_doubt_is_a_guess_that_says_so(name, row):
    found, named = architecture_of(name), named_model(name)
    assert found is not None and (found.name, found.guessed) == (row, True)
    assert named.shape is None, "nothing is divided by what is guessed"
    assert f"the shape of {name} is guessed from its name ({found.parameters / 1e9:.3g}B" in named.unsure
    assert f"hf download {name} config.json" in named.unsure


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("acme/foo", "its name does not tell its size"),
        ("checkpoint-500", "name its folder, or its hub id"),
        ("deepseek-ai/DeepSeek-R1-Distill-acme", "its name does not tell its size"),
        ("zai-org/GLM-4.7-Flash", "its name does not tell its size"),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", "its layers differ in their attention"),
        ("nvidia/NVIDIA-Nemotron-Nano-9B-v2", "its layers differ in their attention"),
    ],
)
def test_a_model_of_which_nothing_is_known_is_asked_for(name, why):
    named = named_model(name)
    assert (named.shape, named.architecture) == (None, None)
    assert named.unsure.startswith(f"the shape of {name} is not known") and why in named.unsure


def test_a_config_in_the_cache_counts_before_the_name(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    repository = tmp_path / "models--acme--foo-13b"
    for revision, heads in (("old", 16), ("new", 12)):
        (repository / "snapshots" / revision).mkdir(parents=True)
        (repository / "snapshots" / revision / "config.json").write_text(
            json.dumps({**CONFIG, "num_attention_heads": heads})
        )
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("new")
    named = named_model("acme/foo-13b")
    assert named.architecture is not None and named.shape is not None
    assert (named.shape.heads, named.architecture.guessed, named.unsure) == (12, False, "")
    (repository / "refs" / "main").write_text("old")
    assert named_model("acme/foo-13b").architecture.heads == 16
    for name, value in (("HF_HUB_CACHE", ""), ("HF_HOME", str(tmp_path))):
        monkeypatch.setenv(name, value)
    assert named_model("acme/foo-13b").architecture.guessed, "HF_HOME/hub has none"


def test_a_job_names_a_folder_beside_it_and_no_other(folder, tmp_path, monkeypatch):
    path = folder.path("job.yaml")
    folder.edit("job.yaml", "path: model,", "path: Qwen/Qwen2.5-7B,")
    elsewhere = tmp_path / "elsewhere" / "Qwen" / "Qwen2.5-7B"
    elsewhere.mkdir(parents=True)
    (elsewhere / "config.json").write_text(json.dumps(CONFIG))
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert model_of_job(load_job(path), path).architecture == architecture_of("Qwen2.5-7B")


def test_a_config_of_layers_that_differ_still_tells_its_heads(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, "layer_types": ["linear_attention"] * 28}))
    named = named_model(tmp_path)
    assert named.architecture is None and named.shape is not None and named.shape.heads == 12
    assert "not known: its config.json states layer_types linear_attention" in named.unsure


def test_the_folder_of_an_adapter_names_the_model_that_it_changes(tmp_path):
    (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "Qwen/Qwen3-8B"}))
    with pytest.raises(InputError, match=r"an adapter of Qwen/Qwen3-8B.*merge"):
        named_model(tmp_path)
