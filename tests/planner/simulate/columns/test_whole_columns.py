"""Columns: bias over cycles, deferrals, common random numbers, prompts ranked by their history."""

import dataclasses
import math

import numpy as np
import pytest

from rlplan.planner.choose.candidates.round_kinds import DeferralRule, LongKey, ShortKey
from rlplan.planner.costs.reward_costs import ExecutionTimes
from rlplan.planner.lengths.draws import Draws, prompt_name
from rlplan.planner.simulate.columns.round_log import RoundLog, mean, standard_error
from rlplan.planner.simulate.columns.whole_columns import (
    LongColumn,
    Setting,
    ShortColumn,
    expected_deferrals,
    long_draws,
)
from rlplan.rounds.timeouts import TimeoutSpec

from .settings import CUTOFF, EXACT, GROUP, LAYOUT, RACE, SYNC, TARGET, TRAIN, long_of, make_setting, short_of

SHARE = 0.25
PREDICT = ShortKey("predict", 8, GROUP, None, LAYOUT, SHARE)


@pytest.fixture(scope="module")
def setting() -> Setting:
    return make_setting()


@pytest.fixture(scope="module")
def predicted() -> Setting:
    """Of steps of eight prompts, which an earlier epoch has seen."""
    return make_setting(8, GROUP, icc=0.8)


def length_ratio(setting: Setting, key: ShortKey, short_rounds: int, long_rounds: int) -> tuple[float, float]:
    """(trained over unconditioned length of a cycle, standard error)."""
    short = short_of(setting, key, short_rounds)
    long = long_of(setting, key, long_rounds, None if key.mode == "exact" else short.deferred_prompts)
    share = expected_deferrals(short, setting) / TARGET
    samples = GROUP * TARGET * (1 + share) * setting.draws.model.mean_tokens
    excess = mean(short.log.excess) + share * mean(long.log.excess)
    error = math.hypot(standard_error(short.log.excess), share * standard_error(long.log.excess))
    return 1 + excess / samples, error / samples


def test_exact_trains_on_the_unconditioned_mean_and_other_modes_fall_short(setting: Setting) -> None:
    exact, error = length_ratio(setting, EXACT, 500, 300)
    assert error < 0.02
    assert abs(exact - 1) < 3.5 * error
    race, _ = length_ratio(setting, RACE, 150, 40)
    defer, _ = length_ratio(setting, ShortKey("defer", 5, GROUP, None, LAYOUT), 150, 40)
    assert race < defer < 0.97
    assert race < 0.8


def test_a_cycle_of_exact_trains_as_many_cut_samples_as_are_drawn(setting: Setting) -> None:
    short, long = short_of(setting, EXACT, 300).log, long_of(setting, EXACT, 300, None).log
    share = expected_deferrals(short_of(setting, EXACT, 300), setting) / TARGET
    assert not any(short.cut), "what a short round trains ends within the cutoff"
    per_round = GROUP * TARGET * (1 + share) * float((setting.draws.model.tables >= setting.cap_tokens).mean())
    assert abs(share * mean(long.cut) - per_round) < 3.5 * share * standard_error(long.cut)


def test_the_expected_deferrals_are_those_that_are_simulated(setting: Setting) -> None:
    for key in (EXACT._replace(prompts=6), RACE):
        column = short_of(setting, key, 300)
        counted = [float(d) for d in column.log.deferred]
        assert abs(mean(counted) - expected_deferrals(column, setting)) <= 3.5 * standard_error(counted) + 1e-9
    sync = short_of(setting, SYNC, 3).log
    assert sync.deferred == [0, 0, 0] and sync.excess == [0, 0, 0]


def test_the_deferred_of_exact_are_found_without_simulating(setting: Setting) -> None:
    scanned = long_draws(setting.draws, GROUP, CUTOFF, 300)
    assert len(set(scanned)) == 300

    def hardness(prompts: list[str]) -> float:
        tables = setting.draws.model.tables.mean(axis=1)
        return float(np.mean([tables[setting.draws.traced(int(p[1:8]))] for p in prompts]))

    assert hardness(scanned) == pytest.approx(hardness(short_of(setting, EXACT, 300).deferred_prompts), rel=0.15)


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_extending_a_column_in_parts_gives_the_same_rounds(setting: Setting, share: float) -> None:
    once, parts = short_of(setting, EXACT, 9), ShortColumn(setting, EXACT)
    for rounds in (2, 2, 7, 9):
        parts.extend(rounds)
    assert once.log == parts.log
    law = LongKey(EXACT.deferral, 2, LAYOUT, 0, share)
    pool = long_draws(setting.draws, GROUP, CUTOFF, 40)
    whole, grown = long_of(setting, law, 8, pool), LongColumn(setting, law)
    for rounds in (3, 8):
        grown.extend(rounds, pool)
        assert len(grown.log.step_s(TRAIN)) == rounds, "asking between extensions changes nothing"
    assert whole.log == grown.log and whole.log.step_s(TRAIN) == grown.log.step_s(TRAIN)


