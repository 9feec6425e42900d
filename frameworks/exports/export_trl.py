"""A plan for TRL: grpo.yaml, accelerate.yaml, and a train.py of a few lines."""

from __future__ import annotations

from typing import Any

from ...plans.phrases.numbers import count
from .draft import ExportDraft, ExportSource, FrameworkExport
from .export_verl import map_adapters
from .job_keys import job_keys
from .own_files import reward_file, yaml_text

_HEAD = "ADDRESS"
_LOSSES = {
    "token-mean": "dr_grpo", "seq-mean-token-mean": "grpo", "seq-mean-token-sum-norm": "dr_grpo",
    "step-token-mean": "dapo",
}  # fmt: skip


def export_trl(draft: ExportDraft) -> FrameworkExport:
    """The files of a run with TRL."""
    source, job = draft.source, draft.source.job
    spec, rounds = job.rollout, source.plan.job.rounds
    tp = rounds.short.rollout.tp
    one_gpu = source.on_cpu or tp == 1
    own_tokens = job.algorithm.name == "cispo" and source.plan.job.bias.mode != "sync"
    draft.plugin &= one_gpu and not own_tokens
    world, nodes = _processes(draft)
    draft.set("model_name_or_path", source.model)
    draft.set("output_dir", "output")
    draft.set("logging_steps", 1)
    draft.set("report_to", "none")
    draft.map("issue.samples_per_prompt", "num_generations", spec.samples_per_prompt)
    _batch(draft, world)
    draft.map("rollout.max_response_tokens", "max_completion_length", spec.max_response_tokens)
    if source.on_cpu:
        draft.set("use_cpu", True)
        draft.note("rounds.short.rollout.tp", "mapped", value="the trainer's own model decodes, on its cores")
        draft.sequences(None, "the plug-in decodes up to 256 at once on the trainer's own model")
        draft.kv(None, None)
        draft.note("rollout.max_prompt_tokens", "not expressible", "TRL 1.16 has no cap of a prompt; filter the rows")
    else:
        draft.set("use_vllm", True)
        draft.engines("vllm_tensor_parallel_size")
        draft.sequences(None, "TRL derives it: samples of a process's batch, times TP")
        draft.kv("vllm_gpu_memory_utilization", source.engine_share())
        draft.map("colocation", "vllm_enable_sleep_mode", not source.awake)
        draft.map("rollout.max_prompt_tokens", "vllm_max_model_length", spec.longest_tokens)
        draft.prefix(None)
    said = "one GPU an engine" if one_gpu else f"engines have TP {tp}; the plug-in's have one GPU each"
    if own_tokens:
        said = "TRL's cispo divides by a step's own tokens, with which the plug-in runs mode sync alone"
    if draft.plugin or rounds.long is None:
        mode = source.plan.job.bias.mode
        draft.note("bias.mode, rounds", "mapped", "", "train.py: plan_trainer", f"{mode}, rlplan's plug-in ({said})"
                   if draft.plugin else "sync, TRL's own rounds")  # fmt: skip
    else:
        draft.note("bias.mode, rounds", "not expressible", f"{said}; {source.plain_costs}")
    _algorithm(draft)
    _trainers(draft, world)
    if source.plan.job.placement is not None:
        draft.note("placement.train_pool", "not expressible", "TRL's engines share their GPUs with its trainers")
    if any(kind.rollout.drafts is not None for _, kind in rounds.kinds):
        draft.note("rounds.rollout.drafts", "not expressible", "TRL makes its engine without speculative decoding")
    if job.model.lora is not None:
        draft.set("use_peft", True)
        draft.set("lora_dropout", 0.0)
        map_adapters(draft, "lora_", "merged", ("r", "alpha", "target_modules"))
    draft.reward("reward_weights", [1.0])
    draft.levers()
    files = {
        "grpo.yaml": f"# {job.name}: rlplan's plan for trl grpo\n" + yaml_text(draft.settings),
        "accelerate.yaml": yaml_text(_accelerate(source, world, nodes)),
        "train.py": train_file(source, draft.plugin),
        "reward.py": reward_file(source, "trl"),
    }
    if draft.plugin:
        files["plan.yaml"] = source.text
    launch = "python train.py --config grpo.yaml"
    if world > 1:
        on = f" --machine_rank RANK --main_process_ip {_HEAD} --main_process_port 29500" if nodes > 1 else ""
        launch = f"accelerate launch --config_file accelerate.yaml{on} train.py --config grpo.yaml"
    if nodes > 1:
        launch += f"  # on each node; RANK from 0 to {nodes - 1}, {_HEAD}: the address of node 0"
    return draft.done(files, launch)


def _processes(draft: ExportDraft) -> tuple[int, int]:
    """(data-parallel processes, nodes): one a GPU, as many on each node, as many as divide the step's samples and are
    divided by the engines' TP."""
    source = draft.source
    nodes, gpus = (1, source.train.dp) if source.on_cpu else source.shared_gpus
    samples, tp = source.job.rollout.samples_per_step, source.plan.job.rounds.short.rollout.tp
    fitting = [
        (used * each, used)
        for used in range(1, nodes + 1)
        for each in range(1, gpus + 1)
        if samples % (used * each) == 0 and (source.on_cpu or used * each % tp == 0)
    ]
    return max(fitting, default=(1, 1))


