"""The correction of a profile by a run: layouts that were run by their own lines, others by part of the mean.

A correction belongs to the layout that was run, whichever entry of the profile prices it (decode_costs.entry_of): the
corrected profile has a `RoundCheck` for each.

What was not run has no measurement of its own. Part of what is wrong with a profile is wrong with all of it (another
tenant, another engine version), part with one layout: a layout that the run did not use takes `TRANSFER` of the log of
the mean factor of those that it did, and less if rounds of its own have been measured before. One that is priced by the
same entry as a layout that was run, with another number of engines, takes that one's whole factor. An update that was
not run takes the mean factor of those that were: they are of one trainer. What of either may not hold is stated as the
transfer error (refit.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from ...plans.schema.levers import EngineLayout
from ...profiles.judge_schema import Judge
from ...profiles.laws.measured_fit import MEAN_OVER_DEVIATION
from ...profiles.laws.train_law import FACTORS, STEP_S
from ...profiles.phase_schema import Reward, Train, TrainLaw
from ...profiles.profile_schema import Profile, RoundCheck
from ...profiles.suspicions import measured_update
from ..costs.decode_costs import decode_cost, entry_of
from ..costs.update_costs import TrainCost, train_cost_in
from .fitted_line import Line, mean_factor

TRANSFER = 0.75
# Rounds after which a layout's own measurements weigh as much as the transfer.
TRANSFER_ROUNDS = 10

# Where an update's overhead is less than what the law has for its optimizer, on which it has no factor, `step` takes
# the least that its prior allows for, three deviations down (4.5 ms), and the other factors take the rest.
LEAST_STEP = next(math.exp(factor.log_mean - 3 * factor.log_sd) for factor in FACTORS if factor.name == "step")


def corrected(
    profile: Profile,
    rollout: Mapping[EngineLayout, Line],
    sync: Mapping[EngineLayout, Line],
    updates: Mapping[TrainCost, Line],
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
        by_law = {train: line for train, line in updates.items() if measured_update(profile, train.layout) is None}
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


def _checks(profile: Profile, rollout: Mapping[EngineLayout, Line]) -> tuple[RoundCheck, ...]:
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


def _corrected_update(entry: Train, updates: Mapping[TrainCost, Line]) -> Train:
    """An update entry, corrected by its own line; without one by the mean factor and the mean change of overheads."""
    own_line = next((line for train, line in updates.items() if train.layout == entry.layout), None)
    factor = own_line.factor if own_line else mean_factor(updates)
    grown = math.fsum(line.overhead - train.step_s for train, line in updates.items()) / len(updates)
    return entry.model_copy(
        update={
            "step_s": own_line.overhead if own_line else max(0.0, entry.step_s + grown),
            "step_s_per_token": factor * entry.step_s_per_token,
            "step_s_per_token_squared": factor * entry.step_s_per_token_squared,
            "noise": own_line.noise if own_line else entry.noise,
        }
    )


def _corrected_law(profile: Profile, train_law: TrainLaw, updates: Mapping[TrainCost, Line]) -> TrainLaw:
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
    if profile.train_law is None or measured_update(profile, train.layout) is not None:
        return 0.0
    return train.step_s - STEP_S * max(0.0, profile.train_law.factors["step"] - LEAST_STEP)


def _step_s(priced: Profile, profile: Profile, train: TrainCost) -> float:
    """Seconds of an update without tokens by `priced`, where `train` has been priced by `profile`: on a pool of its own
    if fewer states moved than in turns."""
    apart = train.host_link_s < train_cost_in(profile, train.layout).host_link_s
    return train_cost_in(priced, train.layout, apart).step_s
