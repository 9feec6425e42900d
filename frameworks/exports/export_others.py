"""A plan for SkyRL (dotted keys) and for OpenRLHF (flags): neither has a way to run a plan's rounds."""

from __future__ import annotations

from .draft import ExportDraft, FrameworkExport, Here
from .export_verl import WHITENS, map_adapters
from .job_keys import job_keys
from .own_files import flag_words, override_words, reward_file, rows_file, run_file, shell_line, skyrl_main


def export_skyrl(draft: ExportDraft) -> FrameworkExport:
    """The files of a run with SkyRL."""
    source, spec, train = draft.source, draft.source.job.rollout, draft.source.train
    draft.plugin = False
    trainer, policy, engine = "trainer.", "trainer.policy.", "generator.inference_engine."
    draft.set(f"{policy}model.path", source.model)
    draft.set("data.train_data", [Here("data.parquet")])
    draft.set("data.val_data", [Here("data.parquet")])
    draft.prompts()
    for name, value in source.job.data.chat_template_kwargs.items():
        draft.map(f"data.chat_template_kwargs.{name}", f"generator.chat_template_kwargs.{name}", value)
    draft.set(f"{trainer}eval_before_train", False)
    draft.set(f"{trainer}eval_interval", -1)
    draft.set(f"{trainer}logger", "console")  # its own is Weights & Biases, which wants an account
    draft.set(f"{trainer}ckpt_path", Here("checkpoints"))  # its own is one for all runs, from which it resumes
    draft.map("issue.prompts_per_step", f"{trainer}train_batch_size", spec.prompts_per_step)
    draft.set(f"{trainer}policy_mini_batch_size", spec.prompts_per_step)
    draft.map("issue.samples_per_prompt", "generator.n_samples_per_prompt", spec.samples_per_prompt)
    draft.map("rollout.max_prompt_tokens", f"{trainer}max_prompt_length", spec.max_prompt_tokens)
    draft.map("rollout.max_response_tokens", "generator.sampling_params.max_generate_length", spec.max_response_tokens)
    draft.map("rollout.temperature", "generator.sampling_params.temperature", spec.temperature)
    sampling = "generator.sampling_params."
    job_keys(draft, {
        **{f"rollout.{name}": f"{sampling}{name}" for name in ("top_p", "top_k", "min_p", "stop")},
        "rollout.stop_token_ids": f"{sampling}additional_kwargs.stop_token_ids",
        "engine.kv_cache_dtype": f"{engine}engine_init_kwargs.kv_cache_dtype",
        "engine.max_num_batched_tokens": f"{engine}max_num_batched_tokens",
    })  # fmt: skip
    draft.rounds()
    draft.engines(f"{engine}tensor_parallel_size", f"{engine}num_engines")
    draft.sequences(f"{engine}max_num_seqs")
    draft.kv(f"{engine}gpu_memory_utilization", None if source.on_cpu else source.engine_share())
    draft.prefix(f"{engine}enable_prefix_caching")
    apart = source.plan.job.placement is not None
    draft.map("placement", f"{trainer}placement.colocate_all", not apart)
    nodes = source.train_nodes if apart else max(source.nodes, source.train_nodes)
    draft.map("nodes", f"{trainer}placement.policy_num_nodes", nodes)
    draft.map("gpus_per_node", f"{trainer}placement.policy_num_gpus_per_node", source.gpus_per_node)
    if source.awake and not apart:
        draft.note("colocation", "not expressible", "with colocate_all engines and trainers leave the GPUs in turns")
    megatron = max(train.tp, train.pp, train.cp, train.ep) > 1
    draft.map("train layout", f"{trainer}strategy", "megatron" if megatron else "fsdp")
    if megatron:
        for name, key in (("tp", "tensor_model"), ("pp", "pipeline_model"), ("cp", "context"), ("ep", "expert_model")):
            draft.map(f"train.{name}", f"{policy}megatron_config.{key}_parallel_size", getattr(train, name))
        if train.sp > 1:
            draft.note("train.sp", "not expressible", f"sequences are not shared by {train.sp} ranks; take cp")
    else:
        draft.map("train.sp", f"{policy}sequence_parallel_size", train.sp)
        if train.state_copies > 1:
            draft.map("train.state_copies", f"{policy}fsdp_config.fsdp_size", train.shard_ranks)
    draft.replicas(train.dp)
    draft.map("train.micro_batch_tokens", f"{trainer}max_tokens_per_microbatch", train.micro_batch_tokens)
    draft.map("train.recompute", f"{trainer}gradient_checkpointing", train.recompute != "none")
    if train.offload and megatron:
        draft.note("train.offload", "not expressible", "the optimizer's state stays on the GPUs")
    elif train.offload:
        draft.approximate("train.offload", f"{policy}fsdp_config.cpu_offload", True, "weights lie on the host as well")
    map_adapters(draft, f"{policy}model.lora.", "merged" if megatron else "adapter")
    _skyrl_algorithm(draft)
    draft.dtype()
    draft.reward("environment.env_class", "rlplan")
    draft.levers()
    words = override_words(draft.settings, {})
    command = 'export PYTHONPATH="$PWD:$PYTHONPATH"\n' + shell_line(["python3", "main_rlplan.py"], [*words, '"$@"'])
    files = {
        "run.sh": run_file(source, "data.parquet", command),
        "main_rlplan.py": skyrl_main(),
        "reward.py": reward_file(source, "skyrl"),
        "prepare.py": rows_file(source, "skyrl"),
    }
    return draft.done(files, "bash run.sh")