def _batch(draft: ExportDraft, world: int) -> None:
    """P, and the micro-batch in samples: the largest whose longest sequences keep the plan's budget of tokens."""
    source = draft.source
    each = source.job.rollout.samples_per_step // world
    most = max(1, source.train.micro_batch_tokens // source.longest_tokens)
    size = max(size for size in range(1, min(each, most) + 1) if each % size == 0)
    draft.approximate(
        "train.micro_batch_tokens", "per_device_train_batch_size", size,
        f"{count(size, 'sample')} whatever the length, padded to the longest; the plan packs "
        f"{source.train.micro_batch_tokens:,} tokens",
    )  # fmt: skip
    draft.map(
        "issue.prompts_per_step", "gradient_accumulation_steps", each // size,
        f"{each // size}: {world} x {size} x {each // size} samples are {source.job.rollout.prompts_per_step} prompts",
    )  # fmt: skip


def _algorithm(draft: ExportDraft) -> None:
    algorithm, source = draft.source.job.algorithm, draft.source
    draft.map("algorithm.learning_rate", "learning_rate", algorithm.learning_rate)
    schedule = algorithm.schedule
    if schedule.kind == "constant":
        kind = "constant_with_warmup" if schedule.warmup_steps else "constant"
        draft.map("algorithm.schedule", "lr_scheduler_type", kind)
    else:
        steps = (schedule.decay_steps or 0) + schedule.warmup_steps
        least = schedule.kind == "cosine" and schedule.final_share > 0
        draft.map("algorithm.schedule", "lr_scheduler_type", "cosine_with_min_lr" if least else schedule.kind)
        draft.map("algorithm.schedule.decay_steps", "max_steps", steps,
                  f"{steps}, warm-up included: the run ends with the fall")  # fmt: skip
        if least:
            draft.map("algorithm.schedule.final_share", "lr_scheduler_kwargs", {"min_lr_rate": schedule.final_share})
        elif schedule.final_share:
            draft.note("algorithm.schedule.final_share", "not expressible", "the rate falls to 0")
    if schedule.warmup_steps:
        draft.set("warmup_steps", schedule.warmup_steps)
    for key, name, value in (
        ("adam_beta1", "betas", algorithm.betas[0]), ("adam_beta2", "betas", algorithm.betas[1]),
        ("weight_decay", "weight_decay", algorithm.weight_decay),
        ("max_grad_norm", "max_grad_norm", algorithm.max_grad_norm),
        ("epsilon", "clip_low", algorithm.clip_low),
        # TRL's cispo takes the bound itself, and others what it is above 1.
        ("epsilon_high", "clip_high", algorithm.clip_high + (algorithm.name == "cispo")),
        ("mask_truncated_completions", "mask_truncated", algorithm.mask_truncated),
        ("temperature", "temperature", source.job.rollout.temperature), ("seed", "seed", algorithm.seed),
    ):  # fmt: skip
        draft.map(f"algorithm.{name}", key, value)
    _sampling(draft)
    if template := source.job.data.chat_template_kwargs:
        draft.map("data.chat_template_kwargs", "chat_template_kwargs", template)
    kl = algorithm.kl
    beta = "its KL is k3" if kl is None or kl.estimator != "k3" else {"beta": kl.coefficient}
    draft.reference_kl(
        {"beta": 0.0}, beta, "its KL is in the loss alone", "the reference stays on the device, sharded as the policy"
    )
    scale = "group" if algorithm.divides_by_std else "none"
    if algorithm.name == "reinforce_plus_plus_baseline":
        draft.approximate(
            "algorithm.name",
            "scale_rewards",
            "batch",
            "divides by the spread of a step's rewards, not its advantages",
        )
    elif algorithm.name == "rloo":
        draft.approximate("algorithm.name", "scale_rewards", scale, "the mean of a whole group, not of the others; the "
                          f"advantage is {1 - 1 / source.job.rollout.samples_per_prompt:.2f} of RLOO's")  # fmt: skip
    else:
        draft.map("algorithm.name", "scale_rewards", scale)
    if algorithm.name == "gspo":
        draft.set("importance_sampling_level", "sequence")
    draft.beside_the_clip("delta", "entropy_coef", "the mean over the tokens of a micro-batch, whatever the loss")
    loss = _LOSSES[algorithm.loss_aggregation]
    if algorithm.name == "cispo" or algorithm.loss_aggregation == "step-token-mean":
        draft.step_tokens("loss_type", "cispo" if algorithm.name == "cispo" else loss)
    elif draft.plugin and loss == "dr_grpo":
        draft.token_mean("loss_type", loss)
    elif draft.plugin or algorithm.loss_aggregation != "token-mean":
        draft.map("loss", "loss_type", loss)
    else:
        draft.approximate("loss", "loss_type", "dapo", "divides by a step's own tokens, not by the plan's constant")
    if algorithm.dynamic_sampling:
        draft.note(
            "algorithm.dynamic_sampling", "not expressible", "groups with equal rewards are trained with advantage 0"
        )
    if not source.on_cpu:
        sampling = source.correction
        draft.map("algorithm.importance_sampling", "vllm_importance_sampling_correction", sampling is not None)
        if sampling is not None:
            draft.set("vllm_importance_sampling_mode", f"token_{sampling.beyond}")
            draft.set("vllm_importance_sampling_clip_max", sampling.cap)


def _sampling(draft: ExportDraft) -> None:
    """How tokens are drawn, and what ends a response: those of vLLM are parameters of its requests."""
    source = draft.source
    keys = {f"rollout.{name}": name for name in ("top_p", "top_k", "min_p")} | {"model.revision": "model_revision"}
    if not source.on_cpu:
        keys |= {"rollout.stop": "generation_kwargs", "rollout.stop_token_ids": "generation_kwargs"}
    job_keys(draft, keys, {"model.revision": "not of the engine, which is made of the main branch; weights follow"})
    if "generation_kwargs" in draft.settings:
        ends = {name: list(getattr(source.job.rollout, name)) for name in ("stop", "stop_token_ids")}
        draft.set("generation_kwargs", {name: value for name, value in ends.items() if value})


def _trainers(draft: ExportDraft, world: int) -> None:
    source, train = draft.source, draft.source.train
    shards = f"{world} processes" + ("" if source.on_cpu or world == 1 else ", FSDP2")
    draft.note("train.dp", "mapped" if world == train.accelerators else "approximated",
               "" if world == train.accelerators else f"{world} processes divide the step's samples", "num_processes",
               shards)  # fmt: skip
    wider = {name: getattr(train, name) for name in ("tp", "pp", "cp", "sp", "ep") if getattr(train, name) > 1}
    if wider:
        said = ", ".join(f"{name} {size}" for name, size in wider.items())
        draft.note("train layout", "not expressible", f"{said}: TRL trains by data parallelism and FSDP alone")
    draft.map("train.recompute", "gradient_checkpointing", train.recompute != "none")
    # rlplan keeps float32 weights; under FSDP's mixed precision TRL does as well.
    draft.map("model.dtype", "dtype", "float32", f"float32 weights, {source.job.model.dtype} where it computes")
    draft.set("bf16", source.job.model.dtype == "bfloat16")
    draft.set("fp16", source.job.model.dtype == "float16")
    if train.offload:
        draft.note("train.offload", "approximated", "FSDP's offload keeps weights on the host as well",
                   "fsdp_offload_params", "true")  # fmt: skip


def _accelerate(source: ExportSource, world: int, nodes: int) -> dict[str, Any]:
    """accelerate's configuration."""
    precision = {"bfloat16": "bf16", "float16": "fp16", "float32": "no"}[source.job.model.dtype]
    config: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE", "distributed_type": "NO", "downcast_bf16": "no", "machine_rank": 0,
        "main_training_function": "main", "mixed_precision": precision, "num_machines": nodes, "num_processes": world,
        "rdzv_backend": "static", "same_network": True, "use_cpu": source.on_cpu,
    }  # fmt: skip
    if source.on_cpu and world > 1:
        config["distributed_type"] = "MULTI_CPU"
    elif world > 1:
        config["distributed_type"] = "FSDP"
        config["fsdp_config"] = {
            "fsdp_version": 2, "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP", "fsdp_reshard_after_forward": True,
            "fsdp_state_dict_type": "FULL_STATE_DICT", "fsdp_cpu_ram_efficient_loading": True,
            "fsdp_offload_params": source.train.offload,
        }  # fmt: skip
    return config


