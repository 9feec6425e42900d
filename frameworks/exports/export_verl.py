"""A plan for verl: run.sh with Hydra overrides, the reward, and what writes the rows as Parquet."""

from __future__ import annotations

from ...plans.schema.levers import ALL_LINEAR
from ..keys.key_table import key_table
from .draft import ExportDraft, FrameworkExport, Here
from .job_keys import job_keys
from .own_files import override_words, reward_file, rows_file, run_file, shell_line

AR = "actor_rollout_ref."
_LOSSES = {
    "token-mean": "token-mean", "seq-mean-token-mean": "seq-mean-token-mean",
    "seq-mean-token-sum-norm": "seq-mean-token-sum-norm", "step-token-mean": "token-mean",
}  # fmt: skip
_ESTIMATORS = {"rloo": "rloo", "reinforce_plus_plus_baseline": "reinforce_plus_plus_baseline"}
WHITENS = "divides by the spread over tokens, a response once for each, and subtracts their mean"
"""What frameworks do in place of the spread over responses."""
_LEAST_WEIGHT = 1e-8
"""The lower bound of a token's importance weight, which verl wants: beyond what it takes for the least, e^-20."""
_PLAN_KEY = "trainer.v1.rlplan.plan"
"""Our plug-in's own key, which Hydra takes with a `+`."""


def export_verl(draft: ExportDraft) -> FrameworkExport:
    """The files of a run with verl."""
    source, job = draft.source, draft.source.job
    spec, rollout = job.rollout, f"{AR}rollout."
    actor = f"{AR}actor."
    draft.set(f"{AR}model.path", source.model)
    draft.set("data.train_files", Here("data.parquet"))
    draft.set("data.val_files", Here("data.parquet"))
    draft.prompts()
    for name, value in job.data.chat_template_kwargs.items():
        draft.map(f"data.chat_template_kwargs.{name}", f"data.apply_chat_template_kwargs.{name}", value)
    draft.set("trainer.logger", ["console"])  # its own has Weights & Biases as well, which wants an account
    draft.set("trainer.val_before_train", False)
    draft.set("trainer.test_freq", -1)
    draft.map("issue.prompts_per_step", "data.train_batch_size", spec.prompts_per_step)
    draft.map("issue.samples_per_prompt", f"{rollout}n", spec.samples_per_prompt)
    draft.map("rollout.max_prompt_tokens", "data.max_prompt_length", spec.max_prompt_tokens)
    draft.map("rollout.max_response_tokens", "data.max_response_length", spec.max_response_tokens)
    draft.map("rollout.temperature", f"{rollout}temperature", spec.temperature)
    job_keys(draft, {
        "rollout.top_p": f"{rollout}top_p",
        "rollout.top_k": f"{rollout}top_k",
        "engine.kv_cache_dtype": f"{rollout}engine_kwargs.vllm.kv_cache_dtype",
        "engine.max_num_batched_tokens": f"{rollout}max_num_batched_tokens",
    })  # fmt: skip
    draft.set(f"{rollout}name", "vllm")
    draft.rounds("trainer.v1.trainer_mode", "rlplan")
    draft.engines(f"{rollout}tensor_model_parallel_size")
    draft.sequences(f"{rollout}max_num_seqs")
    draft.kv(f"{rollout}gpu_memory_utilization", None if source.on_cpu else source.engine_share())
    draft.map("colocation", f"{rollout}free_cache_engine", not source.awake)
    draft.prefix(f"{rollout}enable_prefix_caching")
    _drafts(draft, f"{rollout}engine_kwargs.vllm.speculative_config")
    nodes, gpus = source.shared_gpus
    draft.map("nodes", "trainer.nnodes", nodes)
    draft.map("gpus_per_node", "trainer.n_gpus_per_node", gpus)
    if source.on_cpu:
        draft.set("trainer.device", "cpu")
    if source.plan.job.placement is not None:
        draft.note("placement.train_pool", "not expressible",
                   "verl's synchronous trainer shares GPUs between engines and trainers")  # fmt: skip
    megatron = _trainers(draft)
    lora = source.job.model.lora
    if lora is not None:
        # Megatron's backend (its layers have other names) and FSDP's have keys of their own.
        own = f"{AR}model.lora."
        if megatron:
            draft.map("model.lora.rank", f"{own}rank", lora.rank)
            draft.map("model.lora.alpha", f"{own}alpha", lora.alpha)
            if not lora.of_all:
                draft.note("model.lora.target_modules", "not expressible", "Megatron's layers join these matrices; all "
                           "of them have adapters")  # fmt: skip
        else:
            map_adapters(draft, f"{AR}model.", "", ("lora_rank", "lora_alpha", "target_modules"))
        draft.map("model.lora.sent", f"{own}merge", lora.sent == "merged")
        draft.set(f"{rollout}load_format", "safetensors")  # its engines keep the base that they loaded
    draft.map("updates a step", f"{actor}ppo_mini_batch_size", spec.prompts_per_step, "one: the whole step")
    _algorithm(draft, megatron)
    draft.set("reward.custom_reward_function.name", "compute_score")
    draft.reward("reward.custom_reward_function.path", Here("reward.py"))
    draft.map("reward.workers", "reward.num_workers", max(1, source.plan.job.reward.all_workers))
    draft.levers()
    table = key_table("verl")
    plus = {key: "+" for key in draft.settings if (found := table.get(key)) is None or found.note == "+"}
    words = override_words(draft.settings, plus)
    files = {"reward.py": reward_file(source, "verl"), "prepare.py": rows_file(source, "verl")}
    if draft.plugin and source.plan.job.bias.mode != "sync":
        words.append(f'"+{_PLAN_KEY}=$PWD/plan.yaml"')
        files["plan.yaml"] = source.text
    if megatron:
        words.insert(0, "model_engine=megatron")
    command = shell_line(["python3", "-m", "verl.trainer.main_ppo"], [*words, '"$@"'])
    files["run.sh"] = run_file(source, "data.parquet", command)
    return draft.done(files, "bash run.sh")


