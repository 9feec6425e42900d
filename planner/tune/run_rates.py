"""What a run counted and timed by sample, as the profile has it: the seconds of rewards and judge, and what drafts
gave: tokens by place, epoch and batch, and seconds beyond theirs."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ...plans.schema.planned_job import RewardPlan
from ...profiles.draft_schema import DraftRates, ProfiledDrafts
from ...profiles.judge_schema import Judge
from ...profiles.laws.draft_counts import DraftCounts, fit_drafts, summed
from ...profiles.laws.reward_fit import ScoredSample, fit_executions
from ...profiles.phase_schema import Reward
from ...profiles.profile_schema import Profile
from ...traces.trace_events import Sample
from ..costs.decode_costs import DecodeCost, layout_cost
from .executed_run import ExecutedRun

FEWEST = 128
"""Scored samples from which on a run's own distribution takes the place of the profile's."""


def refitted_reward(reward: Reward, run: ExecutedRun, factor: float) -> Reward:
    """The profile's `reward` section by what a run scored.

    Where samples differ (`executions`), the run's own distribution takes the place of the profile's if it has samples
    enough; else all seconds are multiplied by `factor`. Where the profile knows the load beside decoding,
    that is the run's, with its number of workers: its rounds were measured beside these.
    """
    scored = list(_scored(run))
    executions = reward.executions
    if executions is not None and len(scored) >= FEWEST:
        executions = fit_executions(scored) or executions
    changes: dict[str, object] = {
        "latency": reward.latency.scaled(factor),
        "per_sample_s": factor * reward.per_sample_s,
        "executions": executions,
    }
    decoded_s = math.fsum(step.rollout_s for step in run.steps if len(step.rows))
    if reward.load is not None and scored and decoded_s > 0:
        changes["load"] = math.fsum(sample.seconds for sample in scored) / decoded_s
        changes["workers"] = run.plan.job.reward.workers
    return reward.model_copy(update=changes)


def refitted_judge(judge: Judge, factor: float) -> Judge:
    """The profile's `judge` section, its seconds multiplied by `factor`."""
    return judge.model_copy(
        update={
            "per_sample_s": factor * judge.per_sample_s,
            "per_token_s": factor * judge.per_token_s,
            "latency_s": None if judge.latency_s is None else factor * judge.latency_s,
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
            yield ScoredSample(row.prompt, value, max(longest_s, took_s) if late else took_s)


def _of_workers(row: Sample, planned: RewardPlan) -> tuple[float, float, str | None] | None:
    """(value, seconds, outcome) of the first part of a sample's reward that workers compute; None if it has none.

    Of several parts that is the one that is no further part of the plan and has a deadline in the trace, which neither
    a judge nor a length has.
    """
    if row.reward is None or row.reward_s is None:
        return None
    if not row.reward_parts:
        return row.reward, row.reward_s, row.reward_outcome
    others = [part for name, part in row.reward_parts.items() if name not in planned.further]
    if planned.workers == 0 or not others:
        return None
    part = next((each for each in others if each.deadline_s is not None), others[0])
    return part.value, part.s, part.outcome


def with_drafts_of(run: ExecutedRun, profile: Profile) -> Profile:
    """The profile with what the run's drafts gave, the first epoch apart from later ones; as it is where the run had
    none, or none in an epoch that has steps enough."""
    counts: dict[bool, list[DraftCounts]] = {True: [], False: []}
    steps_of: dict[str, int] = {}
    for step in run.steps:
        if step.drafts is not None:
            counts[step.first_epoch].append(DraftCounts.of(step.drafts))
            steps_of[step.kind] = steps_of.get(step.kind, 0) + step.drafts.sequence_steps
    if not steps_of:
        return profile
    # Steps of the kind of round that drafted most tell which engines drafted.
    rounds, kind = run.plan.job.rounds, max(steps_of, key=lambda each: (steps_of[each], each))
    engines = rounds.long if kind == "long" and rounds.long is not None else rounds.short
    cost = layout_cost(profile, engines.rollout.layout)
    if cost is None:
        return profile
    fitted = fit_drafts(summed(counts[True]), summed(counts[False]), lambda batch: _step_s(cost, batch), None)
    return profile if fitted is None else profile.model_copy(update={"drafts": _kept(fitted, profile.drafts)})


def _step_s(cost: DecodeCost, sequences: float) -> float:
    low = int(sequences)
    low_s, high_s = [cost.device_s(batch) + cost.host_s(batch) for batch in (low, low + 1)]
    return low_s + (sequences - low) * (high_s - low_s)


def _kept(fitted: ProfiledDrafts, old: ProfiledDrafts | None) -> ProfiledDrafts:
    """What the run says, with what it does not say as the profile had it: an epoch without rounds, and places beyond
    the plan's drafts, which move as the last place that was run."""
    if old is None:
        return fitted
    later = old.later if fitted.later is None else _longer(fitted.later, old.later or old.first)
    first = _longer(fitted.first, old.first)
    if fitted.first is fitted.later or fitted.first == fitted.later:  # the run had no first epoch
        first = old.first
    places = min(len(first.drafted), len(later.drafted)) if later else len(first.drafted)
    return fitted.model_copy(update={"first": _cut(first, places), "later": later and _cut(later, places)})


def _cut(rates: DraftRates, places: int) -> DraftRates:
    return rates.model_copy(update={"drafted": rates.drafted[:places], "accepted": rates.accepted[:places]})


def _longer(run: DraftRates, old: DraftRates) -> DraftRates:
    """Rates of a run whose plan drafts fewer tokens than the profile tells of: beyond them the profile's, times what
    the last of them changed by."""
    places = len(run.drafted)
    if len(old.drafted) <= places:
        return run
    drafted, accepted = (
        tuple(value * (ran[-1] / before[places - 1] if before[places - 1] else 1.0) for value in before[places:])
        for ran, before in ((run.drafted, old.drafted), (run.accepted, old.accepted))
    )
    drafted = tuple(min(value, run.drafted[-1]) for value in drafted)
    accepted = tuple(min(pair) for pair in zip(drafted, accepted, strict=True))
    return run.model_copy(update={"drafted": run.drafted + drafted, "accepted": run.accepted + accepted})
