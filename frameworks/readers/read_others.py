"""SkyRL's dotted keys and OpenRLHF's flags (old names and new) into a TrainerSetup.

What they do without being told. SkyRL (0.4.0): FSDP with float32 states, all models and engines on the same GPUs;
engines sleep at vLLM's level 2, the policy's states go to the host while they decode. OpenRLHF (0.11.2): DeepSpeed ZeRO
2 on bf16 weights with a float32 master copy; engines on GPUs of their own; they sleep, if asked to, at level 1, which
keeps their weights in host memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...plans.facts.trainer_setup import TrainerSetup
from ..keys.key_table import key_table
from .read_algorithm import openrlhf_algorithm, skyrl_algorithm
from .settings import GivenValue, Taken, whole


def skyrl_setup(given: Mapping[str, GivenValue], source: str) -> TrainerSetup:
    """The setup of SkyRL's settings. Raises InputError."""
    taken = Taken("skyrl", source, key_table("skyrl"), given)
    place, policy, engine = "trainer.placement.", "trainer.policy.", "generator.inference_engine."
    colocated = taken.flag("colocated", f"{place}colocate_all")
    nodes = taken.count("nodes", f"{place}policy_num_nodes")
    per_node = taken.count("gpus_per_node", f"{place}policy_num_gpus_per_node")
    train_gpus = nodes * per_node
    tp, dp = (taken.count(attribute, (f"{engine}{key}", f"generator.{old}")) for attribute, key, old in (
        ("rollout_tp", "tensor_parallel_size", "inference_engine_tensor_parallel_size"),
        ("rollout_dp", "data_parallel_size", "inference_engine_data_parallel_size"),
    ))  # fmt: skip
    engines = taken.count("rollout_gpus", (f"{engine}num_engines", "generator.num_inference_engines"))
    rollout_gpus = engines * tp * dp
    megatron = taken.text("backend", "trainer.strategy") == "megatron"
    sp = 1 if megatron else taken.count("sp", f"{policy}sequence_parallel_size")
    sizes = {
        short: taken.count(short, f"{policy}megatron_config.{name}_parallel_size") if megatron else 1
        for short, name in (("tp", "tensor_model"), ("pp", "pipeline_model"), ("cp", "context"), ("ep", "expert_model"))
    }
    samples = taken.count("samples", "generator.n_samples_per_prompt")
    tokens = taken.some("micro_batch_tokens", "trainer.max_tokens_per_microbatch")
    optimizer = f"{policy}optimizer_config."
    host = taken.flag(None, f"{policy}fsdp_config.cpu_offload")
    offloaded = taken.flag("optimizer_at", f"{optimizer}offload_after_step")
    kept = "between" if colocated else "device"
    lora = taken.take("lora_rank", f"{policy}model.lora.rank", whole) or 0
    size = taken.some("shard_ranks", f"{policy}fsdp_config.fsdp_size")
    fractional = taken.text("zero", f"{policy}fsdp_config.reshard_after_forward").lower() == "false"
    checkpointing = taken.flag("recompute", "trainer.gradient_checkpointing")
    grained = taken.text(None, f"{policy}megatron_config.transformer_config_kwargs.recompute_granularity", "")
    steps_ahead = taken.flag("steps_ahead", "trainer.fully_async.enabled")
    return taken.setup(
        model=taken.model(f"{policy}model.path"),
        nodes=nodes if colocated else -(-(train_gpus + rollout_gpus) // per_node),
        gpus_per_node=per_node,
        colocated=colocated,
        train_gpus=train_gpus,
        rollout_gpus=rollout_gpus,
        backend="megatron" if megatron else "fsdp",
        zero=1 if megatron else 2 if fractional else 3,
        sp=sp,
        shard_ranks=size,
        micro_batch_samples=None
        if tokens
        else taken.count("micro_batch_samples", "trainer.micro_train_batch_size_per_gpu"),
        micro_batch_tokens=tokens,
        mini_batch_samples=taken.count("mini_batch_samples", "trainer.policy_mini_batch_size") * samples,
        recompute="full" if (grained == "full" if megatron and grained else checkpointing) else "none",
        lora_rank=lora,
        weight_bytes=2.0 if megatron else 4.0,
        gradient_bytes=4.0,
        optimizer_bytes=12.0 if megatron else 8.0,
        weights_at="host" if host else kept,
        optimizer_at="host" if host else "between" if colocated and offloaded else kept,
        chunked_logits=taken.some("chunked_logits", "trainer.logprobs_chunk_size") is not None,
        reference=(taken.flag("reference", "trainer.algorithm.use_kl_loss")
                   or taken.flag(None, "trainer.algorithm.use_kl_in_reward")) and not lora,
        reference_at=kept,
        algorithm=skyrl_algorithm(taken),
        critic=taken.text("critic", "trainer.algorithm.advantage_estimator") == "gae",
        prompts=taken.count("prompts", "trainer.train_batch_size"),
        samples=samples,
        dynamic_sampling=taken.has("trainer.algorithm.dynamic_sampling.type"),
        max_prompt_tokens=taken.count("max_prompt_tokens", "trainer.max_prompt_length"),
        max_response_tokens=taken.count("max_response_tokens", "generator.sampling_params.max_generate_length"),
        engine="sglang" if taken.text("engine", (f"{engine}backend", "generator.backend")) == "sglang" else "vllm",
        rollout_tp=tp,
        rollout_dp=dp,
        rollout_ep=taken.count("rollout_ep", (f"{engine}expert_parallel_size",
                                              "generator.inference_engine_expert_parallel_size")),
        memory_share=taken.number("memory_share", (f"{engine}gpu_memory_utilization",
                                                   "generator.gpu_memory_utilization")),
        max_num_seqs=taken.some("max_num_seqs", (f"{engine}max_num_seqs", "generator.max_num_seqs")),
        max_batched_tokens=taken.some("max_batched_tokens", f"{engine}max_num_batched_tokens"),
        engine_sleeps=colocated,
        engine_keeps_weights_on_host=bool(lora),
        steps_ahead=taken.count(None, "trainer.fully_async.max_staleness_steps") if steps_ahead else 0,
        **sizes,
    )  # fmt: skip


_OLD_OPENRLHF = {
    "--actor.model_name_or_path": "--pretrain", "--train.colocate_all": "--colocate_all_models",
    "--train.colocate_actor_ref": "--colocate_actor_ref", "--actor.num_nodes": "--actor_num_nodes",
    "--actor.num_gpus_per_node": "--actor_num_gpus_per_node", "--ref.num_nodes": "--ref_num_nodes",
    "--ref.num_gpus_per_node": "--ref_num_gpus_per_node", "--vllm.num_engines": "--vllm_num_engines",
    "--vllm.tensor_parallel_size": "--vllm_tensor_parallel_size", "--vllm.enable_sleep": "--vllm_enable_sleep",
    "--vllm.gpu_memory_utilization": "--vllm_gpu_memory_utilization", "--train.async_enable": "--async_train",
    "--train.async_queue_size": "--async_queue_size", "--train.partial_rollout_enable": "--partial_rollout",
    "--ds.zero_stage": "--zero_stage", "--actor.gradient_checkpointing_enable": "--gradient_checkpointing",
    "--ds.adam_offload": "--adam_offload", "--ds.grad_accum_dtype": "--grad_accum_dtype", "--ds.zpg": "--zpg",
    "--ds.enable_sleep": "--deepspeed_enable_sleep", "--ds.tensor_parallel_size": "--ds_tensor_parallel_size",
    "--train.dynamic_batch_enable": "--use_dynamic_batch", "--train.max_tokens_per_gpu": "--train_max_tokens_per_gpu",
    "--ds.lora.rank": "--lora_rank", "--rollout.batch_size": "--rollout_batch_size",
    "--rollout.vllm_generate_batch_size": "--vllm_generate_batch_size", "--data.max_len": "--max_len",
    "--rollout.max_new_tokens": "--generate_max_len", "--train.micro_batch_size": "--micro_train_batch_size",
    "--train.batch_size": "--train_batch_size", "--rollout.n_samples_per_prompt": "--n_samples_per_prompt",
    "--algo.kl.init_coef": "--init_kl_coef", "--algo.advantage.estimator": "--advantage_estimator",
    "--ds.ring_attn_size": "--ring_attn_size", "--ref.offload": "--ref_reward_offload",
    "--algo.dynamic_filtering_enable": "--dynamic_filtering", "--ds.use_liger_kernel": "--use_liger_kernel",
    "--ds.packing_samples": "--packing_samples", "--critic.num_nodes": "--critic_num_nodes",
    "--critic.num_gpus_per_node": "--critic_num_gpus_per_node", "--algo.kl.use_loss": "--use_kl_loss",
}  # fmt: skip
"""Flags before 0.11, by their names since."""


def openrlhf_setup(given: Mapping[str, GivenValue], source: str) -> TrainerSetup:
    """The setup of the flags of OpenRLHF's `train_ppo_ray`. Raises InputError."""
    taken = Taken("openrlhf", source, key_table("openrlhf"), given, _OLD_OPENRLHF)
    colocated = taken.flag("colocated", "--train.colocate_all")
    nodes, per_node = (
        taken.count("nodes", "--actor.num_nodes"),
        taken.count("gpus_per_node", "--actor.num_gpus_per_node"),
    )
    train_gpus = nodes * per_node
    rollout_tp = taken.count("rollout_tp", "--vllm.tensor_parallel_size")
    engines = taken.some("rollout_gpus", "--vllm.num_engines") or (train_gpus // rollout_tp if colocated else 1)
    rollout_gpus = engines * rollout_tp
    tp, sp = taken.count("tp", "--ds.tensor_parallel_size"), taken.count("sp", "--ds.ring_attn_size")
    zero = taken.take("zero", "--ds.zero_stage", whole)
    samples = taken.count("samples", "--rollout.n_samples_per_prompt")
    prompts = taken.count("prompts", "--rollout.batch_size")
    sleeps, engine_sleeps = (
        taken.flag("weights_at", "--ds.enable_sleep"),
        taken.flag("engine_sleeps", "--vllm.enable_sleep"),
    )
    offload = taken.flag("optimizer_at", "--ds.adam_offload")
    dynamic = taken.flag(None, "--train.dynamic_batch_enable")
    response = taken.some("max_response_tokens", "--rollout.max_new_tokens")
    longest = taken.count("max_prompt_tokens", "--data.max_len")
    prompt = taken.some("max_prompt_tokens", "--prompt_max_len")
    if prompt is None and response is not None:
        prompt = longest - response if longest > response else None
    estimator = taken.text("critic", "--algo.advantage.estimator")
    lora = taken.take("lora_rank", "--ds.lora.rank", whole) or 0
    shared = colocated or taken.flag(None, "--train.colocate_actor_ref")
    reference = taken.number("reference", "--algo.kl.init_coef") != 0
    ref_gpus = 0 if shared or not reference else (
        taken.count(None, "--ref.num_nodes") * taken.count(None, "--ref.num_gpus_per_node")
    )  # fmt: skip
    total = train_gpus if colocated else train_gpus + rollout_gpus + ref_gpus
    issued = taken.some("issued_prompts", "--rollout.vllm_generate_batch_size")
    micro: dict[str, Any] = {
        "micro_batch_tokens": taken.count("micro_batch_tokens", "--train.max_tokens_per_gpu") if dynamic else None,
        "micro_batch_samples": None if dynamic else taken.count("micro_batch_samples", "--train.micro_batch_size"),
    }
    return taken.setup(
        model=taken.model("--actor.model_name_or_path"),
        nodes=-(-total // per_node),
        gpus_per_node=per_node,
        colocated=colocated,
        train_gpus=train_gpus,
        rollout_gpus=rollout_gpus,
        backend="deepspeed",
        zero=2 if zero is None else zero,
        tp=tp,
        sp=sp,
        mini_batch_samples=taken.count("mini_batch_samples", "--train.batch_size"),
        recompute="full" if taken.flag("recompute", "--actor.gradient_checkpointing_enable") else "none",
        lora_rank=lora,
        weight_bytes=2.0,
        gradient_bytes=4.0 if taken.text("gradient_bytes", "--ds.grad_accum_dtype") == "fp32" else 2.0,
        optimizer_bytes=12.0,
        weights_at="between" if sleeps and colocated else "device",
        optimizer_at="host" if offload else "between" if sleeps and colocated else "device",
        packed=taken.flag("packed", "--ds.packing_samples"),
        chunked_logits=taken.flag("chunked_logits", "--ds.use_liger_kernel"),
        reference=reference and not lora,
        reference_at="host" if taken.flag("reference_at", "--ref.offload") else "device",
        algorithm=openrlhf_algorithm(taken, estimator),
        critic=estimator == "gae",
        prompts=prompts,
        samples=samples,
        issued_prompts=issued if issued is not None and issued > prompts else None,
        partial_rollout=taken.flag("partial_rollout", "--train.partial_rollout_enable"),
        dynamic_sampling=taken.flag("dynamic_sampling", "--algo.dynamic_filtering_enable"),
        max_prompt_tokens=prompt or max(1, longest // 2),
        max_response_tokens=response or max(1, longest // 2),
        engine="vllm",
        rollout_tp=rollout_tp,
        memory_share=taken.number("memory_share", "--vllm.gpu_memory_utilization"),
        engine_sleeps=engine_sleeps and colocated,
        engine_keeps_weights_on_host=engine_sleeps and colocated,
        steps_ahead=taken.count("steps_ahead", "--train.async_queue_size")
        if taken.flag(None, "--train.async_enable")
        else 0,
        **micro,
    )
