"""What a rank holds of its parameters, and which of the checkpoint's tensors they are: real models, real sharding."""

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
import transformers
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers.core_model_loading import revert_weight_conversion

from rlplan.executor.trainer import rank_transfers
from rlplan.executor.trainer.policy.local_tensors import local
from rlplan.executor.trainer.rank_transfers import RankTransfers, checkpoint_sources, held_box
from rlplan.executor.weights.bucket_plan import Box, TensorSource

SIZES = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "intermediate_size": 24, "vocab_size": 50,
}  # fmt: skip
MODELS = {
    "tied llama": ("LlamaConfig", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3Config", {"tie_word_embeddings": False}),
    "qwen3 moe": ("Qwen3MoeConfig", {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 20}),
}


def made(name):
    kind, more = MODELS[name]
    return transformers.AutoModelForCausalLM.from_config(getattr(transformers, kind)(**SIZES, **more))


@pytest.mark.parametrize("name", MODELS)
def test_boxes_of_parameters_are_the_checkpoints_tensors_experts_one_by_one(name):
    model = made(name)
    parameters = {key: parameter.detach() for key, parameter in model.named_parameters()}
    wanted = revert_weight_conversion(model, dict(parameters))
    found = RankTransfers(model, 0, "float32").holdings()
    assert {source.name for source in found.sources} == set(wanted) and len(found.sources) == len(wanted)
    for source in found.sources:
        got = parameters[source.parameter][source.box.slices].reshape(source.shape)
        assert torch.equal(got, wanted[source.name]), source.name
    assert ("model.layers.1.mlp.experts.3.up_proj.weight" in wanted) == (name == "qwen3 moe")
    assert (found.dtype, found.device, found.obstacle) == ("float32", "", None)
    assert found.elements == sum(parameter.numel() for parameter in parameters.values())
    assert RankTransfers(model, 1, "float32").holdings().sources == ()


SHAPE = (4, 6)


@pytest.mark.parametrize(
    ("convert", "source"),
    [
        (lambda w: w, TensorSource("v", SHAPE, "w", Box((0, 0), SHAPE))),
        (lambda w: w[1:3], TensorSource("v", (2, 6), "w", Box((1, 0), (2, 6)))),
        (lambda w: w[3], TensorSource("v", (6,), "w", Box((3, 0), (1, 6)))),
        (lambda w: w.T, None),
        (lambda w: w[::2], None),
        (lambda w: w[:, 1:], None),
        (lambda w: w[None, None], None),
    ],
)
def test_only_blocks_of_a_parameter_can_travel(monkeypatch, convert, source):
    parameters = {"first": (3,), "w": SHAPE}
    monkeypatch.setattr(rank_transfers, "revert_weight_conversion", lambda _, probes: converted(probes))

    def converted(probes):
        return {"first": probes["first"], "v": convert(probes["w"])}

    named = [(name, torch.nn.Parameter(torch.zeros(shape))) for name, shape in parameters.items()]
    model = SimpleNamespace(named_parameters=lambda: iter(named))
    if source is not None and source.shape == SHAPE:
        assert checkpoint_sources(model)[1] == source
        return
    says = "the checkpoint's v is no block of the trainer's w" if source is None else "other elements than parameter w"
    with pytest.raises(ValueError, match=says):
        checkpoint_sources(model)
    found = RankTransfers(model, 0, "float32").holdings()
    assert says in str(found.obstacle) and found.sources == ()


def held_by(rank):
    """Of one rank of FSDP 2 x TP 2, by tensor: its values, the box that is said, and what the rank holds."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=4)
    try:
        # Names of its own: torch keeps what it knows of a mesh, as seen by one rank.
        fsdp, tp = f"fsdp {rank}", f"tp {rank}"
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=(fsdp, tp))
        torch.manual_seed(1)
        module, whole = torch.nn.Module(), {"plain": torch.rand(9, 3)}
        # Rows that neither half of the ranks divides, and a dimension that both cut.
        for name, shape, placement in (
            ("rows", (10, 6), Shard(0)), ("columns", (7, 6), Shard(1)), ("all", (5,), Replicate()),
            ("uneven", (6, 2), Shard(0)),
        ):  # fmt: skip
            whole[name] = torch.rand(shape)
            cut = distribute_tensor(whole[name], mesh[tp], [placement], src_data_rank=None)
            module.register_parameter(name, torch.nn.Parameter(cut))
        module.register_parameter("plain", torch.nn.Parameter(whole["plain"].clone()))
        fully_shard(module, mesh=mesh[fsdp])
        with pytest.raises(ValueError, match="no one block"):
            held_box(DTensor.from_local(torch.rand(4), mesh[tp], [Partial()]))
        held = {name: parameter.detach() for name, parameter in module.named_parameters()}
        return {name: (whole[name], held_box(each), local(each).clone()) for name, each in held.items()}
    finally:
        dist.destroy_process_group()


def test_ranks_of_fsdp_on_tensor_parallelism_hold_all_and_say_so():
    ranks = [held_by(rank) for rank in range(4)]
    for name, (whole, _, _) in ranks[0].items():
        found = torch.full(whole.shape, torch.nan)
        for of_rank in ranks:
            _, box, values = of_rank[name]
            found[box.slices] = values
        assert torch.equal(found, whole), name
