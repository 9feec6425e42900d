"""What a profile holds of drafts: tokens that they give by place, epoch and batch, and what they take."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, model_validator

from ..plans.schema.base import NonNegative, cross_error, is_empty, is_none
from .phase_schema import ProfileModel


@dataclass(frozen=True, slots=True)
class DraftLaw:
    """What drafts give and take.

    Attributes:
        drafted, accepted: mean tokens of a sample and step at each place of a draft, from the first.
        by_batch: (samples, factor on both), ascending; linear between them, constant beyond; empty: 1.
        step_s, step_s_per_sequence: seconds of a step beyond one that decodes as many tokens.
    """

    drafted: tuple[float, ...]
    accepted: tuple[float, ...]
    by_batch: tuple[tuple[int, float], ...] = ()
    step_s: float = 0.0
    step_s_per_sequence: float = 0.0

    def __post_init__(self) -> None:
        if not self.drafted or len(self.drafted) != len(self.accepted):
            raise ValueError("a law of drafts has a share drafted and a share accepted for each place, and a place")
        if any(not 0 <= a <= d <= 1 for d, a in zip(self.drafted, self.accepted, strict=True)):
            raise ValueError("at each place of a draft 0 <= accepted <= drafted <= 1")
        if self.step_s < 0 or self.step_s_per_sequence < 0:
            raise ValueError("a step with drafts takes no negative seconds more")

    @property
    def most_tokens(self) -> int:
        """Tokens of the longest draft that it tells of."""
        return len(self.drafted)

    def factor(self, sequences: int) -> float:
        """Factor on tokens drafted and accepted in a batch of so many samples."""
        if not self.by_batch:
            return 1.0
        return float(np.interp(sequences, [n for n, _ in self.by_batch], [f for _, f in self.by_batch]))

    def verified(self, tokens: int, sequences: int) -> float:
        """Mean tokens of a sample that a step verifies, drafts having at most `tokens`."""
        factor = self.factor(sequences)
        return 1.0 + math.fsum(min(1.0, factor * each) for each in self.drafted[:tokens])

    def emitted(self, tokens: int, sequences: int) -> float:
        """Mean tokens of a sample that a step gives, likewise."""
        factor = self.factor(sequences)
        pairs = zip(self.drafted[:tokens], self.accepted[:tokens], strict=True)
        return 1.0 + math.fsum(min(1.0, factor * drafted, factor * accepted) for drafted, accepted in pairs)

    def extra_s(self, sequences: int) -> float:
        """Seconds of a step beyond one that decodes as many tokens."""
        return self.step_s + self.step_s_per_sequence * sequences


def geometric(tokens: int, acceptance: float) -> DraftLaw:
    """Each of `tokens` tokens is always drafted, and accepted with one chance if those before it were: the tokens that
    a step gives are (1 - a^(g+1)) / (1 - a). Raises ValueError for a chance that is not within [0, 1)."""
    if tokens < 1 or not 0 <= acceptance < 1:
        raise ValueError("drafts have at least 1 token and an acceptance within [0, 1)")
    return DraftLaw((1.0,) * tokens, tuple(acceptance**place for place in range(1, tokens + 1)))


Shares = Annotated[tuple[Annotated[float, Field(ge=0, le=1)], ...], Field(min_length=1, max_length=64)]


class DraftRates(ProfileModel):
    """Mean tokens of a sample and step at each place of a draft, from the first."""

    drafted: Shares
    """Drafted; below 1 where a token that promises too little is left out"""

    accepted: Shares
    """Accepted; at each place at most what was drafted"""

    sequence_steps: Annotated[int, Field(ge=0, le=10**15)]
    """Steps times their samples that were measured; 0: assumed"""

    @model_validator(mode="after")
    def _are_shares(self) -> DraftRates:
        if len(self.drafted) != len(self.accepted):
            raise cross_error("drafted and accepted must be of one length", "accepted")
        if any(a > d for d, a in zip(self.drafted, self.accepted, strict=True)):
            raise cross_error("no place of a draft has more tokens accepted than drafted", "accepted")
        return self


class DraftBatch(ProfileModel):
    """What drafts give in batches of one size."""

    sequences: Annotated[int, Field(ge=1, le=10**6)]
    """Samples that decode on the engine"""

    factor: Annotated[float, Field(ge=0, le=1000.0)]
    """Factor on the tokens drafted and accepted"""


class ProfiledDrafts(ProfileModel):
    """Speculative decoding with drafts from earlier responses, as engines of the job did it."""

    first: DraftRates
    """In a prompt's first round, where drafts come from the prompt's other samples and from the sample"""

    later: Annotated[DraftRates | None, Field(exclude_if=is_none)] = None
    """In later epochs, with the responses of those before; null: not measured, taken to be as `first`"""

    by_batch: Annotated[tuple[DraftBatch, ...], Field(exclude_if=is_empty)] = ()
    """Factors by batch, ascending; linear between them, empty: 1"""

    step_s: NonNegative
    """Seconds of a step beyond one that decodes as many tokens"""

    step_s_per_sequence: NonNegative
    """Seconds beyond it that each running sequence adds"""

    provenance: Literal["measured", "assumed"]
    """Where the values come from"""

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
