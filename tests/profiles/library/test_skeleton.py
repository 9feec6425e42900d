"""Documents to begin with: what a command line says of machines and models, and the files that come of it."""

import json
from pathlib import Path

import pytest

from rlplan.plans.facts.model_names import architecture_of
from rlplan.plans.files.prompt_rows import read_prompts
from rlplan.plans.schema.cluster import Cluster
from rlplan.plans.schema.job import Job
from rlplan.plans.yaml.errors import InputError
from rlplan.plans.yaml.yaml_io import loads
from rlplan.profiles.hardware import GPUS
from rlplan.profiles.library import gpu_price
from rlplan.profiles.library.skeleton import EXAMPLE_NAME, REWARD_NAME, RewardKind, machines_of, model_path_of, skeleton

QWEN3_8B = {
    "model_type": "qwen3", "num_hidden_layers": 36, "hidden_size": 4096, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936, "intermediate_size": 12288,
    "tie_word_embeddings": False,
}  # fmt: skip
REWARDS: tuple[RewardKind, ...] = ("math", "code", "function")


def test_machines_are_told_by_nodes_gpus_and_name():
    texts = "8x8xH100", "2 x 4 x a100", "64xH200", "4xB200", "1x8xH100-SXM"
    found = [(m.nodes, m.per_node, m.gpu.name) for m in map(machines_of, texts)]
    assert found == [(8, 8, "H100"), (2, 4, "A100"), (8, 8, "H200"), (1, 4, "B200"), (1, 8, "H100")]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("H100", "write NODESxGPUSxNAME"),
        ("8x8", "write NODESxGPUSxNAME"),
        ("8x8xH1OO", "did you mean H100"),
        ("8xH1000", "no GPU 'H1000' is known; did you mean H100?"),
        ("8x8xTPU", "no GPU 'TPU' is known"),
        ("12xH100", "no whole nodes of 8"),
        ("0x8xH100", "nodes must be 1"),
        ("1x999xH100", "1 to 128"),
        ("20000x8xH100", "160,000 GPUs, and one job is planned on at most 131,072; write at most 16384 nodes"),
    ],
)
def test_machines_that_cannot_be_told_are_refused_with_the_form(text, words):
    with pytest.raises(InputError) as caught:
        machines_of(text)
    assert words in str(caught.value)


def test_a_model_is_named_as_on_the_hub_or_by_a_folder(tmp_path):
    def path_of(text):
        return model_path_of(text, tmp_path / "job")[0]

    assert path_of("qwen2.5-32b") == "Qwen/Qwen2.5-32B"
    assert path_of("Llama-3.1-8B-instruct") == "meta-llama/Llama-3.1-8B-Instruct"
    assert path_of("Mistral-7B") == "mistralai/Mistral-7B-v0.3"
    assert path_of("Llama-3.1-Tulu-3-8B") == "allenai/Llama-3.1-Tulu-3-8B"
    assert path_of("Qwen/Qwen3-8B/") == "Qwen/Qwen3-8B"
    with pytest.warns(
        UserWarning, match=r"shape of somebody/My-7B is guessed .*hf download somebody/My-7B config\.json"
    ):
        assert path_of("somebody/My-7B") == "somebody/My-7B"
    (tmp_path / "mine-1.5B").mkdir()
    with pytest.raises(InputError, match=r"no config\.json"):
        path_of(str(tmp_path / "mine-1.5B"))
    (tmp_path / "mine-1.5B" / "config.json").write_text(json.dumps(QWEN3_8B))
    path, shape = model_path_of(str(tmp_path / "mine-1.5B"), tmp_path / "job")
    assert (path, shape.parameters, shape.guessed) == ("../mine-1.5B", architecture_of("Qwen3-8B").parameters, False)
    for text, words in (
        ("Qwen2.5-33B", "did you mean"),
        ("Qwen2.5-32", "did you mean"),
        ("somebody/model", "its name does not tell its size"),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", "its layers differ"),
        ("my model", "hub id"),
        ("Llama 3.1 8B", "did you mean Llama-3.1-8B"),
        ("Qwen/Qwen3-8B@main", "did you mean Qwen3-8B"),
    ):
        with pytest.raises(InputError) as caught:
            path_of(text)
        assert words in str(caught.value), caught.value


@pytest.mark.parametrize("reward", REWARDS)
def test_the_documents_load_and_price_the_gpus(reward, tmp_path):
    machines = machines_of("8x8xH100")
    path, shape = model_path_of("Qwen2.5-32B", tmp_path)
    found = skeleton(machines, path, shape, reward)
    cluster, job = loads(found.files["cluster.yaml"], Cluster), loads(found.files["job.yaml"], Job)
    for name in ("cluster.yaml", "job.yaml"):
        assert found.files[name].count("\n# ") >= 1, "it is commented"
    pool, price = cluster.pools["h100"], gpu_price("H100")
    assert price is not None and pool.node_price == 8 * price.usd_per_gpu_hour
    assert price.source in found.files["cluster.yaml"]
    assert (pool.nodes, pool.accelerators.per_node, pool.accelerators.memory_bytes) == (8, 8, GPUS["H100"].memory_bytes)
    assert (job.model.path, job.reward.kind, job.data.prompts) == ("Qwen/Qwen2.5-32B", reward, 12_000)
    workers = job.reward.workers
    assert workers is None if reward == "code" else workers <= pool.nodes * pool.cores
    # 65 GB of weights: one H100 does not hold them and a response of 16k tokens.
    assert job.search.tp == (2, 4, 8) and job.search.micro_batch_tokens[0] == job.rollout.longest_tokens
    assert found.shipped == "Qwen2.5-32B"
    assert (REWARD_NAME in found.files) == (reward == "function")
    (tmp_path / EXAMPLE_NAME).write_text(found.files[EXAMPLE_NAME])
    assert len(read_prompts(tmp_path / EXAMPLE_NAME)) == 2


def test_the_function_that_is_written_scores_its_own_examples():
    found = skeleton(machines_of("1xH100"), *model_path_of("Qwen2.5-7B", Path()), "function")
    space: dict[str, object] = {}
    exec(found.files[REWARD_NAME], space)
    score = space["score"]
    assert callable(score)
    assert score("What is 2 + 2?", "thinking\n 4 \n", "4") == 1.0
    assert score("What is 2 + 2?", "5", "4") == 0.0 == score("What is 2 + 2?", "", "4")


def test_an_unpriced_gpu_says_so_and_a_model_too_large_is_refused(tmp_path):
    shape = architecture_of("Qwen2.5-7B")
    found = skeleton(machines_of("1x8xL40S"), "Qwen/Qwen2.5-7B", shape, "math")
    assert "no public price is known" in found.files["cluster.yaml"] and found.shipped is None
    assert loads(found.files["cluster.yaml"], Cluster).pools["l40s"].usd_per_gpu_hour == 0.0
    large = architecture_of("Llama-3.1-405B")
    with pytest.raises(InputError, match=r"812 GB of weights.*take GPUs with more memory"):
        skeleton(machines_of("8x8xH100"), "meta-llama/Llama-3.1-405B", large, "math")