def _drafts(draft: ExportDraft, key: str) -> None:
    """Speculative decoding: drafts from the prompt and the response itself, of the plan's length."""
    drafts = [kind.rollout.drafts for _, kind in draft.source.plan.job.rounds.kinds if kind.rollout.drafts is not None]
    if drafts:
        tokens = max(each.tokens for each in drafts)
        draft.approximate("rounds.rollout.drafts", key, {"method": "ngram", "num_speculative_tokens": tokens,
                          "prompt_lookup_max": 4}, "drafts from the sample's own text, not from the prompt's earlier "
                          "responses, and for any number of running sequences")  # fmt: skip


def _trainers(draft: ExportDraft) -> bool:
    """Whether Megatron trains: where the plan divides the model by more than its sequences."""
    source, train = draft.source, draft.source.train
    actor = f"{AR}actor."
    megatron = max(train.tp, train.pp, train.cp, train.ep) > 1
    width = train.sp * train.cp
    draft.set(f"{actor}use_dynamic_bsz", True)
    draft.map("train.micro_batch_tokens", f"{actor}ppo_max_token_len_per_gpu", -(-train.micro_batch_tokens // width))
    if megatron:
        for name, key in (("tp", "tensor_model"), ("pp", "pipeline_model"), ("cp", "context"), ("ep", "expert_model")):
            draft.map(f"train.{name}", f"{actor}megatron.{key}_parallel_size", getattr(train, name))
        if train.sp > 1:
            draft.note("train.sp", "not expressible", f"sequences are not shared by {train.sp} ranks; take cp")
        if train.recompute != "none":
            base = f"{actor}megatron.override_transformer_config."
            draft.map("train.recompute", f"{base}recompute_granularity", train.recompute)
            if train.recompute == "full":
                draft.set(f"{base}recompute_method", "uniform")
                draft.set(f"{base}recompute_num_layers", 1)
        if train.offload:
            draft.map("train.offload", f"{actor}optim.override_optimizer_config.optimizer_cpu_offload", True)
        draft.note("train.dp", "mapped", key="trainer.nnodes", value=f"{train.dp}, implied")
        if source.job.model.dtype != "bfloat16":
            draft.map("model.dtype", f"{actor}megatron.dtype", source.job.model.dtype)
            draft.set(f"{AR}rollout.dtype", source.job.model.dtype)
        return True
    draft.set(f"{actor}strategy", "fsdp2")
    draft.map("train.sp", f"{actor}fsdp_config.ulysses_sequence_parallel_size", train.sp)
    draft.map("train.recompute", f"{AR}model.enable_gradient_checkpointing", train.recompute != "none")
    draft.map("train.offload", f"{actor}fsdp_config.optimizer_offload", train.offload)
    draft.note("train.dp", "mapped", key="trainer.nnodes", value=f"{train.dp}, implied")
    if train.state_copies > 1:
        draft.map("train.state_copies", f"{actor}fsdp_config.fsdp_size", train.shard_ranks)
    if source.job.model.dtype != "bfloat16":
        draft.map("model.dtype", f"{actor}fsdp_config.dtype", source.job.model.dtype)
        draft.set(f"{AR}rollout.dtype", source.job.model.dtype)
    return False


def _schedule(draft: ExportDraft, megatron: bool) -> None:
    """The learning rate's schedule: Megatron's optimizer has other keys for it than FSDP's."""
    algorithm, optim = draft.source.job.algorithm, f"{AR}actor.optim."
    schedule = algorithm.schedule
    if schedule.warmup_steps:
        draft.set(f"{optim}lr_warmup_steps", schedule.warmup_steps)
    end = schedule.warmup_steps + (schedule.decay_steps or 0)
    if megatron:
        draft.map("algorithm.schedule", f"{optim}lr_decay_style", schedule.kind)
        if schedule.decay_steps:
            draft.set(f"{optim}lr_decay_steps", end)
            draft.set(f"{optim}min_lr", schedule.final_share * algorithm.learning_rate)
    elif schedule.kind == "linear":
        draft.note("algorithm.schedule", "not expressible", "rates of FSDP's optimizer are constant or a cosine")
    else:
        draft.map("algorithm.schedule", f"{optim}lr_scheduler_type", schedule.kind)
        if schedule.decay_steps:  # the trainer makes the optimizer's steps the run's
            draft.set(f"{optim}min_lr_ratio", schedule.final_share)
            draft.map("algorithm.schedule.decay_steps", "trainer.total_training_steps", end,
                      f"{end}, warm-up included: the run ends with the fall")  # fmt: skip


def map_adapters(
    draft: ExportDraft, base: str, sent: str, names: tuple[str, str, str] = ("rank", "alpha", "target_modules")
) -> None:
    """The job's adapters, under `base` and the `names` of rank, alpha and target modules.

    `sent`: what the framework's engines are sent; "" where a key of its own says it.
    """
    lora = draft.source.job.model.lora
    if lora is None:
        return
    rank, alpha, modules = (base + name for name in names)
    draft.map("model.lora.rank", rank, lora.rank)
    draft.map("model.lora.alpha", alpha, round(lora.alpha) if lora.alpha == round(lora.alpha) else lora.alpha)
    draft.map("model.lora.target_modules", modules, ALL_LINEAR if lora.of_all else list(lora.target_modules))
    if sent and sent != lora.sent:
        what = "merged weights" if sent == "merged" else "adapters alone"
        draft.note("model.lora.sent", "approximated", f"its engines are sent {what}")


def _algorithm(draft: ExportDraft, megatron: bool) -> None:
    source, algorithm = draft.source, draft.source.job.algorithm
    actor = f"{AR}actor."
    estimator = _ESTIMATORS.get(algorithm.name, "grpo")
    if algorithm.name == "reinforce_plus_plus_baseline":
        draft.approximate("algorithm.name", "algorithm.adv_estimator", estimator, WHITENS)
    else:
        draft.map("algorithm.name", "algorithm.adv_estimator", estimator)
    draft.set("algorithm.norm_adv_by_std_in_grpo", algorithm.divides_by_std)
    if algorithm.name in ("gspo", "cispo"):
        draft.set(f"{actor}policy_loss.loss_mode", algorithm.name)
    draft.map("algorithm.learning_rate", f"{actor}optim.lr", algorithm.learning_rate)
    _schedule(draft, megatron)
    draft.map("algorithm.betas", f"{actor}optim.betas", list(algorithm.betas))
    draft.map("algorithm.weight_decay", f"{actor}optim.weight_decay", algorithm.weight_decay)
    draft.map("algorithm.max_grad_norm", f"{actor}optim.clip_grad", algorithm.max_grad_norm)
    draft.map("algorithm.clip_low", f"{actor}clip_ratio_low", algorithm.clip_low)
    draft.map("algorithm.clip_high", f"{actor}clip_ratio_high", algorithm.clip_high)
    draft.beside_the_clip(f"{actor}clip_ratio_c", f"{actor}entropy_coeff")
    if algorithm.kl is not None:
        coefficient = algorithm.kl.coefficient
        kind = {"k1": "kl", "k2": "mse", "k3": "low_var_kl"}[algorithm.kl.estimator]
    else:
        coefficient, kind = 0.0, ""
    draft.reference_kl(
        {f"{actor}use_kl_loss": False},
        {f"{actor}kl_loss_coef": coefficient, f"{actor}use_kl_loss": True, f"{actor}kl_loss_type": kind},
        {"algorithm.kl_ctrl.kl_coef": coefficient, "algorithm.use_kl_in_reward": True, "algorithm.kl_penalty": kind,
         f"{actor}use_kl_loss": False},
        f"{AR}ref.megatron.param_offload" if megatron else "verl keeps a reference under FSDP in host memory",
    )  # fmt: skip
    loss, rounds = source.plan.job.loss, draft.plugin and source.plan.job.bias.mode != "sync"
    mode, summed = _LOSSES[algorithm.loss_aggregation], "seq-mean-token-sum-norm"
    if rounds and mode == "token-mean":
        # What our plug-in would set itself: a sum over tokens, divided by the plan's constant.
        draft.map("loss", f"{actor}loss_agg_mode", summed, f"{summed}, over the plan's {loss.tokens:,} tokens a step")
        draft.set(f"{actor}loss_scale_factor", max(1, round(loss.tokens / source.job.rollout.samples_per_step)))
    elif mode == summed:
        draft.map("loss", f"{actor}loss_agg_mode", mode)
        draft.set(f"{actor}loss_scale_factor", source.job.rollout.max_response_tokens)
    elif mode == "token-mean":
        draft.step_tokens(f"{actor}loss_agg_mode", mode)
    else:
        draft.map("loss", f"{actor}loss_agg_mode", mode)
    if algorithm.dynamic_sampling:
        draft.set("algorithm.filter_groups.metric", "reward")
    draft.map("algorithm.dynamic_sampling", "algorithm.filter_groups.enable", algorithm.dynamic_sampling)
    if algorithm.mask_truncated:
        draft.note("algorithm.mask_truncated", "not expressible", "responses that reach the cap are trained")
    sampling = source.correction
    if sampling is not None and sampling.beyond == "truncate":
        draft.map("algorithm.importance_sampling", "algorithm.rollout_correction.rollout_is", "token")
        draft.set("algorithm.rollout_correction.rollout_is_threshold", sampling.cap)
    elif sampling is not None:
        draft.map("algorithm.importance_sampling", "algorithm.rollout_correction.rollout_is", "token")
        draft.set("algorithm.rollout_correction.rollout_is_threshold", sampling.cap)
        draft.set("algorithm.rollout_correction.rollout_rs", "token_k1")
        draft.set("algorithm.rollout_correction.rollout_rs_threshold", f"{_LEAST_WEIGHT}_{sampling.cap}")
    draft.map("algorithm.seed", "data.seed", algorithm.seed)
