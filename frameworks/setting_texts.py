"""A change of a set-up in a framework's own keys: what to write, for `rlplan doctor` and exports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..plans.facts.trainer_setup import TrainerSetup

_AR = "actor_rollout_ref."
_FSDP, _MEGATRON = _AR + "actor.fsdp_config.", _AR + "actor.megatron."
_RECOMPUTE_FLAGS = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
_CPU_ADAM_FLAGS = "--optimizer-cpu-offload --overlap-cpu-optimizer-d2h-h2d --use-precision-aware-optimizer"

Texts = Mapping[str, str | Mapping[Any, str]]
"""By attribute of a TrainerSetup what to write, `{}` for the value; or by value, where values are written apart."""

_SLIME: Texts = {
    "optimizer_at": {
        "host": _CPU_ADAM_FLAGS,
        "between": "--offload-train",
        "device": "drop --optimizer-cpu-offload",
    },
    "weights_at": {"between": "--offload-train", "device": "--no-offload-train"},
    "recompute": {"full": _RECOMPUTE_FLAGS},
    "micro_batch_tokens": "--use-dynamic-batch-size --max-tokens-per-gpu {}",
    "micro_batch_samples": "--micro-batch-size {}",
    "mini_batch_samples": "--global-batch-size {}",
    "memory_share": "--sglang-mem-fraction-static {}",
    "rollout_tp": "--rollout-num-gpus-per-engine {}",
    "tp": "--tensor-model-parallel-size {} --sequence-parallel",
    "pp": "--pipeline-model-parallel-size {}",
    "cp": "--context-parallel-size {}",
    "ep": "--expert-model-parallel-size {} --expert-tensor-parallel-size 1",
    "nodes": "--actor-num-nodes {}",
    "train_gpus": "",
    "rollout_gpus": "",
    "engine_sleeps": {True: "--offload-rollout", False: "--no-offload-rollout"},
    "colocated": {True: "--colocate", False: "drop --colocate"},
}

TEXTS: Mapping[str, Texts] = {
    "slime": _SLIME,
    "vime": {**_SLIME, "memory_share": "--vllm-gpu-memory-utilization {}"},
    "verl": {
        "weights_at": {"between": _FSDP + "param_offload=True", "device": _FSDP + "param_offload=False"},
        "optimizer_at": {
            "between": _FSDP + "optimizer_offload=True",
            "device": _FSDP + "optimizer_offload=False",
            "host": f"{_AR}actor.strategy=fsdp2 {_FSDP}offload_policy=True",
        },
        "recompute": {"full": _AR + "model.enable_gradient_checkpointing=True"},
        "micro_batch_tokens": f"{_AR}actor.use_dynamic_bsz=True {_AR}actor.ppo_max_token_len_per_gpu={{}}",
        "micro_batch_samples": _AR + "actor.ppo_micro_batch_size_per_gpu={}",
        "chunked_logits": {True: _AR + "model.use_fused_kernels=True"},
        "memory_share": _AR + "rollout.gpu_memory_utilization={}",
        "rollout_tp": _AR + "rollout.tensor_model_parallel_size={}",
        "sp": _FSDP + "ulysses_sequence_parallel_size={}",
        "tp": _MEGATRON + "tensor_model_parallel_size={}",
        "pp": _MEGATRON + "pipeline_model_parallel_size={}",
        "cp": _MEGATRON + "context_parallel_size={}",
        "ep": _MEGATRON + "expert_model_parallel_size={}",
        "nodes": "trainer.nnodes={}",
        "train_gpus": "",
        "rollout_gpus": "",
        "engine_sleeps": {True: _AR + "rollout.free_cache_engine=True", False: _AR + "rollout.free_cache_engine=False"},
    },
    "trl": {
        "optimizer_at": {"host": "accelerate: deepspeed_config.offload_optimizer_device: cpu"},
        "zero": {3: "accelerate launch --config_file zero3.yaml (trl/accelerate_configs)"},
        "backend": "",
        "weight_bytes": "",
        "gradient_bytes": "",
        "optimizer_bytes": "",
        "recompute": {"full": "gradient_checkpointing: true"},
        "micro_batch_samples": "per_device_train_batch_size: {} (gradient_accumulation_steps as many times more)",
        "chunked_logits": {True: "use_liger_kernel: true"},
        "memory_share": "vllm_gpu_memory_utilization: {}",
        "rollout_tp": "vllm_tensor_parallel_size: {}",
        "engine_sleeps": {True: "vllm_enable_sleep_mode: true"},
        "engine": {"vllm": "use_vllm: true"},
        "nodes": "accelerate: num_machines: {}",
        "train_gpus": "",
        "rollout_gpus": "",
    },
    "openrlhf": {
        "optimizer_at": {"host": "--ds.adam_offload", "between": "--ds.enable_sleep"},
        "weights_at": {"between": "--ds.enable_sleep"},
        "zero": {3: "--ds.zero_stage 3"},
        "backend": "",
        "weight_bytes": "",
        "gradient_bytes": "",
        "optimizer_bytes": "",
        "recompute": {"full": "--actor.gradient_checkpointing_enable"},
        "micro_batch_samples": "--train.micro_batch_size {}",
        "micro_batch_tokens": "--train.dynamic_batch_enable --train.max_tokens_per_gpu {}",
        "memory_share": "--vllm.gpu_memory_utilization {}",
        "rollout_tp": "--vllm.tensor_parallel_size {}",
        "engine_sleeps": {True: "--vllm.enable_sleep", False: "drop --vllm.enable_sleep"},
        "engine_keeps_weights_on_host": {False: "drop --vllm.enable_sleep"},
        "nodes": "--actor.num_nodes {}",
        "train_gpus": "",
        "rollout_gpus": "",
    },
    "skyrl": {
        "optimizer_at": {"host": "trainer.policy.fsdp_config.cpu_offload=true"},
        "recompute": {"full": "trainer.gradient_checkpointing=true"},
        "micro_batch_samples": "trainer.micro_train_batch_size_per_gpu={}",
        "micro_batch_tokens": "trainer.max_tokens_per_microbatch={}",
        "memory_share": "generator.inference_engine.gpu_memory_utilization={}",
        "rollout_tp": "generator.inference_engine.tensor_parallel_size={}",
        "sp": "trainer.policy.sequence_parallel_size={}",
        "nodes": "trainer.placement.policy_num_nodes={}",
        "train_gpus": "",
        "rollout_gpus": "",
    },
    "rlplan": {
        "optimizer_at": {"host": "search.offload: [true]"},
        "recompute": {"full": "search.recompute: [full]"},
        "micro_batch_tokens": "search.micro_batch_tokens: [{}]",
        "rollout_tp": "search.tp: [{}]",
        "nodes": "cluster.yaml: nodes: {}",
        "train_gpus": "",
        "rollout_gpus": "",
    },
}
"""By framework. An empty text: another attribute of the same change says it."""

_VERL_MEGATRON: Texts = {
    "weights_at": {"between": _MEGATRON + "param_offload=True", "device": _MEGATRON + "param_offload=False"},
    "optimizer_at": {
        "between": _MEGATRON + "optimizer_offload=True",
        "device": _MEGATRON + "optimizer_offload=False",
        "host": "+" + _AR + "actor.optim.override_optimizer_config.optimizer_cpu_offload=True "
        "+" + _AR + "actor.optim.override_optimizer_config.optimizer_offload_fraction=1.0",
    },
    "recompute": {
        "full": f"+{_MEGATRON}override_transformer_config.recompute_granularity=full "
        f"+{_MEGATRON}override_transformer_config.recompute_method=uniform "
        f"+{_MEGATRON}override_transformer_config.recompute_num_layers=1"
    },
}

_PLAIN: Texts = {
    "engine_keeps_weights_on_host": {False: "sleep at level 2, which drops weights"},
    "rollout_dp": "",
    "rollout_ep": "",
    "gpus_per_node": "",
}
"""Where a framework has no key of its own."""


def changes_text(setup: TrainerSetup, changes: Mapping[str, Any]) -> str:
    """What to write for these changes, in the keys of the set-up's framework: several are parted by ` and `."""
    texts: dict[str, str | Mapping[Any, str]] = {**_PLAIN, **TEXTS[setup.framework]}
    if setup.framework == "verl" and setup.backend == "megatron":
        texts |= _VERL_MEGATRON
    said: list[str] = []
    for attribute, value in changes.items():
        if getattr(setup, attribute) == value:
            continue
        text = texts.get(attribute, f"{setup.keys.get(attribute, attribute)}={{}}")
        if not isinstance(text, str):
            text = text.get(value, f"{setup.keys.get(attribute, attribute)}={{}}")
        written = text.format(value)
        if written and written not in said:
            said.append(written)
    if setup.framework in ("slime", "vime") and setup.optimizer_at == "host" != changes.get("optimizer_at", "host"):
        said.append("drop --optimizer-cpu-offload")
    return " and ".join(said)
