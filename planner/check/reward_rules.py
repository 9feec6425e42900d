"""Reward seconds of a plan that nobody measured: the plan must say so, and they must still be those that ship."""

from __future__ import annotations

from ...plans.checks.finding import Fault
from ...plans.job import Job
from ...plans.levers import TimeoutNumbers
from ...plans.plan import Plan
from ...plans.yaml_doc import Loc
from ...profiles.reward_tables import reward_assumed, reward_kinds, reward_sha256, with_reward_times
from ...profiles.schema import Profile, Reward
from ..costs.phase_costs import reward_cost

FAR = 5.0
"""Seconds that are so many times off what rewards of the kind take make another plan."""


def reward_faults(plan: Plan, profile: Profile | None, job: Job | None) -> list[Fault]:
    """Shipped reward seconds that have changed, or are of another kind than the job's; and assumed ones that a plan
    does not own up to, where rewards of the job's kind take far more or less."""
    at: Loc = ("inputs", "rewards")
    given = plan.inputs.rewards
    if given is not None:
        if given.library not in reward_kinds():
            return [Fault("input-changed", at, f"no reward seconds ship as '{given.library}'", "solve again")]
        if reward_sha256(given.library) != given.sha256:
            what = f"the reward seconds that ship for kind {given.library} are not those that the plan was solved from"
            return [Fault("input-changed", at, what, "solve again")]
        return []
    if profile is None or job is None or not reward_assumed(profile):
        return []
    usual, _ = with_reward_times(profile, job.reward.kind)
    numbers = job.reward.timeout_numbers()
    own_s, usual_s = _mean_s(profile.reward, numbers), _mean_s(usual.reward, numbers)
    if usual_s <= FAR * own_s and own_s <= FAR * usual_s:
        return []
    what = (
        f"a reward of kind {job.reward.kind} is planned with {own_s:.3g} s a sample, which nobody measured; rewards of "
        f"that kind take about {usual_s:.3g} s"
    )
    return [
        Fault("rewards-assumed", ("inputs", "profile"), what, "solve again, or import yours: rlplan rewards import")
    ]


def _mean_s(reward: Reward, numbers: TimeoutNumbers) -> float:
    return reward_cost(reward, 1, numbers).mean_s()
