"""A model's config.json, read from its folder without transformers."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from ..yaml.errors import InputError
from ..yaml.input_files import read_text


def model_config(folder: Path) -> dict[str, Any]:
    """The config.json of a local model folder. Raises InputError when the folder has none that can be read."""
    file = folder / "config.json"
    if not os.path.lexists(file):
        raise InputError("no config.json: this folder is not a Hugging Face model", str(folder))
    try:
        config = json.loads(read_text(file))
    except json.JSONDecodeError as error:
        raise InputError(f"not valid JSON: {error.msg}", str(file), error.lineno) from None
    except (ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"not valid JSON: {error}", str(file)) from None
    if not isinstance(config, dict):
        raise InputError("must hold one JSON object", str(file))
    return config
