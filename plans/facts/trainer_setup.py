"""How a trainer of any framework is set up: what the bytes and seconds of its phases follow from.

Readers of frameworks' files and flags make one, `rlplan doctor` judges it, `rlplan init --from` writes documents of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from .public_models import Architecture

Framework = Literal["verl", "slime", "vime", "trl", "skyrl", "openrlhf", "rlplan"]
Backend = Literal["megatron", "fsdp", "deepspeed", "ddp"]
Engine = Literal["vllm", "sglang", "transformers"]
Where = Literal["device", "between", "host"]
"""Where states of the trainer are: always on the device; on the host while engines decode, back for the update
(`between`); always on the host, where the optimizer steps."""


PADS: frozenset[Framework] = frozenset(("trl", "openrlhf"))
"""Trainers that pad samples to the longest of a micro-batch, where nobody says; the others pack."""


@dataclass(frozen=True, slots=True)
class LeftAside:
    """A setting that a reader met and that nothing here follows from: its key, its value, and why.

    `kind`: `dead`, the key does nothing in that version; `unknown`, there is no such key; `unresolved`, its value
    follows from what is not in the file, and the default stands in for it; `not read`, it changes no bytes and no
    seconds here.
    """

    key: str
    value: str
    why: str
    kind: Literal["dead", "unknown", "unresolved", "not read"] = "not read"


@dataclass(frozen=True)
class TrainerSetup:
    """A trainer's configuration in common terms. Bytes, tokens and counts; None: the source does not say.

    Attributes:
        model: hub id, path or usual name.
        shape: the model's, where the source states it (Megatron's flags); None: it follows from the name.
        nodes, gpus_per_node, gpu: machines; `gpu` by its usual name, None: not known.
        train_gpus, rollout_gpus: GPUs of each side; the same ones if `colocated`.
        backend: of the trainer; `megatron` keeps bf16 weights, float32 (or bf16) gradients and a sharded optimizer.
        zero: what data-parallel ranks share out: 0 nothing, 1 the optimizer, 2 gradients too, 3 weights too (FSDP).
        tp, pp, cp, ep: of the trainer, `etp` of its experts; `sp`: sequence parallelism beside tensor parallelism's
            (Ulysses, ring).
        shard_ranks: ranks that share out the states, where fewer than data-parallel ones (FSDP's hybrid); None: all.
        micro_batch_samples, micro_batch_tokens: samples of a data-parallel rank, or tokens of a GPU (its micro-batch is
            shared by cp x sp of them); one of the two, the other None.
        mini_batch_samples: samples of one optimizer step; None: the whole step's.
        recompute: activations that the backward pass computes again; `recompute_modules`: of a selective one of
            Megatron (`moe`, `mlp`, `moe_act`, `layernorm`, `core_attn`).
        lora_rank: 0: all weights are trained.
        weight_bytes, gradient_bytes, optimizer_bytes: of one trained parameter, as the backend keeps them; optimizer:
            moments, and the float32 master copy where weights are narrower. None: the backend's default.
        weights_at, optimizer_at: where weights (with gradients) and the optimizer's states are (`Where`).
        chunked_logits: whether the loss avoids whole float32 logits (fused or chunked); None: the framework's default.
        reference: a frozen copy of the model scores the samples; `critic`: a value model is trained.
        reference_at: where the reference's weights are between its passes.
        prompts, samples: P and n; `issued_prompts`: with over-sampling, else None.
        partial_rollout: surplus samples go on in the next round.
        dynamic_sampling: groups with equal rewards are dropped, and others drawn.
        max_prompt_tokens, max_response_tokens, mean_response_tokens, mean_prompt_tokens: lengths.
        packed: micro-batches hold real tokens alone; False: samples are padded to the longest; None: as `PADS` says.
        rollout_tp, rollout_ep: ranks of an engine; `rollout_dp`: data-parallel attention in it.
        memory_share: of a GPU that an engine takes (vLLM: all; SGLang: its static part); None: the engine's default.
        max_num_seqs: sequences that an engine decodes at once; `max_batched_tokens`: tokens of its largest step.
        engine_sleeps: its weights and KV leave the GPU for training; False: they stay.
        engine_keeps_weights_on_host: a copy of its weights lies in host memory while it sleeps.
        algorithm: what the update is, as keys of a job's `algorithm` section; empty: not read.
        steps_ahead: steps by which generation runs ahead; 0: synchronous.
        host_bytes: memory of a node's host.
        keys: the framework's own key for an attribute, for remedies.
        defaulted: attributes that the source did not say, and that are the framework's defaults.
        left_aside: settings that were met and left aside.
        lines: the line of the source at which an attribute stands.
    """

    framework: Framework
    model: str
    nodes: int
    gpus_per_node: int
    gpu: str | None = None
    shape: Architecture | None = None
    version: str = ""
    source: str = ""
    host_bytes: float | None = None
    colocated: bool = True
    train_gpus: int = 0
    rollout_gpus: int = 0
    backend: Backend = "fsdp"
    zero: int = 3
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int = 1
    sp: int = 1
    shard_ranks: int | None = None
    micro_batch_samples: int | None = None
    micro_batch_tokens: int | None = None
    mini_batch_samples: int | None = None
    recompute: Literal["none", "selective", "full"] = "none"
    recompute_modules: tuple[str, ...] = ()
    lora_rank: int = 0
    weight_bytes: float | None = None
    gradient_bytes: float | None = None
    optimizer_bytes: float | None = None
    weights_at: Where = "device"
    optimizer_at: Where = "device"
    chunked_logits: bool | None = None
    reference: bool = False
    reference_at: Where = "device"
    critic: bool = False
    prompts: int = 1
    samples: int = 1
    issued_prompts: int | None = None
    partial_rollout: bool = False
    dynamic_sampling: bool = False
    max_prompt_tokens: int = 1024
    max_response_tokens: int = 1024
    mean_response_tokens: float | None = None
    mean_prompt_tokens: float | None = None
    packed: bool | None = None
    engine: Engine = "vllm"
    rollout_tp: int = 1
    rollout_ep: int = 1
    rollout_dp: int = 1
    memory_share: float | None = None
    max_num_seqs: int | None = None
    max_batched_tokens: int | None = None
    engine_sleeps: bool = True
    engine_keeps_weights_on_host: bool = False
    algorithm: Mapping[str, Any] = field(default_factory=dict)
    steps_ahead: int = 0
    keys: Mapping[str, str] = field(default_factory=dict)
    defaulted: tuple[str, ...] = ()
    left_aside: tuple[LeftAside, ...] = ()
    lines: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        known = {each.name for each in fields(self)}
        assert not (odd := {*self.keys, *self.defaulted, *self.lines} - known), f"no such attribute: {sorted(odd)}"

    @property
    def pads(self) -> bool:
        """Whether samples of a micro-batch are padded to the longest of them."""
        return self.framework in PADS if self.packed is None else not self.packed

    @property
    def dp(self) -> int:
        """Data-parallel ranks of the trainer, of which each has a model replica of tp x pp x cp x sp ranks."""
        return max(1, self.train_gpus // (self.tp * self.pp * self.cp * self.sp))

    @property
    def engines(self) -> int:
        """Number of engines."""
        return max(1, self.rollout_gpus // (self.rollout_tp * self.rollout_dp))
