"""A plan for slime, and for vime, which takes slime's flags: run.sh, the reward, and the file that names the plan."""

from __future__ import annotations

from typing import Literal

from ...plans.facts.model_names import architecture_of
from ...plans.facts.model_shape import named_model, tp_divides
from ...plans.yaml.errors import InputError
from .draft import ExportDraft, ExportSource, FrameworkExport, Here
from .export_verl import WHITENS
from .job_keys import job_keys
from .own_files import flag_words, reward_file, rows_file, run_file, shell_line

_MODULE = "rlplan.frameworks.slime.slime_rollout"
_FILTER = "{}.rollout.filter_hub.dynamic_sampling_filters.check_reward_nonzero_std"


def export_slime(draft: ExportDraft) -> FrameworkExport:
    """The files of a run with slime."""
    return _export(draft, "slime")


def export_vime(draft: ExportDraft) -> FrameworkExport:
    """The files of a run with vime."""
    return _export(draft, "vime")


def _export(draft: ExportDraft, name: Literal["slime", "vime"]) -> FrameworkExport:
    source, spec = draft.source, draft.source.job.rollout
    rollout = source.plan.job.rounds.short.rollout
    draft.set("--hf-checkpoint", source.model)
    draft.set("--ref-load", Here("torch_dist"))
    draft.set("--prompt-data", Here("rows.jsonl"))
    draft.set("--input-key", "prompt")
    draft.set("--label-key", "label")
    draft.set("--rollout-shuffle", True)
    apart = source.plan.job.placement is not None
    draft.map("nodes", "--actor-num-nodes", source.train_nodes if apart else max(source.nodes, source.train_nodes))
    draft.map("gpus_per_node", "--actor-num-gpus-per-node", source.gpus_per_node)
    draft.set("--num-gpus-per-node", source.gpus_per_node)
    if source.job.model.lora is not None:
        raise InputError(
            f"model.lora: {name} trains no adapters; export to verl, trl, skyrl or openrlhf, or leave the section out "
            "and solve again", str(source.job_path)
        )  # fmt: skip
    if apart:
        draft.map("placement.train_pool", "--rollout-num-gpus", rollout.engines * rollout.tp)
    else:
        draft.map("placement", "--colocate", True)
    schedule = source.job.algorithm.schedule
    if schedule.decay_steps:
        draft.map("algorithm.schedule.decay_steps", "--num-rollout", schedule.warmup_steps + schedule.decay_steps)
    elif (
        prompts := source.job.data.trained_prompts
    ):  # one of both must be there; the plug-in trains what waits before the last rollout
        draft.set("--num-rollout", prompts // spec.prompts_per_step)
    else:
        draft.set("--num-epoch", 1)
    draft.map("issue.prompts_per_step", "--rollout-batch-size", spec.prompts_per_step)
    draft.map("issue.samples_per_prompt", "--n-samples-per-prompt", spec.samples_per_prompt)
    draft.set("--global-batch-size", spec.samples_per_step)
    draft.map("rollout.max_prompt_tokens", "--rollout-max-prompt-len", spec.max_prompt_tokens)
    draft.map("rollout.max_response_tokens", "--rollout-max-response-len", spec.max_response_tokens)
    draft.map("rollout.temperature", "--rollout-temperature", spec.temperature)
    own = {f"rollout.{name}": f"--rollout-{name.replace('_', '-')}" for name in ("top_p", "top_k", "stop",
           "stop_token_ids")}  # fmt: skip
    if name == "slime":
        batch, near = "--sglang-chunked-prefill-size", {"engine.max_num_batched_tokens": "tokens of a prefill alone"}
    else:
        batch, near = "--vllm-max-num-batched-tokens", {}
    engine = "--sglang-" if name == "slime" else "--vllm-"
    own |= {"engine.kv_cache_dtype": f"{engine}kv-cache-dtype", "engine.max_num_batched_tokens": batch}
    job_keys(draft, own, near)
    if draft.plugin and source.plan.job.bias.mode != "sync":
        draft.set("--data-source-path", f"{_MODULE}.PlannedDataSource")
        draft.set("--custom-config-path", Here("rlplan.yaml"))
        draft.rounds("--rollout-function-path", f"{_MODULE}.generate_rollout")
    else:
        _built_in_rounds(draft)
    draft.engines("--rollout-num-gpus-per-engine")
    draft.sequences(f"{engine}{'max-running-requests' if name == 'slime' else 'max-num-seqs'}")
    if name == "slime":
        draft.kv(f"{engine}mem-fraction-static", None if source.on_cpu else source.engine_share(with_activations=False))
    else:
        draft.kv(f"{engine}gpu-memory-utilization", None if source.on_cpu else source.engine_share())
    if source.awake and not apart:
        draft.note("colocation", "not expressible", "with --colocate engines and trainers leave the GPUs in turns")
    draft.prefix(None)
    drafts = [kind.rollout.drafts for _, kind in source.plan.job.rounds.kinds if kind.rollout.drafts is not None]
    if drafts and name == "slime":
        draft.approximate("rounds.rollout.drafts", "--sglang-speculative-algorithm", "NGRAM",
                          "drafts from what the engine has seen, for any number of running sequences")  # fmt: skip
        draft.set("--sglang-speculative-num-draft-tokens", max(each.tokens for each in drafts))
    elif drafts:
        draft.note(
            "rounds.rollout.drafts", "not expressible", "write --vllm-speculative-config for the engine's own drafts"
        )
    _trainers(draft)
    draft.dtype("float16" if source.job.model.dtype == "float16" else "bfloat16")
    draft.set("--fp16", source.job.model.dtype == "float16")
    _algorithm(draft, name)
    draft.reward("--custom-rm-path", "reward.score_sample")
    draft.levers()
    files = {"reward.py": reward_file(source, "slime"), "prepare.py": rows_file(source, name)}
    if "--custom-config-path" in draft.settings:
        files["plan.yaml"] = source.text
    command = shell_line(
        ["python3", f'"${name.upper()}_DIR/train.py"', '"${MODEL_ARGS[@]}"'], [*flag_words(draft.settings), '"$@"']
    )
    files["run.sh"] = _script(source, name, command, "plan.yaml" in files)
    return draft.done(files, f"{name.upper()}_DIR=path/of/{name} bash run.sh")


def _script(source: ExportSource, name: str, command: str, planned: bool) -> str:
    """run.sh: the model's sizes come from the framework's own scripts/models."""
    shape = architecture_of(source.named_model.partition("@")[0])
    model = "MODEL.sh" if shape is None else f"{shape.name[:1].lower()}{shape.name[1:]}.sh"
    checkout = f"{name.upper()}_DIR"
    plan = 'export RLPLAN_PLAN="$PWD/plan.yaml"\necho "rlplan_plan: $RLPLAN_PLAN" > rlplan.yaml\n' if planned else ""
    return f'{checkout}=$(realpath "${{{checkout}:?the checkout of {name}}}")\n' + run_file(
        source,
        "rows.jsonl",
        f'export PYTHONPATH="$PWD:${checkout}:$PYTHONPATH"\n{plan}'
        f"# The model's sizes as Megatron's flags (MODEL_ARGS), as {name} has them in scripts/models.\n"
        f'source "${{MODEL_SCRIPT:-${checkout}/scripts/models/{model}}}"\n'
        "if [ ! -d torch_dist ]; then\n"
        f'    echo "first make torch_dist, weights for Megatron, by {name}\'s tools/convert_hf_to_torch_dist.py" >&2\n'
        f"    exit 2\nfi\n{command}",
    )


def _built_in_rounds(draft: ExportDraft) -> None:
    """Without the plug-in: over-issue by whole prompts, whose surplus is dropped until the next epoch."""
    source = draft.source
    mode, issued = source.plan.job.bias.mode, source.plan.job.rounds.short.issue.prompts
    if mode in ("race", "defer") and issued > source.job.rollout.prompts_per_step:
        draft.approximate("bias.mode, rounds.short.issue", "--over-sampling-batch-size", issued,
                          "surplus prompts are dropped until the next epoch; no long round trains them")  # fmt: skip
    else:
        draft.rounds()


def _trainers(draft: ExportDraft) -> None:
    train = draft.source.train
    tp = _fitting_tp(draft.source)
    if tp == train.tp:
        draft.map("train.tp", "--tensor-model-parallel-size", tp)
    else:
        draft.approximate("train.tp", "--tensor-model-parallel-size", tp,
                          f"Megatron has bf16 weights and float32 gradients on each replica; TP {tp} makes them fit; "
                          "layers wait for its all-reduces")  # fmt: skip
    for name, key in (("pp", "pipeline-model"), ("ep", "expert-model")):
        draft.map(f"train.{name}", f"--{key}-parallel-size", getattr(train, name))
    shared = train.cp * train.sp
    if train.sp > 1:
        draft.approximate(
            "train.sp", "--context-parallel-size", shared, "ranks pass keys and values around (ring attention)"
        )
    else:
        draft.map("train.cp", "--context-parallel-size", shared)
    draft.note("train.dp", "mapped", key="--actor-num-nodes", value=f"{train.dp * train.tp // tp}, implied")
    draft.replicas(train.dp * train.tp // tp)
    draft.note("train.states", "approximated", "Megatron has bf16 weights on each replica and shares out the optimizer "
               "alone; the plan's trainer shares out all of them", "", "distributed optimizer")  # fmt: skip
    draft.set("--use-dynamic-batch-size", True)
    draft.map("train.micro_batch_tokens", "--max-tokens-per-gpu", -(-train.micro_batch_tokens // shared))
    if tp > 1:
        draft.set("--sequence-parallel", True)
    if train.recompute != "none":
        draft.map("train.recompute", "--recompute-granularity", train.recompute)
        if train.recompute == "full":
            draft.set("--recompute-method", "uniform")
            draft.set("--recompute-num-layers", 1)
    if train.offload:
        draft.map("train.offload", "--optimizer-cpu-offload", True)
        draft.set("--overlap-cpu-optimizer-d2h-h2d", True)
        draft.set("--use-precision-aware-optimizer", True)
    if train.state_copies > 1:
        draft.note("train.state_copies", "not expressible", "the optimizer is shared out over all replicas")


def _fitting_tp(source: ExportSource) -> int:
    """TP by which weights, gradients and a share of the optimizer take at most half of a GPU, beside what activations
    and communication need; the plan's own where that suffices, or where none does."""
    train, limit, gpu = source.train, source.plan.predicted.limit, source.train_pool.accelerators
    shape = named_model(source.job_folder / source.job.model.path).architecture
    parameters = limit.parameters if limit is not None else 0 if shape is None else shape.parameters
    for tp in (1, 2, 4, 8, 16):
        allowed = (
            tp >= train.tp
            and tp <= gpu.per_node
            and train.accelerators % (tp * train.pp * train.cp * train.sp) == 0
            and train.accelerators % (tp * train.pp * train.ep) == 0
        )
        if not allowed or (shape is not None and not tp_divides(tp, shape)):
            continue
        kept = 6.0 * parameters / (tp * train.pp * train.ep) + (
            0 if train.offload else 12.0 * parameters / train.accelerators
        )
        if kept <= 0.5 * gpu.memory_bytes:
            return tp
    return train.tp


def _algorithm(draft: ExportDraft, name: str) -> None:
    source, algorithm = draft.source, draft.source.job.algorithm
    estimator = algorithm.name if algorithm.name in ("gspo", "reinforce_plus_plus_baseline") else "grpo"
    if algorithm.name == "cispo":
        draft.set("--advantage-estimator", estimator)
        draft.note("algorithm.name", "not expressible", "tokens whose ratio is clipped have no gradient, as in PPO")
    elif algorithm.name == "reinforce_plus_plus_baseline":
        draft.set("--normalize-advantages", True)
        draft.approximate("algorithm.name", "--advantage-estimator", estimator, WHITENS)
    elif algorithm.name == "rloo":
        draft.approximate(
            "algorithm.name", "--advantage-estimator", estimator, "the mean of all of a group, not of the others"
        )
    else:
        draft.map("algorithm.name", "--advantage-estimator", estimator)
    if not algorithm.divides_by_std:
        draft.set("--disable-grpo-std-normalization", True)
    draft.map("algorithm.learning_rate", "--lr", algorithm.learning_rate)
    schedule = algorithm.schedule
    draft.map("algorithm.schedule", "--lr-decay-style", schedule.kind)
    if schedule.warmup_steps:
        draft.set("--lr-warmup-iters", schedule.warmup_steps)
    if schedule.decay_steps:
        draft.set("--lr-decay-iters", schedule.warmup_steps + schedule.decay_steps)
        draft.set("--min-lr", schedule.final_share * algorithm.learning_rate)
    draft.map("algorithm.betas", "--adam-beta1", algorithm.betas[0])
    draft.set("--adam-beta2", algorithm.betas[1])
    draft.map("algorithm.weight_decay", "--weight-decay", algorithm.weight_decay)
    draft.map("algorithm.max_grad_norm", "--clip-grad", algorithm.max_grad_norm)
    draft.map("algorithm.clip_low", "--eps-clip", algorithm.clip_low)
    draft.map("algorithm.clip_high", "--eps-clip-high", algorithm.clip_high)
    kl = algorithm.kl
    loss = {} if kl is None else {
        "--kl-loss-coef": kl.coefficient, "--use-kl-loss": True, "--kl-loss-type": kl.estimator,
    }  # fmt: skip
    draft.reference_kl(
        {}, loss, "advantages of a group do not see its KL", "the reference is in host memory between its passes"
    )
    draft.beside_the_clip("--eps-clip-c", "--entropy-coef")
    if algorithm.loss_aggregation == "seq-mean-token-mean":
        draft.note("loss", "mapped", value="the framework's own: the mean over a response, then over samples")
    elif draft.plugin and source.plan.job.bias.mode != "sync":
        draft.token_mean("--custom-pg-loss-reducer-function-path", f"{_MODULE}.planned_token_mean")
    else:
        draft.step_tokens("--calculate-per-token-loss", True)
    if algorithm.dynamic_sampling:
        draft.map("algorithm.dynamic_sampling", "--dynamic-sampling-filter-path", _FILTER.format(name))
    if algorithm.mask_truncated:
        draft.note("algorithm.mask_truncated", "not expressible", "responses that reach the cap are trained")
    sampling = source.correction
    if sampling is not None:
        draft.map("algorithm.importance_sampling", "--use-tis", True, f"cap {sampling.cap:g}")
        draft.set("--tis-clip", sampling.cap)
        if sampling.beyond == "mask":
            draft.note("algorithm.importance_sampling.beyond", "approximated", "tokens beyond the cap count by it")
    draft.map("algorithm.seed", "--rollout-seed", algorithm.seed)
    draft.set("--attention-dropout", 0.0)
    draft.set("--hidden-dropout", 0.0)
