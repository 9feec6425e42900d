"""slime's flags (and those of vime, which is slime on vLLM) into a TrainerSetup.

What slime does without being told (0.3.1): Megatron keeps bf16 weights, float32 gradients, and a float32 master copy
with Adam's moments that data-parallel ranks share out (it sets the distributed optimizer itself). With `--colocate` the
trainer's states leave the GPUs while engines decode, and engines leave them for training, with nothing kept on the host
(SGLang's weights are sent anew). The reference's weights lie on the host, and take the actor's place for their pass.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from ...plans.facts.model_names import architecture_of
from ...plans.facts.public_models import Architecture
from ...plans.facts.trainer_setup import TrainerSetup
from ..keys.key_table import key_table
from .read_algorithm import slime_algorithm
from .settings import GivenValue, Taken
from .shell_words import ShellWord

_BYTES = {
    "fp32": 4.0,
    "float32": 4.0,
    "bf16": 2.0,
    "fp16": 2.0,
    "bfloat16": 2.0,
    "float16": 2.0,
    "fp8": 1.0,
    "uint8": 1.0,
}


def flags_of(words: Sequence[ShellWord], path: str) -> dict[str, GivenValue]:
    """Settings of `--flag value…` and `--flag=value` words; without a value it is True, several values are a list."""
    given: dict[str, GivenValue] = {}
    name = ""
    for word in words:
        line = word.line if word.path in ("", path) else None
        if word.text.startswith("--") and len(word.text) > 2:
            name, equals, value = word.text.partition("=")
            given[name] = GivenValue(value if equals else True, line, word.unresolved)
        elif name:
            before = given[name]
            if before.value is True:
                value_now: Any = word.text
            else:
                value_now = [*before.value, word.text] if isinstance(before.value, list) else [before.value, word.text]
            given[name] = GivenValue(value_now, before.line or line, before.unresolved + word.unresolved)
    return given


def slime_setup(
    given: Mapping[str, GivenValue], source: str, framework: Literal["slime", "vime"] = "slime", script: str = ""
) -> TrainerSetup:
    """The setup of slime's or vime's flags. `script`: what is started (train.py, train_async.py). Raises InputError."""
    taken = Taken(framework, source, key_table(framework), given)
    colocated = taken.flag("colocated", "--colocate")
    nodes, per_node = taken.count(None, "--actor-num-nodes"), taken.count("train_gpus", "--actor-num-gpus-per-node")
    train_gpus = nodes * per_node
    rollout_gpus = taken.some("rollout_gpus", "--rollout-num-gpus")
    if colocated or rollout_gpus is None:
        rollout_gpus = train_gpus
    gpus_of_node = taken.count("gpus_per_node", "--num-gpus-per-node")
    if not taken.has("--num-gpus-per-node") and (colocated or per_node > gpus_of_node):
        gpus_of_node = per_node
    total = train_gpus if colocated else train_gpus + rollout_gpus
    tp, pp, cp = (taken.count(f"{short}", f"--{name}-parallel-size") for short, name in
                  (("tp", "tensor-model"), ("pp", "pipeline-model"), ("cp", "context")))  # fmt: skip
    prompts, samples = taken.count("prompts", "--rollout-batch-size"), taken.count("samples", "--n-samples-per-prompt")
    issued = taken.some("issued_prompts", "--over-sampling-batch-size")
    mini = taken.some("mini_batch_samples", "--global-batch-size")
    steps = taken.some(None, "--num-steps-per-rollout")
    if mini is None and steps is not None:
        mini = max(1, prompts * samples // steps)
        taken.decide("mini_batch_samples", True, "--num-steps-per-rollout")
    micro: dict[str, Any] = {"micro_batch_samples": None, "micro_batch_tokens": None}
    if taken.flag(None, "--use-dynamic-batch-size"):
        tokens = taken.some("micro_batch_tokens", "--max-tokens-per-gpu")
        micro["micro_batch_tokens"] = tokens
    if micro["micro_batch_tokens"] is None:
        micro["micro_batch_samples"] = taken.count("micro_batch_samples", "--micro-batch-size")
    model = taken.model(("--hf-checkpoint", "--ref-load", "--load"))
    offloads = (colocated and not taken.flag(None, "--release-train")) or taken.flag(None, "--offload-train", False)
    offloads = (offloads or taken.flag(None, "--offload")) and not taken.flag(None, "--no-offload-train", False)
    taken.decide("weights_at", taken.has("--colocate", "--offload-train", "--offload"), "--offload-train")
    on_host = taken.flag("optimizer_at", "--optimizer-cpu-offload")
    fraction = taken.number(None, "--optimizer-offload-fraction", 1.0)
    estimator = taken.text("critic", "--advantage-estimator", "grpo")
    kl = taken.number(None, "--kl-coef", 0.0)
    reference = taken.flag("reference", "--use-kl-loss") or bool(kl)
    grained = taken.text("recompute", "--recompute-granularity")
    prompt_tokens, response_tokens = _lengths(taken)
    chunked = (taken.number("chunked_logits", "--log-probs-chunk-size", -1.0) or -1.0) > 0
    sleeps = (colocated or taken.flag(None, "--offload-rollout", False)) and not taken.flag(
        "engine_sleeps", "--no-offload-rollout", False
    )
    return taken.setup(
        model=_plain(model),
        shape=_shape(taken, model),
        nodes=-(-total // gpus_of_node),
        gpus_per_node=gpus_of_node,
        colocated=colocated,
        train_gpus=train_gpus,
        rollout_gpus=rollout_gpus,
        backend="megatron",
        zero=1,
        tp=tp, pp=pp, cp=cp,
        ep=taken.count("ep", "--expert-model-parallel-size"),
        mini_batch_samples=mini,
        recompute=grained if grained in ("full", "selective") else "none",
        weights_at="between" if offloads else "device",
        optimizer_at="host" if on_host and fraction != 0 else "between" if offloads else "device",
        chunked_logits=chunked or taken.flag(None, "--recompute-loss-function"),
        reference=reference,
        reference_at="host",
        algorithm=slime_algorithm(taken, estimator),
        critic=estimator == "ppo",
        prompts=prompts,
        samples=samples,
        issued_prompts=issued if issued is not None and issued > prompts else None,
        partial_rollout=taken.flag("partial_rollout", "--partial-rollout"),
        dynamic_sampling=bool(taken.text("dynamic_sampling", "--dynamic-sampling-filter-path")),
        max_prompt_tokens=prompt_tokens,
        max_response_tokens=response_tokens,
        engine_sleeps=sleeps,
        steps_ahead=1 if "train_async" in script or "fully_async" in script else 0,
        **micro,
        **_bytes(taken),
        **_engine(taken, framework),
    )  # fmt: skip


def _plain(model: str) -> str:
    """A local path's last part; a hub id stays."""
    model = model.rstrip("/")
    return model if re.fullmatch(r"[\w.-]+/[\w.-]+", model) else model.split("/")[-1]


