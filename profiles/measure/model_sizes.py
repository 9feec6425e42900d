"""Sizes of the policy that is profiled, from its configuration; no weights are read."""

from __future__ import annotations

import os
from pathlib import Path

from ...plans.facts.public_models import Architecture, public_model
from ...plans.files.model_config import model_config
from ..architecture import architecture_from_config


def architecture_of_model(model_path: str) -> Architecture | None:
    """The architecture of a model, by which the memory of its trainers is told; None where it is not known."""
    if not os.path.isdir(model_path):  # noqa: PTH112 (pathlib raises for what can be no path)
        return public_model(model_path)
    try:
        return architecture_from_config(model_config(Path(model_path)))
    except ValueError:  # no decoder of a family whose memory can be told
        return None


def parameter_count(model_path: str) -> int:
    """Number of parameters of the policy, read from its configuration without weights."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(model_path))
    return sum(parameter.numel() for parameter in model.parameters())
