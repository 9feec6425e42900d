"""A run's means over the cycle (traces/cycle_means.py), by what its plan expects of a long round."""

from __future__ import annotations

from dataclasses import dataclass

from .cycle_means import CycleMeans
from .report_runs import RunTrace


@dataclass(frozen=True, slots=True)
class Cycle:
    """Means over the cycle."""

    step_s: float
    seconds_per_sample: float
    owed_prompts: int
    owed_tokens: float
    expected_s: float = 0.0
    """What of `step_s` is no measurement: the plan's own long round, where prompts are owed one and none ran yet."""


def means_of(run: RunTrace) -> CycleMeans:
    """The run's steps with what is charged for the prompts that it owes; of a run with at least one step."""
    issue, long = run.plan.job.issue, run.plan.predicted.rounds.long
    planned = {} if long is None else {"total_s": long.step_s.mean, "rollout_s": long.rollout_s.mean}
    return CycleMeans(run.steps, issue.prompts_per_step, issue.samples_per_prompt, planned)


def cycle(run: RunTrace) -> Cycle:
    """Charge the deferred prompts that are left at the end with what a long round's prompt took."""
    means = means_of(run)
    long_tokens = 0.0
    if means.owed_prompts and means.long_rows:
        trained = sum(row["trained_tokens"] for row in means.long_rows)
        long_tokens = trained / (means.long_prompts * means.samples_per_prompt)
    return Cycle(
        step_s=means.seconds("total_s"),
        seconds_per_sample=means.seconds_per_sample,
        owed_prompts=means.owed_prompts,
        owed_tokens=long_tokens,
        expected_s=means.expected_s("total_s") / means.steps,
    )


def over_cycle(run: RunTrace, key: str) -> float:
    """Mean seconds a step of one of the steps' durations, over the cycle."""
    return means_of(run).seconds(key)
