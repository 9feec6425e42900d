"""What a profile holds of drafts: tokens that they give by place, epoch and batch, and what they take."""

from __future__ import annotations

import itertools
from typing import Annotated, Literal

from pydantic import Field, model_validator

from ...plans.schema.base import cross_error, is_empty, is_none
from ..phase_schema import ProfileModel
from .draft_law import DraftLaw

Shares = Annotated[tuple[Annotated[float, Field(ge=0, le=1)], ...], Field(min_length=1, max_length=64)]


class DraftRates(ProfileModel):
    """Mean tokens of a sample and step at each place of a draft, from the first."""

    drafted: Shares = Field(description="Drafted; below 1 where a token that promises too little is left out")
    accepted: Shares = Field(description="Accepted; at each place at most what was drafted")
    sequence_steps: int = Field(ge=0, le=10**15, description="Steps times their samples that were measured; 0: assumed")

    @model_validator(mode="after")
    def _are_shares(self) -> DraftRates:
        if len(self.drafted) != len(self.accepted):
            raise cross_error("drafted and accepted must be of one length", "accepted")
        if any(a > d for d, a in zip(self.drafted, self.accepted, strict=True)):
            raise cross_error("no place of a draft has more tokens accepted than drafted", "accepted")
        return self


class DraftBatch(ProfileModel):
    """What drafts give in batches of one size."""

    sequences: int = Field(ge=1, le=10**6, description="Samples that decode on the engine")
    factor: float = Field(ge=0, le=1e3, description="Factor on the tokens drafted and accepted")


class ProfiledDrafts(ProfileModel):
    """Speculative decoding with drafts from earlier responses, as engines of the job did it."""

    first: DraftRates = Field(
        description="In a prompt's first round, where drafts come from the prompt's other samples and from the sample"
    )
    later: DraftRates | None = Field(
        default=None,
        exclude_if=is_none,
        description="In later epochs, with the responses of those before; null: not measured, taken to be as `first`",
    )
    by_batch: tuple[DraftBatch, ...] = Field(
        default=(), exclude_if=is_empty, description="Factors by batch, ascending; linear between them, empty: 1"
    )
    step_s: float = Field(ge=0, description="Seconds of a step beyond one that decodes as many tokens")
    step_s_per_sequence: float = Field(ge=0, description="Seconds beyond it that each running sequence adds")
    provenance: Literal["measured", "assumed"] = Field(description="Where the values come from")

    @model_validator(mode="after")
    def _is_whole(self) -> ProfiledDrafts:
        if self.later is not None and len(self.later.drafted) != len(self.first.drafted):
            raise cross_error("first and later must tell of drafts of one length", "later")
        if any(b.sequences <= a.sequences for a, b in itertools.pairwise(self.by_batch)):
            raise cross_error("must be strictly ascending by sequences", "by_batch")
        return self

    @property
    def most_tokens(self) -> int:
        """Tokens of the longest draft that was measured."""
        return len(self.first.drafted)

    def law(self, first_epoch: bool = False) -> DraftLaw:
        """Costs and gains of drafts, in the first or in later epochs."""
        measured = self.first if first_epoch or self.later is None else self.later
        return DraftLaw(
            measured.drafted,
            measured.accepted,
            tuple((batch.sequences, batch.factor) for batch in self.by_batch),
            self.step_s,
            self.step_s_per_sequence,
        )
