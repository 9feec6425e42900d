"""Costs refitted from a run: each a line in what the profile expects (fitted_line.py), and the profile corrected by
them (profile_correction.py)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...plans.schema.levers import EngineLayout, UpdateLayout
from ...plans.schema.planned_rounds import RoundRollout
from ...profiles.profile_schema import Profile
from ..costs.reward_costs import RewardCost
from ..costs.round_costs import RoundCosts, round_costs, scoring
from ..costs.update_costs import TrainCost
from .executed_run import ExecutedRun, Replayed, replay_all
from .fitted_line import NOISE_FLOOR, Line, fit_line, fit_ratio, mean_factor
from .profile_correction import TRANSFER, corrected, least_overhead
from .reward_times import refitted_judge, refitted_reward

# Standard deviations of the priors: a weight transfer and a reward are rarely off by more than a factor of two.
SYNC_PRIOR, REWARD_PRIOR = 0.7, 0.7


@dataclass(frozen=True)
class Refit:
    """A profile refitted to a run.

    Attributes:
        profile: the refitted one; its lengths are still the old ones.
        rollout: for each layout that was run, its line against the profile.
        updates: for each update that was run, likewise.
        sync, reward: likewise.
        transferred: the mean factor of the layouts that were run, which the others take a part of.
    """

    profile: Profile
    rollout: dict[EngineLayout, Line]
    updates: dict[TrainCost, Line]
    sync: dict[EngineLayout, Line]
    reward: Line | None
    transferred: float

    @property
    def train(self) -> Line | None:
        """The line of the update that most rounds were trained by; None if none was."""
        return max(self.updates.values(), key=lambda line: line.rounds, default=None)


@dataclass(frozen=True)
class Priced:
    """A run's plan as a profile prices it."""

    short: RoundCosts
    long: RoundCosts
    reward: RewardCost

    def of(self, kind: str) -> RoundCosts:
        """The kind of round named `kind`."""
        return self.long if kind == "long" else self.short


def price(run: ExecutedRun, profile: Profile) -> Priced:
    """The run's plan as the profile prices it. Raises InputError if the profile lacks a layout or micro-batch of the
    run's plan."""
    short, long = round_costs(run.plan.job, profile, run.allowed)
    return Priced(short, long, scoring(run.plan.job, profile))


def replay_run(run: ExecutedRun, cap_tokens: int, dynamic_sampling: bool, profile: Profile) -> list[Replayed]:
    """Replay every step of a run by a profile. Raises InputError as `price` does."""
    priced = price(run, profile)
    spec = run.plan.job.round_spec(cap_tokens, dynamic_sampling)
    return replay_all(run.steps, spec, priced.short, priced.long, priced.reward)


def refit(profile: Profile, run: ExecutedRun, replays: Sequence[Replayed]) -> Refit:
    """Refit from replays by `profile`; steps in which something had to start, or died, tell nothing about costs."""
    warm = [r for r in replays if r.step.warm] or list(replays)
    priced = price(run, profile)
    by_layout: dict[EngineLayout, list[Replayed]] = {}
    for item in warm:
        by_layout.setdefault(priced.of(item.step.kind).decode.key, []).append(item)
    rollout: dict[EngineLayout, Line] = {}
    sync: dict[EngineLayout, Line] = {}
    for layout, items in sorted(by_layout.items()):
        base = priced.of(items[0].step.kind).decode
        # What a step waits for around its round (messages, book-keeping) is an overhead of the round.
        rollout[layout] = fit_line(
            [max(1e-9, r.times.decode_end_s - base.round_s) for r in items],
            [r.step.rollout_s + r.step.other_s for r in items],
            base.round_s,
        )
        sync[layout] = fit_ratio([r.sync_s for r in items], [r.step.sync_s for r in items], SYNC_PRIOR)
    updates: dict[TrainCost, Line] = {}
    for item in warm:
        train = priced.of(item.step.kind).train
        if train in updates:
            continue
        trained = [r for r in warm if r.step.samples and r.step.train_s > 0 and priced.of(r.step.kind).train == train]
        if trained:
            updates[train] = fit_line(
                [max(1e-9, r.update_s - train.step_s) for r in trained],
                [r.step.train_s for r in trained],
                train.step_s,
                least_overhead(profile, train),
            )
    reward = _reward_line(warm)
    rewards, judge = profile.reward, profile.judge
    if priced.reward.of_judge:  # what rewards waited for
        judge = judge and refitted_judge(judge, reward)
    else:
        # What rounds waited for says nothing of the first part where a further one is slower.
        own = Line(0.0, 1.0, REWARD_PRIOR, REWARD_PRIOR, 0) if priced.reward.of_further else reward
        rewards = refitted_reward(rewards, run, own)
    changed = corrected(profile, rollout, sync, updates, rewards, judge)
    return Refit(changed, rollout, updates, sync, reward, mean_factor(rollout))


def _reward_line(items: Sequence[Replayed]) -> Line:
    """The factor of reward seconds, from rounds that waited for rewards both in the run and in the replay.

    It is their median, since a host that stalls for a moment at a round's end is no slow reward. Where more than half
    of the rounds hid their rewards behind decoding, the run tells nothing about them.
    """
    both = [(r.times.reward_exposed_s, r.step.reward_exposed_s) for r in items]
    both = [(x, m) for x, m in both if x > 0 and m > 0]
    if 2 * len(both) < len(items):
        return Line(0.0, 1.0, REWARD_PRIOR, REWARD_PRIOR, len(both))
    ratios = np.log([m / x for x, m in both])
    middle = float(np.median(ratios))
    noise = max(NOISE_FLOOR, 1.4826 * float(np.median(np.abs(ratios - middle))))
    error = 1.2533 * noise / math.sqrt(len(both))  # of a median of normal values
    weight = REWARD_PRIOR**2 / (REWARD_PRIOR**2 + error**2)
    return Line(0.0, math.exp(weight * middle), error, noise, len(both))


def transfer_error(refitted: Refit, rollouts: Sequence[RoundRollout]) -> float:
    """Relative error of the corrected rollout seconds in layouts that the run did not use."""
    if all(r.layout in refitted.rollout for r in rollouts):
        return 0.0
    return abs(math.log(refitted.transferred)) * (1.0 - TRANSFER)


def update_transfer_error(refitted: Refit, updates: Sequence[UpdateLayout]) -> float:
    """Relative error of the corrected seconds of updates that the run did not use."""
    updated = {train.layout for train in refitted.updates}
    if not updated or all(update in updated for update in updates):
        return 0.0
    return abs(math.log(mean_factor(refitted.updates))) * (1.0 - TRANSFER)
