"""The shape of the model that was named, by the first of these that tells it: the config.json of its folder, or of the
Hugging Face cache, then its name (model_names.py). What is guessed, or cannot be told, is said in one line.

A config.json is read as transformers reads it, without transformers. What it does not state is as the family has it:
transformers leaves a family's defaults out of config.json. Models whose layers differ in their attention beyond a
sliding window (linear attention, state spaces, pruned blocks) are refused: their KV does not grow as a shape's does.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..files.model_config import cached_config, model_config
from ..schema.job import Job, is_hub_id, model_folder
from ..schema.levers import LoraSpec
from .model_names import architecture_of, is_hybrid, plain_name
from .public_models import FAMILIES, Architecture, word_set

_TIED = word_set(
    "bloom cohere cohere2 ernie4_5 ernie4_5_moe falcon gemma gemma2 gemma3 gemma3_text gpt2 gpt_bigcode "
    "gpt_neo minicpm3 mpt opt smollm3 starcoder2 youtu"
)
"""`model_type`s whose input and output embeddings are one matrix where config.json does not say (transformers 5.19)."""
_UNGATED = word_set(
    "apertus arcee bloom falcon gpt2 gpt_bigcode gpt_neo gpt_neox gptj mpt nemotron opt persimmon phi starcoder2"
)
"""`model_type`s whose feed-forward layers have two matrices."""
_HEAD_DIM = {
    "ernie4_5": 128, "gemma": 256, "gemma2": 256, "gemma3": 256, "gemma3_text": 256, "glm": 128, "glm4": 128,
    "gpt_oss": 64, "hy_v3": 128, "minimax_m2": 128, "mistral3": 128, "qwen3": 128, "seed_oss": 128, "solar_open": 128,
}  # fmt: skip
"""Size of a head in families where it is not hidden size over heads, and config.json need not say it."""
_KNOWN = (
    _TIED
    | _UNGATED
    | frozenset(_HEAD_DIM)
    | word_set(
        "axk1 cwm deepseek_v2 deepseek_v3 deepseek_v32 dots1 exaone exaone4 flex_olmo glm4_moe glm4_moe_lite "
        "glm4v_moe glm_moe_dsa granite granitemoe granitemoeshared helium hunyuan_v1_dense hunyuan_v1_moe "
        "internlm2 internlm3 kimi_k2 kimi_k25 llama llama4 llama4_text mimo ministral ministral3 mistral mixtral "
        "olmo olmo2 olmo3 olmoe phi3 phimoe qwen2 qwen2_5_vl qwen2_5_vl_text qwen2_moe qwen2_vl qwen2_vl_text "
        "qwen3_moe qwen3_vl qwen3_vl_text qwen3_vl_moe qwen3_vl_moe_text solar stablelm"
    )
)
_GEMMA3 = {"num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 262208}
_DEFAULTS: Mapping[str, Mapping[str, Any]] = {"gemma3": _GEMMA3, "gemma3_text": _GEMMA3}
"""What published configs of a family leave out (that of gemma-3-4b does)."""
_ALTERNATE = {"cohere2": 4, "exaone4": 4, "gemma2": 2, "gemma3": 6, "gemma3_text": 6, "gpt_oss": 2, "olmo3": 4}
"""One layer in so many has no window, in families whose config.json need not list the layers."""

_OF_LANGUAGE = ("text_config", "llm_config", "language_config", "thinker_config")
_OWN_LAYERS = (
    "block_configs", "compress_ratios", "global_head_dim", "hybrid_layer_pattern",
    "hybrid_override_pattern", "layers_block_type", "linear_attn_config", "mamba_d_state", "mamba_expand",
    "mamba_num_heads", "per_layer_config", "sparse_attention_config", "ssm_cfg", "ssm_state_size", "state_size",
    "swa_head_dim",
)  # fmt: skip
"""Keys of models whose layers differ in ways that a shape does not have."""
_FULL_LAYERS = ("full_attention", "deepseek_sparse_attention", "indexed_attention")
_WINDOWED_LAYERS = ("sliding_attention", "chunked_attention")


@dataclass(frozen=True, slots=True)
class Stated:
    """What a config states of a decoder's sizes; None: nothing. `width`: of the feed-forward, or of one expert."""

    language: Mapping[str, Any]
    family: str | None
    layers: int | None
    hidden: int | None
    heads: int | None
    kv_heads: int | None
    vocab: int | None
    width: int | None
    experts: int


