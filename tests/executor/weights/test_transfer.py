"""Checksums of tensors, and where weights lie for engines, from the devices of trainer ranks and engine ranks alone."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from rlplan.executor.weights.transfer import choose, tensor_checksum


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (4, 5)])
def test_a_tensor_keeps_its_checksum_through_a_file(tmp_path, dtype, shape):
    tensor = torch.arange(torch.Size(shape).numel()).reshape(shape).to(dtype)
    save_file({"t": tensor}, tmp_path / "t.safetensors")
    assert tensor_checksum(load_file(tmp_path / "t.safetensors")["t"]) == tensor_checksum(tensor)


def test_the_checksum_is_of_values_and_not_of_memory_layout():
    tensor = torch.arange(12.0).reshape(3, 4)
    assert tensor_checksum(tensor.T) == tensor_checksum(tensor.T.contiguous())
    assert tensor_checksum(torch.arange(24.0)[::2]) == tensor_checksum(torch.arange(24.0)[::2].clone())


def test_value_shape_and_dtype_each_change_the_checksum():
    tensor = torch.zeros(6)
    changed = tensor.clone()
    changed[5] = torch.finfo(torch.float32).tiny
    others = [changed, tensor.reshape(2, 3), torch.zeros(6, dtype=torch.int32), torch.zeros(12, dtype=torch.bfloat16)]
    assert len({tensor_checksum(t) for t in [tensor, *others]}) == 5


@pytest.mark.parametrize(
    ("ranks", "engine_ranks", "slots"),
    [
        (["g0", "g1"], ["g0", "g1"], "ipc"),
        (["g0", "g1", "g2", "g3"], ["g2", "g1"], "ipc"),
        (["g0", "g1"], ["g2", "g3", "g4"], "nccl"),
        (["", ""], ["", ""], "host"),
    ],
)
def test_gpus_shared_by_all_engine_ranks_or_by_none_are_used(ranks, engine_ranks, slots):
    assert choose(ranks, engine_ranks, one_node=True) == (slots, None)


@pytest.mark.parametrize(
    ("ranks", "engine_ranks", "why"),
    [
        (["g0", "g1"], ["g1", "g2"], "1 of 2 engine ranks are on GPUs of the trainer"),
        (["g0", "g0"], ["g1"], "engine ranks share a GPU"),
        (["g0"], ["g1", "g1"], "engine ranks share a GPU"),
        (["g0", ""], ["g0"], "has no GPU"),
        (["g0"], ["g0", ""], "has no GPU"),
    ],
)
def test_what_no_gpu_path_serves_goes_through_host_memory_and_says_why(ranks, engine_ranks, why):
    slots, reason = choose(ranks, engine_ranks, one_node=True)
    assert slots == "host" and why in (reason or "")


def test_cpus_of_several_nodes_are_a_group():
    assert choose(["", ""], [""], one_node=False) == ("nccl", None)
