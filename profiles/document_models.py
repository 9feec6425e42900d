"""The models of all documents: those of plans/, and the profile's."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel

from ..plans.check.any_document import MODELS
from .profile_schema import Profile

ALL_MODELS: Mapping[str, type[BaseModel]] = {**MODELS, "rlplan_profile": Profile}
"""By mark."""