def _skyrl_algorithm(draft: ExportDraft) -> None:
    algorithm, own = draft.source.job.algorithm, "trainer.algorithm."
    optimizer = "trainer.policy.optimizer_config."
    if algorithm.name == "reinforce_plus_plus_baseline":
        draft.set(f"{own}advantage_batch_normalize", True)
        draft.approximate("algorithm.name", f"{own}advantage_estimator", "grpo", WHITENS)
    else:
        draft.map("algorithm.name", f"{own}advantage_estimator", "rloo" if algorithm.name == "rloo" else "grpo")
    draft.set(f"{own}grpo_norm_by_std", algorithm.divides_by_std)
    if algorithm.name in ("gspo", "cispo"):
        draft.set(f"{own}policy_loss_type", algorithm.name)
    elif algorithm.dual_clip is not None:
        draft.set(f"{own}policy_loss_type", "dual_clip")
    if algorithm.name == "gspo" and algorithm.dual_clip is not None:
        draft.note("algorithm.dual_clip", "not expressible", "its gspo has no bound for negative advantages")
    elif algorithm.dual_clip is not None:
        draft.map("algorithm.dual_clip", f"{own}clip_ratio_c", algorithm.dual_clip)
    if algorithm.entropy_bonus:
        draft.set(f"{own}use_entropy_loss", True)
        draft.map("algorithm.entropy_bonus", f"{own}entropy_loss_coef", algorithm.entropy_bonus)
    kl = algorithm.kl
    shared = {} if kl is None else {f"{own}kl_loss_coef": kl.coefficient, f"{own}kl_estimator_type": kl.estimator}
    draft.reference_kl(
        {f"{own}use_kl_loss": False},
        {**shared, f"{own}use_kl_loss": True},
        {**shared, f"{own}use_kl_loss": False, f"{own}use_kl_in_reward": True},
        "trainer.ref.fsdp_config.cpu_offload",
    )
    draft.map("algorithm.learning_rate", f"{optimizer}lr", algorithm.learning_rate)
    draft.map("algorithm.betas", f"{optimizer}adam_betas", list(algorithm.betas))
    draft.map("algorithm.weight_decay", f"{optimizer}weight_decay", algorithm.weight_decay)
    draft.map("algorithm.max_grad_norm", f"{optimizer}max_grad_norm", algorithm.max_grad_norm)
    schedule = algorithm.schedule
    draft.set(f"{optimizer}num_warmup_steps", schedule.warmup_steps)
    if schedule.kind == "constant":
        draft.map("algorithm.schedule", f"{optimizer}scheduler", "constant_with_warmup")
    else:
        draft.approximate("algorithm.schedule", f"{optimizer}scheduler", schedule.kind, "falls to 0 over the whole run")
    bounds = f"{own}cispo.cispo_eps_clip" if algorithm.name == "cispo" else f"{own}eps_clip"
    draft.map("algorithm.clip_low", f"{bounds}_low", algorithm.clip_low)
    draft.map("algorithm.clip_high", f"{bounds}_high", algorithm.clip_high)
    losses = {
        "token-mean": "token_mean",
        "step-token-mean": "token_mean",
        "seq-mean-token-mean": "sequence_mean",
        "seq-mean-token-sum-norm": "seq_mean_token_sum_norm",
    }
    reduction = losses[algorithm.loss_aggregation]
    if reduction == "token_mean":
        draft.step_tokens(f"{own}loss_reduction", reduction)
    else:
        draft.map("loss", f"{own}loss_reduction", reduction)
        if reduction == "seq_mean_token_sum_norm":
            draft.set(f"{own}max_seq_len", draft.source.job.rollout.max_response_tokens)
    if algorithm.dynamic_sampling:
        draft.map("algorithm.dynamic_sampling", f"{own}dynamic_sampling.type", "filter")
    draft.map("algorithm.mask_truncated", "generator.apply_overlong_filtering", algorithm.mask_truncated)
    sampling = draft.source.correction
    if sampling is not None:
        draft.map("algorithm.importance_sampling", f"{own}off_policy_correction.tis_ratio_type", "token")
        draft.set(f"{own}off_policy_correction.token_tis_ratio_clip_high", sampling.cap)
        if sampling.beyond == "mask":
            draft.note("algorithm.importance_sampling.beyond", "not expressible", "tokens beyond the cap count by it")
    draft.map("algorithm.seed", "trainer.seed", algorithm.seed)


