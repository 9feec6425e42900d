"""Seconds of a reward worker for a sample, where samples differ: tests run in a sandbox, and some answers hang.

A prompt has been answered right or not. Of an *unsolved* one every execution is wrong. Those of a solved one are right
with one probability, and every right one takes the prompt's own seconds (what its tests take); wrong ones take seconds
of their own, whatever the prompt. Random numbers in [0, 1), one for the prompt and one for the sample, pick the
seconds, so the same sample takes as long in every candidate. Neither depends on lengths.

In the steady state, which columns are simulated in, a solved prompt's anchor (rounds/timeouts.py) is its own seconds:
deadlines there are those of an epoch in which every prompt has been seen. A run that is simulated whole (whole_run.py)
learns them as the executor does, and pays the longest deadline until then.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...plans.schema.levers import EngineLayout
from ...plans.schema.planned_job import PooledReward
from ...profiles.phase_schema import Reward, RewardExecutions
from ...profiles.profile_schema import Machine
from ...profiles.reward_tables import reward_table
from ...rounds.timeouts import RewardExecution, TimeoutSpec

Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ExecutionTimes:
    """Seconds that executions of reward code take.

    Attributes:
        correct_s: equally likely seconds that a solved prompt's right answers take, ascending.
        wrong_s: equally likely seconds of a wrong answer that is not stopped, ascending.
        correct: share of right answers to solved prompts.
        unsolved: share of prompts without a right answer.
    """

    correct_s: tuple[float, ...]
    wrong_s: tuple[float, ...]
    correct: float
    unsolved: float

    @staticmethod
    def of(known: RewardExecutions) -> ExecutionTimes:
        """Those of a profile. What it does not know is taken such that no deadline that adapts saves anything: a wrong
        answer is one to an unsolved prompt, and so is each where right ones are not told from others."""
        if known.correct_s is None or known.correct is None:
            return ExecutionTimes(known.wrong_s, known.wrong_s, 0.0, 1.0)
        if known.unsolved is None:
            return ExecutionTimes(known.correct_s, known.wrong_s, 1.0, 1.0 - known.correct)
        return ExecutionTimes(known.correct_s, known.wrong_s, known.correct, known.unsolved)

    def anchor_s(self, prompt_draw: float) -> float | None:
        """Seconds of the prompt's right answers; None if it is unsolved."""
        if prompt_draw < self.unsolved:
            return None
        return _pick(self.correct_s, (prompt_draw - self.unsolved) / (1.0 - self.unsolved))

    def execute(self, prompt: str, prompt_draw: float, sample_draw: float, deadline_s: float) -> RewardExecution:
        """Score a sample of `prompt` under a deadline."""
        anchor_s = self.anchor_s(prompt_draw)
        if anchor_s is not None and sample_draw < self.correct:
            return RewardExecution(prompt, min(anchor_s, deadline_s), anchor_s <= deadline_s, anchor_s > deadline_s)
        share = 0.0 if anchor_s is None else self.correct
        seconds = _pick(self.wrong_s, (sample_draw - share) / (1.0 - share))
        return RewardExecution(prompt, min(seconds, deadline_s), False, seconds >= deadline_s)

    def steady_s(self, spec: TimeoutSpec, prompt_draw: float, sample_draw: float) -> float:
        """Seconds of a worker for a sample in the steady state."""
        deadline_s = spec.deadline_s(self.anchor_s(prompt_draw))
        return self.execute("", prompt_draw, sample_draw, deadline_s).seconds

    def steady_many_s(self, spec: TimeoutSpec, prompt_draw: Numbers, sample_draw: Numbers) -> Numbers:
        """`steady_s` of many samples, bit for bit; `prompt_draw` is broadcast to the shape of `sample_draw`."""
        solved = prompt_draw >= self.unsolved
        place = _picks(
            len(self.correct_s), np.where(solved, (prompt_draw - self.unsolved) / ((1.0 - self.unsolved) or 1.0), 0.0)
        )
        anchor_s = np.array(self.correct_s)[place]
        deadlines_s = np.array([spec.deadline_s(anchor) for anchor in self.correct_s])
        deadline_s = np.where(solved, deadlines_s[place], spec.deadline_s(None))
        share = np.where(solved, self.correct, 0.0)
        right = sample_draw < share
        wrong = np.where(right, 0.0, sample_draw - share) / np.where(right, 1.0, 1.0 - share)
        natural_s = np.where(right, anchor_s, np.array(self.wrong_s)[_picks(len(self.wrong_s), wrong)])
        seconds: Numbers = np.minimum(natural_s, deadline_s)
        return seconds

    def mean_s(self, spec: TimeoutSpec) -> float:
        """Mean seconds of a worker for a sample in the steady state."""

        def wrong(deadline_s: float) -> float:
            return _mean([min(seconds, deadline_s) for seconds in self.wrong_s])

        def solved(anchor_s: float) -> float:
            deadline_s = spec.deadline_s(anchor_s)
            return self.correct * min(anchor_s, deadline_s) + (1.0 - self.correct) * wrong(deadline_s)

        mean = _mean([solved(anchor_s) for anchor_s in self.correct_s])
        return self.unsolved * wrong(spec.deadline_s(None)) + (1.0 - self.unsolved) * mean

    def median_s(self) -> float:
        """Median seconds of an execution that is not stopped."""
        right = (1.0 - self.unsolved) * self.correct
        weighted = [(seconds, right / len(self.correct_s)) for seconds in self.correct_s]
        weighted += [(seconds, (1.0 - right) / len(self.wrong_s)) for seconds in self.wrong_s]
        below = 0.0
        for seconds, weight in sorted(weighted):
            below += weight
            if below >= 0.5:
                return seconds
        return max(seconds for seconds, _ in weighted)


