"""Parameters that leave the device between updates and come back: the training is the same, and the memory is free.

On a CPU the host is the device, so what is moved is copied from one memory of it to another. Ranks of several layouts
park in test_trainer_rank.py.
"""

import gc
import weakref

import pytest
import torch
from torch.distributed.fsdp import FSDPModule

from rlplan.executor.trainer.policy.local_tensors import ParkedParameters, _shards, local

from .test_trainer_rank import new_trainer, random_groups, same_weights

both_kinds = pytest.mark.parametrize("dtype", ["float32", "bfloat16"], ids=["plain", "FSDP2"])


@both_kinds
def test_parameters_that_leave_between_updates_train_and_save_the_same(model, tmp_path, dtype):
    trainers = []
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
        trainer.close()
        trainers.append(trainer)
    assert same_weights(*trainers)
    assert trainers[0].place(False, False) == 0, "on a CPU nothing moves"


@both_kinds
def test_weights_sent_while_parameters_are_parked_are_those_of_the_device(model, tmp_path, dtype):
    trainer = new_trainer(model, dtype=dtype)
    trainer.step(random_groups(4, seed=0))
    sums, file = trainer.transfer("checksums"), trainer.export_weights(tmp_path / "on-device.safetensors")
    trainer._parked.place(False)
    assert trainer.transfer("checksums") == sums and sums
    assert trainer.export_weights(tmp_path / "parked.safetensors") == file
    trainer.close()


@both_kinds
def test_nothing_refers_to_the_devices_memory_while_parameters_are_parked(model, dtype):
    trainer = new_trainer(model, dtype=dtype)
    trainer.step(random_groups(4, seed=0))
    parameters = list(trainer._model.parameters())
    before = [weakref.ref(local(parameter.detach()).untyped_storage()) for parameter in parameters]
    places = {local(parameter.detach()).data_ptr() for parameter in parameters}
    trainer._parked.place(False)
    gc.collect()
    assert list(map(id, trainer._model.parameters())) == list(map(id, parameters)), "the optimizer refers to these"
    held = {local(parameter.detach()).data_ptr() for parameter in parameters}
    units = [module for module in trainer._model.modules() if isinstance(module, FSDPModule)]
    held |= {shard._sharded_param_data.data_ptr() for shard in _shards(units)}
    assert bool(units) == (dtype == "bfloat16") and not held & places
    assert not any(storage() for storage in before)
    trainer.close()


def test_parameters_with_gradients_are_not_moved():
    policy = torch.nn.Linear(2, 2)
    policy(torch.ones(2)).sum().backward()
    with pytest.raises(AssertionError, match="between updates"):
        ParkedParameters(policy, torch.device("cpu")).place(False)