def _lengths(taken: Taken) -> tuple[int, int]:
    response = taken.some("max_response_tokens", "--rollout-max-response-len")
    prompt = taken.some("max_prompt_tokens", "--rollout-max-prompt-len")
    context = taken.some(None, "--rollout-max-context-len")
    if response is None:
        response = context if context is not None else 1024
    if prompt is None and context is not None and context > response:
        prompt = context - response
        taken.decide("max_prompt_tokens", True, "--rollout-max-context-len")
    return prompt or 1024, response


def _bytes(taken: Taken) -> dict[str, float]:
    """Bytes of a parameter; the optimizer that knows precisions keeps its parts in types of their own."""
    main = taken.text("gradient_bytes", "--main-grads-dtype")
    gradient, states = 4.0, 12.0
    if taken.flag("optimizer_bytes", "--use-precision-aware-optimizer"):
        gradient = _BYTES.get(main, 4.0)
        parts = ("--main-params-dtype", "--exp-avg-dtype", "--exp-avg-sq-dtype")
        states = sum(_BYTES.get(taken.text(None, part, "fp32"), 4.0) for part in parts)
    return {"weight_bytes": 2.0, "gradient_bytes": gradient, "optimizer_bytes": states}


def _engine(taken: Taken, framework: str) -> dict[str, Any]:
    size = taken.count("rollout_tp", "--rollout-num-gpus-per-engine")
    if framework == "vime":
        dp = taken.count("rollout_dp", "--vllm-data-parallel-size")
        expert = taken.flag("rollout_ep", "--vllm-enable-expert-parallel")
        share = taken.number("memory_share", "--vllm-gpu-memory-utilization")
        seqs = taken.some("max_num_seqs", ("--vllm-max-num-seqs", "--vllm-server-concurrency"))
        if seqs is None:
            seqs = taken.some(None, "--vllm-server-concurrency")
        ep = size if expert else 1
    else:
        dp = taken.count("rollout_dp", ("--sglang-dp-size", "--sglang-data-parallel-size"))
        share = taken.number("memory_share", "--sglang-mem-fraction-static")
        seqs = taken.some("max_num_seqs", ("--sglang-max-running-requests", "--sglang-server-concurrency"))
        if seqs is None:
            seqs = taken.some(None, "--sglang-server-concurrency")
        ep = taken.count("rollout_ep", ("--sglang-ep-size", "--sglang-expert-parallel-size"))
    # Data-parallel attention divides an engine's GPUs: each replica of the attention has so many of them.
    inner = dp if size % dp == 0 else 1
    return {
        "engine": "vllm" if framework == "vime" else "sglang", "rollout_tp": size // inner, "rollout_dp": inner,
        "rollout_ep": ep, "memory_share": share, "max_num_seqs": seqs,
    }  # fmt: skip


