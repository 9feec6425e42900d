"""Which share of a GPU's memory engines take and how much of it may be planned: one number for profiles, planner and
executor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from ..phrases.numbers import bytes_text

if TYPE_CHECKING:
    from ..schema.job import Job
    from ..schema.predicted import Predicted

ENGINE_SHARE = 0.9
"""Of a GPU's memory an awake engine takes this share (vLLM's gpu_memory_utilization, whose default it is)."""

ASLEEP_SHARE = 0.05
"""Of a GPU's memory that is for contexts, communicators and captured graphs of whoever sleeps beside the one who is
awake: a sleeping vLLM engine keeps its context and communicators (1.3 GB of an 80 GB GPU: vllm-project/vllm pull
request 11743) and its captured graphs (1.5 GB: issue 47654)."""

SLACK_SHARE = 0.03
"""Of a GPU's memory that stays free, 2.4 GB of 80: predicted bytes are off by 2 % where a law was fitted to them
(profiles/library: memory_error), and by more elsewhere."""

PLANNED_SHARE = 1.0 - ASLEEP_SHARE - SLACK_SHARE
"""Of a GPU's memory that may be planned with."""

KV_VALUE_BYTES = {"float32": 4, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1}
"""Bytes of a value in the KV cache by its type; 2 of all others."""


def engine_share(job: Job) -> float:
    """The share of a GPU's memory that an engine of the job takes while it is awake."""
    return (job.engine and job.engine.gpu_memory_utilization) or ENGINE_SHARE


def kv_value_bytes(job: Job) -> int:
    """Bytes of a value in the KV cache of the job's engines."""
    return KV_VALUE_BYTES.get(job.kv_dtype, 2)


def engine_fault(job: Job, kind: str) -> str | None:
    """Why engines on accelerators of this kind cannot have what the job's section `engine` says; None if they can."""
    if job.engine is None or kind != "cpu":
        return None
    for key in ("kv_cache_dtype", "gpu_memory_utilization"):
        if getattr(job.engine, key) is not None:
            return f"engine.{key}: engines on CPUs have none; remove it, or name a pool of GPUs"
    return None


LESS_MEMORY = {
    "train": "lower search.micro_batch_tokens, or let search.tp have a larger tp, and solve again",
    "kv": "lower engine.gpu_memory_utilization or engine.max_num_batched_tokens, or let search.tp have a larger tp, "
    "and solve again",
}
"""What takes less memory of a trainer's accelerator, and of an engine's beside its weights and KV cache."""


def memory_said(predicted: Predicted, place: Literal["kv", "train"]) -> str:
    """What a plan says of the memory of a trainer's accelerator or of an engine's KV cache, where it is fullest; "" if
    it says nothing."""
    bars = [(kind, bar) for where, kind, bar in predicted.memory_bars if where == place]
    if not bars:
        return ""
    kind, bar = min(bars, key=lambda item: item[1].headroom)
    whose = "trainers need" if place == "train" else "the KV cache of engines needs"
    largest = sorted(bar.holds_bytes.items(), key=lambda item: -item[1])[:3]
    held = ", ".join(f"{name.replace('_', ' ')} {bytes_text(size)}" for name, size in largest)
    return (
        f"by the plan {whose} {bytes_text(bar.needed_bytes)} of {bytes_text(bar.capacity_bytes)} in {kind} rounds"
        + (f" ({held})" if held else "")
    )
