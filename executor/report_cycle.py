"""Means over the cycle: what a run took once the prompts that it still owes a long round are charged.

A run that stops in a tail cycle owes its deferred prompts a long round. Means *over the cycle* charge that debt: each
owed prompt adds the seconds, samples and tokens that a prompt of this run's long rounds took on average, or, before the
first of them, what the plan expects. Without it a run would look faster, and its samples shorter, the more prompts it
still owes.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

from .report_runs import RunTrace


@dataclass(frozen=True, slots=True)
class Cycle:
    """Means over the cycle (see the module's docstring)."""

    step_s: float
    seconds_per_sample: float
    owed_prompts: int
    owed_tokens: float
    expected_s: float = 0.0
    """What of `step_s` is no measurement: the plan's own long round, where prompts are owed one and none ran yet."""


def cycle(run: RunTrace) -> Cycle:
    """Charge the deferred prompts that are left at the end with what a long round's prompt took."""
    owed, planned = int(run.steps[-1]["deferred"]), run.plan.job.issue
    long_steps, long_prompts = _long_rounds(run)
    long_tokens = 0.0
    if owed and long_prompts:
        long_tokens = sum(step["trained_tokens"] for step in long_steps) / (long_prompts * planned.samples_per_prompt)
    seconds = over_cycle(run, "total_s")
    samples = sum(step["trained_samples"] for step in run.steps) + owed * planned.samples_per_prompt
    expected = _expected_s(run, "total_s") / _cycle_steps(run)
    return Cycle(seconds, seconds * _cycle_steps(run) / max(samples, 1), owed, long_tokens, expected)


def over_cycle(run: RunTrace, key: str) -> float:
    """Mean seconds a step of one of the steps' durations, over the cycle."""
    long_steps, _ = _long_rounds(run)
    seconds: float = sum(step[key] for step in run.steps)
    if long_steps:
        seconds += _owed_rounds(run) * statistics.fmean(step[key] for step in long_steps)
    return (seconds + _expected_s(run, key)) / _cycle_steps(run)


def _expected_s(run: RunTrace, key: str) -> float:
    """Seconds of the owed rounds as the plan expects them, as far as it tells phases apart; 0 if a long round ran."""
    if _long_rounds(run)[0] or not _owed_rounds(run) or (expected := run.plan.predicted.rounds.long) is None:
        return 0.0
    known = {"total_s": expected.step_s.mean, "rollout_s": expected.rollout_s.mean}
    mean: float = statistics.fmean(step[key] for step in run.steps)
    return _owed_rounds(run) * known.get(key, mean)


def _owed_rounds(run: RunTrace) -> float:
    return _cycle_steps(run) - len(run.steps)


def _long_rounds(run: RunTrace) -> tuple[list[dict[str, Any]], float]:
    """(the run's long rounds that trained something, prompts that they trained)."""
    steps = [step for step in run.steps if step["kind"] == "long" and step["trained_samples"]]
    return steps, sum(step["trained_samples"] for step in steps) / run.plan.job.issue.samples_per_prompt


def _cycle_steps(run: RunTrace) -> float:
    """Steps, and the part of long rounds that owed prompts would have needed, as large as those that there were."""
    long_steps, long_prompts = _long_rounds(run)
    size = long_prompts / len(long_steps) if long_steps else run.plan.job.issue.prompts_per_step
    return len(run.steps) + int(run.steps[-1]["deferred"]) / size