def _shape(taken: Taken, model: str) -> Architecture | None:
    """The model's shape by Megatron's flags, where its name tells none for certain."""
    named = architecture_of(model)
    sizes = {name: taken.some(None, f"--{flag}") for name, flag in (
        ("layers", "num-layers"), ("hidden", "hidden-size"), ("heads", "num-attention-heads"), ("vocab", "vocab-size"),
        ("intermediate", "ffn-hidden-size"), ("kv_heads", "num-query-groups"), ("head_dim", "kv-channels"),
        ("experts", "num-experts"), ("active_experts", "moe-router-topk"),
        ("expert_intermediate", "moe-ffn-hidden-size"), ("shared_intermediate", "moe-shared-expert-intermediate-size"),
        ("latent_kv", "kv-lora-rank"), ("latent_q", "q-lora-rank"),
    )}  # fmt: skip
    grouped, untied = (
        taken.flag(None, "--group-query-attention"),
        taken.flag(None, "--untie-embeddings-and-output-weights"),
    )
    latent = taken.flag(None, "--multi-latent-attention")
    layers, hidden, heads, vocab = (sizes[name] for name in ("layers", "hidden", "heads", "vocab"))
    if (named is not None and not named.guessed) or None in (layers, hidden, heads, vocab) or latent:
        return None
    assert layers and hidden and heads and vocab
    experts = sizes["experts"] or 0
    dense = _dense_layers(taken.text(None, "--moe-layer-freq"), layers) if experts else 0
    return Architecture(
        _plain(model).lower(), layers, hidden, heads, (sizes["kv_heads"] or heads) if grouped else heads,
        sizes["head_dim"] or hidden // heads, vocab,
        intermediate=0 if experts and not dense else sizes["intermediate"] or 4 * hidden,
        tied=not untied, experts=experts, active_experts=sizes["active_experts"] or 0,
        expert_intermediate=sizes["expert_intermediate"] or 0, shared_intermediate=sizes["shared_intermediate"] or 0,
        dense_layers=dense, qk_norm=taken.flag(None, "--qk-layernorm"),
    )  # fmt: skip


def _dense_layers(frequency: str, layers: int) -> int:
    """Layers without experts, of `[0]*1+[1]*26`, a list, or a period."""
    if frequency.isdigit():
        return layers - len(range(0, layers, int(frequency)))
    repeated = sum(int(count) for count in re.findall(r"\[0\]\s*\*\s*(\d+)", frequency))
    return repeated or frequency.replace(" ", "").strip("[]").split(",").count("0")


def slime_words(words: Sequence[ShellWord], path: str, framework: Literal["slime", "vime"]) -> TrainerSetup:
    """The setup of a command that starts slime or vime. Raises InputError."""
    at = next((i for i, word in enumerate(words) if re.search(r"train(_async)?\.py$", word.text)), -1)
    return slime_setup(flags_of(words[at + 1 :], path), path, framework, words[at].text if at >= 0 else "")
