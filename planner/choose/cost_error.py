"""The cost error of a plan: how far its step may be off because the profile's costs are.

Let a mean step of T seconds spend R in rollouts, U in updates, S in weight transfers and E waiting for rewards. Each
phase has an error of its own, common to all rounds of both kinds: one profile prices them all, and a cost that is too
low is too low everywhere. The errors of two phases are independent, so with relative standard deviations r, u, s, e:

    error = sqrt((R r)^2 + (U u)^2 + (S s)^2 + (E e)^2) / T

r: of the layout's rounds that were checked (`RoundCheck.error`: whole rounds, with their own lengths), else of other
layouts' rounds, whose factors stand in for its own (decode_costs.decode_cost), else what `evidence` says of decoding,
else of the decode line (`Rollout.error`). u: of the update (`Train.error`), else of the cost model, more where no run
was fitted to the layout (train_error.py). s and e: what `evidence` says, 0 where they were measured: medians of
repeats. What moves over a host link has an error of its own (colocation.py): the sleep and wake of engines that share
GPUs with trainers, and a trainer's states that leave the GPU or are offloaded. Layouts and updates are weighed by their
seconds.

Profiles state mean relative errors but for `evidence`, which states standard deviations; a normal error's mean absolute
value is sqrt(2 / pi) = 0.80 of its standard deviation, by which they are divided.

`cost_parts` divides the same errors by their independent sources, so that two plans of one profile are known to share
them. A layout whose rounds were checked, or whose decode steps were measured, has a line of its own. Costs that one law
gives for all layouts of a GPU share its error: each group of public measurements that the shipped law was fitted to,
predicted from the other groups (tools/carried.py), was off by one factor mostly (4 to 27 %); by 0.1 of that
for each octave of sequences, by as much for each octave of ranks, and by a quarter of it at single points. What
the law of updates misses of a replica's shape, or of an exchange between nodes, it misses for every count of replicas,
but for as much for each octave of ranks.

Not included: the standard error of the simulated mean and the error of the trace's prompts (length_error.py), which a
plan states beside it; lengths that change between the trace and the run; and another machine than the profiled one.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence

from ...plans.schema.levers import EngineLayout
from ...plans.schema.predicted import StepNoise
from ...plans.yaml.errors import InputError
from ...profiles.laws.measured_fit import MEAN_OVER_DEVIATION
from ...profiles.laws.suspicions import measured_update
from ...profiles.laws.train_error import law_error
from ...profiles.phase_schema import Spread
from ...profiles.profile_schema import Profile
from ..costs.colocation import LINK_ERROR
from ..costs.decode_costs import checks_of, entry_of
from ..costs.update_costs import TrainCost
from ..simulate.columns.round_log import mean
from .holdout_rounds import ScheduledRounds

MIDDLE_OCTAVE = 4.0
"""Sequences on an engine, as a power of two, at which a decode curve's error is that of its level alone."""

_OWN, _PER_OCTAVE = 0.25, 0.1
"""Of the error of a decode law: what a TP size has of its own, and by how much an octave of sequences or ranks moves
it; see the module's docstring."""

_GRID_OCTAVES = 3.0
"""Octaves from the middle of a measured grid to its ends, at which its line is off by the error of single points."""

_P95_DEVIATIONS = 1.6449  # of a normal distribution, from its median


def step_error(profile: Profile, rounds: Sequence[ScheduledRounds]) -> float:
    """Relative standard deviation of a schedule's mean step, because of the profile's errors."""
    reward = profile.reward.evidence.get("per_sample_s")
    off = {
        "rollout": sum(p.share * mean(p.log.rollout_s) * rollout_error(profile, p.layout) for p in rounds),
        "train": sum(p.share * _train_off_s(profile, p.train, p.log.train_s(p.train)) for p in rounds),
        "sync": sum(p.share * _sync_off_s(profile, p) for p in rounds),
        "reward": sum(p.share * mean(p.log.reward_s) * (reward.error if reward else 0.0) for p in rounds),
    }
    step_s = sum(p.share * mean(p.step_s()) for p in rounds)
    return math.hypot(*(seconds / step_s for seconds in off.values()))


def cost_parts(profile: Profile, rounds: Sequence[ScheduledRounds], octaves: Sequence[float]) -> dict[str, float]:
    """By independent source of error, the change of the logarithm of a schedule's mean step by one standard deviation
    of it. `octaves`: log2 of the sequences on an engine of each kind of round, mean over its decode seconds."""
    step_s = sum(p.share * mean(p.step_s()) for p in rounds)
    reward = profile.reward.evidence.get("per_sample_s")
    parts: defaultdict[str, float] = defaultdict(float)
    for kind, octave in zip(rounds, octaves, strict=True):
        log, train, share = kind.log, kind.train, kind.share / step_s
        turns_s = log.turns_of(train)
        for source, error in _decode_sources(profile, kind.layout, octave):
            parts[source] += share * mean(log.rollout_s) * error
        for source, error in _update_sources(profile, train):
            parts[source] += share * (log.train_s(train) - train.host_link_s) * error
        parts["sync"] += share * (log.sync_of(train) - turns_s) * _sync_error(profile, kind.layout)
        parts["host-link"] += share * (turns_s + train.host_link_s) * LINK_ERROR
        parts["rewards"] += share * mean(log.reward_s) * (reward.error if reward else 0.0)
    return dict(parts)


