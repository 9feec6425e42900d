"""Shapes of language models for the planner: of public ones from their table, else guessed, or from a config.json.

A model that is not in the table (plans/facts/public_models.py) is guessed from the sizes in its name (`70B`,
`235B-A22B`), and the guess says so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..plans.facts.public_models import ARCHITECTURES as ARCHITECTURES
from ..plans.facts.public_models import Architecture as Architecture
from ..plans.facts.public_models import moe, plain_name, public_model

_SIZE = re.compile(r"(?<![a-z0-9.])(\d+(?:\.\d+)?)b(?![a-z])")
_ACTIVE = re.compile(r"(?<![a-z0-9])a(\d+(?:\.\d+)?)b(?![a-z])")


def architecture_of(model: str) -> Architecture | None:
    """The shape of a model by its hub id or path: from the table of public models, else guessed from sizes in its name,
    else None."""
    return public_model(model) or _guess(plain_name(model))


def architecture_from_config(config: Mapping[str, Any], name: str = "config.json") -> Architecture:
    """The shape that a model's config.json states, of the Qwen2, Qwen3, Llama and Mixtral families.

    Raises ValueError naming what is absent.
    """
    wanted = ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size", "intermediate_size")
    if absent := [key for key in wanted if not config.get(key)]:
        raise ValueError(f"{name} states no {', '.join(absent)}; it is no decoder whose memory can be told")
    heads = int(config["num_attention_heads"])
    experts = int(config.get("num_experts") or config.get("num_local_experts") or 0)
    # A sparse model of Qwen has an `intermediate_size` beside its experts', one of Mixtral has that of its experts.
    width = int(config.get("moe_intermediate_size") or config["intermediate_size"])
    return Architecture(
        name,
        layers=int(config["num_hidden_layers"]),
        hidden=int(config["hidden_size"]),
        heads=heads,
        kv_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=int(config.get("head_dim") or config["hidden_size"] // heads),
        vocab=int(config["vocab_size"]),
        intermediate=0 if experts else int(config["intermediate_size"]),
        tied=bool(config.get("tie_word_embeddings", False)),
        experts=experts,
        active_experts=int(config.get("num_experts_per_tok") or 0),
        expert_intermediate=width if experts else 0,
        qk_norm=str(config.get("model_type", "")).startswith("qwen3"),
    )


def typical() -> Architecture:
    """For a model of which not even the size is known. Its experts let a fit be of a dense model or of a sparse one."""
    architecture = _guess("100b-a10b")
    assert architecture is not None
    return architecture


def _guess(name: str) -> Architecture | None:
    """A usual shape of the size that the name gives: depth and width of the dense models in the table, by size."""
    size, active = _SIZE.search(name), _ACTIVE.search(name)
    if size is None:
        return None
    billions = float(size[1])
    sparse = active is not None and float(active[1]) < billions
    width_of = float(active[1]) if active is not None and sparse else billions
    # Dense models of the table follow hidden ~ 2000 B^0.33 and layers ~ 18 B^0.33 (B: billions of parameters).
    hidden = max(512, round(2000 * width_of**0.33 / 512) * 512)
    layers = max(12, round(18 * (billions if not sparse else billions**0.6) ** 0.33))
    heads, kv_heads, head_dim, vocab = max(8, hidden // 128), 8, 128, 150_000
    attention = hidden * head_dim * (2 * heads + 2 * kv_heads)
    rest = max(0.1, 1e9 * billions - 2 * vocab * hidden - layers * attention) / layers
    if not sparse:
        width = max(hidden, round(rest / (3 * hidden)))
        return Architecture(name, layers, hidden, heads, kv_heads, head_dim, vocab, width, guessed=True)
    return moe(
        name, (layers, hidden, heads, kv_heads, head_dim, vocab), (128, 8, max(64, round(rest / (128 * 3 * hidden)))),
        guessed=True,
    )  # fmt: skip
