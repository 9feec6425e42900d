"""A weights file says which version it holds, and who loads it believes the file and nobody else."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("safetensors")

from rlplan.executor.engines.engine import RolloutEngine
from rlplan.executor.engines.engine_worker import WeightReceiver
from rlplan.executor.engines.messages import EngineConfig
from rlplan.executor.rollout.prompts import load_tokenizer
from rlplan.executor.weights.checksum import VERSION_KEY, tensor_checksum
from rlplan.plans.schema.sections.layouts import UpdateLayout
from rlplan.plans.yaml.errors import InputError

from ..conftest import VOCABULARY


class Model:
    """What a rank's runner does with weights: it keeps them."""

    def __init__(self) -> None:
        self.loaded: dict[str, Any] = {}

    def reload_weights(self, weights_iterator: Any) -> None:
        self.loaded = dict(weights_iterator)

    def get_model(self) -> Any:
        return self


def rank() -> WeightReceiver:
    receiver = WeightReceiver()
    receiver.model_runner = Model()
    return receiver


class Ranks:
    """The part of vLLM's engine through which an engine gives its ranks weights."""

    def __init__(self, paths: dict[int, Path] | None = None) -> None:
        self.ranks = [rank(), rank()]
        self.paths = paths or {}

    async def collective_rpc(self, method: str, args: tuple[Any, ...]) -> list[Any]:
        path, *rest = args
        return [
            getattr(each, method)(str(self.paths.get(number, path)), *rest) for number, each in enumerate(self.ranks)
        ]

    async def reset_prefix_cache(self) -> bool:
        return True


class NoDeaths:
    """A watch over cores that all live."""

    def deaths(self) -> Any:
        return contextlib.nullcontext()


def engine(ranks: Ranks) -> RolloutEngine:
    made = RolloutEngine(EngineConfig("e", "m", "float32", 2, 64, 4, "cpu", 10**8, (0, 1)))
    made._engine = ranks
    made._watch = NoDeaths()
    return made


def weights(path: Path, version: str | None, value: float = 0.0) -> Path:
    import torch
    from safetensors.torch import save_file

    save_file({"w": torch.full((3,), value)}, path, metadata=None if version is None else {VERSION_KEY: version})
    return path


def test_a_file_of_another_version_is_refused_before_a_tensor_of_it_is_loaded(tmp_path: Path) -> None:
    ranks = Ranks()
    path = weights(tmp_path / "w.safetensors", "run:4")
    with pytest.raises(RuntimeError, match=r"holds weights 'run:4', not 'run:5'"):
        asyncio.run(engine(ranks).load_weights(str(path), "run:5", False))
    assert [each.model_runner.loaded for each in ranks.ranks] == [{}, {}]


def test_a_file_of_the_version_that_was_asked_for_is_loaded_by_all_ranks(tmp_path: Path) -> None:
    import torch

    ranks = Ranks()
    path = weights(tmp_path / "w.safetensors", "run:5", 2.0)
    sums = asyncio.run(engine(ranks).load_weights(str(path), "run:5", True))
    assert sums == {"w": tensor_checksum(torch.full((3,), 2.0))}
    assert [each.model_runner.loaded["w"].tolist() for each in ranks.ranks] == [[2.0] * 3] * 2


def test_an_engine_one_of_whose_ranks_read_another_file_decodes_with_no_version(tmp_path: Path) -> None:
    new, old = weights(tmp_path / "new.safetensors", "run:5"), weights(tmp_path / "old.safetensors", "run:4")
    made = engine(Ranks({1: old}))
    with pytest.raises(RuntimeError, match="'run:4'"):
        asyncio.run(made.load_weights(str(new), "run:5", False))
    with pytest.raises(RuntimeError, match="holds ''"):
        asyncio.run(made.submit([], "run:5"))


def test_a_trainer_writes_the_version_into_the_file(tiny_model: Path, tmp_path: Path) -> None:
    from safetensors import safe_open

    from rlplan.executor.configuration import trainer_config
    from rlplan.executor.trainer.trainer_rank import Trainer
    from rlplan.plans.schema.job import Job
    from rlplan.plans.schema.sections.planned_job import LossPlan
    from rlplan.plans.yaml.yaml_io import loads

    from ...plans.conftest import JOB

    loss = LossPlan(samples=8.0, tokens=80)
    trainer = Trainer(
        trainer_config(loads(JOB, Job), str(tiny_model), UpdateLayout(dp=1, micro_batch_tokens=64), "cpu", loss)
    )
    path = tmp_path / "w.safetensors"
    trainer.export_weights(path, "run:7")
    with safe_open(path, framework="pt") as file:
        assert file.metadata()[VERSION_KEY] == "run:7"


@pytest.mark.parametrize(("rows", "fits"), [(len(VOCABULARY) + 8, True), (len(VOCABULARY), True), (40, False)])
def test_a_tokenizer_with_tokens_that_the_model_has_no_embedding_for_is_an_input_error(
    tiny_model: Path, tmp_path: Path, rows: int, fits: bool
) -> None:
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
