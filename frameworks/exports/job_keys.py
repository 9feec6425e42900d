"""Keys of a job that few frameworks have: how tokens are drawn, what ends a response, arguments of vLLM, and which
weights training begins with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .draft import ExportDraft

_ALL = "it has no key for it: tokens are drawn without it"
_ENDS = "it has no key for it: responses end by the model's end token alone"
_MISSED = {
    "rollout.top_p": _ALL,
    "rollout.top_k": _ALL,
    "rollout.min_p": _ALL,
    "rollout.stop": _ENDS,
    "rollout.stop_token_ids": _ENDS,
    "engine.kv_cache_dtype": "its engines keep keys and values in the model's type",
    "engine.max_num_batched_tokens": "its engines take their own number",
    "model.revision": "it loads the main branch; download the revision, and name its folder in model.path",
}
"""By key of the job: what is said where a framework has none for it."""


def job_keys(draft: ExportDraft, keys: Mapping[str, str], near: Mapping[str, str] | None = None) -> None:
    """Write what the job sets of the keys in `_MISSED`.

    Args:
        keys: by key of the job, the framework's key for it; what is not there is noted as not expressible.
        near: by key of the job, how the framework's key differs from it, where it does.
    """
    near = near or {}
    for name, why in _MISSED.items():
        if not (value := _value(draft, name)):
            continue
        key = keys.get(name)
        if key is None:
            draft.note(name, "not expressible", why)
        elif name in near:
            draft.approximate(name, key, value, near[name])
        else:
            draft.map(name, key, value)
    share = draft.source.job.engine and draft.source.job.engine.gpu_memory_utilization
    if share:
        draft.note("engine.gpu_memory_utilization", "mapped", value=f"{share:g}, in rounds.rollout.kv_tokens")
    start, model = draft.source.job.model.warm_start, draft.source.model
    if start is not None and draft.source.starts_from_run:
        todo = f"is no folder of a model: first run rlplan export-model {start} {model}, here"
        draft.note("model.warm_start", "approximated", todo, "model", model)
    elif start is not None:
        draft.note("model.warm_start", "mapped", key="model", value=model)


def _value(draft: ExportDraft, name: str) -> Any:
    """What the job says; None or empty where it says nothing, or what is the framework's own way, too."""
    section, _, field = name.partition(".")
    value = getattr(getattr(draft.source.job, section), field, None)
    if name == "rollout.top_p" and value == 1:
        return None
    if value == "fp8" and draft.framework == "slime":
        return "fp8_e4m3"  # SGLang's name of it
    return list(value) if isinstance(value, tuple) else value
