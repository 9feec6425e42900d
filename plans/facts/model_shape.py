"""A model's shape, as far as it decides over what its work can be shared out: from its folder, else from a table."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..files.model_config import model_config
from ..schema.job import Job, model_folder
from .public_models import Architecture, family_of, public_model


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What the sizes of a layout must divide, and the family whose code runs the model.

    Attributes:
        family: `model_type` of its config.json; None: unknown.
        heads, kv_heads: attention heads, and heads of keys and values.
        vocab: rows of its embedding; None: unknown.
        intermediate: width of a feed-forward layer, in a mixture of experts of one expert; None: unknown.
        experts: routed experts of a layer; 0: a dense model.
    """

    family: str | None
    heads: int
    kv_heads: int
    vocab: int | None
    intermediate: int | None
    experts: int


def shape_of(model_path: str | Path) -> ModelShape | None:
    """The shape of the model at `model_path`: a folder, whose config.json is read, or a hub id or path whose last part
    names a model of the table (plans/facts/public_models.py); None for another one.

    Raises InputError when the folder has no readable config.json.
    """
    if os.path.isdir(model_path):  # noqa: PTH112 (pathlib raises for what can be no path)
        return shape_from_config(model_config(Path(model_path)))
    known = public_model(str(model_path))
    return None if known is None else shape_from_architecture(known)


def shape_of_job(job: Job, job_path: str | Path) -> ModelShape | None:
    """`shape_of` the model of the job at `job_path`, whose `model.path` is relative to the job's folder."""
    return shape_of(model_folder(job, job_path) or job.model.path)


def shape_from_config(config: Mapping[str, Any]) -> ModelShape | None:
    """The shape that a Hugging Face config states; of a multimodal model that of its language model (`text_config`),
    with the family of the whole. None: it states no heads."""
    text = config.get("text_config")
    language: Mapping[str, Any] = text if isinstance(text, Mapping) else config
    heads = _count(language, "num_attention_heads", "n_head")
    if heads is None:
        return None
    family = config.get("model_type")
    experts = _count(language, "num_experts", "num_local_experts", "n_routed_experts") or 0
    # A sparse model of Qwen has an `intermediate_size` beside its experts', one of Mixtral has that of its experts.
    widths = ("moe_intermediate_size",) if experts and language.get("moe_intermediate_size") else ("intermediate_size",)
    return ModelShape(
        family=family if isinstance(family, str) else None,
        heads=heads,
        kv_heads=_count(language, "num_key_value_heads") or heads,
        vocab=_count(language, "vocab_size"),
        intermediate=_count(language, *widths),
        experts=experts,
    )


def shape_from_architecture(architecture: Architecture) -> ModelShape:
    """The same of an architecture; its family is known if it is in the table."""
    width = architecture.expert_intermediate if architecture.experts else architecture.intermediate
    return ModelShape(
        family_of(architecture),
        architecture.heads,
        architecture.kv_heads,
        architecture.vocab,
        width or None,
        architecture.experts,
    )


def tp_divides(tp: int, shape: ModelShape) -> bool:
    """Whether engines of `tp` ranks share the model's heads evenly; more ranks than key-value heads hold copies."""
    return shape.heads % tp == 0 and (shape.kv_heads % tp == 0 or tp % shape.kv_heads == 0)


def _count(config: Mapping[str, Any], *keys: str) -> int | None:
    """The first of these that is a positive whole number; None without one."""
    values = (config.get(key) for key in keys)
    return next((value for value in values if type(value) is int and value > 0), None)
