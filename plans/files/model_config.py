"""A model's config.json, read from its folder without transformers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ..schema.job import is_hub_id
from ..yaml.errors import InputError
from ..yaml.input_files import read_text
from ..yaml.json_text import JsonError, parse_json


def model_config(folder: Path) -> dict[str, Any]:
    """The config.json of a local model folder. Raises InputError when the folder has none that can be read."""
    file = folder / "config.json"
    if not os.path.lexists(file):
        adapter = folder / "adapter_config.json"
        if os.path.lexists(adapter):
            of = _object(adapter).get("base_model_name_or_path")
            raise InputError(
                f"is an adapter of {of or 'another model'}; merge the two and name that folder", str(folder)
            )
        raise InputError("no config.json: this folder is not a Hugging Face model", str(folder))
    return _object(file)


def _object(file: Path) -> dict[str, Any]:
    try:
        config = parse_json(read_text(file))
    except JsonError as error:
        raise InputError(str(error), str(file), error.line) from None
    if not isinstance(config, dict):
        raise InputError("must hold one JSON object", str(file))
    return config


def cached_config(model: str) -> dict[str, Any] | None:
    """The config.json of a hub id in the local Hugging Face cache, without huggingface_hub; None where it has none.

    The revision is the one of `main`, else the last that was fetched. Raises InputError when it cannot be read.
    """
    if not is_hub_id(model):
        return None
    repository = _hub_cache() / f"models--{model.replace('/', '--')}"
    try:
        main = repository / "refs" / "main"
        revisions = [repository / "snapshots" / main.read_text(encoding="utf-8").strip()] if main.is_file() else []
        revisions += sorted((repository / "snapshots").glob("*"), key=os.path.getmtime, reverse=True)
    except (OSError, ValueError):
        return None
    return next((model_config(folder) for folder in revisions if (folder / "config.json").is_file()), None)


def _hub_cache() -> Path:
    """Where huggingface_hub keeps what it fetched, by its environment variables."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if path := os.environ.get(name):
            return Path(path).expanduser()
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface"
    return Path(home).expanduser() / "hub"
