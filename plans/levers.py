"""Levers that a job may allow and a round of a plan may pull: drafts while decoding, engines handed over to training.

All are optional: a job that does not name them gets plans without them.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from .base import Choices, Count, Strict, ascending

Finished = Annotated[float, Field(ge=0.01, lt=1)]
"""A share of a round's samples; below a hundredth it would say nothing."""


class SearchDrafts(Strict):
    """Speculative decoding that `solve` may consider."""

    tokens: Choices
    """Tokens drafted a step, ascending; each is tried beside no drafts, for each kind of round."""

    acceptance: Annotated[float, Field(ge=0, lt=1)]
    """Chance that a drafted token is accepted when those before it were, as measured or assumed."""


FinishedShares = Annotated[tuple[Finished, ...], Field(strict=False), AfterValidator(ascending)]
"""Ascending shares of finished samples; may be empty."""


class RoundDrafts(Strict):
    """Speculative decoding in a round."""

    tokens: Count
    """Tokens drafted for each sequence and step."""

    up_to_sequences: Count
    """Running sequences of an engine above which it decodes without drafts."""


class RoundHandOver(Strict):
    """Engines that stop decoding and train what is finished while the tail of the round decodes on."""

    engines: Count
    """How many are freed; fewer than the round has, since the tail must go on somewhere."""

    at_finished: Finished
    """Share of the round's samples to be trained that must have ended."""
