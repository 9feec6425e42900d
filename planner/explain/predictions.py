"""The predictions of a plan: its `predicted` block, read from holdout rounds (holdout_rounds.py)."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ...plans.schema.job import Job
from ...plans.schema.predicted import (
    DecodeSpeed,
    FrontPoint,
    MemoryBar,
    Predicted,
    PredictedBaseline,
    PredictedCheckpoint,
    PredictedCut,
    PredictedError,
    PredictedEvaluation,
    PredictedPhases,
    PredictedRound,
    PredictedRounds,
    PredictedSpeed,
    PredictedWait,
    Quantiles,
    RoundMemory,
    UpdateSpeed,
)
from ...plans.schema.predicted_evidence import HardwareLimit, LengthBasis, LengthDrift
from ...profiles.laws.hardware_peaks import RoundWork, peaks_of, step_limit, work_of
from ...profiles.laws.rank_memory import MASTER_BYTES, STATE_BYTES
from ...profiles.laws.train_layouts import kept_bytes
from ...profiles.length_trace import LengthTrace
from ...profiles.profile_schema import Profile
from ...profiles.reward_tables import RewardTable
from ...rounds.machines.race import RaceRound
from ...rounds.round_spec import UNBIASED
from ..choose.candidate_search import Search
from ..choose.candidates.round_kinds import LongKey, ShortKey
from ..choose.cost_error import MIDDLE_OCTAVE, cost_parts, step_error
from ..choose.cycle_cost import Cycle
from ..choose.holdout_rounds import Holdout, ScheduledRounds, first_epoch_s, mean_phases, scheduled_rounds, step_mixture
from ..choose.schedule_choice import Decided, keeps_slo
from ..costs.colocation import staging_s
from ..costs.decode_costs import DecodeCost, engines_of
from ..costs.memory_table import MemoryUse, fullest_host, trained_parameters
from ..costs.reward_costs import RewardCost
from ..lengths.length_fit import fit_drift
from ..lengths.length_model import LengthModel
from ..lengths.loss_divisors import cut_share
from ..simulate.columns.column_setting import Setting
from ..simulate.columns.round_log import mean
from ..simulate.columns.step_noise import spread_of
from ..simulate.reference_round import RoundLengths, simulate_round
from .assumed_effects import AssumedEffects, assumed_effects
from .length_error import length_basis, length_error
from .watched_rounds import WatchedRounds, enough_rounds, watch_rounds

# The Pareto front of speed against bias: the speed-up that a bias budget would buy.

# Points that differ by less than this in bias are one to a reader; the faster is shown.
_GRAIN = 0.03


def pareto_front(search: Search, chosen: Cycle, holdout: Holdout) -> tuple[FrontPoint, ...]:
    """Schedules that keep all limits but the bias budget and that none beats in both cost and bias, least biased first.

    The chosen schedule is always among them, with its predicted figures. Those of the others are scaled by the chosen
    schedule's prediction over its cost on the rounds that the choice was made on, which had the same draws for all.
    They may be of a few rounds only (`rounds`), so they are about right.
    """
    size = search.limits.group_size
    level = holdout.cycle.seconds_per_sample(size) / chosen.seconds_per_sample(size)
    limits = dataclasses.replace(search.limits, bias_budget=math.inf)

    def bias(cycle: Cycle) -> float:
        return abs(1.0 - cycle.length_ratio(limits))

    best: dict[int, Cycle] = {}
    for cycle in search.cycles():
        if cycle.violations(limits):
            continue
        bin_number = round(bias(cycle) / _GRAIN)
        rival = best.get(bin_number)
        if rival is None or (cycle.cost(limits), cycle.name) < (rival.cost(limits), rival.name):
            best[bin_number] = cycle
    best[round(bias(chosen) / _GRAIN)] = chosen
    points: list[Cycle] = []
    for _, cycle in sorted(best.items()):
        if cycle is chosen or not points or cycle.cost(limits) < min(p.cost(limits) for p in points):
            points.append(cycle)
    return tuple(
        FrontPoint(
            mode=cycle.short.deferral.mode,
            seconds_per_sample=level * cycle.seconds_per_sample(size),
            usd_per_1k_samples=1000 * level * cycle.usd_per_sample(limits),
            length_ratio=(
                holdout.search.measured_ratio(holdout.cycle)[0] if cycle is chosen else cycle.length_ratio(limits)
            ),
            rounds=cycle.short.rounds,
            chosen=cycle is chosen,
        )
        for cycle in points
    )


LEAST_PART = 1e-5
"""A source of error that moves the seconds by a smaller share is not written."""


def _phase(values: Sequence[float], deviation: float) -> Quantiles:
    return spread_of([(1.0, values, [deviation] * len(values))])


def predict(
    search: Search,
    decided: Decided,
    job: Job,
    trace: LengthTrace,
    reward_table: RewardTable | None,
    seed: int,
    evaluated: int | None = None,
) -> tuple[Predicted, AssumedEffects]:
    """(the plan's `predicted` block, what its assumed lengths and rewards may do to it).

    The predictions are of the chosen schedule's steady state; transients, such as the queue that starts empty, are not
    in them. Seconds are of all holdout rounds; what only watched rounds tell (watched_rounds.py) is told as shares of
    them.

    Args:
        search: what the schedule was chosen by; its rounds tell the Pareto front.
        reward_table: the table of reward seconds that were assumed; None: they are the profile's own.
        evaluated: prompts of an evaluation; None: none is priced.
    """
    holdout = decided.holdout
    again, cycle, baseline = holdout.search, holdout.cycle, holdout.baseline
    size, limits, draws = again.limits.group_size, again.limits, again.setting.draws
    points, basis, drift = (
        pareto_front(search, decided.cycle, holdout),
        length_basis(holdout, trace),
        _drift(trace, seed),
    )
    kinds = scheduled_rounds(again, cycle)
    nodes, memory = cycle.taken(limits), again.space.memory
    held = memory.table(
        nodes,
        [
            (engines_of(memory.profile, kind.layout, again.setting.kv_tokens(kind.key)), kind.train.layout)
            for kind in kinds
        ],
    )
    watched = [_watched(again, kind) for kind in kinds]
    rounds = [
        _round(again, kind, seen, _trainer_bar(held, number))
        for number, (kind, seen) in enumerate(zip(kinds, watched, strict=True))
    ]
    step, phases = spread_of(step_mixture(again, kinds)), mean_phases(kinds)
    (base,) = scheduled_rounds(again, baseline)
    seconds, base_s = cycle.seconds_per_sample(size), baseline.seconds_per_sample(size)
    assumed = assumed_effects(holdout, job, trace, reward_table, seed, base_s / seconds)
    predicted = Predicted(
        step_s=step,
        first_epoch_s=first_epoch_s(holdout),
        seconds_per_sample=seconds,
        baseline=PredictedBaseline(
            step_s=spread_of(step_mixture(again, [base])),
            seconds_per_sample=base_s,
            nodes=baseline.nodes(limits),
            keeps_slo=keeps_slo(baseline, limits) if limits.slo else None,
        ),
        phases_s=phases,
        rounds=PredictedRounds(short=rounds[0], long=rounds[1] if len(rounds) > 1 else None),
        wait=_wait(again, kinds[-1].key),
        length_ratio=again.measured_ratio(cycle)[0],
        cut=PredictedCut(cap_tokens=draws.model.cap_tokens, share=_cut_share(again, cycle, kinds, job)),
        error=_error(holdout, kinds, watched, basis, assumed),
        nodes=nodes.total,
        train_nodes=nodes.train if memory.pools.apart else None,
        usd_per_hour=limits.usd_per_s(nodes) * 3600,
        host_memory=_bar(fullest_host(held)),
        checkpoint=_checkpoint(memory.profile, kinds),
        evaluation=_evaluation(again.setting, kinds[0], job, evaluated, seed),
        limit=_limit(again, job, kinds, watched, phases, step.mean),
        speed=_speed(memory.profile, kinds[0], draws.model, size, again.setting.target),
        lengths_tokens=draws.model.quantiles(),
        length_basis=basis,
        drift=drift,
        usd_per_1k_samples=1000 * cycle.usd_per_sample(limits),
        front=points,
    )
    return predicted, assumed


def _speed(
    profile: Profile, short: ScheduledRounds, model: LengthModel, group_size: int, groups: int
) -> PredictedSpeed | None:
    """What a run measures again of the costs of short rounds; None where they were not measured on this layout."""
    entry = engines_of(profile, short.layout).entry
    if profile.provenance != "measured" or not entry.points or entry.layout != short.layout:
        return None
    context = min(point.kv_tokens / point.sequences for point in entry.points)
    points = [p for p in entry.points if p.kv_tokens / p.sequences <= 1.01 * context and not p.outlier]
    points = sorted(points, key=lambda p: p.sequences)[: max(1, -1 + len(points))]
    layout = short.train.layout
    prompt, levels = round(float(model.prompt_tokens.mean())), model.quantiles()
    lengths = tuple(levels[round(20 * (number + 0.5) / group_size)] for number in range(group_size))
    tokens = [prompt + length for length in lengths]
    # Two micro-batches of each replica tell as much as a whole update.
    most = max(1, round(2 * layout.dp * layout.micro_batch_tokens / sum(tokens)))
    groups = min(groups, most)
    seconds = short.train.update_s(groups * sum(tokens), groups * sum(t * t for t in tokens))
    return PredictedSpeed(
        decode=tuple(
            DecodeSpeed(sequences=p.sequences, kv_tokens=p.kv_tokens / p.sequences, step_s=p.step_s)
            for p in points[:1] + points[1:][-1:]
        ),
        update=UpdateSpeed(
            groups=groups, prompt_tokens=prompt, response_tokens=lengths, seconds=seconds - short.train.moves_s
        ),
    )


def _cut_share(search: Search, cycle: Cycle, kinds: Sequence[ScheduledRounds], job: Job) -> float:
    """Share of the trained samples that the cap cuts. In expectation that of all samples where the mode is unbiased."""
    if cycle.short.deferral.mode in UNBIASED:
        return cut_share(search.setting.draws.model, job)
    rates = cycle.rates(search.limits.group_size)
    return min(1.0, sum(rate * mean(kind.log.cut) for rate, kind in zip(rates, kinds, strict=False)))


def _wait(search: Search, key: ShortKey | LongKey) -> PredictedWait | None:
    """How long prompts wait for long rounds by queue; None for other rounds."""
    if isinstance(key, ShortKey) or not key.queue:
        return None
    states = search.setting.queue_of(key)
    return PredictedWait(
        mean_rounds=float(states.waits.mean()),
        longest_rounds=float(states.waits.max()),
        followed_rounds=len(states.trained),
        untrained=1.0 - mean(states.trained) / states.target,
    )


def error_of(
    holdout: Holdout, job: Job, trace: LengthTrace, reward_table: RewardTable | None, seed: int
) -> PredictedError:
    """The `error` of a schedule of which nothing else is predicted; the arguments are those of `predict`."""
    kinds = scheduled_rounds(holdout.search, holdout.cycle)
    watched = [_watched(holdout.search, kind) for kind in kinds]
    assumed = assumed_effects(holdout, job, trace, reward_table, seed, 1.0)
    return _error(holdout, kinds, watched, length_basis(holdout, trace), assumed)


def _error(
    holdout: Holdout,
    kinds: Sequence[ScheduledRounds],
    watched: Sequence[WatchedRounds],
    basis: LengthBasis,
    assumed: AssumedEffects,
) -> PredictedError:
    """The `error` of a schedule's holdout rounds, by kind of error and by source."""
    search, cycle = holdout.search, holdout.cycle
    lengths, prompts = length_error(search, cycle, search.setting.draws.model, search.setting.draws.seed)
    octaves = [_octave(search, kind, seen) for kind, seen in zip(kinds, watched, strict=True)]
    parts = cost_parts(search.space.profile, kinds, octaves) | assumed.parts()
    parts |= {"lengths-beyond": basis.step_share if basis.extrapolated else 0.0}
    return PredictedError(
        costs=step_error(search.space.profile, kinds),
        lengths=lengths,
        sampling=cycle.cost_error(search.limits) / cycle.cost(search.limits),
        extrapolation=basis.step_share if basis.extrapolated else None,
        assumed_lengths=assumed.lengths_error,
        assumed_rewards=assumed.rewards_error,
        parts={source: part for source, part in parts.items() if abs(part) >= LEAST_PART},
        prompts=prompts,
    )


def _octave(search: Search, kind: ScheduledRounds, seen: WatchedRounds) -> float:
    """log2 of the sequences on an engine, mean over the seconds of a kind of round's decode steps."""
    cost = search.setting.cost_of(kind.key)
    seconds = {count: share * cost.base_s(count) for count, share in seen.steps_of.items() if count}
    total = sum(seconds.values())
    return sum(part * math.log2(count) for count, part in seconds.items()) / total if total else MIDDLE_OCTAVE


def _drift(trace: LengthTrace, seed: int) -> LengthDrift | None:
    """How the trace's lengths move from epoch to epoch; None if no two prompts were drawn in two of them."""
    try:
        return fit_drift(trace, seed)
    except ValueError:
        return None


def _checkpoint(profile: Profile, kinds: Sequence[ScheduledRounds]) -> PredictedCheckpoint:
    """What a checkpoint takes, by the kind of round after which it takes the most."""
    layouts, adapters = [kind.train.layout for kind in kinds], profile.adapters
    kept = [kept_bytes(profile, layout) - MASTER_BYTES * trained_parameters(profile, layout) for layout in layouts]
    return PredictedCheckpoint(
        bytes=STATE_BYTES * (profile.model_parameters if adapters is None else adapters.parameters),
        rank_bytes=STATE_BYTES * max(trained_parameters(profile, layout) for layout in layouts),
        frozen_rank_bytes=0.0 if adapters is None else max(kept),
        stood_s=max(staging_s(profile, layout) for layout in layouts),
    )


EVALUATIONS = 4
"""Evaluations that are simulated; their seconds are told as the mean."""


def _evaluation(
    setting: Setting, short: ScheduledRounds, job: Job, prompts: int | None, seed: int
) -> PredictedEvaluation | None:
    """What an evaluation takes: the executor's machine over lengths of the job's own prompts, on the engines of short
    rounds as these decode without drafts."""
    spec, model, cost = job.evaluate, setting.draws.model, setting.decode[short.layout]
    if spec is None or not prompts:
        return None
    size, rng = spec.samples_per_prompt, np.random.default_rng(seed)
    reward, most = setting.reward_of(short.key), setting.at_once(short.key)
    seconds = []
    for _ in range(EVALUATIONS):
        rows = rng.integers(len(model.prompt_ids), size=prompts)
        seconds.append(_evaluation_s(model, rows, model.draw_many(rows, (size,), rng), cost, reward, most))
    return PredictedEvaluation(
        prompts=prompts, samples=size, seconds=statistics.fmean(seconds), every_steps=spec.every_steps
    )


def _evaluation_s(
    model: LengthModel,
    rows: NDArray[np.int64],
    tokens: NDArray[np.int64],
    decode: DecodeCost,
    reward: RewardCost,
    max_num_seqs: int,
) -> float:
    """Seconds of an evaluation of traced prompts, `rows` of the model, whose responses have `tokens` (prompts, n)."""
    lengths = RoundLengths(
        natural=lambda key, name: int(tokens[int(name), key.sample]),
        prompt_tokens=lambda name: int(model.prompt_tokens[rows[int(name)]]),
        reward=lambda key, name: 0.0,
        cap_tokens=model.cap_tokens,
        expected_tokens=model.mean_tokens,
    )
    prompts, size = tokens.shape
    machine = RaceRound([str(number) for number in range(prompts)], prompts, size, size, model.cap_tokens)
    return simulate_round(machine, lengths, decode, reward, max_num_seqs).end_s


def _bar(bar: MemoryUse) -> MemoryBar:
    return MemoryBar(
        needed_bytes=bar.needed_bytes, capacity_bytes=bar.capacity_bytes, holds_bytes=dict(bar.holds_bytes)
    )


def _trainer_bar(held: Sequence[MemoryUse], number: int) -> MemoryBar | None:
    """The memory bar of a trainer's accelerator while it trains in round kind `number`; None where the profile does not
    know all of its bytes."""
    training = next((b for b in held if (b.kind, b.place, b.phase) == (number, "device", "train")), None)
    return _bar(training) if training is not None and training.complete else None


def _watched(search: Search, rounds: ScheduledRounds) -> WatchedRounds:
    log, key = rounds.log, rounds.key
    prompts = [] if isinstance(key, ShortKey) else search.pool(key.deferral, len(log) * search.setting.simulated_target)
    return watch_rounds(search.setting, key, prompts, min(len(log), enough_rounds(search.setting, key)), len(log))


def _limit(
    search: Search,
    job: Job,
    kinds: Sequence[ScheduledRounds],
    watched: Sequence[WatchedRounds],
    phases: PredictedPhases,
    step_s: float,
) -> HardwareLimit | None:
    """The least seconds of the step on its hardware; None where that has no known peak."""
    profile = search.space.profile
    peaks = peaks_of(profile.machine, job.model.dtype)
    if peaks is None:
        return None
    rounds = []
    for kind, seen in zip(kinds, watched, strict=True):
        change = search.setting.change_of(kind.key) if isinstance(kind.key, LongKey) else None
        tail_tp = change.after.key.tp if change is not None else kind.layout.tp
        rounds.append(
            RoundWork(
                share=kind.share,
                tp=max(kind.layout.tp, tail_tp),
                engine_accelerators=kind.layout.engines * kind.layout.tp,
                trainers=kind.train.layout.accelerators,
                decode_steps=seen.decode_steps,
                steps_of=seen.steps_of,
                read_kv_tokens=seen.read_kv_tokens,
                trained_tokens=mean(kind.log.tokens),
                trained_squares=mean(kind.log.squares),
                update_s=mean(kind.log.whole_updates_s(kind.train)),
                streams=bool(kind.log.windows),
            )
        )
    kv_bytes = engines_of(profile, kinds[0].layout).entry.kv_bytes_per_token
    return step_limit(work_of(profile, job.model.dtype, job.model.path), peaks, kv_bytes, rounds, phases, step_s)


def _round(
    search: Search,
    rounds: ScheduledRounds,
    watched: WatchedRounds,
    trainer: MemoryBar | None,
) -> PredictedRound:
    log = rounds.log
    noise = search.setting.noise(rounds.layout, rounds.train)
    rollout, reward = _phase(log.rollout_s, noise.rollout), _phase(log.reward_s, noise.reward_exposed)
    return PredictedRound(
        share=rounds.share,
        noise=noise,
        step_s=spread_of(step_mixture(search, [rounds._replace(share=1.0)])),
        rollout_s=rollout,
        reward_exposed_s=reward,
        train_s=_phase(log.updates_s(rounds.train), noise.train),
        sync_s=log.sync_of(rounds.train) + rounds.switch_s,
        running=watched.running,
        tail_s=watched.tail * rollout.mean,
        reward_slack_s=watched.reward_slack * (rollout.mean + reward.mean),
        memory=RoundMemory(kv=_kv(search.space.profile, rounds, watched.kv_tokens), train=trainer),
    )


def _kv(profile: Profile, rounds: ScheduledRounds, kv_tokens: int) -> MemoryBar:
    """What samples hold of the cache that would fit: of that capacity executors tell what an engine's weights take."""
    entry = engines_of(profile, rounds.layout).entry
    return MemoryBar(
        needed_bytes=kv_tokens * entry.kv_bytes_per_token,
        capacity_bytes=entry.kv_capacity_tokens * entry.kv_bytes_per_token,
    )
