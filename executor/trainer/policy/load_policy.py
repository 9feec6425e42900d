"""Loads a Hugging Face causal LM as the trainer's policy, sharded from its first byte, and runs its layers: activations
kept or computed again in the backward pass, compiled or as they are.

The model is built without memory, its parameters are laid out over the ranks, and each rank then reads from the
safetensors files the slices that it holds: no rank ever has the whole model (`from_pretrained` with a
`DistributedConfig`; the tensor-parallel plan is the model's own).

Weights are kept in float32 whatever the job's dtype is, unless they are frozen under adapters: at learning rates of RL
an update is smaller than bfloat16 can add to a weight. With dtype bfloat16 FSDP gathers a layer's weights in bfloat16
and sums gradients in float32, also on one rank; with float16 everything is computed in float32, because float16
gradients would need loss scaling.

transformers' own checkpointing acts in training mode only, and policies are in evaluation mode (dropout would make the
update off-policy); so layers are wrapped here. Switches turn both on and off between steps: kinds of round differ.
Layers are compiled one by one, as torchtitan does: they are alike, so one is compiled for all, and FSDP gathers weights
around each. The number of tokens is a variable of what is compiled: rows of other lengths use it as well.
"""

from __future__ import annotations

import copy
import logging
import os
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import checkpoint
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.distributed.configuration_utils import DistributedConfig
from transformers.utils.logging import disable_progress_bar

from ....plans.facts.executable import family_fault, update_faults
from ....plans.facts.model_shape import shape_from_config
from ....plans.schema.job import pretrained
from ....plans.schema.levers import LoraSpec, UpdateLayout
from .attention import VARLEN
from .chunked_head import float32_head
from .rank_mesh import RankMesh


class LayerForwards:
    """The switches: `recompute`: activations are computed again; `compiled`: layers run compiled."""

    def __init__(self, model: torch.nn.Module, recompute: bool) -> None:
        self.recompute, self.compiled = recompute, False
        for layer in transformer_layers(model):
            self._wrap(layer)

    def _wrap(self, layer: Any) -> None:
        # The forward within the module's call: FSDP's hooks, which gather the weights, then run around both passes.
        plain: Callable[..., Any] = layer.forward
        compiled: list[Callable[..., Any]] = []

        def run(*arguments: Any, **keywords: Any) -> Any:
            if self.compiled and not compiled:
                compiled.append(torch.compile(plain, dynamic=True))
            forward = compiled[0] if self.compiled else plain
            if not (self.recompute and torch.is_grad_enabled()):
                return forward(*arguments, **keywords)
            # Nothing random happens in evaluation mode, so the generator's state need not be kept.
            return checkpoint(forward, *arguments, use_reentrant=False, preserve_rng_state=False, **keywords)

        layer.forward = run


def transformer_layers(model: Any) -> list[torch.nn.Module]:
    """The model's transformer layers, in order: of the classes that transformers says must not be split."""
    blocks = set(model._no_split_modules or ())
    # FSDP makes a subclass of each module's class.
    return [m for m in model.modules() if blocks & {cls.__name__ for cls in type(m).__mro__}]


def load_policy(
    path: str,
    dtype: str,
    device: torch.device,
    mesh: RankMesh | None = None,
    head_dtype: str | None = None,
    lora: LoraSpec | None = None,
) -> torch.nn.Module:
    """The policy with float32 weights, sharded over the ranks of `mesh`, in evaluation mode: dropout would make the
    update off-policy.

    Args:
        path: folder of the model, or hub id.
        dtype: what the job computes in: float32, bfloat16 or float16.
        mesh: this rank's place; None: one rank without a process group, which computes in float32.
        head_dtype: float32: the head's logits are float32 whatever the dtype; None: they are of the dtype.
        lora: adapters that are to be trained (adapters.py), whose weights are kept in the type that is computed in.

    Raises ValueError for a model of a family that is not supported (plans/facts/executable.py), and for ranks that
    cannot share it.
    """
    mesh = mesh or RankMesh()
    _check(path, mesh, lora)
    name, revision = pretrained(path)
    frozen = lora is not None and dtype == "bfloat16"
    options = {"dtype": torch.bfloat16 if frozen else torch.float32, "attn_implementation": VARLEN, **revision}
    _quiet()
    if device.type == "cuda":
        os.environ["LOCAL_RANK"] = str(device.index)  # transformers chooses the GPU by it
    model: Any
    if mesh.ranks == 1:
        model = AutoModelForCausalLM.from_pretrained(name, **options)
        model.to(device)
        if head_dtype == "float32":
            float32_head(model)
        if dtype == "bfloat16":
            _shard(model, init_device_mesh(device.type, (1,)), dtype)
    else:
        layout = DistributedConfig(fsdp_size=mesh.dp * mesh.sp, tp_size=mesh.tp)
        sharded = _sharded_class(path, dtype, head_dtype, mesh)
        model = sharded.from_pretrained(name, distributed_config=layout, **options)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            # Sum, where FSDP's default is the mean; by a plain sum, because gloo knows no scaled one.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    return model.eval()  # type: ignore[no-any-return]


