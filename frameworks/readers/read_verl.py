"""verl: Hydra overrides (of a script, or a list of them) or a composed YAML, into a TrainerSetup.

What verl does without being told (0.9.1): FSDP keeps float32 weights, gradients and Adam moments, all sharded; the
reference model lies in host memory and is streamed in; actor and engine share the GPUs, and the actor's states stay on
them unless `param_offload` or `optimizer_offload` is set; the engine sleeps at vLLM's level 2, which keeps nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ...plans.facts.trainer_setup import TrainerSetup
from ...plans.yaml.errors import InputError
from ..keys.key_table import key_table
from .read_algorithm import verl_algorithm
from .settings import GivenValue, Taken, whole
from .shell_words import ShellWord

AR = "actor_rollout_ref."
MAIN = re.compile(r"(?:verl|recipe)[\w.]*\.main_\w+|main_ppo(?:\.py)?|main_dapo(?:\.py)?")
_OVERRIDE = re.compile(r"(?:\+\+?|~)?([A-Za-z_][\w./@-]*)=(.*)", re.DOTALL)
_REFERENCE = re.compile(r"\$\{(?:oc\.select:)?\.?([\w.]+)(?:,(.*))?\}", re.DOTALL)


def overrides_of(words: Sequence[ShellWord], path: str) -> dict[str, GivenValue]:
    """Settings of `key=value` words; of a key that stands twice the last counts, as in Hydra."""
    given: dict[str, GivenValue] = {}
    for word in words:
        if (match := _OVERRIDE.fullmatch(word.text)) and not word.text.startswith("-"):
            line = word.line if word.path in ("", path) else None
            given[match[1]] = GivenValue(match[2].strip("'\""), line, word.unresolved)
        elif word.text.startswith("--config-name") and "megatron" in word.text:
            given["model_engine"] = GivenValue("megatron", word.line)
    return given


def flat_settings(tree: Mapping[str, Any], lines: Mapping[tuple[str, ...], int]) -> dict[str, GivenValue]:
    """Settings of a nested mapping by dotted key; references to other keys are followed, or dropped."""
    flat: dict[str, GivenValue] = {}

    def walk(node: Any, keys: tuple[str, ...]) -> None:
        if isinstance(node, Mapping) and node:
            for key, value in node.items():
                walk(value, (*keys, str(key)))
        else:
            flat[".".join(keys)] = GivenValue(node, lines.get(keys))

    walk(tree, ())
    return {key: each for key, setting in flat.items() if (each := _followed(setting, flat)) is not None}


def _followed(setting: GivenValue, flat: Mapping[str, GivenValue], depth: int = 0) -> GivenValue | None:
    match = _REFERENCE.fullmatch(setting.value.strip()) if isinstance(setting.value, str) else None
    if match is None or depth > 10:
        return setting
    if match[1] in flat:
        return _followed(GivenValue(flat[match[1]].value, setting.line), flat, depth + 1)
    return None if match[2] is None else _followed(GivenValue(match[2].strip(), setting.line), flat, depth + 1)


def verl_setup(given: Mapping[str, GivenValue], source: str, main: str = "") -> TrainerSetup:
    """The setup of verl's settings. `main`: the module that is started. Raises InputError."""
    taken = Taken("verl", source, key_table("verl"), given)
    actor, rollout = f"{AR}actor.", f"{AR}rollout."
    strategy = taken.text("backend", f"{actor}strategy")
    is_megatron = strategy == "megatron" or "megatron" in taken.text(None, "model_engine")
    taken.decide("backend", taken.has(f"{actor}strategy", "model_engine"))
    nodes, per_node = taken.count("nodes", "trainer.nnodes"), taken.count("gpus_per_node", "trainer.n_gpus_per_node")
    mode = taken.text("colocated", "trainer.v1.trainer_mode", "sync")
    separate = mode == "separate_async" or re.search(r"fully_async|one_step_off", main) is not None
    train_gpus = rollout_gpus = nodes * per_node
    total_nodes = nodes
    if separate:
        own_nodes = taken.count("rollout_gpus", (f"{rollout}nnodes", "rollout.nnodes"), 1)
        own_per_node = taken.count(None, (f"{rollout}n_gpus_per_node", "rollout.n_gpus_per_node"), per_node)
        rollout_gpus = own_nodes * own_per_node
        total_nodes = -(-(train_gpus + rollout_gpus) // per_node)
    prompts, samples = taken.count("prompts", "data.train_batch_size"), taken.count("samples", f"{rollout}n")
    lora = max(taken.take("lora_rank", (f"{AR}model.lora_rank", f"{AR}model.lora.rank"), whole), 0)
    backend = _megatron(taken) if is_megatron else _fsdp(taken)
    width = backend["cp"] * backend["sp"]
    micro: dict[str, Any] = {"micro_batch_samples": None, "micro_batch_tokens": None}
    if taken.flag(None, f"{actor}use_dynamic_bsz"):
        tokens = taken.count("micro_batch_tokens", f"{actor}ppo_max_token_len_per_gpu")
        micro["micro_batch_tokens"] = tokens
    else:
        key = f"{actor}ppo_micro_batch_size_per_gpu"
        micro["micro_batch_samples"] = taken.some("micro_batch_samples", key)
        if micro["micro_batch_samples"] is None and (of_all := taken.some(None, f"{actor}ppo_micro_batch_size")):
            ranks = max(1, train_gpus // (backend["tp"] * backend["pp"] * width))
            micro["micro_batch_samples"] = max(1, of_all // ranks)
            taken.decide("micro_batch_samples", True, f"{actor}ppo_micro_batch_size")
        if micro["micro_batch_samples"] is None:
            micro["micro_batch_samples"] = 1
    engine = taken.text("engine", f"{rollout}name", "vllm")
    issued = taken.some("issued_prompts", "data.gen_batch_size")
    estimator = taken.text("critic", "algorithm.adv_estimator")
    in_reward, in_loss = taken.flag(None, "algorithm.use_kl_in_reward"), taken.flag("reference", f"{actor}use_kl_loss")
    taken.decide("reference", taken.has(f"{actor}use_kl_loss", "algorithm.use_kl_in_reward"))
    steps_ahead = _steps_ahead(taken, mode, main)
    return taken.setup(
        model=taken.model(f"{AR}model.path"),
        nodes=total_nodes,
        gpus_per_node=per_node,
        colocated=not separate,
        train_gpus=train_gpus,
        rollout_gpus=rollout_gpus,
        mini_batch_samples=taken.count("mini_batch_samples", f"{actor}ppo_mini_batch_size") * samples,
        lora_rank=lora,
        packed=taken.flag("packed", f"{AR}model.use_remove_padding"),
        chunked_logits=taken.flag("chunked_logits", f"{AR}model.use_fused_kernels"),
        reference=(in_reward or in_loss) and not lora,
        reference_at="host" if not is_megatron else backend["reference_at"],
        algorithm=verl_algorithm(taken, estimator),
        critic=taken.flag(None, "critic.enable", estimator == "gae"),
        prompts=prompts,
        samples=samples,
        issued_prompts=issued if issued is not None and issued > prompts else None,
        dynamic_sampling=taken.flag("dynamic_sampling", "algorithm.filter_groups.enable"),
        max_prompt_tokens=taken.count("max_prompt_tokens", "data.max_prompt_length"),
        max_response_tokens=taken.count("max_response_tokens", "data.max_response_length"),
        engine="sglang" if engine == "sglang" else "vllm",
        rollout_tp=taken.count("rollout_tp", f"{rollout}tensor_model_parallel_size"),
        rollout_ep=taken.count("rollout_ep", f"{rollout}expert_parallel_size"),
        rollout_dp=taken.count("rollout_dp", f"{rollout}data_parallel_size"),
        memory_share=taken.number("memory_share", f"{rollout}gpu_memory_utilization"),
        max_num_seqs=taken.some("max_num_seqs", f"{rollout}max_num_seqs"),
        max_batched_tokens=taken.some("max_batched_tokens", f"{rollout}max_num_batched_tokens"),
        engine_sleeps=not separate and taken.flag("engine_sleeps", f"{rollout}free_cache_engine"),
        engine_keeps_weights_on_host=bool(lora),
        steps_ahead=steps_ahead,
        **micro,
        **{key: value for key, value in backend.items() if key != "reference_at"},
    )


def _steps_ahead(taken: Taken, mode: str, main: str) -> int:
    if mode in ("sync", "rlplan") and "async" not in main and "one_step_off" not in main:
        return 0
    if mode == "separate_async":
        return taken.count("steps_ahead", "trainer.v1.separate_async.parameter_sync_step")
    return 1


def _fsdp(taken: Taken) -> dict[str, Any]:
    fsdp = f"{AR}actor.fsdp_config."
    sp = taken.count("sp", (f"{AR}actor.ulysses_sequence_parallel_size", f"{fsdp}ulysses_sequence_parallel_size"))
    size = taken.take("shard_ranks", f"{fsdp}fsdp_size", whole)
    wide = taken.text("weight_bytes", f"{fsdp}model_dtype") in ("fp32", "float32", "")
    host = taken.flag(None, f"{fsdp}offload_policy")
    checkpointing = taken.flag("recompute", f"{AR}model.enable_gradient_checkpointing")
    params = taken.flag("weights_at", f"{fsdp}param_offload")
    optimizer = taken.flag("optimizer_at", f"{fsdp}optimizer_offload")
    return {
        "backend": "fsdp", "zero": 3 if taken.flag("zero", f"{fsdp}reshard_after_forward") else 2, "tp": 1, "pp": 1,
        "cp": 1, "ep": 1, "sp": sp, "shard_ranks": size if size is not None and size > 0 else None,
        "recompute": "full" if checkpointing else "none",
        "weight_bytes": 4.0 if wide else 2.0, "gradient_bytes": 4.0 if wide else 2.0,
        "optimizer_bytes": 8.0 if wide else 4.0,
        "weights_at": "host" if host else "between" if params else "device",
        "optimizer_at": "host" if host else "between" if optimizer else "device",
    }  # fmt: skip


def _megatron(taken: Taken) -> dict[str, Any]:
    megatron, ref = f"{AR}actor.megatron.", f"{AR}ref.megatron."
    optim = f"{AR}actor.optim.override_optimizer_config."
    fraction = taken.number(None, f"{optim}optimizer_offload_fraction", 1.0)
    on_host = taken.flag(None, f"{optim}optimizer_cpu_offload", False) and fraction != 0
    transformer = f"{megatron}override_transformer_config."
    grained = taken.text("recompute", f"{transformer}recompute_granularity")
    modules = taken.text("recompute_modules", f"{transformer}recompute_modules") if grained == "selective" else ""
    params = taken.flag("weights_at", f"{megatron}param_offload")
    between = taken.flag("optimizer_at", f"{megatron}optimizer_offload")
    if on_host:
        taken.decide("optimizer_at", True, f"{optim}optimizer_cpu_offload")
    sharded = taken.flag("zero", f"{megatron}use_distributed_optimizer")
    return {
        "backend": "megatron", "zero": 1 if sharded else 0, "sp": 1,
        "tp": taken.count("tp", f"{megatron}tensor_model_parallel_size"),
        "pp": taken.count("pp", f"{megatron}pipeline_model_parallel_size"),
        "cp": taken.count("cp", f"{megatron}context_parallel_size"),
        "ep": taken.count("ep", f"{megatron}expert_model_parallel_size"),
        "recompute": grained if grained in ("full", "selective") else "none",
        "recompute_modules": tuple(re.findall(r"\w+", modules)),
        "weight_bytes": 2.0, "gradient_bytes": 4.0, "optimizer_bytes": 12.0,
        "weights_at": "between" if params else "device",
        "optimizer_at": "host" if on_host else "between" if between else "device",
        "reference_at": "between" if taken.flag("reference_at", f"{ref}param_offload") else "device",
    }  # fmt: skip


def verl_words(words: Sequence[ShellWord], path: str) -> TrainerSetup:
    """The setup of a command that starts verl. Raises InputError."""
    at = next((i for i, word in enumerate(words) if MAIN.search(word.text)), -1)
    given = overrides_of(words[at + 1 :], path)
    if not given:
        raise InputError("the command that starts verl has no overrides (key=value); name another file", path)
    return verl_setup(given, path, words[at].text if at >= 0 else "")
