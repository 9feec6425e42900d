"""Large rounds by their cells: beside whole rounds of the same kind, in every mode."""

import dataclasses
import math

import numpy as np
import pytest

from rlplan.planner.choose.candidates.round_kinds import LongKey, ShortKey, defers
from rlplan.planner.costs.decode_costs import DecodeCost
from rlplan.planner.costs.reward_costs import ExecutionTimes, RewardCost
from rlplan.planner.costs.update_costs import TrainCost
from rlplan.planner.lengths.draws import Draws
from rlplan.planner.lengths.length_model import fit_lengths
from rlplan.planner.simulate.columns.cell_columns import long_column, short_column
from rlplan.planner.simulate.columns.cells import LEAST_WORKERS, cell_of, reward_share, sized_cell
from rlplan.planner.simulate.columns.composed_columns import deal, latest_s
from rlplan.planner.simulate.columns.round_log import RoundLog, mean
from rlplan.planner.simulate.columns.step_noise import spread_of
from rlplan.planner.simulate.columns.whole_columns import LongColumn, Setting, ShortColumn, long_draws
from rlplan.plans.schema.levers import EngineLayout, UpdateLayout
from rlplan.rounds.timeouts import TimeoutSpec

from ...conftest import heavy_trace

TARGET, GROUP, CAP, CELL = 640, 4, 1024, 128
LAYOUT = EngineLayout(2, 40)
COST = DecodeCost(LAYOUT, 7e-3, 3e-5, 2e-8, 2e-4, 1e-5, 60_000, 512, 0.15, 1)
TRAIN = TrainCost(UpdateLayout(dp=64, micro_batch_tokens=2048), step_s=0.05, per_token_s=2e-6, per_token_squared_s=0.0)
REWARD = RewardCost(workers=64, per_sample_s=1e-3, delay_s=0.01)
MODEL = fit_lengths(heavy_trace())
RACE = ShortKey("race", 800, 6, None, LAYOUT)
EXACT = ShortKey("exact", 1190, GROUP, 200, LAYOUT)
SYNC = ShortKey("sync", TARGET, GROUP, None, LAYOUT)
PREDICT = ShortKey("predict", TARGET, GROUP, None, LAYOUT, 0.2)
WHOLE_ONLY = {"cell_prompts": 0}


def make_setting(seed: int = 0, **changes) -> Setting:
    draws = Draws(MODEL, seed, 2 * GROUP)
    known = Setting(TARGET, GROUP, CAP, False, {LAYOUT: COST}, REWARD, draws, cell_prompts=CELL)
    return dataclasses.replace(known, **changes)