def config_of(path: str) -> Any:
    """The config of a model, by the name that `JobPaths.model` has for it."""
    name, revision = pretrained(path)
    return AutoConfig.from_pretrained(name, trust_remote_code=False, **revision)


def _check(path: str, mesh: RankMesh, lora: LoraSpec | None) -> None:
    """Refuse what transformers would load all the same, and what would fail or train something else later."""
    shape = shape_from_config(config_of(path).to_dict())
    if shape is None:
        raise ValueError(f"the config of {path} states no attention heads; this model cannot be trained")
    shape = replace(shape, lora=lora)
    layout = UpdateLayout(dp=mesh.dp, tp=mesh.tp, sp=mesh.sp, state_copies=mesh.state_copies, micro_batch_tokens=1)
    faults = [f"{key} {fault}" for key, fault in update_faults(layout, shape)]
    if fault := family_fault(shape):
        faults.insert(0, fault)
    if faults:
        raise ValueError(f"{path} cannot be trained: {'; '.join(faults)}")


def _sharded_class(path: str, dtype: str, head_dtype: str | None, mesh: RankMesh) -> Any:
    """The class of the model at `path`, with FSDP units of ours in place of transformers', and copies of the states.

    transformers (5.19) gives tied embeddings to two FSDP units. Where a shard is padded, each unit then keeps a copy of
    its own, and one of them misses the updates. transformers has no copies either: each gets a mesh of its own, and a
    rank then reads the slices of its place in it.
    """
    config = config_of(path)
    parent: Any = AutoModelForCausalLM._model_mapping[type(config)]

    def distribute(cls: Any, model: Any, layout: Any, meshes: Any) -> Any:
        if head_dtype == "float32":
            float32_head(model)  # tensor parallelism wraps what is there
        parallel = copy.copy(layout)
        parallel.fsdp_size = 1  # tensor parallelism is as transformers has it
        if mesh.state_copies > 1:
            sizes = (mesh.state_copies, 1, mesh.shards, mesh.tp)
            from transformers.distributed.utils import TransformersDeviceMesh  # 5.17, which runs one rank, has none

            kind = meshes.get_mesh("fsdp").device_type
            ours = init_device_mesh(kind, sizes, mesh_dim_names=("copy", "pp", "fsdp", "tp"))
            meshes = TransformersDeviceMesh(ours, ours)
        model = super(sharded, cls).maybe_distribute_model(model, parallel, meshes)
        if mesh.shards > 1 or dtype == "bfloat16":
            _shard(model, meshes.get_mesh("fsdp"), dtype)
        return model

    # By the module of the parent transformers finds what decorates it: the fused computation of experts, for one.
    members = {"__module__": parent.__module__, "maybe_distribute_model": classmethod(distribute)}
    sharded: Any = type(parent.__name__, (parent,), members)
    return sharded


def _shard(model: Any, sharding: DeviceMesh, dtype: str) -> None:
    """Make each layer, and what is left, a unit of FSDP2: sharded over `sharding`, gathered while in use.

    Embedding and head are one unit if they are tied, two otherwise: the head is used last and first, the embedding is
    not needed in between.
    """
    policy = MixedPrecisionPolicy()
    if dtype == "bfloat16":
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in transformer_layers(model):
        fully_shard(layer, mesh=sharding, mp_policy=policy)
    if model.config.tie_word_embeddings:
        model.tie_weights()  # so that FSDP knows it while there are no weights yet
    else:
        fully_shard(model.get_input_embeddings(), mesh=sharding, mp_policy=policy)
    fully_shard(model, mesh=sharding, mp_policy=policy)


def _quiet() -> None:
    """Keep libraries silent about what is meant here: this is a worker, its terminal is somebody else's."""
    disable_progress_bar()
    # Weights that both FSDP and tensor parallelism cut along one dimension are gathered in two steps.
    logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view", category=UserWarning)
