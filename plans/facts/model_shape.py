"""The shape of the model that was named, by the first of these that tells it: the config.json of its folder, or of the
Hugging Face cache, then its name (model_names.py). What is guessed, or cannot be told, is said in one line."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..files.model_config import cached_config, model_config
from ..schema.job import Job, is_hub_id, model_folder
from .config_shape import architecture_from_config, stated
from .model_names import architecture_of, is_hybrid, plain_name
from .public_models import FAMILIES, Architecture


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


@dataclass(frozen=True, slots=True)
class NamedModel:
    """What is known of the model that a path or a hub id names.

    Attributes:
        shape: what layouts must divide; None: unknown, or guessed.
        architecture: its whole shape, marked where it is guessed; None: unknown.
        unsure: one line on what is guessed or unknown, and what to do; "" where nothing is.
    """

    shape: ModelShape | None
    architecture: Architecture | None
    unsure: str = ""


UNKNOWN = NamedModel(None, None)
"""Stands for a model that is not looked up."""


def named_model(model: str | Path) -> NamedModel:
    """What is known of the model at `model`: a folder, a hub id, or a path whose last part is a model's usual name.

    Raises InputError when the folder has no readable config.json.
    """
    if os.path.isdir(model):  # noqa: PTH112 (pathlib raises for what can be no path)
        return _by_config(str(model), model_config(Path(model)))
    return _by_name(str(model))


def _by_name(model: str) -> NamedModel:
    config = cached_config(model)
    if config is not None:
        return _by_config(model, config)
    known, remedy = architecture_of(model), _remedy(model)
    if known is None:
        why = f"its name does not tell its size; {remedy}"
        if is_hybrid(model):  # its config.json would tell no more
            why = "its layers differ in their attention, so its memory cannot be told; take another model"
        return NamedModel(None, None, f"the shape of {model} is not known: {why}")
    if known.guessed:
        return NamedModel(None, known, f"the shape of {model} is guessed from its name ({sizes_text(known)}); {remedy}")
    return NamedModel(shape_from_architecture(known), known)


def shape_of(model: str | Path) -> ModelShape | None:
    """The shape of `named_model`; None where it is not known, or guessed."""
    return named_model(model).shape


def shape_of_public(name: str) -> ModelShape | None:
    """The shape of a public model by its hub id or usual name; None where the name leaves a doubt. Reads no file."""
    known = architecture_of(name)
    return None if known is None or known.guessed else shape_from_architecture(known)


def model_of_job(job: Job, job_path: str | Path) -> NamedModel:
    """`named_model` of the model of the job at `job_path`, whose `model.path` is relative to the job's folder."""
    folder = model_folder(job, job_path)
    return _by_name(job.model.path) if folder is None else named_model(folder)


def shape_of_job(job: Job, job_path: str | Path) -> ModelShape | None:
    """The shape of the model of the job at `job_path`; None where it is not known, or guessed."""
    return model_of_job(job, job_path).shape


def shape_from_config(config: Mapping[str, Any]) -> ModelShape | None:
    """The shape that a Hugging Face config states; None: it states no heads."""
    found = stated(config)
    if found.heads is None or found.kv_heads is None:
        return None
    return ModelShape(found.family, found.heads, found.kv_heads, found.vocab, found.width, found.experts)


def shape_from_architecture(architecture: Architecture) -> ModelShape:
    """The same of an architecture; its family is known if it is in the table."""
    a = architecture
    width = a.expert_intermediate if a.experts else a.intermediate
    return ModelShape(FAMILIES.get(a.name), a.heads, a.kv_heads, a.vocab, width or None, a.experts)


def tp_divides(tp: int, shape: ModelShape | Architecture) -> bool:
    """Whether engines of `tp` ranks share the model's heads evenly; more ranks than key-value heads hold copies."""
    return shape.heads % tp == 0 and (shape.kv_heads % tp == 0 or tp % shape.kv_heads == 0)


def undivided(tp: int, shape: ModelShape | Architecture) -> str | None:
    """Which heads `tp` ranks do not share evenly; None if they share all."""
    if shape.heads % tp:
        return f"{tp} does not divide the model's {shape.heads} attention heads"
    if not tp_divides(tp, shape):
        return f"{tp} neither divides the model's {shape.kv_heads} key-value heads nor is divided by them"
    return None


def tp_sizes(shape: ModelShape | Architecture, most: int = 1024) -> list[int]:
    """The sizes up to `most` that share the heads evenly."""
    return [tp for tp in range(1, min(shape.heads, most) + 1) if tp_divides(tp, shape)]


def _remedy(model: str) -> str:
    if is_hub_id(model):
        return f"name its folder in its place, or fetch its config.json (hf download {model} config.json)"
    return "name its folder, or its hub id (owner/name)"


def _by_config(model: str, config: Mapping[str, Any]) -> NamedModel:
    shape = shape_from_config(config)
    try:
        known = architecture_from_config(config, name := plain_name(model))
    except ValueError as error:
        why = str(error).removeprefix(name)
        return NamedModel(shape, None, f"the shape of {model} is not known: its config.json{why}")
    if not known.guessed:
        return NamedModel(shape, known)
    family = stated(config).family
    why = "its config.json has no model_type" if family is None else f"the family {family} is not known"
    told = f"the shape of {model} is guessed: {why}, and it is counted as Llama's is ({sizes_text(known)})"
    return NamedModel(shape, known, told)


def sizes_text(a: Architecture) -> str:
    """The sizes that layouts depend on, in words."""
    return f"{a.parameters / 1e9:.3g}B parameters, {a.layers} layers, {a.heads} heads, {a.kv_heads} of keys and values"
