"""Reward resources that a plan may give its samples' scoring: how many workers, under which deadlines.

A job that writes `reward.workers` has one choice; one that leaves them out lets the program choose. Workers are
processes on host cores of the nodes that the engines take. On GPUs each accelerator in use keeps one core busy for its
engine or trainer rank, and workers have the others; where accelerators are cores, engines and workers share them, which
the costs say (profiles/laws/core_sharing.py). One more worker matters less the more there are, so counts grow by steps
of a third to a half.

Deadlines are as the job has them, or, where it gives a lower bound, may also adapt to each prompt (rounds/timeouts.py).
They may only where no right answer of the profile would have been judged wrong: the factor is above the most by which
right answers to a prompt were seen to differ.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from ....plans.schema.cluster import Pool
from ....plans.schema.job import Job
from ....plans.schema.sections.layouts import EngineLayout
from ....plans.schema.sections.levers import AdaptiveTimeout, timeout_numbers
from ....plans.schema.sections.planned_job import RewardPlan
from ....profiles.laws.reward_fit import SCATTER_FROM_S
from ....profiles.phase_schema import Reward
from ...costs.reward_costs import AT_ONCE, RewardCost, reward_cost

MOST_WORKERS = 4096
"""More are no candidates; each is a process that the driver feeds."""

USUAL_FACTOR = 2.0
"""Deadline over anchor where nothing is known of how right answers to a prompt differ, and the least that is planned:
RollPacker's released code has 2, its paper (arXiv 2509.21009) 1.5."""

MARGIN = 1.25
"""The factor over the most by which right answers to a prompt were seen to differ: others may differ more."""


class RewardChoice(NamedTuple):
    """A choice: reward workers, the longest deadline in seconds, and how deadlines adapt (None: they do not)."""

    workers: int
    deadline_s: float
    adaptive: AdaptiveTimeout | None

    @classmethod
    def of_plan(cls, planned: RewardPlan) -> RewardChoice:
        """What a plan has written."""
        return cls(planned.workers, planned.deadline_s, planned.adaptive_timeout)

    def cost(self, reward: Reward) -> RewardCost:
        """What scoring costs with it, by the profile's section; nothing without workers."""
        if not self.workers:
            return AT_ONCE
        return reward_cost(reward, self.workers, timeout_numbers(self.deadline_s, self.adaptive))

    def with_workers(self, workers: int) -> RewardChoice:
        """The same deadlines kept by so many workers."""
        return self._replace(workers=workers)

    def text(self) -> str:
        """Text for a reader."""
        workers = f"{self.workers} reward worker{'s' * (self.workers != 1)}"
        if self.adaptive is None:
            return f"{workers}, deadline {self.deadline_s:g} s"
        return f"{workers}, deadlines from {self.adaptive.min_s:g} to {self.deadline_s:g} s"


def reward_choices(job: Job, pool: Pool, layouts: Iterable[EngineLayout], reward: Reward) -> tuple[RewardChoice, ...]:
    """All choices of a job, those with the most workers first: what scoring takes at least."""
    if not job.reward.pooled:  # no worker scores anything
        return (RewardChoice(0, job.reward.deadline_s, None),)
    counts = [job.reward.workers]
    if job.reward.workers is None:
        most = min(MOST_WORKERS, max((room_for_workers(layout, pool) for layout in layouts), default=1))
        counts = [*sorted(worker_counts(most), reverse=True)]
    return tuple(
        RewardChoice(count, job.reward.deadline_s, adaptive)
        for count in counts
        if count is not None
        for adaptive in _adaptive(job, reward)
    )


def room_for_workers(layout: EngineLayout, pool: Pool) -> int:
    """Host cores of the nodes of a layout's engines on which reward workers may run; at least one."""
    cores = pool.nodes_of(layout.engines, layout.tp) * pool.cores
    return cores if pool.accelerators.kind == "cpu" else max(1, cores - layout.engines * layout.tp)


def worker_counts(most: int) -> list[int]:
    """Counts from 1 to `most`, which is among them: 1, 2, 3, 4, 6, 8, 12, 16, ..."""
    counts, power = {1, most}, 2
    while power <= most:
        counts |= {power, power * 3 // 2}
        power *= 2
    return sorted(count for count in counts if count <= most)


def _adaptive(job: Job, reward: Reward) -> list[AdaptiveTimeout | None]:
    """How deadlines may adapt; None stands for those that do not."""
    shortest_s = job.reward.shortest_deadline_s
    if shortest_s is None:
        return [job.reward.adaptive_timeout]
    found = safe_timeout(shortest_s, job.reward.deadline_s, reward)
    return [None] if found is None else [found, None]


def safe_timeout(shortest_s: float, longest_s: float, reward: Reward) -> AdaptiveTimeout | None:
    """Adaptive deadlines between the bounds (seconds) under which none of the profile's right answers is judged wrong
    that the longest deadline judges right; None where these deadlines would hardly differ from the longest.

    Of answers below `SCATTER_FROM_S` seconds it is not known how they differ, so that no deadline is shorter than
    twice that.
    """
    executions = reward.executions
    if executions is None:
        return None
    scatter = executions.scatter
    factor = USUAL_FACTOR if scatter is None else max(USUAL_FACTOR, math.ceil(2.0 * MARGIN * scatter) / 2.0)
    floor_s = max(shortest_s, 2.0 * SCATTER_FROM_S)
    if floor_s >= longest_s:
        return None
    return AdaptiveTimeout(min_s=floor_s, anchor_factor=factor)
