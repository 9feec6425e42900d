"""A line of a length trace as a model: what `rlplan schema lengths` prints.

length_trace.py reads lines; a test holds that both take the same ones.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


class LengthLine(BaseModel):
    """One response of a length trace; a trace is JSON Lines, one such object a line. Further keys are left alone."""

    model_config = ConfigDict(
        extra="allow", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    prompt: Annotated[str, Field(min_length=1)]
    """What tells prompts apart; the same text for all responses to a prompt."""

    epoch: Annotated[int, Field(ge=0)]
    """Pass over the data, or number of the checkpoint; 0 where there is one."""

    sample: Annotated[int, Field(ge=0)]
    """Number of the response among those to this prompt in this epoch, from 0."""

    tokens: Annotated[int, Field(ge=1)]
    """Tokens of the response, end-of-text included."""

    truncated: bool | None = None
    """Whether the cap on its length ended it, and not end-of-text; null: not known, and taken to be no."""

    reward: float | None = None
    """Reward of the response; null: not known."""

    prompt_tokens: Annotated[int | None, Field(ge=1)] = None
    """Tokens of the prompt; null: not known, and taken to be 256."""