def export_openrlhf(draft: ExportDraft) -> FrameworkExport:
    """The files of a run with OpenRLHF."""
    source, spec, train = draft.source, draft.source.job.rollout, draft.source.train
    draft.plugin = False
    draft.set("--actor.model_name_or_path", source.model)
    draft.set("--data.prompt_dataset", Here("rows.jsonl"))
    draft.set("--data.input_key", "prompt")
    draft.set("--data.label_key", "label")
    draft.set("--ckpt.output_dir", Here("output"))
    draft.set("--ckpt.path", Here("checkpoints"))
    draft.map("issue.prompts_per_step", "--rollout.batch_size", spec.prompts_per_step)
    draft.map("issue.samples_per_prompt", "--rollout.n_samples_per_prompt", spec.samples_per_prompt)
    draft.set("--train.batch_size", spec.samples_per_step)
    draft.map("rollout.max_response_tokens", "--rollout.max_new_tokens", spec.max_response_tokens)
    draft.map("rollout.max_prompt_tokens", "--data.max_len", spec.longest_tokens)
    draft.map("rollout.temperature", "--rollout.temperature", spec.temperature)
    job_keys(draft, {"rollout.top_p": "--rollout.top_p"})
    draft.rounds()
    draft.engines("--vllm.tensor_parallel_size", "--vllm.num_engines")
    draft.sequences(None, "the engine's own default (256 or more) holds")
    draft.kv("--vllm.gpu_memory_utilization", None if source.on_cpu else source.engine_share())
    draft.prefix("--vllm.enable_prefix_caching")
    apart = source.plan.job.placement is not None
    nodes = source.train_nodes if apart else max(source.nodes, source.train_nodes)
    draft.map("nodes", "--actor.num_nodes", nodes)
    draft.map("gpus_per_node", "--actor.num_gpus_per_node", source.gpus_per_node)
    draft.map("placement", "--train.colocate_all", not apart)
    if not apart:
        draft.map("colocation", "--vllm.enable_sleep", not source.awake)
        draft.set("--ds.enable_sleep", not source.awake)
    draft.note(
        "train.states", "approximated", "ZeRO keeps bf16 weights and a float32 master copy", "--ds.zero_stage", "3"
    )
    draft.set("--ds.zero_stage", 3)
    draft.map("train.tp", "--ds.tensor_parallel_size", train.tp)
    shared = train.sp * train.cp
    if train.sp > 1:
        draft.approximate(
            "train.sp", "--ds.ring_attn_size", shared, "ranks pass keys and values around (ring attention)"
        )
    else:
        draft.map("train.cp", "--ds.ring_attn_size", shared)
    for name in ("pp", "ep"):
        if getattr(train, name) > 1:
            draft.note(f"train.{name}", "not expressible", "DeepSpeed's ZeRO shares out the states in its place")
    draft.set("--ds.packing_samples", True)
    draft.replicas(train.dp)
    draft.set("--train.dynamic_batch_enable", True)
    draft.map("train.micro_batch_tokens", "--train.max_tokens_per_gpu", -(-train.micro_batch_tokens // shared))
    draft.map("train.recompute", "--actor.gradient_checkpointing_enable", train.recompute != "none")
    draft.map("train.offload", "--ds.adam_offload", train.offload)
    map_adapters(draft, "--ds.lora.", "merged")
    _openrlhf_algorithm(draft)
    draft.dtype("float16" if source.job.model.dtype == "float16" else "bfloat16")
    draft.set("--ds.param_dtype", "fp16" if source.job.model.dtype == "float16" else "bf16")
    draft.reward("--reward.remote_url", Here("reward.py"))
    draft.levers()
    command = shell_line(["python3", "-m", "openrlhf.cli.train_ppo_ray"], [*flag_words(draft.settings), '"$@"'])
    files = {
        "run.sh": run_file(source, "rows.jsonl", command),
        "reward.py": reward_file(source, "openrlhf"),
        "prepare.py": rows_file(source, "openrlhf"),
    }
    return draft.done(files, "bash run.sh")


def _openrlhf_algorithm(draft: ExportDraft) -> None:
    algorithm = draft.source.job.algorithm
    estimators = {"dr_grpo": "dr_grpo", "rloo": "rloo", "reinforce_plus_plus_baseline": "reinforce_baseline"}
    estimator = estimators.get(algorithm.name, "group_norm")
    if algorithm.name == "cispo":
        draft.set("--algo.advantage.estimator", estimator)
        draft.note("algorithm.name", "not expressible", "tokens whose ratio is clipped have no gradient, as in PPO")
    elif algorithm.name == "reinforce_plus_plus_baseline":
        draft.approximate("algorithm.name", "--algo.advantage.estimator", estimator, WHITENS)
    else:
        draft.map("algorithm.name", "--algo.advantage.estimator", estimator)
    if algorithm.name == "gspo":
        draft.set("--actor.policy_loss_type", "gspo")
    draft.beside_the_clip("--actor.dual_clip", "--actor.entropy_coef")
    kl = algorithm.kl
    shared = {} if kl is None else {"--algo.kl.init_coef": kl.coefficient, "--algo.kl.estimator": kl.estimator}
    draft.reference_kl({"--algo.kl.init_coef": 0.0}, {**shared, "--algo.kl.use_loss": True}, shared, "--ref.offload",
                       "taken off token by token, after the rewards of a group are compared")  # fmt: skip
    draft.map("algorithm.learning_rate", "--actor.adam.lr", algorithm.learning_rate)
    draft.map("algorithm.betas", "--actor.adam.betas", list(algorithm.betas))
    draft.map("algorithm.weight_decay", "--actor.adam.weight_decay", algorithm.weight_decay)
    draft.map("algorithm.max_grad_norm", "--actor.max_norm", algorithm.max_grad_norm)
    draft.map("algorithm.clip_low, clip_high", "--actor.eps_clip_low_high", [algorithm.clip_low, algorithm.clip_high])
    draft.set("--actor.lr_warmup_ratio", 0.0)
    if algorithm.schedule.kind == "constant" and not algorithm.schedule.warmup_steps:
        draft.map("algorithm.schedule", "--actor.lr_scheduler", "constant")
    else:
        schedule = algorithm.schedule
        kinds = {"constant": "constant_with_warmup", "linear": "linear", "cosine": "cosine_with_min_lr"}
        draft.approximate("algorithm.schedule", "--actor.lr_scheduler", kinds[schedule.kind],
                          "a fall takes the whole run; a warm-up is a share of it, here none: add "
                          "--actor.lr_warmup_ratio")  # fmt: skip
        if schedule.kind == "cosine":
            draft.set("--actor.min_lr_ratio", schedule.final_share)
    if algorithm.loss_aggregation == "seq-mean-token-mean":
        draft.map("loss", "--actor.loss_agg_mode", "seq-mean-token-mean")
    else:
        draft.step_tokens("--actor.loss_agg_mode", "token-mean")
    if algorithm.dynamic_sampling:
        draft.map("algorithm.dynamic_sampling", "--algo.dynamic_filtering_enable", True)
    if algorithm.mask_truncated:
        draft.note("algorithm.mask_truncated", "not expressible", "responses that reach the cap are trained")
    sampling = draft.source.correction
    if sampling is not None:
        draft.map("algorithm.importance_sampling", "--algo.advantage.is_correction_level", "token")
        draft.set("--algo.advantage.is_correction_mode", "mask" if sampling.beyond == "mask" else "clip")
        draft.set("--algo.advantage.is_correction_threshold", [0.0, sampling.cap])  # a lower and an upper bound
    draft.map("algorithm.seed", "--train.seed", algorithm.seed)
