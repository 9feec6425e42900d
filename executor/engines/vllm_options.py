"""How vLLM is set: the environment and arguments of an engine, and the sampling parameters of a request; and by which
weights an output was decoded."""

from __future__ import annotations

import math
import os
from typing import Any

from ...plans.facts.device_shares import KV_VALUE_BYTES
from ...plans.facts.executable import ALIVE_TOKENS
from ...plans.schema.job import pretrained
from ...rounds.balancing.placement import BLOCK_TOKENS
from ..drafts.draft_messages import PROMPT, PROMPT_TOKENS, REQUEST
from ..processes.actors import visible_gpus
from .messages import EngineConfig, Request

CORES = "VLLM_CPU_OMP_THREADS_BIND"
"""vLLM's environment variable for the cores of an engine on a CPU: those of each rank, `|` between ranks."""

FIXED_CACHE_SHARE = 0.05
"""Share of a GPU's memory that must be free, beside the KV cache, when an engine with a KV cache of fixed size starts.
vLLM refuses to start if less than `gpu_memory_utilization` is free; the engine uses that number for nothing else."""

# Prompt tokens in one engine step: vLLM's default on a CPU, and on GPUs what laws of prefill were
# fitted with; an `AsyncLLM` of vLLM's takes 2,048.
CPU_BATCHED_TOKENS, GPU_BATCHED_TOKENS = 4096, 8192


KERNELS = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"
KEPT_KERNELS = 128
"""Compiled products that oneDNN keeps in an engine on a CPU unless the environment has another number: one for each
shape of weights and number of tokens, about 0.5 MB each. oneDNN's own 1,024 fill 500 MB within hundreds of steps and
make the demo's rounds no faster; with 64 they take 5 % longer."""


def environment(config: EngineConfig) -> dict[str, str]:
    """Environment of an engine's process; vLLM reads it when it is imported."""
    env = {
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        "TOKENIZERS_PARALLELISM": "false",
    }
    if config.device == "cpu":
        assert len(config.cores) == config.tp, "one core per tensor-parallel rank"
        # More threads than one per rank only add barriers to the small products of a decode step.
        env[CORES] = "|".join(str(core) for core in config.cores)
        env["OMP_NUM_THREADS"] = "1"
        # Else the first requests compile two functions of the sampler: 4 CPU seconds of a start, and no faster steps.
        env["TORCHDYNAMO_DISABLE"] = "1"
        env[KERNELS] = os.environ.get(KERNELS, str(KEPT_KERNELS))
        return env
    # Drawing by seeds, drafts and reloaded weights are written for vLLM's first model runner, the only one on CPUs. On
    # GPUs vLLM would take its second one for some models.
    env["VLLM_USE_V2_MODEL_RUNNER"] = "0"
    # FlashInfer's sampler knows neither the seeds of samples nor log-probs; it would only be compiled at a start.
    env["VLLM_USE_FLASHINFER_SAMPLER"] = "0"
    if config.gpus:
        env |= visible_gpus(config.gpus)
    return env


def niceness(config: EngineConfig) -> int:
    """The niceness at which an engine gets its share of a core beside a process of niceness 0 (0 to 19).

    Linux gives a process of niceness n the weight 1.25^-n (kernel/sched/core.c, sched_prio_to_weight). On GPUs, 0.
    """
    compute_share = config.compute_share
    if config.device != "cpu" or compute_share >= 0.5:
        return 0  # more than half would need rights that a user does not have
    return min(19, round(math.log((1 - compute_share) / compute_share, 1.25)))


def context_tokens(config: EngineConfig) -> int:
    """The longest context that vLLM is built for.

    It drafts for no sample of a batch any more once a draft of any would reach beyond that, so there is room for one,
    where the model has the positions.
    """
    if not config.draft_tokens:
        return config.max_model_len
    from transformers import AutoConfig

    name, revision = pretrained(config.model_path)
    positions = getattr(
        AutoConfig.from_pretrained(name, trust_remote_code=False, **revision), "max_position_embeddings", None
    )
    wanted = config.max_model_len + config.draft_tokens
    return wanted if positions is None else max(config.max_model_len, min(wanted, positions))