def _pick(values: tuple[float, ...], sample_draw: float) -> float:
    # A quotient of numbers below 1 may round to 1.
    return values[min(int(sample_draw * len(values)), len(values) - 1)]


def _picks(count: int, sample_draw: Any) -> NDArray[np.int64]:
    picks: NDArray[np.int64] = np.minimum((sample_draw * count).astype(np.int64), count - 1)
    return picks


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


NO_TIMEOUT = TimeoutSpec(max_s=1e9)
"""A deadline that no execution reaches."""


@dataclass(frozen=True, slots=True)
class RewardCost:
    """Scoring: a queue before `workers`, each busy with a sample for its seconds; `delay_s` later the result is known.

    Attributes:
        workers: of the pool.
        per_sample_s: seconds of a worker for a sample.
        delay_s: from a worker's end to the result.
        executions: where it is no constant, what scoring takes in place of `per_sample_s`.
        timeout: the deadlines of executions.
        after_rollout: samples are scored when the last one is decoded, instead of beside the rollout.
        per_token_s: seconds more per token of the sample, prompt included, beside `per_sample_s` (a judge reads them).
        of_judge: whether a judge's copies are the workers.
        of_further: whether they are those of a further part of the reward.
        all_workers: reward workers of all parts, which run on host cores; 0: `workers`.
    """

    workers: int
    per_sample_s: float
    delay_s: float
    executions: ExecutionTimes | None = None
    timeout: TimeoutSpec = NO_TIMEOUT
    after_rollout: bool = False
    per_token_s: float = 0
    of_judge: bool = False
    of_further: bool = False
    all_workers: int = 0

    @property
    def on_cores(self) -> int:
        """Reward workers of all parts."""
        return self.all_workers or self.workers

    def read_s(self, tokens: int) -> float:
        """Seconds of a worker for a sample of so many tokens, where samples of one length take the same."""
        return self.per_sample_s + self.per_token_s * tokens

    def sample_s(self, prompt_draw: float, sample_draw: float, tokens: int) -> float:
        """Seconds of a worker for a sample in the steady state, by draws in [0, 1) for its prompt and for itself."""
        return (
            self.read_s(tokens)
            if self.executions is None
            else self.executions.steady_s(self.timeout, prompt_draw, sample_draw)
        )

    def mean_s(self) -> float:
        """Mean seconds of a worker for a sample in the steady state."""
        return self.per_sample_s if self.executions is None else self.executions.mean_s(self.timeout)