def train_file(source: ExportSource, plugin: bool) -> str:
    """train.py."""
    plug = (
        "from rlplan.frameworks.trl.trl_rollout import plan_trainer\n",
        'plan_trainer(trainer, HERE / "plan.yaml")\n',
    )
    imported, called = plug if plugin else ("", "")
    adapters = source.job.model.lora is not None
    peft, lora = (", get_peft_config", ", peft_config=get_peft_config(model)") if adapters else ("", "")
    return f'''"""Trains {source.job.name} with TRL: python train.py --config grpo.yaml [--max_steps 3]"""

import json
from pathlib import Path

from datasets import Dataset
from reward import reward
{imported}from rlplan.plans.files.prompt_rows import trained_rows
from rlplan.plans.schema.job import load_job
from trl import GRPOConfig, GRPOTrainer, ModelConfig, TrlParser{peft}

HERE = Path(__file__).parent
args, model = TrlParser((GRPOConfig, ModelConfig)).parse_args_and_config()
args.model_init_kwargs = {{"dtype": model.dtype, "revision": model.model_revision}}
rows = trained_rows(load_job(HERE / {str(source.job_file)!r}), HERE / {str(source.data)!r}, "no")
data = Dataset.from_list([{{"prompt": row.prompt, "answer": json.dumps(row.answer)}} for row in rows])
trainer = GRPOTrainer(model.model_name_or_path, reward, args=args, train_dataset=data{lora})
{called}trainer.train()
'''
