"""The numbers of a plan's `predicted` block, read from the simulated rounds of its columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from ..plans.cluster import Pool
from ..plans.predicted import (
    Mean,
    Predicted,
    PredictedBaseline,
    PredictedPhases,
    PredictedRound,
    PredictedRounds,
    Quantiles,
)
from .candidates import LongKey, ShortKey
from .columns import RoundLog, mean
from .cycle import Cycle
from .search import Search


def weighted_quantiles(parts: Sequence[tuple[float, Sequence[float]]]) -> Quantiles:
    """p50, p95 and mean of a mixture: (weight of a part, its values); weights sum to 1."""
    pairs = sorted((value, weight / len(values)) for weight, values in parts if weight > 0 for value in values)

    def quantile(level: float) -> float:
        passed = 0.0
        for value, weight in pairs:
            passed += weight
            if passed >= level - 1e-12:
                return value
        return pairs[-1][0]

    return Quantiles(
        p50=quantile(0.5), p95=quantile(0.95), mean=sum(weight * mean(values) for weight, values in parts if weight > 0)
    )


def logs(search: Search, cycle: Cycle) -> list[tuple[float, RoundLog]]:
    """(share of the steps, rounds) of the cycle's kinds of round, short first."""
    share = cycle.long_share()
    found = [(1.0 - share, search.short[cast(ShortKey, cycle.short.key)].log)]
    if cycle.long is not None:
        found.append((share, search.long[cast(LongKey, cycle.long.key)].log))
    return found


def predict(search: Search, cycle: Cycle, baseline: Cycle, pool: Pool) -> Predicted:
    """What the steady state of `cycle` costs; transients, such as the queue that starts empty, are not in it."""
    size = search.limits.group_size
    train = search.space.train[cycle.micro]
    parts = logs(search, cycle)
    kinds = [
        PredictedRound(
            share=share,
            rollout_s=weighted_quantiles([(1.0, log.rollout_s)]),
            step_s=Mean(mean=mean(log.step_s(train))),
        )
        for share, log in parts
    ]
    per_sample = cycle.seconds_per_sample(size)
    base_train = search.space.train[baseline.micro]
    base_log = search.short[cast(ShortKey, baseline.short.key)].log
    return Predicted(
        step_s=weighted_quantiles([(share, log.step_s(train)) for share, log in parts]),
        seconds_per_sample=per_sample,
        baseline=PredictedBaseline(
            step_s=weighted_quantiles([(1.0, base_log.step_s(base_train))]),
            seconds_per_sample=baseline.seconds_per_sample(size),
        ),
        phases_s=PredictedPhases(
            rollout=sum(share * mean(log.rollout_s) for share, log in parts),
            reward_exposed=sum(share * mean(log.reward_s) for share, log in parts),
            train=sum(share * log.train_s(train) for share, log in parts),
            sync=sum(share * log.sync_s for share, log in parts),
        ),
        rounds=PredictedRounds(short=kinds[0], long=kinds[1] if len(kinds) > 1 else None),
        length_ratio=search.measured_ratio(cycle)[0],
        usd_per_1k_samples=1000 * per_sample * pool.nodes * pool.usd_per_node_hour / 3600,
    )