def engine_arguments(config: EngineConfig) -> dict[str, Any]:
    """Keyword arguments of vLLM's `AsyncEngineArgs`."""
    name, revision = pretrained(config.model_path)
    arguments: dict[str, Any] = {
        "model": name,
        **revision,
        **{f"tokenizer_{key}": value for key, value in revision.items()},
        "dtype": config.dtype,
        "tensor_parallel_size": config.tp,
        "max_model_len": context_tokens(config),
        "max_num_seqs": config.max_num_seqs,
        "seed": config.seed,
        "enable_prefix_caching": True,
        "disable_log_stats": True,
        # Log-probs at the temperature, as the trainer's; what restricts a draw is left out of them (runner_patches.py).
        "logprobs_mode": "processed_logprobs",
        "generation_config": "vllm",
        "worker_extension_cls": "rlplan.executor.engines.engine_worker.EngineRank",
    }
    if config.head_dtype is not None:
        arguments["hf_overrides"] = {"head_dtype": config.head_dtype}
    if not requests_have_intervals():
        arguments["stream_interval"] = ALIVE_TOKENS
    if config.draft_tokens:
        arguments["speculative_config"] = {
            "method": "custom_class",
            "model": "rlplan.executor.drafts.proposer.HistoryProposer",
            "num_speculative_tokens": config.draft_tokens,
        }
    if config.device == "cpu":
        if config.tp == 1:
            arguments["distributed_executor_backend"] = "rlplan.executor.engines.one_process.OneProcessExecutor"
        return arguments | {
            "enforce_eager": True,
            "block_size": BLOCK_TOKENS["cpu"],
            "kv_cache_memory_bytes": config.kv_memory_bytes,
            "max_num_batched_tokens": max(context_tokens(config), config.batched_tokens or CPU_BATCHED_TOKENS),
        }
    if config.kv_dtype is not None:
        arguments["kv_cache_dtype"] = config.kv_dtype
    arguments |= {
        "enable_sleep_mode": config.sleeps,
        "max_num_batched_tokens": max(config.batched_tokens or GPU_BATCHED_TOKENS, config.max_num_seqs),
    }
    if config.memory_share is None:
        return arguments | {"gpu_memory_utilization": config.share}
    # With bytes vLLM measures no free memory, which others may take and free while it starts.
    return arguments | {
        "gpu_memory_utilization": config.memory_share, "kv_cache_memory_bytes": config.kv_memory_bytes
    }  # fmt: skip


def kv_bytes_per_token(model_path: str, dtype: str, tp: int = 1) -> int:
    """KV bytes of one token, with values of `dtype`, on each of `tp` ranks: 2 (K and V) x layers x KV heads x head size
    x bytes per value. Ranks beyond the KV heads hold copies of them."""
    from transformers import AutoConfig

    name, revision = pretrained(model_path)
    config = AutoConfig.from_pretrained(name, trust_remote_code=False, **revision)
    config = getattr(config, "text_config", config)
    heads = config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    return int(2 * config.num_hidden_layers * -(-kv_heads // tp) * head_dim * KV_VALUE_BYTES.get(dtype, 2))


SEED = "rlplan_seed"
"""Key of vLLM's extra arguments: a request's seed, within [0, 2**32) (runner_patches.py)."""

MIN_P = "rlplan_min_p"
"""Key of vLLM's extra arguments: a request's `min_p`. vLLM's own is applied where its sampler could tell log-probs of
the whole softmax no more, and refused by engines that draft."""


def sampling_parameters(request: Request, draws_by_place: bool = True) -> Any:
    """vLLM's `SamplingParams` of a request.

    `draws_by_place`: the engine's ranks draw by seeds and places (runner_patches.py). Where they cannot, vLLM gives a
    request a generator of its own, and a sample of another engine goes on with another seed: with its own it would use
    numbers again that it has used, and what is drawn by them is not independent of what it has decoded.
    """
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    further: dict[str, Any] = {}
    if requests_have_intervals():
        further["stream_interval"] = request.output_interval
    rules = request.rules
    if rules.stop:
        further |= {"stop": list(rules.stop), "include_stop_str_in_output": True}
    if rules.stop_token_ids:
        further["stop_token_ids"] = list(rules.stop_token_ids)
    if request.choices:
        from vllm.sampling_params import StructuredOutputsParams

        further["structured_outputs"] = StructuredOutputsParams(choice=list(request.choices))
    seed, extra_args = request.seed, dict[str, Any]()
    if request.prompt_id:
        extra_args |= {
            PROMPT: request.prompt_id,
            PROMPT_TOKENS: len(request.prompt_tokens) - request.drawn_tokens,
            REQUEST: request.request_id,
        }
    if rules.min_p:
        extra_args[MIN_P] = rules.min_p
    if seed is not None and draws_by_place:
        extra_args[SEED], seed = seed, None
    elif seed is not None:
        seed = (seed + 0x9E3779B1 * request.drawn_tokens) % 2**32  # a golden-ratio stride
    return SamplingParams(
        extra_args=extra_args or None,
        max_tokens=request.max_tokens,
        temperature=request.temperature,
        top_p=rules.top_p,
        top_k=rules.top_k,
        logprobs=0,
        flat_logprobs=True,
        detokenize=bool(rules.stop),
        ignore_eos=request.ignore_eos,
        seed=seed,
        output_kind=RequestOutputKind.DELTA,
        **further,
    )


def requests_have_intervals() -> bool:
    """Whether vLLM knows an interval between outputs for each request; 0.24 knows the engine's only."""
    from vllm import SamplingParams

    return "stream_interval" in SamplingParams.__struct_fields__


def tell_at_cutoff(engine: Any, request: Request) -> None:
    """Give a request of vLLM's `AsyncLLM` an interval of its own where `SamplingParams` has none, once its first token
    is told."""
    processor = engine.output_processor
    for name in processor.external_req_ids.get(request.request_id, ()):
        # Every token for itself (1) would forget which ones were told already.
        processor.request_states[name].stream_interval = max(2, request.output_interval)


def versions_of(output: Any, start: str, end: str) -> tuple[str, str]:
    """Weights at the first and the last token of a finished output, as vLLM's core tells; else `start` and `end`."""
    spans = getattr(output, "weight_versions", None)  # vLLM 0.24 has none
    return (spans[0].version, spans[-1].version) if spans else (start, end)
