"""What a rank holds of its parameters, and which of the checkpoint's tensors they are: real models, real sharding."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import transformers
from transformers.core_model_loading import revert_weight_conversion

from rlplan.executor.trainer.policy.local_tensors import local
from rlplan.executor.weights.transfer.boxes import owners
from rlplan.executor.weights.transfer.bucket_plan import bucket_plan
from rlplan.executor.weights.transfer.held_parameters import checkpoint_sources, held_box, holdings

from ..rank_processes import CONTEXT

SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 24,
    "vocab_size": 50,
}
MODELS = {
    "tied llama": ("LlamaConfig", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3Config", {"tie_word_embeddings": False}),
    "qwen3 moe": ("Qwen3MoeConfig", {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 20}),
}


def made(name: str) -> Any:
    kind, more = MODELS[name]
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(getattr(transformers, kind)(**SIZES, **more))


@pytest.mark.parametrize("name", MODELS)
def test_boxes_of_the_parameters_are_the_tensors_of_the_checkpoint_experts_one_by_one(name: str) -> None:
    model = made(name)
    parameters = {key: parameter.detach() for key, parameter in model.named_parameters()}
    wanted = revert_weight_conversion(model, dict(parameters))
    sources = checkpoint_sources(model, {key: tuple(p.shape) for key, p in parameters.items()})
    assert {source.name for source in sources} == set(wanted) and len(sources) == len(wanted)
    for source in sources:
        got = parameters[source.parameter][source.box.slices].reshape(source.shape)
        assert torch.equal(got, wanted[source.name]), source.name
    assert ("model.layers.1.mlp.experts.3.up_proj.weight" in wanted) == (name == "qwen3 moe")


def test_a_model_of_one_rank_is_planned_as_it_is() -> None:
    found = holdings(made("qwen3 moe"), 0, "node", "float32")
    assert found.obstacle is None
    plan = bucket_plan(found.sources, found.shapes, [found.held], "float32", 10_000)
    assert plan.nbytes == 4 * sum(torch.Size(shape).numel() for shape in found.shapes.values())


def _hold(rank: int, folder: str) -> None:
    """One rank of 2 x 2: it writes boxes and local values of tensors that are sharded as FSDP2 on top of TP does."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=4)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("fsdp", "tp"))
    torch.manual_seed(1)
    module = torch.nn.Module()
    # Rows that neither half of the ranks divides, and a dimension that both cut.
    for name, shape, placement in (
        ("rows", (10, 6), Shard(0)),
        ("columns", (7, 6), Shard(1)),
        ("all", (5,), Replicate()),
        ("uneven", (6, 2), Shard(0)),
    ):
        values = torch.rand(shape)
        module.register_parameter(name, torch.nn.Parameter(distribute_tensor(values, mesh["tp"], [placement])))
    module.register_parameter("plain", torch.nn.Parameter(torch.rand(9, 3)))
    whole = {
        name: p.full_tensor() if hasattr(p, "full_tensor") else p.detach() for name, p in module.named_parameters()
    }
    fully_shard(module, mesh=mesh["fsdp"])
    found = {name: (held_box(p.detach()), local(p.detach()).clone()) for name, p in module.named_parameters()}
    partial = DTensor.from_local(torch.rand(4), mesh["tp"], [Partial()])
    try:
        held_box(partial)
    except ValueError as error:
        refused = str(error)
    torch.save({"found": found, "whole": whole, "refused": refused}, f"{folder}/{rank}")
    dist.destroy_process_group()


@pytest.mark.skipif(sys.platform != "linux", reason="gloo")
def test_what_each_rank_of_fsdp_on_tensor_parallelism_holds_is_the_box_that_is_said_and_all_of_it_is_held(
    tmp_path: Path,
) -> None:
    mp.start_processes(_hold, (str(tmp_path),), nprocs=4, start_method=CONTEXT.get_start_method())
    ranks = [torch.load(tmp_path / str(rank), weights_only=False) for rank in range(4)]
    for name, whole in ranks[0]["whole"].items():
        for rank in ranks:
            box, values = rank["found"][name]
            assert torch.equal(whole[box.slices], values), name
        sent = owners(whole.shape, [rank["found"][name][0] for rank in ranks], [0] * 4)
        assert sum(box.numel for box in sent.values()) == whole.numel()
    assert all("no one block" in rank["refused"] for rank in ranks)
