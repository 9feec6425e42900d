"""Columns: bias over cycles, deferrals, common random numbers; and whole runs beside them."""

import dataclasses
import math

import numpy as np
import pytest

from rlplan.planner.choose.candidates.round_kinds import DeferralRule, LongKey, ShortKey
from rlplan.planner.costs.decode_costs import decode_cost
from rlplan.planner.costs.reward_costs import Executions, reward_cost
from rlplan.planner.costs.round_costs import RoundCosts
from rlplan.planner.costs.update_costs import train_cost
from rlplan.planner.lengths.draws import Draws, prompt_name
from rlplan.planner.lengths.length_model import fit_lengths
from rlplan.planner.simulate.columns.round_log import RoundLog, mean, standard_error
from rlplan.planner.simulate.columns.whole_columns import (
    LongColumn,
    Setting,
    ShortColumn,
    expected_deferrals,
    long_draws,
)
from rlplan.planner.simulate.whole_run import simulate_run
from rlplan.plans.schema.sections.layouts import EngineLayout
from rlplan.rounds.round_spec import RoundSpec
from rlplan.rounds.timeouts import TimeoutSpec

TARGET, GROUP, CAP, CUTOFF = 4, 4, 1024, 200
LAYOUT = EngineLayout(1, 2)


@pytest.fixture
def setting(make_trace, make_profile) -> Setting:
    profile = make_profile()
    decode = {r.layout: decode_cost(profile, r) for r in profile.rollout}
    draws = Draws(fit_lengths(make_trace()), 0, 8)
    return Setting(TARGET, GROUP, CAP, False, decode, reward_cost(profile.reward, 1), draws)


def ratio(setting: Setting, key: ShortKey, short_rounds: int, long_rounds: int) -> tuple[float, float]:
    """(trained over unconditioned length of a cycle, standard error)."""
    short = ShortColumn(setting, key)
    short.extend(short_rounds)
    long = LongColumn(setting, LongKey(key.deferral, 1, key.layout))
    pool = short.deferred_prompts
    if key.mode == "exact":
        pool = long_draws(setting.draws, GROUP, key.cutoff_tokens, long_rounds * TARGET)
    long.extend(long_rounds, pool)
    share = expected_deferrals(short, setting) / TARGET
    samples = GROUP * TARGET * (1 + share) * setting.draws.model.mean_tokens
    excess = mean(short.log.excess) + share * mean(long.log.excess)
    error = math.hypot(standard_error(short.log.excess), share * standard_error(long.log.excess))
    return 1 + excess / samples, error / samples


def test_exact_trains_on_the_unconditioned_mean_while_race_and_defer_fall_short(setting: Setting) -> None:
    exact, error = ratio(setting, ShortKey("exact", 7, GROUP, CUTOFF, LAYOUT), 500, 300)
    assert error < 0.02
    assert abs(exact - 1) < 3.5 * error
    race, _ = ratio(setting, ShortKey("race", 5, 6, None, LAYOUT), 150, 40)
    defer, _ = ratio(setting, ShortKey("defer", 5, GROUP, None, LAYOUT), 150, 40)
    assert race < defer < 0.97
    assert race < 0.8


def test_the_expected_deferrals_are_those_that_are_simulated(setting: Setting) -> None:
    for key in (ShortKey("exact", 6, GROUP, CUTOFF, LAYOUT), ShortKey("race", 5, 6, None, LAYOUT)):
        column = ShortColumn(setting, key)
        column.extend(300)
        counted = [float(d) for d in column.log.deferred]
        error = standard_error(counted)
        assert abs(mean(counted) - expected_deferrals(column, setting)) <= 3.5 * error + 1e-9
    sync = ShortColumn(setting, ShortKey("sync", TARGET, GROUP, None, LAYOUT))
    sync.extend(3)
    assert sync.log.deferred == [0, 0, 0] and sync.log.excess == [0, 0, 0]


def test_the_deferred_of_exact_are_found_without_simulating(setting: Setting) -> None:
    column = ShortColumn(setting, ShortKey("exact", 7, GROUP, CUTOFF, LAYOUT))
    column.extend(300)
    scanned = long_draws(setting.draws, GROUP, CUTOFF, 300)
    assert len(set(scanned)) == 300

    def hardness(prompts: list[str]) -> float:
        tables = setting.draws.model.tables.mean(axis=1)
        return float(np.mean([tables[setting.draws.traced(int(p[1:8]))] for p in prompts]))

    assert hardness(scanned) == pytest.approx(hardness(column.deferred_prompts), rel=0.15)