def logs(setting: Setting, key: ShortKey, rounds: int) -> list[RoundLog]:
    """Short rounds, and the long ones of what they put off."""
    short = short_column(setting, key)
    short.extend(rounds)
    if not defers(key.deferral, setting.target):
        return [short.log]
    wanted = rounds * setting.simulated_target // 2
    if key.mode == "exact":
        pool = long_draws(setting.draws, GROUP, key.cutoff_tokens, wanted)
    else:
        pool = setting.earlier.long_prompts(key.long_share, wanted) if key.mode == "predict" else short.deferred_prompts
    long = long_column(setting, LongKey(key.deferral, 1, LAYOUT))
    long.extend(rounds // 2, pool)
    return [short.log, long.log]


@pytest.mark.parametrize("rounds", [40, pytest.param(100, marks=pytest.mark.search)])
@pytest.mark.parametrize(
    ("key", "dynamic"),
    [
        (RACE, False),
        (ShortKey("defer", 720, GROUP, None, LAYOUT), False),
        (EXACT, False),
        (EXACT._replace(prompts=700), False),
        (PREDICT, False),
        (EXACT._replace(prompts=940), True),
    ],
    ids=lambda value: f"{value.mode}-{value.prompts}" if isinstance(value, ShortKey) else "",
)
def test_rounds_by_cells_take_as_long_and_train_as_much(key: ShortKey, dynamic: bool, rounds: int) -> None:
    """Within 1 % (p95: 2 %), or within three standard errors where so few rounds tell no better."""
    settings = (make_setting(dynamic_sampling=dynamic), make_setting(dynamic_sampling=dynamic, **WHOLE_ONLY))
    for cells, full in zip(*(logs(setting, key, rounds) for setting in settings), strict=True):
        assert len(cells) == len(full)
        mine, its = (spread_of([(1.0, log.step_s(TRAIN), [0.0] * len(log))]) for log in (cells, full))
        noise_s = 3 * math.hypot(cells.step_error(TRAIN), full.step_error(TRAIN))
        assert noise_s < (0.08 if rounds == 100 else 0.12) * its.mean
        assert mine.mean == pytest.approx(its.mean, abs=max(0.01 * its.mean, noise_s))
        # Waves of refills come in whole numbers, so that a quantile of so few rounds jumps.
        assert dynamic or mine.p95 == pytest.approx(its.p95, abs=max(0.02 * its.p95, 2 * noise_s))
        for name in ("tokens", "groups", "settled"):
            off = 0.015 if rounds == 100 else 0.025
            assert mean(getattr(cells, name)) == pytest.approx(mean(getattr(full, name)), rel=off), name


def test_a_race_by_cells_has_the_same_bias_and_difficulty() -> None:
    def seen(setting: Setting) -> tuple[float, float, float]:
        column = short_column(setting, RACE)
        column.extend(60)
        hardness = [MODEL.tables[setting.draws.traced(int(name[1:8]))].mean() for name in column.deferred_prompts]
        return mean(column.log.excess), mean(hardness), mean(column.log.deferred)

    cells, whole = seen(make_setting()), seen(make_setting(**WHOLE_ONLY))
    assert cells[:2] == pytest.approx(whole[:2], rel=0.02)
    assert cells[2] == pytest.approx(whole[2], rel=0.001) == 160


def test_a_race_by_cells_cuts_as_many_of_its_trained_samples() -> None:
    capped = {"cap_tokens": 64, "draws": Draws(fit_lengths(heavy_trace(), 64), 0, 2 * GROUP)}
    columns = [short_column(make_setting(**capped, **how), RACE) for how in ({}, WHOLE_ONLY)]
    for column in columns:
        column.extend(30)
    cells, whole = (mean(column.log.cut) for column in columns)
    assert cells == pytest.approx(whole, rel=0.1)
    assert 100 < whole < 0.9 * TARGET * GROUP * (capped["draws"].model.tables >= 64).mean()


def test_handed_over_engines_hide_as_much_of_the_update_by_cells() -> None:
    train = dataclasses.replace(TRAIN, per_token_s=6e-6)
    key = LongKey(EXACT.deferral, 1, LAYOUT, 0, 0.5)

    def exposed(**changes) -> float:
        """Share of the update that is left after the round, mean over some luck: it scatters by a fifth."""
        shares = []
        for seed in range(3):
            setting = make_setting(seed, **changes)
            column = long_column(setting, key)
            column.extend(24, long_draws(setting.draws, GROUP, 200, 24 * setting.simulated_target))
            shares.append(column.log.train_s(train) / train.update_s(mean(column.log.tokens), 0.0))
        return mean(shares)

    whole = exposed(**WHOLE_ONLY)
    assert whole < 0.95
    assert exposed() == pytest.approx(whole, abs=0.01)


@pytest.mark.parametrize("engines, target", [(32, 1024), (4096, 16384), (508, 2032), (1000, 5000), (127, 2048)])
def test_a_cell_is_as_crowded_as_its_round(engines: int, target: int) -> None:
    cell = sized_cell(engines, target, 8, 256)
    assert not cell.whole and cell.engines >= 8
    assert cell.trained / cell.engines == pytest.approx(target / engines, rel=0.004)
    assert cell.count * cell.trained == pytest.approx(target, rel=0.15)


FEW = EngineLayout(2, 8)
UNLIKE = RewardCost(2 * LEAST_WORKERS, 0.0, 0.0, ExecutionTimes((0.1,), (0.2, 9.0), 0.5, 0.1), TimeoutSpec(10.0))
LONG = LongKey(RACE.deferral, 1, LAYOUT)


@pytest.mark.parametrize(
    ("key", "changes", "count"),
    [
        (SYNC, {}, 5),
        (SYNC, {"reward": UNLIKE}, 2),  # several workers for executions that take unlike times
        (EXACT, {"target": 2 * CELL}, 1),
        (EXACT, {"target": 2 * CELL + 1}, 2),
        (SYNC._replace(layout=FEW), {"target": 1024}, 1),  # on few engines
        (RACE, {}, 5),
        (RACE, {"dynamic_sampling": True}, 1),  # refills depend on all groups
        (LONG, {"dynamic_sampling": True}, 5),
        (LONG, {"target": 2 * CELL}, 1),
    ],
)
def test_a_round_has_as_many_cells_as_can_stand_for_it(key: ShortKey | LongKey, changes, count: int) -> None:
    setting = make_setting(decode={LAYOUT: COST, FEW: dataclasses.replace(COST, key=FEW)}, **changes)
    cell = cell_of(setting, key)
    assert (cell.count, cell.whole) == (count, count == 1)
    if setting.target == 2 * CELL:
        of, whole = (short_column, ShortColumn) if isinstance(key, ShortKey) else (long_column, LongColumn)
        assert type(of(setting, key)) is whole


def test_large_rounds_on_few_engines_are_simulated_whole_but_fewer() -> None:
    setting = make_setting(decode={FEW: dataclasses.replace(COST, key=FEW)}, target=1024)
    column = short_column(setting, ShortKey("sync", 1024, GROUP, None, FEW))
    column.extend(24)
    assert len(column.log) == 24
    assert len(set(column.log.rollout_s)) == 24 * 2 * CELL // 1024 == 6


@pytest.mark.parametrize("workers", [1, 5, 64, 100])
def test_the_shares_of_reward_workers_score_as_many_a_second(workers: int) -> None:
    executions = ExecutionTimes((0.5, 1.0), (0.2, 30.0), 0.5, 0.1)
    reward = RewardCost(workers, 0.4, 60.0, executions, TimeoutSpec(20.0, 2.0, 1.5))
    for parts in (1.0, 3.9, 16.0):
        share = reward_share(reward, parts)
        assert parts * share.workers / share.mean_s() == pytest.approx(workers / reward.mean_s())
        assert share.mean_s() + share.delay_s == pytest.approx(reward.mean_s() + reward.delay_s)


def test_every_cell_is_dealt_to_as_many_rounds_as_every_other() -> None:
    picks = deal(40, 16, 100)
    assert picks.shape == (100, 16)
    assert {int((picks == cell).sum()) for cell in range(40)} == {40}
    assert (deal(40, 16, 100) == picks).all()


@pytest.mark.parametrize("key", [EXACT, EXACT._replace(prompts=700), RACE, SYNC], ids=lambda k: f"{k.mode}-{k.prompts}")
def test_columns_of_unlike_length_are_compared_on_the_same_cells(key: ShortKey) -> None:
    """However a column was simulated further, its first rounds are those of a column that is as long as that."""
    long, short, direct = (short_column(make_setting(), key) for _ in range(3))
    for rounds in (8, 4, 13, 20):
        long.extend(rounds)
    short.extend(8)
    direct.extend(20)
    assert long.log.phases_s(TRAIN, 20) == direct.log.phases_s(TRAIN, 20) and len(long.log) == 20
    assert long.first(8).phases_s(TRAIN, 8) == short.log.phases_s(TRAIN, 8) != long.log.phases_s(TRAIN, 8)
    assert long.log.phases_s(TRAIN, 20) == long.first(20).phases_s(TRAIN, 20)
    assert long.deferred_prompts[: len(short.deferred_prompts)] == short.deferred_prompts or key.mode == "race"


def test_means_of_independent_columns_scatter_by_what_they_state() -> None:
    steps, excess = [], []
    for seed in range(24):
        column = short_column(make_setting(seed), RACE)
        column.extend(12)
        steps.append((mean(column.log.step_s(TRAIN)), column.log.step_error(TRAIN)))
        excess.append((mean(column.log.excess), column.log.excess_error()))
    for rows in (steps, excess):
        values, errors = zip(*rows, strict=True)
        assert 0.6 < np.std(values, ddof=1) / mean(errors) < 1.6


def test_a_larger_step_draws_no_more_lengths() -> None:
    def drawn(target: int) -> int:
        layout = EngineLayout(2, target // 16)
        setting = make_setting(target=target, decode={layout: dataclasses.replace(COST, key=layout)})
        short = short_column(setting, ShortKey("exact", 2 * target, GROUP, 200, layout))
        short.extend(24)
        return sum(chunk.nbytes for chunk in setting.draws._chunks.values())

    assert drawn(16 * TARGET) <= 1.5 * drawn(TARGET)


def test_a_composed_round_waits_for_its_last_token_and_its_last_reward():
    log = RoundLog(0.0)
    log.rollout_s, log.reward_s = [10.0, 12.0, 3.0], [9.0, 1.0, 0.5]
    tokens, rewards = latest_s(log, np.array([[0, 1], [1, 2]]))
    assert (tokens.tolist(), rewards.tolist()) == ([12.0, 12.0], [19.0, 13.0])
