"""What a profile holds of a judge: its seconds, and what it and the engines take from each other."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from ..plans.schema.base import NonNegative, is_empty, is_none, is_one
from .phase_schema import Evidence, ProfileModel, Whole


class JudgeShare(ProfileModel):
    """What a judge beside an engine takes and gives at one share of their accelerators' compute."""

    share: Annotated[float, Field(gt=0, lt=1)]
    """Share of the compute that the judge gets while both want it"""

    beside_factor: Annotated[float, Field(ge=1)]
    """Factor on the judge's seconds when it runs beside an engine"""

    rollout_factor: Annotated[float, Field(ge=1)]
    """Factor on decode and prefill seconds when a judge runs beside them"""


class Judge(ProfileModel):
    """Costs of a model that scores samples; it reads a whole sample and answers with one token."""

    tp: Whole = 1
    """Accelerators of one copy of the judge, as it was measured"""

    per_sample_s: NonNegative
    """Seconds per sample of a copy on accelerators of its own"""

    per_token_s: NonNegative
    """Seconds that each token of the sample adds, prompt tokens included"""

    beside_factor: Annotated[float, Field(ge=1)]
    """Factor on the judge's seconds when it runs beside an engine"""

    rollout_factor: Annotated[float, Field(ge=1)]
    """Factor on decode and prefill seconds when a judge runs beside them"""

    at_once: Annotated[int, Field(ge=1, le=1024, exclude_if=is_one)] = 1
    """Samples that a copy was asked about at a time while its seconds were measured"""

    latency_s: Annotated[NonNegative | None, Field(exclude_if=is_none)] = None
    """Seconds from submission to verdict for one sample on its own; null: as the other seconds say"""

    shares: Annotated[tuple[JudgeShare, ...], Field(exclude_if=is_empty)] = ()
    """Shares of the compute that were measured beside an engine, too"""

    evidence: dict[str, Evidence] = Field(default={})
    """By field: where its value comes from"""

    def factors(self, share: float | None) -> tuple[float, float] | None:
        """(beside_factor, rollout_factor) at a share of the compute; None: as the system divides it. None if the share
        was not measured."""
        if share is None:
            return self.beside_factor, self.rollout_factor
        return next(((each.beside_factor, each.rollout_factor) for each in self.shares if each.share == share), None)
