"""The weights that training begins with: those of the job's model, or of `model.warm_start`."""

from __future__ import annotations

import shutil
from pathlib import Path

from ...plans.schema.job import JobPaths
from ...plans.yaml.errors import InputError
from ..trainer.policy.load_policy import config_of
from .model_export import export_model

WARM_START = "warm-start"
"""The folder of a run with the model that it began with, where that came from another run's checkpoint."""

_SHAPE = (
    "model_type", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
    "head_dim", "vocab_size", "tie_word_embeddings", "num_experts",
)  # fmt: skip
"""Keys of a model's config that models whose weights can be exchanged have in common."""


def starting_weights(paths: JobPaths, home: Path, resume: bool) -> str:
    """The model whose weights training begins with: that of the job, or what its `model.warm_start` names. Of a run the
    newest checkpoint is written to `home`; a run that is resumed has it there.

    Raises InputError for what is neither a model nor a run with a checkpoint, and for a model of another shape;
    RunFailed if the disk does not take it.
    """
    start = paths.warm_start
    if start is None:
        return paths.model
    if not (start / "config.json").is_file():
        if not resume:
            shutil.rmtree(home / WARM_START, ignore_errors=True)
        if not (home / WARM_START).is_dir():
            export_model(start, home / WARM_START, dtype="float32")
        start = home / WARM_START
    own, given = config_of(paths.model), config_of(str(start))
    for key in _SHAPE:
        if (wanted := getattr(own, key, None)) != (found := getattr(given, key, None)):
            text = f"has {key} {found}, and the job's model {wanted}; name weights of that shape in model.warm_start"
            raise InputError(text, str(paths.warm_start))
    return str(start)
