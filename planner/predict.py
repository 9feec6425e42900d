"""The numbers of a plan's `predicted` block, read from the simulated rounds of its columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

from ..plans.predicted import (
    MemoryBar,
    Predicted,
    PredictedBaseline,
    PredictedPhases,
    PredictedRound,
    PredictedRounds,
    Quantiles,
    RoundMemory,
)
from .candidates import LongKey, ShortKey
from .costs import TrainCost
from .cycle import Cycle
from .front import front
from .round_log import RoundLog, mean
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


class Part(NamedTuple):
    """One kind of round of a cycle: its share of the steps, its rounds, its update, seconds of changing to it."""

    share: float
    log: RoundLog
    train: TrainCost
    switch_s: float

    def step_s(self) -> list[float]:
        """Seconds of each round's step."""
        return [seconds + self.switch_s for seconds in self.log.step_s(self.train)]


def parts_of(search: Search, cycle: Cycle) -> list[Part]:
    """The cycle's kinds of round, short first."""
    share, trains = cycle.long_share(), search.space.train
    found = [Part(1.0 - share, search.short[cast(ShortKey, cycle.short.key)].log, trains[cycle.train], 0.0)]
    if cycle.long is not None:
        log = search.long[cast(LongKey, cycle.long.key)].log
        found.append(Part(share, log, trains[cycle.long_train], cycle.switch_s))
    return found


def mean_phases(parts: Sequence[Part]) -> PredictedPhases:
    """Where the mean step goes."""
    return PredictedPhases(
        rollout=sum(part.share * mean(part.log.rollout_s) for part in parts),
        reward_exposed=sum(part.share * mean(part.log.reward_s) for part in parts),
        train=sum(part.share * part.log.train_s(part.train) for part in parts),
        sync=sum(part.share * (part.log.sync_s + part.switch_s) for part in parts),
    )


def _kind(part: Part) -> PredictedRound:
    nothing = MemoryBar(needed_bytes=0, capacity_bytes=1)
    return PredictedRound(
        share=part.share,
        step_s=_quantiles(part.step_s()),
        rollout_s=_quantiles(part.log.rollout_s),
        reward_exposed_s=_quantiles(part.log.reward_s),
        train_s=_quantiles(part.log.updates_s(part.train)),
        sync_s=part.log.sync_s + part.switch_s,
        running=(1.0,) * 21,  # PROVISIONAL
        tail_s=0.0,
        reward_slack_s=0.0,
        memory=RoundMemory(kv=nothing, train=None),
    )


def _quantiles(values: Sequence[float]) -> Quantiles:
    return weighted_quantiles([(1.0, values)])


def predict(search: Search, cycle: Cycle, baseline: Cycle) -> Predicted:
    """What the steady state of `cycle` costs; transients, such as the queue that starts empty, are not in it."""
    size = search.limits.group_size
    parts = parts_of(search, cycle)
    kinds = [_kind(part) for part in parts]
    per_sample = cycle.seconds_per_sample(size)
    (base,) = parts_of(search, baseline)
    return Predicted(
        step_s=weighted_quantiles([(part.share, part.step_s()) for part in parts]),
        seconds_per_sample=per_sample,
        baseline=PredictedBaseline(
            step_s=weighted_quantiles([(1.0, base.step_s())]),
            seconds_per_sample=baseline.seconds_per_sample(size),
        ),
        phases_s=mean_phases(parts),
        rounds=PredictedRounds(short=kinds[0], long=kinds[1] if len(kinds) > 1 else None),
        length_ratio=search.measured_ratio(cycle)[0],
        error=0.0,  # PROVISIONAL
        nodes=cycle.nodes(search.limits),
        usd_per_hour=cycle.nodes(search.limits) * search.limits.usd_per_node_s * 3600,
        host_memory=MemoryBar(needed_bytes=0, capacity_bytes=search.limits.host_memory_bytes),  # PROVISIONAL
        lengths_tokens=search.setting.draws.model.quantiles(),
        usd_per_1k_samples=1000 * cycle.usd_per_sample(search.limits),
        front=front(search, cycle),
    )


# Schedules whose steps are looked at one by one when no limit can be kept: those with the fewest slow steps.
_CALMEST = 200


def least_p95(search: Search, cycles: Sequence[Cycle]) -> float:
    """The lowest p95 of a step, seconds, among the simulated schedules with the fewest slow steps."""
    calmest = sorted(cycles, key=lambda c: (c.slow_share(), c.cost(search.limits), c.name))[:_CALMEST]
    return min(
        weighted_quantiles([(part.share, part.step_s()) for part in parts_of(search, cycle)]).p95 for cycle in calmest
    )