@pytest.mark.parametrize("dynamic", [False, True])
def test_columns_are_the_same_by_reference_and_compiled_machines(setting: Setting, dynamic: bool) -> None:
    executions = ExecutionTimes((0.01, 0.2), (0.01, 0.02, 0.5), 0.4, 0.3) if dynamic else None
    reward = dataclasses.replace(setting.reward, executions=executions, timeout=TimeoutSpec(0.4, 0.05, 1.5))

    def logs(reference: bool) -> list[RoundLog]:
        mine = dataclasses.replace(setting, dynamic_sampling=dynamic, reward=reward)
        if reference:
            mine = dataclasses.replace(mine, watch=lambda: lambda *event: None)
        pool = long_draws(mine.draws, GROUP, CUTOFF, 20)
        columns = [
            (short_of(mine, key, 20), long_of(mine, LongKey(key.deferral, 2, LAYOUT), 6, pool))
            for key in (EXACT._replace(prompts=5), RACE, SYNC)
        ]
        return [column.log for pair in columns for column in pair]

    assert logs(True) == logs(False)


def test_layouts_of_a_law_are_compared_on_the_same_lengths(setting: Setting) -> None:
    one, two = (short_of(setting, SYNC._replace(layout=layout), 5).log for layout in setting.decode)
    assert one.tokens == two.tokens
    assert one.rollout_s != two.rollout_s


def test_a_small_pool_is_reused_with_fresh_luck(setting: Setting) -> None:
    pool = long_draws(setting.draws, GROUP, CUTOFF, 2)
    log = long_of(setting, LongKey(DeferralRule("exact", 0, 0, CUTOFF), 1, LAYOUT), 6, pool).log
    assert log.groups == [TARGET] * 6
    assert len(set(log.tokens)) > 3


def test_every_block_of_prompts_holds_each_traced_prompt_once(setting: Setting) -> None:
    draws, count = setting.draws, len(setting.draws.model.prompt_ids)
    for block in (0, 3):
        assert sorted(draws.traced(block * count + i) for i in range(count)) == list(range(count))
    again = Draws(draws.model, 0, 8)
    for occurrence in (0, 30):
        assert draws.row(5, 0, occurrence).tolist() == again.row(5, 0, occurrence).tolist()
    assert draws.row(5, 0, 0).tolist() != draws.row(5, 1, 0).tolist()
    assert draws.firsts(np.array([300, 5]), 2)[1, 3].tolist() == draws.row(5, 2, 3).tolist()
    assert draws.prompt_tokens(prompt_name(5, 0)) == 18 == draws.prompt_tokens_of(np.array([5]))[0]
    rewards = draws.rewards(np.arange(64), 0, np.zeros(64, dtype=np.int64))
    assert rewards.shape == (64, 8) and 0.4 < rewards.mean() < 0.6


def test_columns_rank_prompts_as_the_executor_and_share_them_out_once(predicted: Setting) -> None:
    setting = predicted
    expected = setting.earlier.expected_long(0, SHARE)
    assert expected.sum() == round(SHARE * len(expected))
    assert np.array_equal(expected, setting.earlier.expected_long(0, SHARE))
    assert not np.any(expected & ~setting.earlier.expected_long(0, 2 * SHARE)), "a larger share holds the smaller one"
    traced = setting.draws.traced_of(np.arange(len(expected)))
    means = np.log(setting.draws.model.tables).mean(axis=1)
    assert means[traced[expected]].mean() > means[traced[~expected]].mean() + 0.8
    long = {int(name[1:8]) for name in setting.earlier.long_prompts(SHARE, int(expected.sum()))}
    assert long == set(np.flatnonzero(expected).tolist())
    taken = set(np.flatnonzero(short_of(setting, PREDICT, 10)._drawn).tolist())
    assert len(taken) == 10 * setting.target and not taken & long


def test_nothing_is_cut_short_by_prediction_so_nothing_is_biased(predicted: Setting) -> None:
    setting = predicted
    short = short_of(setting, PREDICT, 40).log
    long = long_of(setting, PREDICT, 200, setting.earlier.long_prompts(SHARE, 200 * 8)).log
    assert short.excess == [0] * 40 and short.deferred == [0] * 40
    assert short.settled == short.groups == [8] * 40
    # Drawn afresh from the same prompts, whatever the history said: the control differs by luck only.
    assert abs(mean(long.excess)) < 3.5 * np.std(long.excess) / np.sqrt(len(long))
    assert long.decoded == [t - 18 * 8 * GROUP for t in long.tokens], "all that was decoded is trained"
