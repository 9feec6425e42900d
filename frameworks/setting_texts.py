"""A change of a set-up in a framework's own keys: what to write, for `rlplan doctor` and exports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..plans.facts.trainer_setup import TrainerSetup

_AR = "actor_rollout_ref."
_FSDP, _MEGATRON = _AR + "actor.fsdp_config.", _AR + "actor.megatron."
_SKYRL_OFFLOAD, _SKYRL_MEGATRON = "trainer.policy.fsdp_config.cpu_offload=", "trainer.policy.megatron_config."
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
    "engine_sleeps": {True: "--offload-rollout", False: "--no-offload-rollout"},
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
    },
    "openrlhf": {
        "optimizer_at": {
            "host": "--ds.adam_offload",
            "between": "--ds.enable_sleep",
            "device": "drop --ds.adam_offload",
        },
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
    },
    "skyrl": {
        "optimizer_at": {"host": _SKYRL_OFFLOAD + "true", "between": _SKYRL_OFFLOAD + "false"},
        "weights_at": {"host": _SKYRL_OFFLOAD + "true", "between": _SKYRL_OFFLOAD + "false"},
        "chunked_logits": {True: "trainer.logprobs_chunk_size=1024"},
        "tp": _SKYRL_MEGATRON + "tensor_model_parallel_size={}",
        "pp": _SKYRL_MEGATRON + "pipeline_model_parallel_size={}",
        "cp": _SKYRL_MEGATRON + "context_parallel_size={}",
        "ep": _SKYRL_MEGATRON + "expert_model_parallel_size={}",
        "recompute": {"full": "trainer.gradient_checkpointing=true"},
        "micro_batch_samples": "trainer.micro_train_batch_size_per_gpu={}",
        "micro_batch_tokens": "trainer.max_tokens_per_microbatch={}",
        "memory_share": "generator.inference_engine.gpu_memory_utilization={}",
        "rollout_tp": "generator.inference_engine.tensor_parallel_size={}",
        "sp": "trainer.policy.sequence_parallel_size={}",
    },
    "rlplan": {
        "optimizer_at": {"host": "search.offload: [true]"},
        "recompute": {"full": "search.recompute: [full]"},
        "micro_batch_tokens": "search.micro_batch_tokens: [{}]",
        "rollout_tp": "search.tp: [{}]",
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
    "engine_keeps_weights_on_host": "",
    "rollout_dp": "",
    "rollout_ep": "",
    **dict.fromkeys(("nodes", "gpus_per_node", "train_gpus", "rollout_gpus", "colocated"), ""),
}
"""Where a framework has no key of its own; machines of both sides are said by `_machine_texts`."""


def _off_host(setup: TrainerSetup) -> str:
    """What to write so that the optimizer is no longer on the host."""
    if setup.framework in ("slime", "vime"):
        return "drop --optimizer-cpu-offload"
    if setup.framework == "openrlhf":
        return "drop --ds.adam_offload"
    if setup.framework == "verl":
        cpu = _AR + "actor.optim.override_optimizer_config.optimizer_cpu_offload=False"
        return cpu if setup.backend == "megatron" else _FSDP + "offload_policy=False"
    return ""


def _machine_texts(setup: TrainerSetup, changed: TrainerSetup) -> list[str]:
    """What to write for other machines, other GPUs of a side, or sides that share them or do not."""
    sizes = ("nodes", "gpus_per_node", "train_gpus", "rollout_gpus", "colocated")
    engines = changed.engines if (changed.engines, changed.rollout_tp) != (setup.engines, setup.rollout_tp) else None
    moved, turned = any(getattr(setup, name) != getattr(changed, name) for name in sizes), None
    if setup.colocated != changed.colocated:
        turned = changed.colocated
    at_least = -(-changed.train_gpus // changed.gpus_per_node)
    nodes = next(n for n in range(at_least, changed.train_gpus + 1) if changed.train_gpus % n == 0)
    each, said = changed.train_gpus // nodes, []
    if setup.framework in ("slime", "vime"):
        said += [] if turned is None else ["--colocate" if turned else "drop --colocate"]
        said += [f"--actor-num-nodes {nodes} --actor-num-gpus-per-node {each}"] if moved else []
        said += [f"--rollout-num-gpus {changed.rollout_gpus}"] if moved and not changed.colocated else []
    elif setup.framework == "verl":
        said += [f"trainer.nnodes={nodes} trainer.n_gpus_per_node={each}"] if moved else []
    elif setup.framework == "trl":
        said += [] if turned is None else ["vllm_mode: colocate" if turned else "vllm_mode: server"]
        said += [f"accelerate launch --num_machines {nodes} --num_processes {changed.train_gpus}"] if moved else []
        if not changed.colocated and (moved or engines):
            tp = changed.rollout_tp
            said.append(f"trl vllm-serve --tensor_parallel_size {tp} --data_parallel_size {changed.engines}")
    elif setup.framework == "openrlhf":
        said += [] if turned is None else ["--train.colocate_all" if turned else "drop --train.colocate_all"]
        said += [f"--actor.num_nodes {nodes} --actor.num_gpus_per_node {each}"] if moved else []
        said += [f"--vllm.num_engines {engines}"] if engines else []
    elif setup.framework == "skyrl":
        place = "trainer.placement."
        said += [] if turned is None else [f"{place}colocate_all={str(turned).lower()}"]
        said += [f"{place}policy_num_nodes={nodes} {place}policy_num_gpus_per_node={each}"] if moved else []
        said += [f"generator.inference_engine.num_engines={engines}"] if engines else []
    elif moved:
        if turned is not None:
            said.append("job.yaml: drop placement.train_pool" if turned else "job.yaml: placement.train_pool: train")
        said.append(f"cluster.yaml: {changed.train_gpus} GPUs that train, {changed.rollout_gpus} that decode")
    return said


def changes_text(setup: TrainerSetup, changes: Mapping[str, Any]) -> str:
    """What to write for these changes, in the keys of the set-up's framework: several are parted by ` and `."""
    texts: dict[str, str | Mapping[Any, str]] = {**_PLAIN, **TEXTS[setup.framework]}
    if setup.framework == "verl" and setup.backend == "megatron":
        texts |= _VERL_MEGATRON
    changed = replace(setup, **changes)
    said = _machine_texts(setup, changed)
    for attribute, value in changes.items():
        if getattr(setup, attribute) == value:
            continue
        text = texts.get(attribute, f"{setup.keys.get(attribute, attribute)}={{}}")
        if not isinstance(text, str):
            text = text.get(value, f"{setup.keys.get(attribute, attribute)}={{}}")
        written = text.format(value)
        if written and written not in said:
            said.append(written)
    if setup.optimizer_at == "host" != changed.optimizer_at and (drop := _off_host(setup)) not in ("", *said):
        said.append(drop)
    return " and ".join(said)