def _decode_sources(profile: Profile, layout: EngineLayout, octave: float) -> Iterator[tuple[str, float]]:
    """(source, relative standard deviation of a rollout's seconds by it), signed by what makes them more."""
    total, entry, checks = rollout_error(profile, layout), entry_of(profile, layout), checks_of(profile, layout)
    above = octave - MIDDLE_OCTAVE
    if entry is not None and not checks and "decode" in entry.evidence:
        own = _OWN * total
        yield "decode", math.sqrt(total**2 - own**2)
        yield f"decode-tp{layout.tp}", own
        yield "decode-by-sequences", _PER_OCTAVE * total * above
        yield "decode-by-tp", _PER_OCTAVE * total * math.log2(layout.tp)
        return
    of = checks[0].layout if len(checks) == 1 else entry.layout if entry is not None and not checks else None
    name = "decode" if of is None else f"decode-{of.engines}x{of.tp}"  # None: other layouts' checks stand in
    yield name, total
    if entry is not None:
        shape = entry.error / MEAN_OVER_DEVIATION / _GRID_OCTAVES
        yield f"decode-{entry.engines}x{entry.tp}-by-sequences", shape * above


def _update_sources(profile: Profile, train: TrainCost) -> Iterator[tuple[str, float]]:
    """(source, relative standard deviation of an update's seconds by it)."""
    law, own, layout = profile.train_law, update_error(profile, train), train.layout
    named = [f"{size}{count}" for size in ("tp", "pp", "cp", "sp", "ep") if (count := getattr(layout, size)) > 1]
    if law is None or measured_update(profile.train, layout) is not None:
        yield "update-" + ".".join([f"dp{layout.dp}", *named]), own
        return
    common = law.error / MEAN_OVER_DEVIATION
    yield "update", common
    own = math.sqrt(max(0.0, own**2 - common**2))
    if layout.accelerators > law.accelerators_per_node:
        named.append("nodes")
    yield ".".join(["update-law", *named]), own
    yield "update-by-ranks", _PER_OCTAVE * own * math.log2(layout.accelerators / law.accelerators_per_node)


def rollout_error(profile: Profile, layout: EngineLayout) -> float:
    """Relative standard deviation of a rollout's seconds in a layout."""
    checks = checks_of(profile, layout)
    if checks:
        return mean([check.error for check in checks]) / MEAN_OVER_DEVIATION
    entry = entry_of(profile, layout)
    if entry is None:
        raise InputError(f"the profile has no layout of {layout}")
    decode = entry.evidence.get("decode")
    return decode.error if decode is not None else entry.error / MEAN_OVER_DEVIATION


def update_error(profile: Profile, train: TrainCost) -> float:
    """Relative standard deviation of an update's seconds, those not counted in which states move over the host
    link."""
    entry, train_law = measured_update(profile.train, train.layout), profile.train_law
    if entry is None and train_law is None:
        raise InputError(
            f"the profile has no update of dp {train.layout.dp} and {train.layout.micro_batch_tokens} tokens"
        )
    stated = entry.error if entry is not None else law_error(train_law, train.layout) if train_law is not None else 0.0
    return stated / MEAN_OVER_DEVIATION


def noise_of(profile: Profile, layout: EngineLayout, train: TrainCost) -> StepNoise:
    """Relative scatter of single steps in a layout with an update, by phase, as the profile measured it; 0: not
    measured.

    Rollouts and updates scatter about the line that was fitted to them (the fit's error where the profile does not
    state the noise), weight transfers and the wait for a last reward between their repeats.
    """
    entry, update = entry_of(profile, layout), measured_update(profile.train, train.layout)
    of_rollouts = [
        check.noise if check.noise is not None else check.error / MEAN_OVER_DEVIATION
        for check in checks_of(profile, layout)
    ]
    of_update = 0.0
    if update is not None:
        of_update = update.noise if update.noise is not None else update.error / MEAN_OVER_DEVIATION
    return StepNoise(
        rollout=mean(of_rollouts) if of_rollouts else 0.0,
        reward_exposed=_of_spread(profile.reward.latency),
        train=of_update,
        sync=_of_spread(entry.sync) if entry is not None else 0.0,
    )


def _of_spread(spread: Spread) -> float:
    if spread.repeats < 2 or spread.p50 <= 0 or spread.p95 <= spread.p50:
        return 0.0
    return math.log(spread.p95 / spread.p50) / _P95_DEVIATIONS


def _sync_off_s(profile: Profile, rounds: ScheduledRounds) -> float:
    """Standard deviation, in seconds, of a weight transfer of a kind of round, sleep and wake included."""
    log = rounds.log
    turns_s = log.turns_of(rounds.train)
    return math.hypot((log.sync_of(rounds.train) - turns_s) * _sync_error(profile, rounds.layout), turns_s * LINK_ERROR)


def _train_off_s(profile: Profile, train: TrainCost, seconds: float) -> float:
    """Standard deviation, in seconds, of an update that takes `seconds`, of which states move over the host link."""
    return math.hypot((seconds - train.host_link_s) * update_error(profile, train), train.host_link_s * LINK_ERROR)


def _sync_error(profile: Profile, layout: EngineLayout) -> float:
    entry = entry_of(profile, layout)
    sync = entry.evidence.get("sync") if entry is not None else None
    return sync.error if sync is not None else 0.0
