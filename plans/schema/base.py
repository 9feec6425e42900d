"""The base class of rlplan's document models, the scalar types that several documents use, and their largest numbers.

Invariants of every document model:
- it is frozen, refuses unknown keys, infinities and NaN, and converts nothing (`"2"` is not 2), so that a value in
  memory is the value in the file;
- the docstring under a field is its description in the JSON Schema, and in the error message for a wrong value.

Each largest number is well above what anybody trains with, and low enough that planning with it ends. A larger number
is most often a slip (bytes for tokens, the count of all steps for the count of one); without a limit the planner would
take all memory, or all day, before the user sees an error.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, ValidationError
from pydantic_core import PydanticCustomError

from ...rounds.round_spec import Mode as Mode
from ..yaml.fault_lines import NAME_PATTERN

MOST_PROMPTS_PER_STEP = 131_072
"""Prompts of a step; the largest published steps have some 16,000 prompts."""

MOST_SAMPLES_PER_STEP = 2_000_000
"""Samples of a step, prompts_per_step times samples_per_prompt."""

MOST_ISSUED = 8_000_000
"""Samples that one round of a plan may issue, copies included: four times those of the largest step."""

MOST_TOKENS = 10_000_000
"""Tokens of a prompt, of a response or of a row of a length trace; the longest context of any model."""

MOST_NUMBER = 10**9
"""Largest number of an epoch or of a sample in a length trace: they are counts, not digests or times."""

MOST_CHOICES = 64
"""Values of one list that `solve` tries one by one."""

MOST_ACCELERATORS = 131_072
"""Accelerators of a pool that one job is planned for."""

MOST_STEPS = 100_000
"""Steps of a simulated run."""

MOST_SIMULATED = 50_000_000
"""Samples of a simulated run, over all its steps: about an hour."""


class Strict(BaseModel):
    """Base of every document model."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """As pydantic's, and a key that the document does not have is a ValueError: it would be lost in silence."""
        unknown = sorted({*(update or ())} - {*type(self).model_fields})
        if unknown:
            raise ValueError(f"{unknown[0]!r} is no key of a {type(self).__name__}")
        return super().model_copy(update=update, deep=deep)


def cross_error(message: str, field: str | None = None, rule: str = "contradiction") -> PydanticCustomError:
    """Return the error for a rule between fields; the message gets the line of `field` (dotted, below the model), and
    `rule` is the name of the fault in check/rules.py."""
    # The message goes in as a value because pydantic formats the template, and user text may hold braces.
    return PydanticCustomError("cross_field", "{text}", {"text": message, "field": field or "", "rule": rule})


def cross_errors(title: str, faults: Sequence[tuple[str, str, str]]) -> ValidationError:
    """Return several errors of one model, from (message, field, rule), which a validator raises together."""
    return ValidationError.from_exception_data(
        title, [{"type": cross_error(*fault), "loc": (), "input": None} for fault in faults]
    )


# For `exclude_if`: a value that says nothing is not written, so that documents without the key keep their bytes.
is_none, is_false, is_true = (partial(operator.is_, value) for value in (None, False, True))
is_zero, is_one, is_auto = (partial(operator.eq, value) for value in (0, 1, "auto"))
is_empty = operator.not_


def whole(value: Any) -> Any:
    """A document as plain data with all keys that it may have, also those that its file leaves out at their default."""
    if isinstance(value, BaseModel):
        return {name: whole(getattr(value, name)) for name in type(value).model_fields}
    if isinstance(value, dict):
        return {key: whole(item) for key, item in value.items()}
    return [whole(item) for item in value] if isinstance(value, (list, tuple)) else value


N = TypeVar("N", int, float)


def ascending(values: tuple[N, ...]) -> tuple[N, ...]:
    """Return the values if they are strictly ascending; raise an error otherwise."""
    if any(b <= a for a, b in itertools.pairwise(values)):
        wanted = ", ".join(str(v) for v in sorted(set(values)))
        raise cross_error(f"must be strictly ascending; write [{wanted}]")
    return values


Name = Annotated[str, StringConstraints(pattern=NAME_PATTERN)]
"""Letters, digits, `_`, `.`, `-`, at most 64: a name that is safe in file names and needs no quotes in YAML."""


Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1, le=10**12)]
"""A number of things, at least one; the upper bound keeps products of a few of them from overflowing."""

MAX_SECONDS = 1e8
PhaseSeconds = Annotated[float, Field(ge=1e-3, le=MAX_SECONDS)]
"""Seconds of a phase: a millisecond to three years, so that no figure computed from them overflows or becomes 0."""

Delay = Annotated[float, Field(ge=0, le=MAX_SECONDS)]
"""Seconds of a delay, from 0 to three years."""

MAX_USD_PER_NODE_HOUR = 1e6
Price = Annotated[float, Field(ge=0, le=MAX_USD_PER_NODE_HOUR)]
"""USD per node (or GPU) and hour; the upper bound keeps the solver's numbers in range."""

Recompute = Literal["none", "selective", "full"]
"""Which activations are computed again in the backward pass instead of kept."""

MemoryBytes = Annotated[int, Field(ge=1_000_000, le=10**18)]
"""Bytes. The lower bound catches `24` written for 24 GB."""

Tokens = Annotated[int, Field(ge=1, le=MOST_TOKENS)]
"""Tokens of a prompt or of a response, at least one."""

Choices = Annotated[
    tuple[Count, ...], Field(min_length=1, max_length=MOST_CHOICES, strict=False), AfterValidator(ascending)
]
"""A non-empty, strictly ascending list of positive integers (a list is taken as well as a tuple)."""
