"""What all of rlplan's documents share: strict, frozen models and the few scalar types that recur.

Invariants of every document model:
- it is frozen, refuses unknown keys, infinities and NaN, and converts nothing (`"2"` is not 2), so that a value in
  memory is the value in the file;
- the docstring under a field is its description: in the JSON Schema, and in the error that a wrong value gives.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, ValidationError
from pydantic_core import PydanticCustomError

from .limits import MOST_CHOICES, MOST_TOKENS


class Strict(BaseModel):
    """Base of every document model."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


def cross_error(message: str, field: str | None = None, rule: str = "contradiction") -> PydanticCustomError:
    """The error for a rule between fields; `field` (dotted, below the model) says whose line the message carries, and
    `rule` what the fault is called in the catalogue (checks/rules.py)."""
    # The message goes in as a value because pydantic formats the template, and user text may hold braces.
    return PydanticCustomError("cross_field", "{text}", {"text": message, "field": field or "", "rule": rule})


def cross_errors(title: str, faults: Sequence[tuple[str, str, str]]) -> ValidationError:
    """Several such errors of one model at once, from (message, field, rule), for a validator to raise."""
    return ValidationError.from_exception_data(
        title, [{"type": cross_error(*fault), "loc": (), "input": None} for fault in faults]
    )


def is_none(value: object) -> bool:
    """For `exclude_if`: a key that came later stays out of documents without it, so their bytes are the same."""
    return value is None


def is_false(value: object) -> bool:
    """Likewise, for switches that are off."""
    return value is False


def is_zero(value: object) -> bool:
    """Likewise, for numbers that are 0 where there is nothing to say."""
    return value == 0


N = TypeVar("N", int, float)


def ascending(values: tuple[N, ...]) -> tuple[N, ...]:
    """The values, which must be strictly ascending."""
    if any(b <= a for a, b in itertools.pairwise(values)):
        wanted = ", ".join(str(v) for v in sorted(set(values)))
        raise cross_error(f"must be strictly ascending; write [{wanted}]")
    return values


NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"
Name = Annotated[str, StringConstraints(pattern=NAME_PATTERN)]
"""Letters, digits, `_`, `.`, `-`, at most 64: a name that is safe in file names and needs no quotes in YAML."""

GROUP_ID_PATTERN = r"^g[0-9]{1,9}$"

Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1, le=10**12)]
"""A number of things, at least one; the upper bound is there so that nothing computed from a few of them overflows."""

MAX_SECONDS = 1e8
PhaseSeconds = Annotated[float, Field(ge=1e-3, le=MAX_SECONDS)]
"""Seconds of a phase: a millisecond to three years, so that nothing computed from them overflows or vanishes."""

Delay = Annotated[float, Field(ge=0, le=MAX_SECONDS)]
"""Seconds that something takes in between; none, up to three years."""

MAX_USD_PER_NODE_HOUR = 1e6
Price = Annotated[float, Field(ge=0, le=MAX_USD_PER_NODE_HOUR)]
"""USD per node (or GPU) and hour; the upper bound is there because a solver's numbers end somewhere."""

Mode = Literal["sync", "race", "defer", "exact", "predict"]
"""`sync`: plain rounds; `race`: first finished win; `defer`: whole prompts put off; `exact`: cutoff, unbiased;
`predict`: prompts whose earlier lengths were long get rounds of their own, unbiased."""

Recompute = Literal["none", "selective", "full"]
"""Which activations are computed again in the backward pass instead of kept."""

MemoryBytes = Annotated[int, Field(ge=1_000_000, le=10**18)]
"""Bytes. The lower bound is there to catch `24` written for 24 GB."""

Tokens = Annotated[int, Field(ge=1, le=MOST_TOKENS)]
"""Tokens of a prompt or of a response, at least one."""

Choices = Annotated[
    tuple[Count, ...], Field(min_length=1, max_length=MOST_CHOICES, strict=False), AfterValidator(ascending)
]
"""A non-empty, strictly ascending list of positive integers (a list is taken as well as a tuple)."""
