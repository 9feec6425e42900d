"""Costs refitted from a run: each a line in what the profile expects, drawn to the profile by the run's own noise.

A phase's measured seconds m are explained by the profile's x (the replay of the same round, or the same update):
`m = overhead + factor * x`, overhead >= 0, factor > 0. So a refitted cost grows wherever the profile's grew; bucketed
corrections of a serving estimator were seen to make larger batches cheaper than smaller ones (refs/planners.md 1.4).
The fit minimises the relative squared error plus a prior at the profile's own overhead and at factor 1 (a MAP estimate
with normal errors): with s the noise of a round, s^2/rounds against the prior's variance decides how far it is moved.

What was not run has no measurement of its own. Part of what is wrong with a profile is wrong with all of it (another
tenant, another engine version), part with one layout: a layout that the run did not use takes `TRANSFER` of the log of
the mean factor of those that it did, and less if rounds of its own have been measured before.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..plans.plan import RoundRollout
from ..profiles.schema import Profile, RoundCheck, Spread
from .costs import RewardCost, decode_cost
from .kinds import Kind, kinds, scoring
from .measured import MeasuredRun, Replayed, replay_all
from .run_simulator import round_spec

Array = NDArray[np.float64]

# Standard deviations of the priors: a cost is rarely off by more than half, an overhead by more than a tenth of the
# phase, a weight sync and a reward by more than a factor of two.
FACTOR_PRIOR = 0.5
OVERHEAD_PRIOR = 0.1
SYNC_PRIOR, REWARD_PRIOR = 0.7, 0.7

# Never believed to be less noisy than this, however alike a few rounds are.
NOISE_FLOOR = 0.01

TRANSFER = 0.75
# Rounds after which a layout's own measurements weigh as much as the transfer.
TRANSFER_ROUNDS = 10

Layout = tuple[int, int]  # (tp, engines)


@dataclass(frozen=True, slots=True)
class Line:
    """`overhead + factor * x`. `error`: standard error of the factor; `noise`: relative, of one round."""

    overhead: float
    factor: float
    error: float
    noise: float
    rounds: int


def fit_line(expected: Sequence[float], measured: Sequence[float], overhead: float) -> Line:
    """Fit measured seconds by expected ones (both positive, without overhead), prior at `overhead` and factor 1.

    Errors are relative to the fitted value, not to the measured one: rounds that happened to be quick would weigh
    most, and the mean, which is what plans are judged by, come out too small.
    """
    x, m = np.array(expected, dtype=float), np.array(measured, dtype=float)
    scale = float(np.median(m))
    prior = np.array([overhead, 1.0])
    precision = np.array([1.0 / (OVERHEAD_PRIOR * scale) ** 2, 1.0 / FACTOR_PRIOR**2])
    solution = np.array([overhead, max(0.05, scale / float(np.median(x)))])
    noise = 0.1
    for _ in range(20):
        fitted = solution[0] + solution[1] * x
        rows, values = np.stack([1.0 / fitted, x / fitted], axis=1), m / fitted
        weights = precision * noise**2
        solution = np.linalg.solve(rows.T @ rows + np.diag(weights), rows.T @ values + weights * prior)
        if solution[0] < 0 or solution[1] < 0.05:
            # Nothing takes less than no time: the overhead is 0 and the factor alone explains the rest.
            column = rows[:, 1]
            factor = (float(column @ values) + weights[1]) / (float(column @ column) + weights[1])
            solution = np.array([0.0, max(0.05, factor)])
        residuals = m / (solution[0] + solution[1] * x) - 1.0
        noise = max(NOISE_FLOOR, math.sqrt(float(residuals @ residuals) / max(1, len(m) - 1)))
    spread = np.linalg.inv(rows.T @ rows + np.diag(precision * noise**2)) * noise**2
    return Line(float(solution[0]), float(solution[1]), math.sqrt(float(spread[1, 1])), noise, len(m))


def fit_ratio(expected: Sequence[float], measured: Sequence[float], prior: float) -> Line:
    """The ratio of the means, drawn to 1 on the log scale; for phases too short or too ragged for a line."""
    x, m = np.array(expected, dtype=float), np.array(measured, dtype=float)
    if x.mean() <= 0 or m.mean() <= 0:
        return Line(0.0, 1.0, prior, prior, len(m))
    # Of the ratio of means (delta method), and of a single round.
    noise = max(NOISE_FLOOR, float(np.std(m / m.mean() - x / x.mean())))
    error = noise / math.sqrt(len(m))
    weight = prior**2 / (prior**2 + error**2)
    return Line(0.0, math.exp(weight * math.log(m.mean() / x.mean())), error, noise, len(m))


@dataclass(frozen=True)
class Refit:
    """What a run says about a profile.

    Attributes:
        profile: the refitted one; its lengths are still the old ones.
        rollout: for each layout that was run, its line against the profile.
        train, sync, reward: likewise.
        transferred: the factor that layouts without rounds of their own would take, were no other evidence there.
    """

    profile: Profile
    rollout: dict[Layout, Line]
    train: Line | None
    sync: dict[Layout, Line]
    reward: Line | None
    transferred: float


@dataclass(frozen=True)
class Priced:
    """A run's plan as a profile prices it."""

    short: Kind
    long: Kind
    reward: RewardCost

    def of(self, kind: str) -> Kind:
        """The kind of round named `kind`."""
        return self.long if kind == "long" else self.short