def stated(config: Mapping[str, Any]) -> Stated:
    """The sizes that a Hugging Face config states; of a multimodal model those of its language model, with the family
    of the whole."""
    family, language = config.get("model_type"), _language(config)
    heads = _count(language, "num_attention_heads", "n_head", "n_heads", "num_heads")
    experts = _count(language, "num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts") or 0
    hidden = _count(language, "hidden_size", "n_embd", "d_model")
    # A sparse model of Qwen has an `intermediate_size` beside its experts', one of Mixtral has that of its experts.
    of_experts = _count(language, "moe_intermediate_size", "expert_intermediate_size") if experts else None
    width = of_experts or _count(language, "intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size")
    if width is None and hidden is not None and language.get("model_type") in _UNGATED:
        width = 4 * hidden
    kv_heads = _count(language, "num_key_value_heads", "num_kv_heads")
    if language.get("multi_query") is True and not language.get("new_decoder_architecture"):  # Falcon, GPTBigCode
        kv_heads = 1
    return Stated(
        language=language,
        family=family if isinstance(family, str) else None,
        layers=_count(language, "num_hidden_layers", "n_layer", "n_layers", "num_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads or heads,
        vocab=_count(language, "vocab_size"),
        width=width,
        experts=experts,
    )


def architecture_from_config(config: Mapping[str, Any], name: str = "config.json") -> Architecture:
    """The shape that a model's config.json states; `guessed` where its family is not known, which is counted as Llama.

    Raises ValueError naming what is absent, or what is of no shape.
    """
    found, language = stated(config), _language(config)
    sizes = {
        "num_hidden_layers": found.layers,
        "hidden_size": found.hidden,
        "num_attention_heads": found.heads,
        "vocab_size": found.vocab,
        "intermediate_size": found.width,
    }
    if odd := [key for key in _OWN_LAYERS if language.get(key)] or _odd_layers(language):
        raise ValueError(f"{name} states {', '.join(odd)}; of layers that differ so, memory cannot be told")
    active = _active(language) if found.experts else 0
    absent = [key for key, value in sizes.items() if not value] + ["num_experts_per_tok"] * (active is None)
    if absent or active is None:
        keys = f"{', '.join(absent)} that is a whole number above 0"
        raise ValueError(f"{name} states no {keys}; it is no decoder whose memory can be told")
    layers, hidden, heads, vocab, width = (value or 0 for value in sizes.values())
    if heads % (found.kv_heads or heads):
        raise ValueError(f"{name} states {heads} heads, which {found.kv_heads} of keys and values cannot serve evenly")
    kind = str(language.get("model_type") or found.family or "")
    latent = _count(language, "kv_lora_rank") or 0
    rope = _count(language, "qk_rope_head_dim") or 0
    head_dim = _count(language, "head_dim", "kv_channels") or _default_head_dim(language, kind, hidden // heads)
    windows, window = _windows(language, kind, layers)
    experts = found.experts
    indexed = _count(language, "index_head_dim") if latent else None
    return Architecture(
        name,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=found.kv_heads or heads,
        head_dim=(_count(language, "qk_nope_head_dim") or head_dim) if latent else head_dim,
        vocab=vocab,
        intermediate=_dense_width(language, width) if not experts or _dense_layers(language, layers) else 0,
        tied=_tied(config, language, kind),
        experts=experts,
        active_experts=active,
        expert_intermediate=width if experts else 0,
        shared_intermediate=_shared_width(language, kind, width) if experts else 0,
        dense_layers=_dense_layers(language, layers) if experts else 0,
        latent_kv=latent + rope if latent else 0,
        latent_q=(_count(language, "q_lora_rank") or 0) if latent else 0,
        # An indexer's key is kept in fp8 with a scale of four bytes.
        index_values=indexed // 2 + 2 if indexed else 0,
        rope_dim=rope if latent and rope != (_count(language, "qk_nope_head_dim") or head_dim) // 2 else 0,
        value_dim=_value_dim(language) if latent else 0,
        window_layers=windows,
        window_tokens=window,
        guessed=kind not in _KNOWN,
        qk_norm=kind.startswith(("qwen3", "gemma3")),
        gated=kind not in _UNGATED,
        tower=_tower(config, hidden),
    )


def _language(config: Mapping[str, Any]) -> Mapping[str, Any]:
    for key in _OF_LANGUAGE:
        if isinstance(inner := config.get(key), Mapping):
            return _language(inner)
    return {**_DEFAULTS.get(str(config.get("model_type")), {}), **config}


def _default_head_dim(language: Mapping[str, Any], kind: str, even: int) -> int:
    """Of a family whose heads have a size of their own; where config.json says null, it is hidden size over heads."""
    return even if "head_dim" in language else _HEAD_DIM.get(kind, even)


def _tied(config: Mapping[str, Any], language: Mapping[str, Any], kind: str) -> bool:
    for part in (config, language):
        if isinstance(told := part.get("tie_word_embeddings"), bool):
            return told
    return kind in _TIED


def _active(language: Mapping[str, Any]) -> int | None:
    keys = ("num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_topk", "moe_k", "experts_per_token")
    return _count(language, *keys)


def _shared_width(language: Mapping[str, Any], kind: str, width: int) -> int:
    """Width of the experts that every token visits."""
    if (whole := _count(language, "shared_expert_intermediate_size", "shared_intermediate_size")) is not None:
        return whole
    if kind.startswith("llama4"):
        return width
    count = _count(language, "n_shared_experts", "moe_num_shared_experts", "num_shared_experts", "num_shared_expert")
    return (count or 0) * width


def _dense_width(language: Mapping[str, Any], width: int) -> int:
    return _count(language, "intermediate_size_mlp", "dense_intermediate_size", "intermediate_size") or width


def _dense_layers(language: Mapping[str, Any], layers: int) -> int:
    """Layers without experts of a model that has experts."""
    if isinstance(kinds := language.get("mlp_layer_types"), list):
        return sum(kind == "dense" for kind in kinds)
    if isinstance(sparse := language.get("moe_layers"), list):
        return layers - len(sparse)
    first = _count(language, "first_k_dense_replace", "moe_layer_start_index") or 0
    step = _count(language, "decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_interval") or 1
    only = language.get("mlp_only_layers")
    dense = set(only) if isinstance(only, list) else set()
    if isinstance(often := language.get("moe_layer_freq"), list):
        dense |= {layer for layer, sparse in enumerate(often) if not sparse}
    last = _count(language, "moe_layer_end_index") or layers - 1
    return sum(layer in dense or layer < first or layer > last or (layer + 1) % step != 0 for layer in range(layers))


def _windows(language: Mapping[str, Any], kind: str, layers: int) -> tuple[int, int]:
    """(layers that attend to a window only, its tokens). A model with a window in each layer is counted as one without:
    its KV is at most that."""
    tokens = _count(language, "sliding_window", "attention_chunk_size")
    if tokens is None or language.get("use_sliding_window") is False:
        return 0, 0
    if isinstance(kinds := language.get("layer_types"), list):
        count = sum(kind in _WINDOWED_LAYERS for kind in kinds)
    elif kind.startswith("llama4"):
        every = _count(language, "no_rope_layer_interval") or 4
        count = layers - layers // every
    elif kind.startswith("qwen2") or kind.startswith("qwen3"):
        if language.get("use_sliding_window") is not True:
            return 0, 0
        count = layers - min(layers, _count(language, "max_window_layers") or 0)
    elif pattern := _count(language, "sliding_window_pattern", "_sliding_window_pattern") or _ALTERNATE.get(kind):
        count = layers - layers // pattern
    else:
        return 0, 0
    return (0, 0) if count in (0, layers) else (count, tokens)


def _odd_layers(language: Mapping[str, Any]) -> list[str]:
    kinds = language.get("layer_types")
    odd = sorted({*map(str, kinds)} - {*_FULL_LAYERS, *_WINDOWED_LAYERS}) if isinstance(kinds, list) else []
    linear = isinstance(kinds := language.get("attn_type_list"), list) and any(kind != 1 for kind in kinds)  # MiniMax
    shared = _count(language, "num_kv_shared_layers") is not None
    return [f"layer_types {kind}" for kind in odd] + ["attn_type_list"] * linear + ["num_kv_shared_layers"] * shared


def _value_dim(language: Mapping[str, Any]) -> int:
    value = _count(language, "v_head_dim") or 0
    return 0 if value == _count(language, "qk_nope_head_dim") else value


def _tower(config: Mapping[str, Any], hidden: int) -> int:
    """Parameters of an encoder of images, as far as its config states its size: its layers and what joins it."""
    vision = config.get("vision_config")
    if not isinstance(vision, Mapping):
        return 0
    layers = _count(vision, "depth", "num_hidden_layers", "num_layers")
    width = _count(vision, "embed_dim", "hidden_size")
    if layers is None or width is None:
        return 0
    kind = str(vision.get("model_type") or config.get("model_type"))
    inner = _count(vision, "intermediate_size") or 4 * width
    gated = kind.startswith(("qwen2_5_vl", "pixtral"))
    merged = width * (_count(vision, "spatial_merge_size") or _count(config, "spatial_merge_size") or 1) ** 2
    joins = merged * (merged + hidden) * (1 + len(vision.get("deepstack_visual_indexes") or ()))
    return layers * (4 * width**2 + (3 if gated else 2) * width * inner) + joins


def _count(config: Mapping[str, Any], *keys: str) -> int | None:
    """The first of these that is a positive whole number, or a list of equal ones; None without one."""
    for key in keys:
        value = config.get(key)
        if isinstance(value, list) and value and all(other == value[0] for other in value):
            value = value[0]
        if type(value) is int and value > 0:
            return value
    return None


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What the sizes of a layout must divide, and the family whose code runs the model.

    Attributes:
        family: `model_type` of its config.json; None: unknown.
        heads, kv_heads: attention heads, and heads of keys and values.
        vocab: rows of its embedding; None: unknown.
        intermediate: width of a feed-forward layer, in a mixture of experts of one expert; None: unknown.
        experts: routed experts of a layer; 0: a dense model.
        lora: the adapters that a job trains in place of the weights; None: it trains the weights.
    """

    family: str | None
    heads: int
    kv_heads: int
    vocab: int | None
    intermediate: int | None
    experts: int
    lora: LoraSpec | None = None


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
    """The shape of the model of the job at `job_path`, with its adapters; None where it is not known, or guessed."""
    shape = model_of_job(job, job_path).shape
    return shape and replace(shape, lora=job.model.lora)


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
