"""Charges: whether a failure of scoring is put down to the response or the machine, and after how many failures.

What happened may be either's fault, so most of it has to happen again to count; and then a *witness*, a sample that was
scored before, is scored again: only while it can be is the response charged, with reward 0. (A sample that is dropped
and drawn again instead is drawn until scoring likes it; training would see only such responses.)

| what happened | how often it must | ends as, with reward 0 |
|---|---|---|
| the function raised `PolicyError` or `PolicyTimeout`, or did not end in time | once, no witness | `policy_error`, `policy_timeout` |
| the function ran out of memory | twice | `policy_memory` |
| the process that scores died, or the worker did while it had this sample alone and after a sign of life | twice | `policy_crash` |
| the function raised anything else | `retries` + 1 times | `function_error` |
| the worker hung | twice, the second time with this sample alone; no witness | `policy_timeout` |

`infra_failed` has no reward, and its sample is drawn again: the function raised `InfrastructureError`, or the process was
stopped or given no CPU, `retries` + 1 times; or the witness could not be scored.
"""  # noqa: E501 - a table

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from .scoring import Outcome, ScoringResult

FINAL = ("ok", "policy_timeout", "policy_error")
"""Outcomes of a call that are believed at once."""
SOLO = ("policy_memory", "policy_crash")
"""Outcomes after which a sample is scored again in a call of its own."""


@dataclass(frozen=True)
class RewardResult:
    """How one sample was scored."""

    reward: float
    """The function's value; 0 unless the outcome is `ok`."""
    seconds: float
    """Wall time of the call that decided, in the worker; the time waited if the worker never answered."""
    outcome: Outcome
    """`infra_failed` is the one outcome whose sample must be dropped; the reward of the others counts."""
    detail: str
    """Why, in one line; empty for `ok`."""
    attempts: int
    """Calls in which the sample was handed to a worker."""
    worker: str
    """Name of the worker that decided."""


@dataclass(eq=False)
class ScoringSample:
    """A sample that waits for its reward, and what has happened to it."""

    key: str
    prompt: str
    response: str
    answer: Any
    deadline_s: float
    future: asyncio.Future[RewardResult]
    attempts: int = 0
    failures: Counter[Outcome] = field(default_factory=Counter)
    hangs: int = 0
    accused: tuple[ScoringSample, ScoringResult] | None = None
    """Of a witness: the sample that is charged, and with which result."""

    def as_witness(self, accused: ScoringSample, charge: ScoringResult) -> ScoringSample:
        """A copy of this sample to be scored as a witness; it has the future of `accused`, to be cancelled with it."""
        row = (self.prompt, self.response, self.answer, self.deadline_s)
        return ScoringSample(accused.key, *row, accused.future, accused=(accused, charge))


def tries(outcome: Outcome, retries: int) -> int:
    """How often an outcome that is not final must come before it counts."""
    return 2 if outcome in SOLO else retries + 1


def verdict(charge: ScoringResult, witness: ScoringResult) -> ScoringResult:
    """The result of a charged sample, once the witness was scored again."""
    if witness.outcome in ("ok", "policy_error"):
        return charge
    detail = f"{charge.detail}; nor can a sample that was scored before: {witness.outcome} {witness.detail}"
    return ScoringResult("infra_failed", 0.0, charge.seconds, detail[:1000])