def test_extending_a_column_in_parts_gives_the_same_rounds(setting: Setting) -> None:
    key = ShortKey("exact", 7, GROUP, CUTOFF, LAYOUT)
    once, parts = ShortColumn(setting, key), ShortColumn(setting, key)
    once.extend(9)
    for rounds in (2, 2, 7, 9):
        parts.extend(rounds)
    assert once.log == parts.log
    law = LongKey(key.deferral, 2, LAYOUT)
    pool = long_draws(setting.draws, GROUP, CUTOFF, 40)
    whole, grown = LongColumn(setting, law), LongColumn(setting, law)
    whole.extend(8, pool)
    for rounds in (3, 8):
        grown.extend(rounds, pool)
    assert whole.log == grown.log


@pytest.mark.parametrize("dynamic", [False, True])
def test_columns_by_the_machines_themselves_and_compiled_are_the_same(setting: Setting, dynamic: bool) -> None:
    executions = Executions((0.01, 0.2), (0.01, 0.02, 0.5), 0.4, 0.3)
    reward = dataclasses.replace(
        setting.reward, executions=executions if dynamic else None, timeout=TimeoutSpec(0.4, 0.05, 1.5)
    )

    def logs(reference: bool) -> list[RoundLog]:
        mine = dataclasses.replace(setting, reference=reference, dynamic_sampling=dynamic, reward=reward)
        found = []
        for key in (
            ShortKey("exact", 5, GROUP, CUTOFF, LAYOUT),
            ShortKey("race", 5, 6, None, LAYOUT),
            ShortKey("sync", TARGET, GROUP, None, LAYOUT),
        ):
            short, long = ShortColumn(mine, key), LongColumn(mine, LongKey(key.deferral, 2, LAYOUT))
            short.extend(60)
            long.extend(12, long_draws(mine.draws, GROUP, CUTOFF, 20))
            found += [short.log, long.log]
        return found

    assert logs(True) == logs(False)


def test_layouts_of_a_law_are_compared_on_the_same_lengths(setting: Setting) -> None:
    columns = [ShortColumn(setting, ShortKey("sync", TARGET, GROUP, None, layout)) for layout in setting.decode]
    for column in columns:
        column.extend(5)
    assert columns[0].log.tokens == columns[1].log.tokens
    assert columns[0].log.rollout_s != columns[1].log.rollout_s


def test_a_small_pool_is_reused_with_fresh_luck(setting: Setting) -> None:
    column = LongColumn(setting, LongKey(DeferralRule("exact", 0, 0, CUTOFF), 1, LAYOUT))
    column.extend(6, long_draws(setting.draws, GROUP, CUTOFF, 2))
    assert column.log.groups == [TARGET] * 6
    assert len(set(column.log.tokens)) > 3


def test_every_block_of_synthetic_prompts_holds_each_traced_prompt_once(setting: Setting) -> None:
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


def test_a_whole_run_agrees_with_the_columns_that_it_is_made_of(setting: Setting, make_profile) -> None:
    train = train_cost(make_profile().train[2])
    short_key = ShortKey("exact", 7, GROUP, CUTOFF, LAYOUT)
    short, long = ShortColumn(setting, short_key), LongColumn(setting, LongKey(short_key.deferral, 1, LAYOUT))
    short.extend(300)
    long.extend(150, long_draws(setting.draws, GROUP, CUTOFF, 150 * TARGET))
    share = expected_deferrals(short, setting) / TARGET
    steady = (mean(short.log.step_s(train)) + share * mean(long.log.step_s(train))) / (GROUP * TARGET * (1 + share))
    cost = setting.decode[LAYOUT]
    spec = RoundSpec("exact", TARGET, GROUP, CAP, short_prompts=7, short_samples=GROUP, cutoff_tokens=CUTOFF)
    kind = RoundCosts(cost, cost.max_sequences, train)
    run = simulate_run(spec, kind, kind, setting.reward, setting.draws, steps=400, prompts=1000)
    assert run.seconds_per_sample() == pytest.approx(steady, rel=0.06)
    assert run.long_share() == pytest.approx(share / (1 + share), abs=0.04)
    assert run.length_ratio() == pytest.approx(1.0, abs=0.06)
    assert all(s.samples == s.groups * GROUP for s in run.steps)
    assert not run.settling or run.settling[-1].deferred == 0
