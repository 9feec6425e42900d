"""Mean seconds of a run over the cycle: short rounds, and the long round that trains what they deferred.

`rlplan report` and `rlplan tune` take a run's seconds from this module, so that both state the same figures.

A run that stops before a long round *owes* that round the prompts that it deferred. A mean over the cycle includes
the owed round: each owed prompt adds the seconds and samples that a prompt of this run's long rounds took on average;
before the run's first long round, it adds what the plan predicts. Without this, a run would look faster the more
prompts it owes.

If the run had a long round, the mean over the cycle is the mean over its steps in which each long round counts as
`long_weight` steps. The seconds of a step outside its phases (`other_s`: messages, book-keeping) count as rollout, so
that the phases of a step add up to the step.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from ..plans.schema.plan import Plan
from .trace_events import Step


def seconds_of(step: Step, key: str) -> float:
    """Seconds of one duration of a step: `total_s` or a phase; `rollout_s` includes `other_s`."""
    seconds = float(getattr(step, key))
    return seconds + step.outside_s if key == "rollout_s" else seconds


@dataclass(frozen=True)
class CycleMeans:
    """Means over the cycle of a run with at least one step; they include the long rounds that the run owes.

    Attributes:
        run_steps: the run's steps in their order.
        prompts_per_step, samples_per_prompt: P and n of its plan.
        planned_long_s: by duration, mean seconds of the plan's long round; empty if the plan has no long round.
    """

    run_steps: Sequence[Step]
    prompts_per_step: int
    samples_per_prompt: int
    planned_long_s: Mapping[str, float]

    @property
    def owed_prompts(self) -> int:
        """Prompts that the run deferred and has not trained yet."""
        return int(self.run_steps[-1].deferred)

    @cached_property
    def long_steps(self) -> list[Step]:
        """Long rounds that trained at least one sample."""
        return [step for step in self.run_steps if step.kind == "long" and step.trained_samples]

    @property
    def long_prompts(self) -> float:
        """Prompts that the run's long rounds trained."""
        return sum(float(step.trained_samples) for step in self.long_steps) / self.samples_per_prompt

    @property
    def owed_rounds(self) -> float:
        """Long rounds that the owed prompts need, at the mean size of the run's long rounds, or else of a step."""
        size = self.long_prompts / len(self.long_steps) if self.long_steps else self.prompts_per_step
        return self.owed_prompts / size

    @property
    def steps(self) -> float:
        """Steps of the run plus the long rounds that it owes."""
        return len(self.run_steps) + self.owed_rounds

    @property
    def long_weight(self) -> float:
        """Weight of a long round in the mean: the round itself and its part of the owed rounds."""
        return 1.0 + self.owed_rounds / len(self.long_steps) if self.long_steps else 1.0

    @property
    def long_share(self) -> float:
        """Share of the cycle's steps that are long rounds."""
        long_rounds = sum(str(step.kind) == "long" for step in self.run_steps)
        return (long_rounds + self.owed_rounds) / self.steps

    def seconds(self, key: str) -> float:
        """Mean seconds of one duration (`seconds_of`) per step, over the cycle."""
        return (self._measured_s(key) + self.expected_s(key)) / self.steps

    def chance(self, key: str) -> float | None:
        """Relative standard error of `seconds(key)` by the chance of so few rounds, such as the lengths drawn. Each
        kind of round is a stratum of the mean; None where a kind has one round alone."""
        mean, variance = self.seconds(key), 0.0
        for long in (False, True):
            seconds = [seconds_of(step, key) for step in self.run_steps if (step.kind == "long") is long]
            if len(seconds) == 1:
                return None
            if seconds:
                weight = (len(seconds) + long * self.owed_rounds) / self.steps
                variance += weight**2 * statistics.variance(seconds) / len(seconds)
        return math.sqrt(variance) / mean if mean else None

    def measured_seconds(self, key: str) -> float:
        """Mean seconds of one duration per step, without the predicted long round (`expected_s`)."""
        return self._measured_s(key) / (self.steps if self.long_steps else len(self.run_steps))

    def _measured_s(self, key: str) -> float:
        """Total seconds of all steps, and of the owed rounds if the run had a long round to measure them by."""
        total = math.fsum(seconds_of(step, key) for step in self.run_steps)
        if self.long_steps:
            total += self.owed_rounds * statistics.fmean(seconds_of(step, key) for step in self.long_steps)
        return total

    def expected_s(self, key: str) -> float:
        """Total seconds of the owed rounds as the plan predicts them; 0 if the run had a long round, or owes none.

        A duration that the plan does not predict for its long round takes the mean of the run's own steps.
        """
        if self.long_steps or not self.owed_rounds or not self.planned_long_s:
            return 0.0
        planned_s = self.planned_long_s.get(key)
        if planned_s is None:
            planned_s = statistics.fmean(seconds_of(step, key) for step in self.run_steps)
        return self.owed_rounds * planned_s

    @property
    def seconds_per_sample(self) -> float:
        """Seconds per trained sample; the samples of owed prompts count as trained."""
        trained = sum(int(step.trained_samples) for step in self.run_steps)
        samples = trained + self.owed_prompts * self.samples_per_prompt

        return self.seconds("total_s") * self.steps / max(samples, 1)


def means_by_plan(steps: Sequence[Step], plan: Plan) -> CycleMeans:
    """Means over the cycle of a run of `plan`, from its steps (at least one)."""
    issue, long = plan.job.issue, plan.predicted.rounds.long
    planned_long_s = {} if long is None else {"total_s": long.step_s.mean, "rollout_s": long.rollout_s.mean}
    return CycleMeans(steps, issue.prompts_per_step, issue.samples_per_prompt, planned_long_s)
