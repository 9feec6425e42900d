"""Reward resources that a plan may give its samples' scoring: how many workers, under which deadlines.

A job that writes `reward.workers` has one choice; one that leaves them out lets the program choose. Workers are
processes on host cores of the nodes that the engines take. On GPUs each accelerator in use keeps one core busy for its
engine or trainer rank, and workers have the others; where accelerators are cores, engines and workers share them, which
the costs say (`crowding`, costs/reward_costs.py). One more worker matters less the more there are, so counts grow by
steps of a third to a half.

Deadlines are as the job has them, or, where it gives a lower bound, may also adapt to each prompt (rounds/timeouts.py).
They may only where no right answer of the profile (of a further part: of the seconds that ship for its kind) would have
been judged wrong: the factor is above the most by which right answers to a prompt were seen to differ.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple, cast

from ....plans.facts.executable import judge_fault
from ....plans.schema.cluster import Pool
from ....plans.schema.job import Job
from ....plans.schema.levers import AdaptiveTimeout, EngineLayout, RewardJudge, timeout_spec
from ....plans.schema.planned_job import PooledReward, RewardPlan
from ....plans.schema.reward_spec import RewardSpec, WorkerKind
from ....profiles.judge_schema import Judge
from ....profiles.laws.reward_fit import SCATTER_FROM_S
from ....profiles.phase_schema import Reward
from ....profiles.reward_tables import reward_table
from ...costs.reward_costs import AT_ONCE, RewardCost, further_costs, reward_cost, slowest_of
from .pool_choice import Unplannable

# Where a judge may be: on accelerators of its own, or beside the engines at one of the measured shares.

MOST_COPIES = 4


def judge_places(job: Job, judge: Judge | None, pool: Pool, apart: bool, for_any: bool) -> list[RewardJudge | None]:
    """The candidates of a job's judge, the simplest first: one copy before several, of its own before beside engines,
    the system's division before a share. [None] for a job without a judge.

    `judge`: its costs by the profile. `apart`: trainers have a pool of their own. `for_any`: also what only other
    frameworks can run. Raises Unplannable if the profile does not hold the judge's costs, or the pool has no place for
    it.
    """
    if job.reward.judge is None:
        return [None]
    if judge is None:
        raise Unplannable(
            "job",
            ("reward",),
            "has a judge, and the profile does not hold what it costs; run rlplan profile, or write its seconds under "
            "judge in the profile",
        )
    most = min(MOST_COPIES, pool.accelerators_total // judge.tp)
    copies = [count for count in (1, 2, 4) if count <= most]
    places: list[RewardJudge | None] = []
    for count in copies:
        one = RewardJudge(place="own", instances=count, tp=judge.tp, at_once=judge.at_once)
        beside = one.model_copy(update={"place": "beside"})
        of_shares = [beside.model_copy(update={"share": each.share}) for each in judge.shares]
        found = [each for each in (one, beside, *of_shares)
                 if for_any or judge_fault(each, pool.accelerators.kind, apart) is None]  # fmt: skip
        places += found
    if not places:
        fault = judge_fault(RewardJudge(place="own", instances=1, tp=judge.tp), pool.accelerators.kind, apart)
        raise Unplannable("job", ("reward",), f"has a judge, and {fault or 'the pool has no accelerator for it'}")
    return places


def judge_text(judge: RewardJudge) -> str:
    """A judge's place for a reader."""
    copies = "one copy" if judge.instances == 1 else f"{judge.instances} copies"
    if judge.place == "own":
        return f"{copies} on accelerators of its own"
    share = "" if judge.share is None else f", with {100 * judge.share:.0f}% of their compute"
    return f"{copies} beside the engines{share}"


def no_room_for_judge(layout: EngineLayout, judge: RewardJudge | None, pool: Pool) -> str | None:
    """Why a judge has no place beside engines of a layout; None if it has, or if there is none."""
    if judge is None:
        return None
    decoding, judging = layout.engines * layout.tp, judge.instances * judge.tp
    room = decoding if judge.place == "beside" else pool.accelerators_total - decoding
    return None if judging <= room else f"leaves {max(room, 0)} accelerators to a judge that takes {judging}"


MOST_WORKERS = 4096
"""More are no candidates; each is a process that the driver feeds."""

USUAL_FACTOR = 2.0
"""Deadline over anchor where nothing is known of how right answers to a prompt differ, and the least that is planned:
RollPacker's released code has 2, its paper (arXiv 2509.21009) 1.5."""

MARGIN = 1.25
"""The factor over the most by which right answers to a prompt were seen to differ: others may differ more."""


