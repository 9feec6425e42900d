"""Rules of rewards: a plan must state assumed reward seconds, these must still be those that ship, and a deadline must
leave rewards enough time."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from ...plans.check.finding import Fault
from ...plans.check.plan_fit import too_many_workers
from ...plans.files.judge_prompt import judge_model_fault
from ...plans.files.reward_function import function_faults
from ...plans.schema.cluster import Pool
from ...plans.schema.job import Job, RewardKind
from ...plans.schema.plan import Plan
from ...plans.schema.reward_spec import RewardAudit
from ...plans.yaml.yaml_doc import Loc
from ...profiles.profile_schema import Profile
from ...profiles.reward_tables import reward_assumed, reward_kinds, reward_sha256, reward_table, with_reward_times
from ..costs.reward_costs import ExecutionTimes, reward_cost

FAR = 5.0
"""Reward seconds that differ from those of the kind by this factor would make another plan."""


def reward_faults(plan: Plan, profile: Profile | None, job: Job | None) -> list[Fault]:
    """Faults of a plan's assumed reward seconds: the table that ships has changed, or the plan does not state that its
    seconds are assumed, though rewards of the job's kind take far more or less."""
    location: Loc = ("inputs", "rewards")
    given = plan.inputs.rewards
    if given is not None:
        if given.library not in reward_kinds():
            return [Fault("input-changed", location, f"no reward seconds ship as '{given.library}'", "solve again")]
        if reward_sha256(given.library) != given.sha256:
            message = (
                f"the reward seconds that ship for kind {given.library} are not those that the plan was solved from"
            )
            return [Fault("input-changed", location, message, "solve again")]
        return []
    if profile is None or job is None or not reward_assumed(profile):
        return []
    usual, _ = with_reward_times(profile, job.reward.kind)
    timeout = job.reward.timeout_spec()
    own_s, usual_s = (reward_cost(each.reward, 1, timeout).mean_s() for each in (profile, usual))
    if usual_s <= FAR * own_s and own_s <= FAR * usual_s:
        return []
    message = (
        f"a reward of kind {job.reward.kind} is planned with {own_s:.3g} s a sample (not measured); rewards of "
        f"that kind take about {usual_s:.3g} s"
    )
    return [
        Fault("rewards-assumed", ("inputs", "profile"), message, "solve again, or import yours: rlplan rewards import")
    ]


def short_deadline(deadline_s: float, kind: RewardKind, profile: Profile | None) -> str | None:
    """Text on what is wrong and what to do if the median reward takes longer than `deadline_s`, so that most scores are
    given up and are 0; None if it does not. `profile`: None for the seconds that ship for the kind."""
    if kind not in reward_kinds():  # a judge, or what looks at lengths alone: no worker computes it
        return None
    table = None
    if profile is not None:
        profile, table = with_reward_times(profile, kind)
    if profile is None:
        table = reward_table(kind)
    reward = table.reward(1) if table is not None else cast(Profile, profile).reward
    took = reward.executions
    # The seconds of one sample alone count its way to the worker, which no deadline does.
    alone_s = min(reward.latency.p50, reward.per_sample_s)
    usual_s = alone_s if took is None else ExecutionTimes.of(took).median_s()
    if deadline_s >= usual_s:
        return None
    source = "as they are assumed for that kind" if table is not None else "by the profile"
    import_hint = ", or import the seconds of yours: rlplan rewards import" if table is not None else ""
    took_s = f"{usual_s:.3g} s" + (" in the median" if took is not None else "")
    return (
        f"is {deadline_s:g} s, and rewards of kind {kind} take {took_s} ({source}), so that most scores would be given "
        f"up; write several times that{import_hint}"
    )


def short_deadlines(job: Job, profile: Profile | None) -> list[tuple[Loc, str]]:
    """(location in the job, text as of `short_deadline`) of each part of the reward that workers compute under a
    deadline below its median. The profile has the seconds of the first such part; of others those count that ship."""
    found: list[tuple[Loc, str]] = []
    for place, part in enumerate(job.reward.pooled):
        text = short_deadline(part.deadline_s, part.kind, None if place else profile)
        if text is not None:
            found.append(((*job.reward.key_of(part), "deadline_s"), text))
    return found


def crowded_workers(job: Job, name: str, pool: Pool) -> tuple[Loc, str] | None:
    """(location in the job, message and remedy) if the parts of the reward have more workers together than the pool
    called `name` has host cores; None if not. A part that does not say has one, which always fits."""
    parts = job.reward.pooled
    if not parts:
        return None
    text = too_many_workers(sum(part.workers or 1 for part in parts), name, pool)
    most = max(parts, key=lambda part: part.workers or 0)
    if text is None:
        return None
    return (*job.reward.key_of(most), *(["workers"] if most.workers else [])), text


def plan_deadlines(plan: Plan, job: Job, profile: Profile | None) -> list[Fault]:
    """The faults of a plan's reward deadlines that are shorter than the median reward of their part."""
    faults: list[Fault] = []
    for place, part in enumerate(job.reward.pooled):
        planned = plan.job.reward if not place else plan.job.reward.further.get(part.label)
        text = None
        if planned is not None:
            text = short_deadline(planned.deadline_s, part.kind, None if place else profile)
        if text is not None:
            location: Loc = ("job", "reward", *(["further", part.label] if place else []), "deadline_s")
            faults.append(Fault.of("deadline-too-short", location, text))
    return faults


def judge_faults(job: Job, job_path: str | Path, location: Loc | None = None) -> list[Fault]:
    """The fault of a judge whose model cannot read a whole question or write its verdicts, at `location` (None: where
    the job names the model); empty where the model is not on this machine."""
    error = judge_model_fault(job, job_path)
    if error is None or job.reward.judge is None:
        return []
    message, _, remedy = error.message.partition("; ")
    place = (*job.reward.key_of(job.reward.judge), "model")
    named = message if location is None else f"{'.'.join(map(str, place))}: {message}"
    return [Fault("judge-unfit", location or place, named, remedy or "take another judge")]


def function_unfit(job: Job, job_path: str | Path, location: Loc | None = None) -> list[Fault]:
    """The faults of reward functions that cannot be called, by their text, at `location` (None: where the job names the
    function)."""
    found = function_faults(job, job_path)
    if location is None:
        return [Fault.of("function-unfit", place, text) for place, text in found]
    return [Fault.of("function-unfit", location, f"{'.'.join(map(str, place))}: {text}") for place, text in found]


def failed_audit(audit: RewardAudit | None, location: Loc) -> list[Fault]:
    """The fault of a reward that its audit found to be wrong."""
    if audit is None or audit.passed:
        return []
    remedy = "rlplan rewards audit JOB names the rows"
    return [Fault("reward-fails-audit", location, f"the reward fails its audit {audit.text}", remedy)]
