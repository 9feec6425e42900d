"""Settings and columns that tests of simulated rounds start from, and what columns predict of a long run."""

from typing import Any, NamedTuple

from rlplan.planner.choose.candidates.round_kinds import LongKey, ShortKey
from rlplan.planner.costs.decode_costs import decode_cost
from rlplan.planner.costs.reward_costs import reward_cost
from rlplan.planner.costs.update_costs import TrainCost, train_cost
from rlplan.planner.lengths.draws import Draws
from rlplan.planner.lengths.length_model import fit_lengths
from rlplan.planner.simulate.columns.round_log import mean
from rlplan.planner.simulate.columns.whole_columns import (
    LongColumn,
    Setting,
    ShortColumn,
    expected_deferrals,
    long_draws,
    long_rounds,
)
from rlplan.plans.schema.levers import EngineLayout

from ...conftest import CAP, heavy_trace, small_profile

TARGET, GROUP, CUTOFF = 4, 4, 200
LAYOUT = EngineLayout(1, 2)
PROFILE = small_profile()
TRAIN = train_cost(PROFILE.train[2])
EXACT = ShortKey("exact", 7, GROUP, CUTOFF, LAYOUT)
RACE = ShortKey("race", 5, 6, None, LAYOUT)
SYNC = ShortKey("sync", TARGET, GROUP, None, LAYOUT)


def make_setting(target: int = TARGET, samples: int = 2 * GROUP, icc: float = 0.6, **changes: Any) -> Setting:
    """The small machine, where `icc` of the log variance of lengths lies between prompts."""
    decode = {entry.layout: decode_cost(PROFILE, entry) for entry in PROFILE.rollout}
    draws = Draws(fit_lengths(heavy_trace(icc=icc)), 0, samples)
    fields = {"decode": decode, "reward": reward_cost(PROFILE.reward, 1), "draws": draws, **changes}
    return Setting(**{"target": target, "group_size": GROUP, "cap_tokens": CAP, "dynamic_sampling": False, **fields})


def short_of(setting: Setting, key: ShortKey, rounds: int) -> ShortColumn:
    column = ShortColumn(setting, key)
    column.extend(rounds)
    return column


def long_of(setting: Setting, key: ShortKey | LongKey, rounds: int, pool: list[str] | None = None) -> LongColumn:
    """Long rounds of `pool`, or of what is put off by the cutoff; `key`: of them, or of the short ones before them."""
    law = key if isinstance(key, LongKey) else LongKey(key.deferral, 1, key.layout)
    column = long_rounds(setting, law)
    if pool is None:
        pool = long_draws(setting.draws, GROUP, law.deferral.cutoff_tokens, rounds * setting.target)
    column.extend(rounds, pool)
    return column


class Steady(NamedTuple):
    """What columns predict of a long run: seconds of a trained sample, and the share of its rounds that are long."""

    sample_s: float
    long_share: float


def steady(setting: Setting, short: ShortColumn, long: LongColumn, train: TrainCost = TRAIN) -> Steady:
    ratio = expected_deferrals(short, setting) / mean(long.log.settled)
    samples = GROUP * (mean(short.log.groups) + ratio * mean(long.log.groups))
    seconds = mean(short.log.step_s(train)) + ratio * mean(long.log.step_s(train))
    return Steady(seconds / samples, ratio / (1 + ratio))
