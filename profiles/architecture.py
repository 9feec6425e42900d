"""Shapes of language models for the planner: what plans/facts knows of them, and one for a model that nothing is known
of."""

from __future__ import annotations

from ..plans.facts.config_shape import architecture_from_config as architecture_from_config
from ..plans.facts.model_names import architecture_of as architecture_of
from ..plans.facts.model_names import guess
from ..plans.facts.public_models import ARCHITECTURES as ARCHITECTURES
from ..plans.facts.public_models import Architecture as Architecture


def typical() -> Architecture:
    """For a model of which not even the size is known. Its experts let a fit be of a dense model or of a sparse one."""
    architecture = guess("100b-a10b")
    assert architecture is not None
    return architecture
