"""The numbers of a plan's `predicted` block, read from simulated rounds of its columns that the choice was not made on
(holdout_rounds.py)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ...plans.schema.cluster import Pool
from ...plans.schema.predicted import (
    FrontPoint,
    LengthDrift,
    MemoryBar,
    Predicted,
    PredictedBaseline,
    PredictedError,
    PredictedRound,
    PredictedRounds,
    Quantiles,
    RoundMemory,
)
from ...plans.schema.sections.length_evidence import LengthBasis
from ...profiles.profile_schema import Profile
from ..choose.candidate_search import Search
from ..choose.candidates import ShortKey
from ..choose.cycle_cost import Cycle
from ..choose.plain_baseline import keeps_slo
from ..costs.memory_bars import Bar
from ..costs.memory_table import memory_table
from ..costs.phase_costs import engines_of
from ..costs.step_noise import Mixture, spread_of, step_deviations
from ..lengths.length_drift import Drift
from .cost_error import step_error
from .cycle_parts import Part, mean_phases, parts_of
from .holdout_rounds import Unseen
from .length_error import length_error
from .round_picture import enough_rounds, picture


def _mixture(search: Search, parts: Sequence[Part]) -> Mixture:
    """Whole steps of kinds of round."""
    noise = search.setting.noise
    return [
        (
            part.share,
            part.step_s(),
            step_deviations(part.log, part.train, noise(part.layout, part.train), part.switch_s),
        )
        for part in parts
    ]


def _phase(values: Sequence[float], deviation: float) -> Quantiles:
    return spread_of([(1.0, values, [deviation] * len(values))])


def predict(
    unseen: Unseen,
    profile: Profile,
    pool: Pool,
    points: tuple[FrontPoint, ...],
    drift: Drift | None,
    weight_bytes: float,
    basis: LengthBasis | None = None,
) -> Predicted:
    """What the steady state of the chosen schedule costs; transients, such as the queue that starts empty, are not in
    it.

    Seconds are of all rounds of `unseen`; what only watched rounds tell (round_picture.py) is told as shares of them.
    `points`: the front, which the choice's own rounds tell; `drift`: of the trace, if it shows one; `weight_bytes`: of
    an engine's parameter; `basis`: how far the trace shows the lengths that are simulated.
    """
    search, cycle, baseline = unseen.search, unseen.cycle, unseen.baseline
    size, limits, draws = search.limits.group_size, search.limits, search.setting.draws
    parts = parts_of(search, cycle)
    held = memory_table(
        profile,
        pool,
        weight_bytes,
        cycle.nodes(limits),
        [(engines_of(profile, part.layout), part.train.layout) for part in parts],
    )
    kinds = [_kind(search, part, profile, _trainer_bar(held, number)) for number, part in enumerate(parts)]
    (base,) = parts_of(search, baseline)
    return Predicted(
        step_s=spread_of(_mixture(search, parts)),
        seconds_per_sample=cycle.seconds_per_sample(size),
        baseline=PredictedBaseline(
            step_s=spread_of(_mixture(search, [base])),
            seconds_per_sample=baseline.seconds_per_sample(size),
            nodes=baseline.nodes(limits),
            keeps_slo=keeps_slo(baseline, limits) if limits.slo else None,
        ),
        phases_s=mean_phases(parts),
        rounds=PredictedRounds(short=kinds[0], long=kinds[1] if len(kinds) > 1 else None),
        length_ratio=search.measured_ratio(cycle)[0],
        error=PredictedError(
            costs=step_error(profile, parts),
            lengths=length_error(search, cycle, draws.model, draws.seed),
            sampling=cycle.cost_error(limits) / cycle.cost(limits),
            extrapolation=basis.step_share if basis is not None and basis.extrapolated else None,
        ),
        nodes=cycle.nodes(limits),
        usd_per_hour=cycle.nodes(limits) * limits.usd_per_node_s * 3600,
        host_memory=_bar(max((bar for bar in held if bar.place == "host"), key=lambda bar: bar.needed_bytes)),
        lengths_tokens=draws.model.quantiles(),
        length_basis=basis,
        drift=None if drift is None else LengthDrift(**dataclasses.asdict(drift)),
        usd_per_1k_samples=1000 * cycle.usd_per_sample(limits),
        front=points,
    )


def _bar(bar: Bar) -> MemoryBar:
    return MemoryBar(
        needed_bytes=bar.needed_bytes, capacity_bytes=bar.capacity_bytes, holds_bytes=dict(bar.holds_bytes)
    )


def _trainer_bar(held: Sequence[Bar], kind: int) -> MemoryBar | None:
    """What a trainer's accelerator holds while it trains; None where the profile does not know all of it."""
    training = next((b for b in held if (b.kind, b.place, b.phase) == (kind, "device", "train")), None)
    return _bar(training) if training is not None and training.known else None


def _kind(search: Search, part: Part, profile: Profile, trainer: MemoryBar | None) -> PredictedRound:
    log, key = part.log, part.key
    prompts = [] if isinstance(key, ShortKey) else search.pool(key.law, len(log) * search.setting.simulated_target)
    seen = picture(search.setting, key, prompts, min(len(log), enough_rounds(search.setting, key)))
    noise = search.setting.noise(part.layout, part.train)
    rollout, reward = _phase(log.rollout_s, noise.rollout), _phase(log.reward_s, noise.reward_exposed)
    return PredictedRound(
        share=part.share,
        noise=noise,
        step_s=spread_of(_mixture(search, [part._replace(share=1.0)])),
        rollout_s=rollout,
        reward_exposed_s=reward,
        train_s=_phase(log.updates_s(part.train), noise.train),
        sync_s=log.sync_s + part.switch_s,
        running=seen.running,
        tail_s=seen.tail * rollout.mean,
        reward_slack_s=seen.reward_slack * (rollout.mean + reward.mean),
        memory=RoundMemory(kv=_kv(part, seen.kv_tokens, profile), train=trainer),
    )


def _kv(part: Part, kv_tokens: int, profile: Profile) -> MemoryBar:
    entry = engines_of(profile, part.layout).entry
    return MemoryBar(
        needed_bytes=kv_tokens * entry.kv_bytes_per_token,
        capacity_bytes=entry.kv_capacity_tokens * entry.kv_bytes_per_token,
    )


# Schedules whose steps are looked at one by one when no limit can be kept: those with the fewest slow steps.
_CALMEST = 200


def least_p95(search: Search, cycles: Sequence[Cycle]) -> float:
    """The lowest p95 of a step, seconds, among the simulated schedules with the fewest slow steps."""
    calmest = sorted(cycles, key=lambda c: (c.slow_share(), c.cost(search.limits), c.name))[:_CALMEST]
    return min(step_p95(search, cycle) for cycle in calmest)


def step_p95(search: Search, cycle: Cycle) -> float:
    """p95 of a step of a simulated schedule, seconds."""
    return spread_of(_mixture(search, parts_of(search, cycle))).p95
