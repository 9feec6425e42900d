"""Parameters that leave the device between updates and come back: the training is the same, and the memory is free.

On a CPU the host is the device, so that what is moved is copied from one memory of it to another; that is what happens
on a GPU too, but for the device's name. Ranks of several layouts park in test_trainer_rank.py.
"""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from torch.distributed.fsdp import FSDPModule

from rlplan.executor.trainer.policy.local_tensors import local
from rlplan.executor.trainer.policy.parked_parameters import ParkedParameters, _shards

from .test_trainer_rank import new_trainer, random_groups, weights, write_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"], ids=["plain", "FSDP2"])
def test_a_trainer_whose_parameters_leave_between_updates_trains_and_saves_bit_for_bit_the_same(
    model: str, tmp_path: Path, dtype: str
) -> None:
    trained = []
    for parks in (False, True):
        trainer = new_trainer(model, dtype=dtype)
        for step in range(2):
            trainer.step(random_groups(4, seed=step))
            if parks:
                moved = trainer._parked.place(False)
                assert moved == 4 * trainer.parameters() and trainer._parked.place(False) == 0
                if step == 0:
                    trainer.save(tmp_path / "parked")
                    trainer.load(tmp_path / "parked")
                assert trainer._parked.place(True) == moved
        trained.append(weights(trainer, tmp_path))
        trainer.close()
    assert all(torch.equal(trained[0][name], trained[1][name]) for name in trained[0])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"], ids=["plain", "FSDP2"])
def test_weights_that_are_sent_while_parameters_are_parked_are_those_of_the_device(
    model: str, tmp_path: Path, dtype: str
) -> None:
    trainer = new_trainer(model, dtype=dtype)
    trainer.step(random_groups(4, seed=0))
    moments = {name: tensor.clone() for name, tensor in _moments(trainer).items()}
    sums, file = trainer.transfer("checksums"), trainer.export_weights(tmp_path / "on-device.safetensors")
    trainer._parked.place(False)
    trainer._optimizer.place(True)
    assert trainer.transfer("checksums") == sums and sums
    assert trainer.export_weights(tmp_path / "parked.safetensors") == file
    trainer._optimizer.place(False)
    trainer._parked.place(True)
    assert all(torch.equal(tensor, moments[name]) for name, tensor in _moments(trainer).items()) and moments
    trainer.close()


def _moments(trainer) -> dict[str, torch.Tensor]:
    state = trainer._optimizer.state()
    return {f"{kind} {name}": local(tensor) for kind, of_kind in state.items() for name, tensor in of_kind.items()}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"], ids=["plain", "FSDP2"])
def test_nothing_refers_to_the_devices_memory_while_parameters_are_parked(model: str, dtype: str) -> None:
    trainer = new_trainer(model, dtype=dtype)
    trainer.step(random_groups(4, seed=0))
    before = [weakref.ref(local(parameter.detach()).untyped_storage()) for parameter in trainer._model.parameters()]
    assert all(storage() is not None for storage in before)
    places = {local(parameter.detach()).data_ptr() for parameter in trainer._model.parameters()}
    objects = [id(parameter) for parameter in trainer._model.parameters()]
    trainer._parked.place(False)
    gc.collect()
    assert [id(parameter) for parameter in trainer._model.parameters()] == objects, "the optimizer refers to these"
    held = {local(parameter.detach()).data_ptr() for parameter in trainer._model.parameters()}
    units = [module for module in trainer._model.modules() if isinstance(module, FSDPModule)]
    held |= {shard._sharded_param_data.data_ptr() for shard in _shards(units)}
    assert bool(units) == (dtype == "bfloat16") and not held & places
    assert not any(storage() for storage in before)
    trainer.close()


def test_parameters_with_gradients_are_not_moved(model: str) -> None:
    policy = torch.nn.Linear(2, 2)
    policy(torch.ones(2)).sum().backward()
    with pytest.raises(AssertionError, match="between updates"):
        ParkedParameters(policy, torch.device("cpu")).place(False)
