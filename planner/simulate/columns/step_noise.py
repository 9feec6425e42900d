"""The machine's noise: how the seconds of steps with the same lengths scatter.

A simulated round's seconds are those of a machine that never stalls and never shares. A real one's are these times a
factor, lognormal with mean 1, whose deviation the profile has seen (cost_error.noise_of). Each phase has a factor
of its own, independent of the others and from step to step. What is off in all steps alike is no noise, but the error
that a plan states of its mean.

So the seconds of a kind of round are a mixture of as many lognormal laws as rounds were simulated, all of one weight:

    P(step <= t) = mean over rounds i of Phi((ln t - ln t_i + s_i^2 / 2) / s_i)

and the sum of a round's phases, close to lognormal, has the relative variance of the sum (Fenton 1960):
exp(s_i^2) - 1 = sum over phases of (seconds / t_i)^2 (exp(s_phase^2) - 1).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ....plans.schema.predicted import Quantiles, StepNoise
from ...costs.update_costs import TrainCost
from .round_log import RoundLog, mean

SILENT = StepNoise(rollout=0.0, reward_exposed=0.0, train=0.0, sync=0.0)
"""A machine without noise, or one of which none is known."""

_FAR = 8.0  # standard deviations beyond which a law has no probability
_HALVINGS = 80

Mixture = Sequence[tuple[float, Sequence[float], Sequence[float]]]
"""For each part: its weight, the seconds of its rounds, and the deviation of the logarithm of each. Weights sum to
1."""


def step_deviations(log: RoundLog, train: TrainCost, noise: StepNoise, switch_s: float = 0.0) -> list[float]:
    """Standard deviation of the log of each round's step seconds."""
    sync_s = log.sync_of(train) + switch_s
    deviations = []
    for rollout, reward, update in zip(log.rollout_s, log.reward_s, log.updates_s(train), strict=True):
        phases = (
            (rollout, noise.rollout), (reward, noise.reward_exposed), (update, noise.train), (sync_s, noise.sync),
        )  # fmt: skip
        total = rollout + reward + update + sync_s
        # A run of another plan can be off by any factor; exp of the square of its deviation is no number.
        variance = math.fsum(seconds**2 * math.expm1(min(deviation, _FAR) ** 2) for seconds, deviation in phases)
        deviations.append(math.sqrt(math.log1p(variance / total**2)) if total > 0 else 0.0)
    return deviations


def share_within(seconds: float, mixture: Mixture) -> float:
    """Share of the steps of a mixture that take at most `seconds`."""
    within = [
        weight / len(values) * _within(seconds, value, deviation)
        for weight, values, deviations in mixture
        if weight > 0
        for value, deviation in zip(values, deviations, strict=True)
    ]
    return math.fsum(within)


def _within(seconds: float, value: float, deviation: float) -> float:
    if deviation == 0 or value <= 0 or seconds <= 0:
        return float(value <= seconds)
    far = (math.log(seconds / value) + deviation**2 / 2) / deviation
    return 0.5 * math.erfc(-far / math.sqrt(2))


def spread_of(mixture: Mixture) -> Quantiles:
    """p50, p95 and mean of a mixture of steps; noise does not change the mean."""
    middle = sum(weight * mean(values) for weight, values, _ in mixture if weight > 0)
    return Quantiles(p50=_quantile(0.5, mixture), p95=_quantile(0.95, mixture), mean=middle)


def _quantile(level: float, mixture: Mixture) -> float:
    """The least of the rounds' seconds that suffices, and, where there is noise, the point where the level is met."""
    values_of_all = [
        (value, deviation)
        for weight, values, deviations in mixture
        if weight > 0
        for value, deviation in zip(values, deviations, strict=True)
    ]
    level -= 1e-12  # a sum equal to the level up to rounding counts as the level
    low, high = 0, len(values_of_all) - 1
    if not any(deviation for _, deviation in values_of_all):
        ordered = sorted(value for value, _ in values_of_all)
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if share_within(ordered[middle], mixture) >= level else (middle + 1, high)
        return ordered[low]
    below = 0.0
    above = max(value * math.exp(_FAR * deviation) for value, deviation in values_of_all)
    if share_within(below, mixture) >= level:
        return below
    for _ in range(_HALVINGS):
        guess = (below + above) / 2
        below, above = (below, guess) if share_within(guess, mixture) >= level else (guess, above)
    return above
