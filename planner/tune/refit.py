"""Costs refitted from a run, and the profile corrected by them.

A phase's measured seconds m are explained by the profile's x (the replay of the same round, or the same update):
`m = overhead + factor * x`, overhead >= 0 (or the least that the profile can state), factor > 0. So a refitted cost
grows wherever the profile's grew; bucketed corrections of a serving estimator were seen to make larger batches cheaper
than smaller ones.
The fit minimises the relative squared error plus a prior at the profile's own overhead and at factor 1 (a MAP estimate
with normal errors): with s the noise of a round, s^2/rounds against the prior's variance decides how far it is moved.

A correction belongs to the layout that was run, whichever entry of the profile prices it (decode_costs.entry_of): the
corrected profile has a `RoundCheck` for each.

What was not run has no measurement of its own. Part of what is wrong with a profile is wrong with all of it (another
tenant, another engine version), part with one layout: a layout that the run did not use takes `TRANSFER` of the log of
the mean factor of those that it did, and less if rounds of its own have been measured before. One that is priced by the
same entry as a layout that was run, with another number of engines, takes that one's whole factor. An update that was
not run takes the mean factor of those that were: they are of one trainer. What of either may not hold is stated as the
transfer error.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...plans.schema.levers import EngineLayout, UpdateLayout
from ...plans.schema.planned_rounds import RoundRollout
from ...profiles.judge_schema import Judge
from ...profiles.laws.measured_fit import MEAN_OVER_DEVIATION
from ...profiles.laws.suspicions import measured_update
from ...profiles.laws.train_law import FACTORS, STEP_S
from ...profiles.phase_schema import Reward, Train, TrainLaw
from ...profiles.profile_schema import Profile, RoundCheck
from ..costs.decode_costs import decode_cost, entry_of
from ..costs.reward_costs import RewardCost
from ..costs.round_costs import RoundCosts, round_costs, scoring
from ..costs.update_costs import TrainCost, train_cost_in
from .executed_run import ExecutedRun, Replayed, replay_all
from .run_rates import refitted_judge, refitted_reward

# Standard deviations of the priors: a cost is rarely off by more than half, an overhead by more than a tenth of the
# phase.
FACTOR_PRIOR = 0.5
OVERHEAD_PRIOR = 0.1

# Never believed to be less noisy than this, however alike a few rounds are.
NOISE_FLOOR = 0.01

# Standard deviations of the priors: a weight transfer and a reward are rarely off by more than a factor of two.
SYNC_PRIOR, REWARD_PRIOR = 0.7, 0.7

TRANSFER = 0.75
# Rounds after which a layout's own measurements weigh as much as the transfer.
TRANSFER_ROUNDS = 10

# Where an update's overhead is less than what the law has for its optimizer, on which it has no factor, `step` takes
# the least that its prior allows for, three deviations down (4.5 ms), and the other factors take the rest.
LEAST_STEP = next(math.exp(factor.log_mean - 3 * factor.log_sd) for factor in FACTORS if factor.name == "step")


@dataclass(frozen=True, slots=True)
class FittedLine:
    """`overhead + factor * x`. `error`: standard error of the factor; `noise`: relative, of one round."""

    overhead: float
    factor: float
    error: float
    noise: float
    rounds: int


def fit_line(
    expected: Sequence[float],
    measured: Sequence[float],
    overhead: float,
    least_overhead: float = 0.0,
    speed_changed: bool = False,
) -> FittedLine:
    """Fit measured seconds by expected ones (both without overhead), prior at `overhead` and factor 1; where the
    machine's speed is known to have changed, at both times the median ratio of the rounds.

    Args:
        expected: positive seconds.
        measured: seconds; of one round at least above 0, else nothing was measured and the line is the prior's.
        least_overhead: the least that the profile can state; the factor then explains the rest.

    Errors are relative to the fitted value, not to the measured one: rounds that happened to be quick would weigh
    most, and the mean, which plans are compared by, come out too small.
    """
    x, m = np.array(expected, dtype=float), np.array(measured, dtype=float)
    scale = float(np.median(m)) or float(m.mean())
    if scale <= 0:
        return FittedLine(overhead, 1.0, FACTOR_PRIOR, FACTOR_PRIOR, len(m))
    centre = float(np.median(m / (x + overhead))) if speed_changed else 1.0
    prior = np.array([centre * overhead, centre])
    precision = np.array([1.0 / (OVERHEAD_PRIOR * scale) ** 2, 1.0 / (centre * FACTOR_PRIOR) ** 2])
    solution = np.array([overhead, max(0.05, scale / float(np.median(x)))])
    noise = 0.1
    for _ in range(20):
        fitted = solution[0] + solution[1] * x
        rows, values = np.stack([1.0 / fitted, x / fitted], axis=1), m / fitted
        weights = precision * noise**2
        solution = np.linalg.solve(rows.T @ rows + np.diag(weights), rows.T @ values + weights * prior)
        if solution[0] < least_overhead or solution[1] < 0.05:
            # Nothing takes less than the least: the factor alone explains the rest.
            column, rest = rows[:, 1], values - least_overhead * rows[:, 0]
            factor = (float(column @ rest) + weights[1]) / (float(column @ column) + weights[1])
            solution = np.array([least_overhead, max(0.05, factor)])
        residuals = m / (solution[0] + solution[1] * x) - 1.0
        noise = max(NOISE_FLOOR, math.sqrt(float(residuals @ residuals) / max(1, len(m) - 1)))
    spread = np.linalg.inv(rows.T @ rows + np.diag(precision * noise**2)) * noise**2
    return FittedLine(float(solution[0]), float(solution[1]), math.sqrt(float(spread[1, 1])), noise, len(m))


def fit_ratio(expected: Sequence[float], measured: Sequence[float], prior: float) -> FittedLine:
    """The ratio of the means, drawn to 1 on the log scale; for phases too short or too ragged for a line."""
    x, m = np.array(expected, dtype=float), np.array(measured, dtype=float)
    if x.mean() <= 0 or m.mean() <= 0:
        return FittedLine(0.0, 1.0, prior, prior, len(m))
    # Of the ratio of means (delta method), and of a single round.
    noise = max(NOISE_FLOOR, float(np.std(m / m.mean() - x / x.mean())))
    error = noise / math.sqrt(len(m))
    weight = prior**2 / (prior**2 + error**2)
    return FittedLine(0.0, math.exp(weight * math.log(m.mean() / x.mean())), error, noise, len(m))


def mean_factor(lines: Mapping[Any, FittedLine]) -> float:
    """Geometric mean of the factors, by rounds."""
    rounds = sum(line.rounds for line in lines.values())
    return math.exp(math.fsum(line.rounds * math.log(line.factor) for line in lines.values()) / rounds)


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
    rollout: dict[EngineLayout, FittedLine]
    updates: dict[TrainCost, FittedLine]
    sync: dict[EngineLayout, FittedLine]
    reward: FittedLine | None
    transferred: float

    @property
    def train(self) -> FittedLine | None:
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
    rollout: dict[EngineLayout, FittedLine] = {}
    sync: dict[EngineLayout, FittedLine] = {}
    for layout, items in sorted(by_layout.items()):
        base = priced.of(items[0].step.kind).decode
        # What a step waits for around its round (messages, book-keeping) is an overhead of the round.
        rollout[layout] = fit_line(
            [max(1e-9, r.times.decode_end_s - base.round_s) for r in items],
            [r.step.round_s for r in items],
            base.round_s,
            speed_changed=run.speed_changed,
        )
        sync[layout] = fit_ratio([r.sync_s for r in items], [r.step.sync_s for r in items], SYNC_PRIOR)
    updates: dict[TrainCost, FittedLine] = {}
    for item in warm:
        train = priced.of(item.step.kind).train
        if train in updates:
            continue
        trained = [r for r in warm if r.step.trained_samples and r.step.train_s > 0]
        trained = [r for r in trained if priced.of(r.step.kind).train == train]
        if trained:
            updates[train] = fit_line(
                [max(1e-9, r.update_s - train.step_s) for r in trained],
                [r.step.train_s for r in trained],
                train.step_s,
                least_overhead(profile, train),
                run.speed_changed,
            )
    reward = _reward_line(warm)
    rewards, judge = profile.reward, profile.judge
    if priced.reward.of_judge:  # what rewards waited for
        judge = judge and refitted_judge(judge, reward.factor)
    else:
        # What rounds waited for says nothing of the first part where a further one is slower.
        own = FittedLine(0.0, 1.0, REWARD_PRIOR, REWARD_PRIOR, 0) if priced.reward.of_further else reward
        rewards = refitted_reward(rewards, run, own.factor)
    changed = corrected(profile, rollout, sync, updates, rewards, judge)
    return Refit(changed, rollout, updates, sync, reward, mean_factor(rollout))


def _reward_line(items: Sequence[Replayed]) -> FittedLine:
    """The factor of reward seconds, from rounds that waited for rewards both in the run and in the replay.

    It is their median, since a host that stalls for a moment at a round's end is no slow reward. Where more than half
    of the rounds hid their rewards behind decoding, the run tells nothing about them.
    """
    both = [(r.times.reward_exposed_s, r.step.reward_exposed_s) for r in items]
    both = [(x, m) for x, m in both if x > 0 and m > 0]
    if 2 * len(both) < len(items):
        return FittedLine(0.0, 1.0, REWARD_PRIOR, REWARD_PRIOR, len(both))
    ratios = np.log([m / x for x, m in both])
    middle = float(np.median(ratios))
    noise = max(NOISE_FLOOR, 1.4826 * float(np.median(np.abs(ratios - middle))))
    error = 1.2533 * noise / math.sqrt(len(both))  # of a median of normal values
    weight = REWARD_PRIOR**2 / (REWARD_PRIOR**2 + error**2)
    return FittedLine(0.0, math.exp(weight * middle), error, noise, len(both))


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


def corrected(
    profile: Profile,
    rollout: Mapping[EngineLayout, FittedLine],
    sync: Mapping[EngineLayout, FittedLine],
    updates: Mapping[TrainCost, FittedLine],
    reward: Reward,
    judge: Judge | None,
) -> Profile:
    """The profile, corrected by the lines of what was run (by layout, by update), with the refitted rewards and
    judge."""
    mean_sync = mean_factor(sync)
    entries = []
    for entry in profile.rollout:
        own_lines = {layout: line for layout, line in sync.items() if entry_of(profile, layout) is entry}
        factor = mean_factor(own_lines) if own_lines else mean_sync
        apart = entry.sync_apart and entry.sync_apart.scaled(factor)
        entries.append(entry.model_copy(update={"sync": entry.sync.scaled(factor), "sync_apart": apart}))
    trains, train_law = profile.train, profile.train_law
    if updates:
        trains = tuple(_corrected_update(entry, updates) for entry in profile.train)
        by_law = {
            train: line for train, line in updates.items() if measured_update(profile.train, train.layout) is None
        }
        train_law = None if train_law is None else _corrected_law(profile, train_law, by_law or updates)
    return profile.model_copy(
        update={
            "rollout": tuple(entries),
            "checks": _checks(profile, rollout),
            "train": trains,
            "train_law": train_law,
            "reward": reward,
            "judge": judge,
        }
    )


def _checks(profile: Profile, rollout: Mapping[EngineLayout, FittedLine]) -> tuple[RoundCheck, ...]:
    """The round checks of every layout of the profile, of its checks and of the run."""
    old = {check.layout: check for check in profile.checks}
    overall = mean_factor(rollout)
    checks = []
    for layout in dict.fromkeys([*(entry.layout for entry in profile.rollout), *sorted(old), *sorted(rollout)]):
        check, line = old.get(layout), rollout.get(layout)
        entry = entry_of(profile, layout)
        if entry is None:
            checks += [check] if check is not None else []
            continue
        base = decode_cost(profile, entry, layout.engines)
        checked_rounds = check.rounds if check else 0
        alike = {run: other_line for run, other_line in rollout.items() if entry_of(profile, run) is entry}
        whole = mean_factor(alike) if alike else overall
        share = (1.0 if alike else TRANSFER) * TRANSFER_ROUNDS / (TRANSFER_ROUNDS + checked_rounds)
        factor = line.factor if line else whole**share
        unsure = (1.0 - min(share, TRANSFER)) * abs(math.log(whole))
        checks.append(
            RoundCheck(
                tp=layout.tp,
                engines=layout.engines,
                rounds=max(1, checked_rounds + (line.rounds if line else 0)),
                overhead_s=line.overhead if line else base.round_s,
                overhead_s_per_sample=factor * base.finish_s / layout.engines,
                factor=factor * base.a / entry.step_s,
                error=MEAN_OVER_DEVIATION * line.noise if line else max(check.error if check else 0.0, unsure),
                noise=line.noise if line else check.noise if check else None,
            )
        )
    return tuple(checks)


def _corrected_update(entry: Train, updates: Mapping[TrainCost, FittedLine]) -> Train:
    """An update entry, corrected by its own line; without one by the mean factor and the mean change of overheads."""
    own = next(((train, line) for train, line in updates.items() if train.layout.trained == entry.layout), None)
    own_line = own and own[1]
    factor = own_line.factor if own_line else mean_factor(updates)
    grown = math.fsum(line.overhead - train.step_s for train, line in updates.items()) / len(updates)
    return entry.model_copy(
        update={
            "step_s": max(0.0, own[1].overhead - own[0].reference_s) if own else max(0.0, entry.step_s + grown),
            "step_s_per_token": factor * entry.step_s_per_token,
            "step_s_per_token_squared": factor * entry.step_s_per_token_squared,
            "noise": own_line.noise if own_line else entry.noise,
        }
    )


def _corrected_law(profile: Profile, train_law: TrainLaw, updates: Mapping[TrainCost, FittedLine]) -> TrainLaw:
    """The training law with all factors times the mean factor of the updates, and a `step` factor that fits
    overheads."""
    factor = mean_factor(updates)
    # Experts' products are charged by `compute` times `experts`: scaling both would count it twice.
    factors = {name: value * (1.0 if name == "experts" else factor) for name, value in train_law.factors.items()}
    scaled = train_law.model_copy(update={"factors": factors})
    priced = profile.model_copy(update={"train_law": scaled})
    missing = [line.overhead - _step_s(priced, profile, train) for train, line in updates.items()]
    step = factors["step"] + math.fsum(missing) / len(missing) / STEP_S
    return train_law.model_copy(update={"factors": {**factors, "step": max(LEAST_STEP, step)}})


def least_overhead(profile: Profile, train: TrainCost) -> float:
    """The least seconds of an update without tokens that a corrected profile can state."""
    if profile.train_law is None or measured_update(profile.train, train.layout) is not None:
        return 0.0
    return train.step_s - STEP_S * max(0.0, profile.train_law.factors["step"] - LEAST_STEP)


def _step_s(priced: Profile, profile: Profile, train: TrainCost) -> float:
    """Seconds of an update without tokens by `priced`, where `train` has been priced by `profile`: on a pool of its own
    if fewer states moved than in turns."""
    apart = train.host_link_s < train_cost_in(profile, train.layout).host_link_s
    return train_cost_in(priced, train.layout, apart).step_s
