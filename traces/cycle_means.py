"""Means over the cycle: the one way in which a run's seconds are told, by `rlplan report` and `rlplan tune` alike.

A run that stops in a tail cycle owes its deferred prompts a long round. Means *over the cycle* charge that debt: each
owed prompt adds the seconds and samples that a prompt of this run's long rounds took on average, or, before the first
of them, what the plan expects. Without it a run would look faster the more prompts it still owes.

Where a long round ran, that is the mean over the run's steps in which a long one counts as `long_weight` steps.
Waits around a round (`other_s` of a step: messages, book-keeping) belong to its rollout, so that the phases of a step
add up to it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

StepRow = Mapping[str, Any]
"""A `step` event of a trace: `kind`, `trained_samples`, `deferred` behind it, and its seconds by phase."""


def seconds_of(row: StepRow, key: str) -> float:
    """Seconds of one of a step's durations: `total_s`, or a phase's, of which `rollout_s` has the waits around it."""
    seconds = float(row[key])
    return seconds + max(0.0, float(row.get("other_s", 0.0))) if key == "rollout_s" else seconds


@dataclass(frozen=True)
class CycleMeans:
    """A run's steps, at least one, and what is charged for the prompts that it still owes a long round.

    Attributes:
        rows: the run's steps in their order.
        prompts_per_step, samples_per_prompt: P and n of its plan.
        planned_long_s: by duration, mean seconds of the plan's long round; empty: the plan has none.
    """

    rows: Sequence[StepRow]
    prompts_per_step: int
    samples_per_prompt: int
    planned_long_s: Mapping[str, float]

    @property
    def owed_prompts(self) -> int:
        """Prompts that were deferred and not trained yet."""
        return int(self.rows[-1]["deferred"])

    @cached_property
    def long_rows(self) -> list[StepRow]:
        """Long rounds that trained something."""
        return [row for row in self.rows if row["kind"] == "long" and row["trained_samples"]]

    @property
    def long_prompts(self) -> float:
        """Prompts that they trained."""
        return sum(float(row["trained_samples"]) for row in self.long_rows) / self.samples_per_prompt

    @property
    def owed_rounds(self) -> float:
        """Long rounds that the owed prompts need, as large as those that there were."""
        size = self.long_prompts / len(self.long_rows) if self.long_rows else self.prompts_per_step
        return self.owed_prompts / size

    @property
    def steps(self) -> float:
        """Steps of the run and the rounds that it owes."""
        return len(self.rows) + self.owed_rounds

    @property
    def long_weight(self) -> float:
        """Steps that each long round of the run counts as: itself and its part of those that are owed."""
        return 1.0 + self.owed_rounds / len(self.long_rows) if self.long_rows else 1.0

    @property
    def long_share(self) -> float:
        """Share of the cycle's steps that are long rounds."""
        ran = sum(str(row["kind"]) == "long" for row in self.rows)
        return (ran + self.owed_rounds) / self.steps

    def seconds(self, key: str) -> float:
        """Mean seconds a step of one of the steps' durations (`seconds_of`), over the cycle."""
        return (self._measured_s(key) + self.expected_s(key)) / self.steps

    def measured_seconds(self, key: str) -> float:
        """The same of what ran alone: without the plan's long round where prompts are owed one and none ran yet."""
        return self._measured_s(key) / (self.steps if self.long_rows else len(self.rows))

    def _measured_s(self, key: str) -> float:
        total = math.fsum(seconds_of(row, key) for row in self.rows)
        if self.long_rows:
            total += self.owed_rounds * statistics.fmean(seconds_of(row, key) for row in self.long_rows)
        return total

    def expected_s(self, key: str) -> float:
        """Seconds that are no measurement: the owed rounds as the plan expects them, as far as it tells phases apart.
        0 if a long round ran, or none is owed."""
        if self.long_rows or not self.owed_rounds or not self.planned_long_s:
            return 0.0
        known = self.planned_long_s.get(key)
        return self.owed_rounds * (
            statistics.fmean(seconds_of(row, key) for row in self.rows) if known is None else known
        )

    @property
    def seconds_per_sample(self) -> float:
        """Seconds over trained samples, those of owed prompts included."""
        samples = sum(int(row["trained_samples"]) for row in self.rows) + self.owed_prompts * self.samples_per_prompt
        return self.seconds("total_s") * self.steps / max(samples, 1)