TYPICAL_TOKENS = 1000
"""Tokens of a sample by which a judge is compared with reward workers, where a sample needs both."""


def slower_of(workers: RewardCost, judge: RewardCost) -> RewardCost:
    """The one of two that takes longer for each sample of many: it decides when the reward of a sample is known.

    An approximation: the simulated queue is one, and so where both take about as long, rewards come a little too soon.
    """
    judge_s = judge.read_s(TYPICAL_TOKENS) / judge.workers
    judge = replace(judge, all_workers=workers.on_cores)
    return judge if judge_s >= workers.mean_s() / workers.workers else workers


def slowest_of(main: RewardCost, further: Sequence[RewardCost]) -> RewardCost:
    """The one of the pools of all parts of a reward that takes longest for each sample of many, as `slower_of`."""
    if not further:
        return main
    pools = [main, *(replace(each, of_further=True) for each in further)]
    slowest = max(pools, key=lambda pool: pool.mean_s() / pool.workers)  # the first of those that are alike
    return replace(slowest, all_workers=sum(pool.workers for pool in pools))


def further_costs(further: Iterable[PooledReward]) -> list[RewardCost]:
    """Costs of scoring by the pools of a reward's further parts, at the seconds that ship for their kinds: a profile
    has those of the first part alone."""
    return [
        reward_cost(reward_table(pool.kind).reward(1), pool.workers, pool.timeout_spec())
        for pool in further
        if pool.kind is not None
    ]


AT_ONCE = RewardCost(workers=1, per_sample_s=0.0, delay_s=0.0)
"""Scoring of a reward that looks at lengths alone: it is known with the sample."""


def reward_cost(reward: Reward, workers: int, timeout: TimeoutSpec = NO_TIMEOUT) -> RewardCost:
    """Costs of scoring with `workers` workers under a job's or a plan's deadlines."""
    took = reward.executions
    if took is None:
        delay_s = max(0.0, reward.latency.p50 - reward.per_sample_s)
        return RewardCost(workers, reward.per_sample_s, delay_s, timeout=timeout)
    executions = ExecutionTimes.of(took)
    # Of a sample alone in the median: what is left of it when the execution is taken off.
    delay_s = max(0.0, reward.latency.p50 - executions.median_s())
    return RewardCost(workers, reward.per_sample_s, delay_s, executions, timeout)


def crowding(
    machine: Machine, reward: Reward, engines: EngineLayout, workers: int, further: Sequence[RewardCost] = ()
) -> float:
    """Factor on decode and prefill seconds beside so many reward workers, over those beside the workers that a profile
    of this machine and reward was measured with; 1 where accelerators are GPUs (workers then have cores of their own,
    reward_choices.py) or the profile does not know the load.

    Where accelerators are cores, a worker that scores keeps one busy, and so does each rank of an engine. The kernel
    shares c cores evenly among what wants to run, so that e ranks beside b busy workers decode (e + b) / c times as
    long, if that is above 1. Of W workers min(W, load) are busy. This is estimated from the counts, not measured: the
    profile has rounds with one number of workers only. Pools of `further` parts of the reward are taken to have had a
    worker each then, and to be as much busier than the first part's as their samples take longer.
    """
    measured = reward.workers + len(further)
    if machine.kind == "cuda" or reward.load is None or workers == measured:
        return 1.0
    ranks, load = min(engines.engines * engines.tp, machine.accelerators), reward.load
    if reward.per_sample_s > 0:
        load += load * math.fsum(pool.mean_s() for pool in further) / reward.per_sample_s

    def slowdown(count: int) -> float:
        return max(1.0, (ranks + min(count, load)) / machine.cores)

    return slowdown(workers) / slowdown(measured)