def price(run: MeasuredRun, profile: Profile) -> Priced:
    """Raises InputError if the profile lacks a layout or micro-batch of the run's plan."""
    short, long = kinds(run.plan.job, profile)
    return Priced(short, long, scoring(run.plan.job, profile))


def replay_run(run: MeasuredRun, cap_tokens: int, dynamic_sampling: bool, profile: Profile) -> list[Replayed]:
    """Replay every step of a run by a profile. Raises InputError as `price` does."""
    priced = price(run, profile)
    spec = round_spec(run.plan.job, cap_tokens, dynamic_sampling)
    return replay_all(run.steps, spec, priced.short, priced.long, priced.reward)


def refit(profile: Profile, run: MeasuredRun, replays: Sequence[Replayed]) -> Refit:
    """Refit from replays by `profile`; steps in which something had to start, or died, tell nothing about costs."""
    warm = [r for r in replays if r.step.warm] or list(replays)
    priced = price(run, profile)
    by_layout: dict[Layout, list[Replayed]] = {}
    for item in warm:
        key = priced.of(item.step.kind).decode.key
        by_layout.setdefault((key.tp, key.engines), []).append(item)
    rollout: dict[Layout, Line] = {}
    sync: dict[Layout, Line] = {}
    for layout, items in sorted(by_layout.items()):
        base = priced.of(items[0].step.kind).decode
        # What a step waits for around its round (messages, book-keeping) is an overhead of the round.
        rollout[layout] = fit_line(
            [max(1e-9, r.times.decode_end_s - base.round_s) for r in items],
            [r.step.rollout_s + r.step.other_s for r in items],
            base.round_s,
        )
        sync[layout] = fit_ratio([r.sync_s for r in items], [r.step.sync_s for r in items], SYNC_PRIOR)
    trained = [r for r in warm if r.step.samples and r.step.train_s > 0]
    update_s = priced.short.train.step_s
    train = None
    if trained:
        train = fit_line(
            [max(1e-9, r.update_s - update_s) for r in trained], [r.step.train_s for r in trained], update_s
        )
    reward = _reward_line(warm)
    changed = _corrected(profile, rollout, sync, train, reward)
    return Refit(changed, rollout, train, sync, reward, _mean_factor(rollout))


def _reward_line(items: Sequence[Replayed]) -> Line:
    """From the seconds spent on rewards alone, of the rounds that had such in both worlds.

    The middle ones, since a host that stalls for a moment at a round's end is no slow reward. Where the half of the
    rounds hid their rewards behind decoding, nothing is known about them.
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


def _mean_factor(lines: dict[Layout, Line]) -> float:
    """Geometric mean of the factors, by rounds."""
    rounds = sum(line.rounds for line in lines.values())
    return math.exp(math.fsum(line.rounds * math.log(line.factor) for line in lines.values()) / rounds)


def _corrected(
    profile: Profile, rollout: dict[Layout, Line], sync: dict[Layout, Line], train: Line | None, reward: Line
) -> Profile:
    old_checks = {(c.tp, c.engines): c for c in profile.checks}
    mean_factor, mean_sync = _mean_factor(rollout), _mean_factor(sync)
    checks, entries = [], []
    for entry in profile.rollout:
        layout = (entry.tp, entry.engines)
        check, line = old_checks.get(layout), rollout.get(layout)
        known = check.rounds if check else 0
        share = TRANSFER * TRANSFER_ROUNDS / (TRANSFER_ROUNDS + known)
        factor = line.factor if line else mean_factor**share
        base = decode_cost(profile, entry)
        checks.append(
            RoundCheck(
                tp=entry.tp,
                engines=entry.engines,
                rounds=max(1, known + (line.rounds if line else 0)),
                overhead_s=line.overhead if line else base.round_s,
                overhead_s_per_sample=factor * base.finish_s / entry.engines,
                factor=factor * base.a / entry.step_s,
                error=line.noise if line else max(check.error if check else 0.0, abs(math.log(mean_factor / factor))),
                noise=line.noise if line else check.noise if check else None,
            )
        )
        scale = sync[layout].factor if layout in sync else mean_sync
        entries.append(entry.model_copy(update={"sync": _scaled(entry.sync, scale)}))
    trains = profile.train
    if train is not None:
        trains = tuple(
            t.model_copy(
                update={
                    "step_s": train.overhead,
                    "step_s_per_token": train.factor * t.step_s_per_token,
                    "step_s_per_token_squared": train.factor * t.step_s_per_token_squared,
                    "noise": train.noise,
                }
            )
            for t in profile.train
        )
    rewards = profile.reward.model_copy(
        update={
            "latency": _scaled(profile.reward.latency, reward.factor),
            "per_sample_s": reward.factor * profile.reward.per_sample_s,
        }
    )
    return profile.model_copy(
        update={"rollout": tuple(entries), "checks": tuple(checks), "train": trains, "reward": rewards}
    )


def _scaled(spread: Spread, factor: float) -> Spread:
    return Spread(p50=factor * spread.p50, p95=factor * spread.p95, repeats=spread.repeats)


def transfer_error(found: Refit, rollouts: Sequence[RoundRollout]) -> float:
    """Relative error of seconds in layouts that the run did not use: what of the correction may not hold there."""
    if all((r.tp, r.engines) in found.rollout for r in rollouts):
        return 0.0
    return abs(math.log(found.transferred)) * (1.0 - TRANSFER)
