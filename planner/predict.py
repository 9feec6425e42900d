"""The numbers of a plan's `predicted` block, read from the simulated rounds of its columns."""

from __future__ import annotations

from collections.abc import Sequence

from ..plans.cluster import Pool
from ..plans.predicted import (
    MemoryBar,
    Predicted,
    PredictedBaseline,
    PredictedError,
    PredictedRound,
    PredictedRounds,
    Quantiles,
    RoundMemory,
)
from ..profiles.schema import Profile
from .candidates import ShortKey
from .costs import entry_of
from .cycle import Cycle
from .expected_error import step_error
from .front import front
from .parts import Part, mean_phases, parts_of
from .picture import enough_rounds, picture
from .round_log import mean
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


def _quantiles(values: Sequence[float]) -> Quantiles:
    return weighted_quantiles([(1.0, values)])


def predict(search: Search, cycle: Cycle, baseline: Cycle, profile: Profile, pool: Pool) -> Predicted:
    """What the steady state of `cycle` costs; transients, such as the queue that starts empty, are not in it.

    Seconds are of all rounds of the last pass; what only watched rounds tell (picture.py) is told as shares of them.
    """
    size, limits = search.limits.group_size, search.limits
    parts = parts_of(search, cycle)
    kinds = [_kind(search, part, profile, pool) for part in parts]
    (base,) = parts_of(search, baseline)
    return Predicted(
        step_s=weighted_quantiles([(part.share, part.step_s()) for part in parts]),
        seconds_per_sample=cycle.seconds_per_sample(size),
        baseline=PredictedBaseline(
            step_s=_quantiles(base.step_s()),
            seconds_per_sample=baseline.seconds_per_sample(size),
        ),
        phases_s=mean_phases(parts),
        rounds=PredictedRounds(short=kinds[0], long=kinds[1] if len(kinds) > 1 else None),
        length_ratio=search.measured_ratio(cycle)[0],
        error=PredictedError(costs=step_error(profile, parts), sampling=cycle.cost_error(limits) / cycle.cost(limits)),
        nodes=cycle.nodes(limits),
        usd_per_hour=cycle.nodes(limits) * limits.usd_per_node_s * 3600,
        host_memory=MemoryBar(
            needed_bytes=sum(limits.host_bytes[layout] for layout in {part.layout for part in parts}),
            capacity_bytes=cycle.nodes(limits) * pool.host_memory_bytes,
        ),
        lengths_tokens=search.setting.draws.model.quantiles(),
        usd_per_1k_samples=1000 * cycle.usd_per_sample(limits),
        front=front(search, cycle),
    )


def _kind(search: Search, part: Part, profile: Profile, pool: Pool) -> PredictedRound:
    log, key = part.log, part.key
    prompts = [] if isinstance(key, ShortKey) else search.pool(key.law, len(log) * search.setting.target)
    seen = picture(search.setting, key, prompts, min(len(log), enough_rounds(search.setting, key)))
    rollout, reward = _quantiles(log.rollout_s), _quantiles(log.reward_s)
    return PredictedRound(
        share=part.share,
        step_s=_quantiles(part.step_s()),
        rollout_s=rollout,
        reward_exposed_s=reward,
        train_s=_quantiles(log.updates_s(part.train)),
        sync_s=log.sync_s + part.switch_s,
        running=seen.running,
        tail_s=seen.tail * rollout.mean,
        reward_slack_s=seen.reward_slack * (rollout.mean + reward.mean),
        memory=_memory(part, seen.kv_tokens, profile, pool),
    )


def _memory(part: Part, kv_tokens: int, profile: Profile, pool: Pool) -> RoundMemory:
    entry = entry_of(profile, part.layout)
    assert entry is not None, "the column was priced by it"
    peak = part.train.peak_bytes
    return RoundMemory(
        kv=MemoryBar(
            needed_bytes=kv_tokens * entry.kv_bytes_per_token,
            capacity_bytes=entry.kv_capacity_tokens * entry.kv_bytes_per_token,
        ),
        train=MemoryBar(needed_bytes=peak, capacity_bytes=pool.accelerators.memory_bytes) if peak else None,
    )


# Schedules whose steps are looked at one by one when no limit can be kept: those with the fewest slow steps.
_CALMEST = 200


def least_p95(search: Search, cycles: Sequence[Cycle]) -> float:
    """The lowest p95 of a step, seconds, among the simulated schedules with the fewest slow steps."""
    calmest = sorted(cycles, key=lambda c: (c.slow_share(), c.cost(search.limits), c.name))[:_CALMEST]
    return min(
        weighted_quantiles([(part.share, part.step_s()) for part in parts_of(search, cycle)]).p95 for cycle in calmest
    )
