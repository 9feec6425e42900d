"""A model's attention heads: their number from the model's folder, and the tensor-parallel sizes that divide them."""

from __future__ import annotations

import json
import os
from pathlib import Path

from ..yaml.errors import InputError
from ..yaml.input_files import read_text


def tp_divides(tp: int, heads: tuple[int, int]) -> bool:
    """Whether `tp` divides these (attention, key-value) heads; more ranks than key-value heads share them evenly."""
    attention, kv = heads
    return attention % tp == 0 and (kv % tp == 0 or tp % kv == 0)


def model_heads(model_path: str | Path) -> tuple[int, int] | None:
    """(attention heads, key-value heads) from the config.json of a local model folder, without transformers.

    None when `model_path` is not a folder (a hub id) or the config names no heads. For multimodal models the language
    model's `text_config` is read. Raises InputError when the folder has no readable config.json.
    """
    if not os.path.isdir(model_path):  # noqa: PTH112 (pathlib raises for what can be no path)
        return None
    file = Path(model_path) / "config.json"
    if not os.path.lexists(file):
        raise InputError("no config.json: this folder is not a Hugging Face model", str(model_path))
    try:
        config = json.loads(read_text(file))
    except json.JSONDecodeError as error:
        raise InputError(f"not valid JSON: {error.msg}", str(file), error.lineno) from None
    except (ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"not valid JSON: {error}", str(file)) from None
    if isinstance(config, dict) and isinstance(config.get("text_config"), dict):
        config = config["text_config"]
    if not isinstance(config, dict):
        raise InputError("must hold one JSON object", str(file))
    heads = config.get("num_attention_heads", config.get("n_head"))
    if not isinstance(heads, int):
        return None
    kv_heads = config.get("num_key_value_heads")
    return heads, kv_heads if isinstance(kv_heads, int) else heads
