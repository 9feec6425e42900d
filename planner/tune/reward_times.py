"""The seconds of a profile's rewards and judge, refitted from the samples that a run scored."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from ...plans.schema.planned_job import RewardPlan
from ...profiles.judge_schema import Judge
from ...profiles.laws.reward_fit import ScoredSample, fit_executions
from ...profiles.phase_schema import Reward
from .executed_run import ExecutedRun
from .fitted_line import Line

FEWEST = 128
"""Scored samples from which on a run's own distribution takes the place of the profile's."""


def refitted_reward(reward: Reward, run: ExecutedRun, line: Line) -> Reward:
    """The profile's `reward` section by what a run scored.

    Where samples differ (`executions`), the run's own distribution takes the place of the profile's if it has samples
    enough; else all seconds are multiplied by the factor of `line`. Where the profile knows the load beside decoding,
    that is the run's, with its number of workers: its rounds were measured beside these.
    """
    scored = list(_scored(run))
    executions = reward.executions
    if executions is not None and len(scored) >= FEWEST:
        executions = fit_executions(scored) or executions
    changes: dict[str, object] = {
        "latency": reward.latency.scaled(line.factor),
        "per_sample_s": line.factor * reward.per_sample_s,
        "executions": executions,
    }
    decoded_s = math.fsum(step.rollout_s for step in run.steps if step.rows)
    if reward.load is not None and scored and decoded_s > 0:
        changes["load"] = math.fsum(sample.seconds for sample in scored) / decoded_s
        changes["workers"] = run.plan.job.reward.workers
    return reward.model_copy(update=changes)


def refitted_judge(judge: Judge, line: Line) -> Judge:
    """The profile's `judge` section, its seconds multiplied by the factor of `line`."""
    return judge.model_copy(
        update={
            "per_sample_s": line.factor * judge.per_sample_s,
            "per_token_s": line.factor * judge.per_token_s,
            "latency_s": None if judge.latency_s is None else line.factor * judge.latency_s,
        }
    )


def _scored(run: ExecutedRun) -> Iterator[ScoredSample]:
    """The samples that the run scored, as the first part of the reward that workers compute has it: neither the
    weighted sum nor the seconds of a judge are its own.

    One that a deadline below the longest ended would have taken the longest, as far as is known: it never ended. So
    that deadlines which adapted are not taken for what answers take.
    """
    longest_s = run.plan.job.reward.deadline_s
    for step in run.steps:
        for row in step.rows:
            scored = _of_workers(row, run.plan.job.reward)
            if scored is None:
                continue
            value, took_s, outcome = scored
            late = outcome == "policy_timeout"
            yield ScoredSample(row["prompt"], value, max(longest_s, took_s) if late else took_s)


def _of_workers(row: Mapping[str, Any], planned: RewardPlan) -> tuple[float, float, str] | None:
    """(value, seconds, outcome) of the first part of a sample's reward that workers compute; None if it has none.

    Of several parts that is the one that is no further part of the plan and has a deadline in the trace, which neither
    a judge nor a length has.
    """
    if row.get("reward") is None or row.get("reward_s") is None:
        return None
    parts = row.get("reward_parts")
    if not parts:
        return row["reward"], row["reward_s"], row.get("reward_outcome", "ok")
    others = [part for name, part in parts.items() if name not in planned.further]
    if planned.workers == 0 or not others:
        return None
    part = next((each for each in others if each.get("deadline_s") is not None), others[0])
    return part["value"], part["s"], part["outcome"]