class RewardChoice(NamedTuple):
    """A choice: reward workers, the longest deadline in seconds, and how deadlines adapt (None: they do not), of the
    first part of a reward that workers compute; and the pools of its further parts, by name."""

    workers: int
    deadline_s: float
    adaptive: AdaptiveTimeout | None
    further: tuple[tuple[str, PooledReward], ...] = ()

    @classmethod
    def of_plan(cls, planned: RewardPlan) -> RewardChoice:
        """What a plan has written."""
        return cls(planned.workers, planned.deadline_s, planned.adaptive_timeout, tuple(planned.further.items()))

    @property
    def all_workers(self) -> int:
        """Workers of all pools."""
        return self.workers + sum(pool.workers for _, pool in self.further)

    def cost(self, reward: Reward) -> RewardCost:
        """What scoring costs with it, by the profile's section; nothing without workers."""
        if not self.workers:
            return AT_ONCE
        main = reward_cost(reward, self.workers, timeout_spec(self.deadline_s, self.adaptive))
        return slowest_of(main, further_costs(pool for _, pool in self.further))

    def with_workers(self, workers: int) -> RewardChoice:
        """The same deadlines kept by so many workers of the first part."""
        return self._replace(workers=workers)

    def as_slow_as(self, other: RewardChoice) -> bool:
        """Whether all deadlines are those of another choice."""
        one, two = ([pool.model_copy(update={"workers": 1}) for _, pool in each.further] for each in (self, other))
        return self[1:3] == other[1:3] and one == two

    def text(self) -> str:
        """Text for a reader."""
        workers = f"{self.workers} reward worker{'s' * (self.workers != 1)}"
        if self.adaptive is None:
            workers = f"{workers}, deadline {self.deadline_s:g} s"
        else:
            workers = f"{workers}, deadlines from {self.adaptive.min_s:g} to {self.deadline_s:g} s"
        return "; ".join([workers, *(f"{name}: {pool.workers}" for name, pool in self.further)])


def reward_choices(job: Job, pool: Pool, layouts: Iterable[EngineLayout], reward: Reward) -> tuple[RewardChoice, ...]:
    """All choices of a job, those with the most workers first: what scoring takes at least.

    Of several parts that workers compute, those that do not say how many they have share a number of workers, so that
    the slowest of them takes as little as it can.
    """
    parts = job.reward.pooled
    if not parts:  # no worker scores anything
        return (RewardChoice(0, job.reward.deadline_s, None),)
    open_parts, totals = undecided(job.reward), [0]
    if open_parts:
        most = min(MOST_WORKERS, max((room_beside(layout, pool, job.reward) for layout in layouts), default=1))
        totals = sorted({max(count, open_parts) for count in worker_counts(most)}, reverse=True)
    main, further = parts[0], parts[1:]
    seconds = [reward, *(reward_table(part.kind).reward(1) for part in further)]
    timeouts = [_adaptive(part, took) for part, took in zip(parts, seconds, strict=True)]
    choices = []
    for total in totals:
        for adaptive in timeouts[0]:
            used = [adaptive, *(found[0] for found in timeouts[1:])]
            took_s = [
                reward_cost(took, 1, timeout_spec(part.deadline_s, timeout)).mean_s()
                for part, took, timeout in zip(parts, seconds, used, strict=True)
            ]
            workers = _shared([part.workers for part in parts], took_s, total)
            pools = tuple(
                (part.label, PooledReward(kind=cast(WorkerKind, part.kind), workers=count, deadline_s=part.deadline_s,
                                          adaptive_timeout=timeout))
                for part, count, timeout in zip(further, workers[1:], used[1:], strict=True)
            )  # fmt: skip
            choices.append(RewardChoice(workers[0], main.deadline_s, adaptive, pools))
    return tuple(choices)


def _shared(fixed: Sequence[int | None], took_s: Sequence[float], total: int) -> list[int]:
    """Workers of each pool: as fixed, else at least one, `total` of these together; the next worker is always that of
    the pool that takes longest."""
    workers = [count or 1 for count in fixed]
    decided = [place for place, count in enumerate(fixed) if count is None]
    for _ in range(total - len(decided)):
        slowest = max(decided, key=lambda place: took_s[place] / workers[place])
        workers[slowest] += 1
    return workers


def undecided(reward: RewardSpec) -> int:
    """Parts of a reward whose number of workers the job leaves to `solve`."""
    return sum(part.workers is None for part in reward.pooled)


def fixed_workers(reward: RewardSpec) -> int:
    """Workers that the parts of a reward have by the job."""
    return sum(part.workers or 0 for part in reward.pooled)


def room_beside(layout: EngineLayout, pool: Pool, reward: RewardSpec) -> int:
    """Host cores for the workers that `solve` decides, beside engines and workers that the job fixes; at least one for
    each part."""
    return max(undecided(reward), room_for_workers(layout, pool) - fixed_workers(reward))


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


def _adaptive(part: RewardSpec, reward: Reward) -> list[AdaptiveTimeout | None]:
    """How deadlines of a part may adapt, by its seconds; None stands for those that do not."""
    shortest_s = part.shortest_deadline_s
    if shortest_s is None:
        return [part.adaptive_timeout]
    found = safe_timeout(shortest_s, part.deadline_s, reward)
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
