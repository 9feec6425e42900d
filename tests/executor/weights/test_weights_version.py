"""A weights file says which version it holds, and who loads it believes the file and nobody else."""

import asyncio
import contextlib
import json
import shutil

import pytest
import torch

from rlplan.executor.engines.engine import RolloutEngine
from rlplan.executor.engines.engine_worker import WeightReceiver
from rlplan.executor.engines.messages import EngineConfig
from rlplan.executor.engines.vllm_options import engine_arguments, kv_bytes_per_token
from rlplan.executor.rollout.prompts import load_tokenizer
from rlplan.executor.trainer.policy.load_policy import load_policy
from rlplan.executor.weights.transfer import VERSION_KEY, tensor_checksum
from rlplan.plans.schema.job import job_paths, load_job
from rlplan.plans.yaml.errors import InputError
from rlplan.profiles.measure.measure_job import parameter_count

from ...cli.solved_folder import JOB
from ..conftest import VOCABULARY


class Model:
    """What a rank's runner does with weights: it keeps them."""

    def __init__(self):
        self.loaded = {}

    def reload_weights(self, weights_iterator):
        self.loaded = dict(weights_iterator)

    def get_model(self):
        return self


def rank():
    receiver = WeightReceiver()
    receiver.model_runner = Model()
    return receiver


class Ranks:
    """The part of vLLM's engine through which an engine gives its ranks weights."""

    def __init__(self, paths=None):
        self.ranks = [rank(), rank()]
        self.paths = paths or {}

    async def collective_rpc(self, method, args):
        path, *rest = args
        return [
            getattr(each, method)(str(self.paths.get(number, path)), *rest) for number, each in enumerate(self.ranks)
        ]

    async def reset_prefix_cache(self):
        return True


class NoDeaths:
    """A watch over cores that all live."""

    def deaths(self):
        return contextlib.nullcontext()


def engine(ranks):
    made = RolloutEngine(EngineConfig("e", "m", "float32", 2, 64, 4, "cpu", 10**8, (0, 1)))
    made._engine = ranks
    made._watch = NoDeaths()
    return made


def weights(path, version, value=0.0):
    import torch
    from safetensors.torch import save_file

    save_file({"w": torch.full((3,), value)}, path, metadata=None if version is None else {VERSION_KEY: version})
    return path


def test_a_file_of_another_version_is_refused_before_it_is_loaded(tmp_path):
    ranks = Ranks()
    path = weights(tmp_path / "w.safetensors", "run:4")
    with pytest.raises(RuntimeError, match=r"holds weights 'run:4', not 'run:5'"):
        asyncio.run(engine(ranks).load_weights(str(path), "run:5", False))
    assert [each.model_runner.loaded for each in ranks.ranks] == [{}, {}]


def test_a_file_of_the_right_version_is_loaded_by_all_ranks(tmp_path):
    import torch

    ranks = Ranks()
    path = weights(tmp_path / "w.safetensors", "run:5", 2.0)
    sums = asyncio.run(engine(ranks).load_weights(str(path), "run:5", True))
    assert sums == {"w": tensor_checksum(torch.full((3,), 2.0))}
    assert [each.model_runner.loaded["w"].tolist() for each in ranks.ranks] == [[2.0] * 3] * 2


def test_an_engine_whose_ranks_read_different_files_has_no_version(tmp_path):
    new, old = weights(tmp_path / "new.safetensors", "run:5"), weights(tmp_path / "old.safetensors", "run:4")
    made = engine(Ranks({1: old}))
    with pytest.raises(RuntimeError, match="'run:4'"):
        asyncio.run(made.load_weights(str(new), "run:5", False))
    with pytest.raises(RuntimeError, match="holds ''"):
        asyncio.run(made.submit([], "run:5"))


@pytest.mark.parametrize(("rows", "fits"), [(len(VOCABULARY) + 8, True), (len(VOCABULARY), True), (40, False)])
def test_a_tokenizer_with_more_tokens_than_embeddings_is_an_input_error(tiny_model, tmp_path, rows, fits):
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_text((tiny_model / name).read_text())
    config = json.loads((tmp_path / "config.json").read_text()) | {"vocab_size": rows}
    (tmp_path / "config.json").write_text(json.dumps(config))
    if fits:
        assert len(load_tokenizer(str(tmp_path))) == len(VOCABULARY)
        return
    with pytest.raises(InputError, match=r"has token 63 \('w60'\), but the model's embedding has 40 rows") as caught:
        load_tokenizer(str(tmp_path))
    assert caught.value.path == str(tmp_path) and "\n" not in str(caught.value)


def test_all_parts_load_the_revision_that_a_job_names(tiny_model, tmp_path, monkeypatch):
    """From a cache of the hub's, in which the model has the revision `v2` and no other."""
    stored = tmp_path / "models--own--tiny"
    shutil.copytree(tiny_model, stored / "snapshots" / ("a" * 40))
    (stored / "refs").mkdir()
    (stored / "refs" / "v2").write_text("a" * 40)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    job = tmp_path / "job.yaml"
    job.write_text(JOB.replace("path: model", "path: own/tiny, revision: v2"))
    (tmp_path / "data.jsonl").touch()
    name = job_paths(load_job(job), job).model
    assert name == "own/tiny@v2" and len(load_tokenizer(name)) == len(VOCABULARY)
    assert kv_bytes_per_token(name, "float32") == 2 * 2 * 64 * 4
    policy = load_policy(name, "float32", torch.device("cpu"))
    assert sum(each.numel() for each in policy.parameters()) == parameter_count(name)
    arguments = engine_arguments(EngineConfig("e", name, "float32", 1, 64, 4, "cpu", 10**6))
    assert {arguments[key] for key in ("revision", "tokenizer_revision")} == {"v2"} and arguments["model"] == "own/tiny"
    with pytest.raises(InputError, match="no tokenizer to load"):
        load_tokenizer("own/tiny")
    (tmp_path / "own" / "tiny").mkdir(parents=True)
    with pytest.raises(InputError, match=r"model.revision: 'own/tiny' is a folder, which has no revisions; remove"):
        job_paths(load_job(job), job)
