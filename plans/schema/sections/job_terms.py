"""What a job demands of each of its plans: limits that it keeps, and pools that it takes."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from ...yaml.errors import InputError
from ..base import Name, Positive, Strict, cross_error, is_true

WITHIN = "usd-within"


def objective_of(text: str) -> tuple[Literal["seconds", "usd"], float | None]:
    """(what a trained sample shall cost least of, most seconds of the mean step, or None for any) of `seconds`, `usd`
    or `usd-within SECONDS`. Raises InputError for any other text."""
    name, _, number = text.replace(":", " ").strip().partition(" ")
    if text in ("seconds", "usd"):
        return ("usd", None) if text == "usd" else ("seconds", None)
    if name != WITHIN:
        raise InputError(f"objective: '{text}' is none of seconds, usd, {WITHIN} SECONDS")
    try:
        within_s = float(number)
    except ValueError:
        within_s = math.nan
    if not 0 < within_s < math.inf:
        raise InputError(f"objective: '{text}' has no seconds above 0 of the mean step; write it as {WITHIN} 120")
    return "usd", within_s


def _is_objective(text: str) -> str:
    try:
        objective_of(text)
    except InputError as error:
        raise cross_error(str(error).removeprefix(f"objective: '{text}' ")) from None
    return text


ObjectiveText = Annotated[
    str,
    AfterValidator(_is_objective),
    Field(json_schema_extra={"pattern": r"^(seconds|usd|usd-within[ :][0-9.eE+-]+)$"}),
]


class Slo(Strict):
    """Limits that every plan of the job keeps."""

    step_p95_s: Positive | None = None
    """Seconds that 95% of the steps must stay below; null for no such limit."""


class JobPlacement(Strict):
    """Engines and trainers on pools of their own."""

    train_pool: Name
    """The pool of `cluster.yaml` that trainers have to themselves; engines are on another one."""

    streams: Annotated[bool, Field(exclude_if=is_true)] = True
    """Trainers train complete groups while the others of the round decode. False: they begin when the rollout has
    ended, as a job of a co-execution group must, whose phases take turns with those of other jobs."""
