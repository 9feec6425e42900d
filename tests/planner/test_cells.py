"""Large rounds by their cells: beside whole rounds of the same kind, in every mode."""

import dataclasses
from collections.abc import Callable

import pytest

from rlplan.planner.candidates import LongKey, ShortKey, defers
from rlplan.planner.cell_columns import long_column, short_column
from rlplan.planner.cells import LEAST_WORKERS, cell_of, reward_share, sized_cell
from rlplan.planner.columns import LongColumn, Setting, ShortColumn, long_draws
from rlplan.planner.composed_log import deal
from rlplan.planner.costs import DecodeCost, LayoutKey, RewardCost, TrainCost
from rlplan.planner.draws import Draws
from rlplan.planner.executions import Executions
from rlplan.planner.length_model import LengthModel, fit_lengths
from rlplan.planner.noise import spread_of
from rlplan.planner.round_log import RoundLog, mean
from rlplan.rounds.timeouts import TimeoutSpec

from .conftest import heavy_trace

TARGET, GROUP, CAP, CELL = 1024, 4, 1024, 256
LAYOUT = LayoutKey(2, 32)
COST = DecodeCost(LAYOUT, 7e-3, 3e-5, 2e-8, 2e-4, 1e-5, 60_000, 512, 0.15, 1)
TRAIN = TrainCost(dp=64, micro_batch_tokens=2048, step_s=0.05, per_token_s=2e-6, per_token_squared_s=0.0)
REWARD = RewardCost(workers=64, per_sample_s=1e-3, delay_s=0.01)


@pytest.fixture(scope="module")
def model() -> LengthModel:
    return fit_lengths(heavy_trace())


@pytest.fixture
def make_setting(model: LengthModel) -> Callable[..., Setting]:
    def make(**changes) -> Setting:
        draws = Draws(model, 0, 2 * GROUP)
        known = Setting(TARGET, GROUP, CAP, False, {LAYOUT: COST}, REWARD, draws, cell_prompts=CELL)
        return dataclasses.replace(known, **changes)

    return make


def logs(setting: Setting, key: ShortKey, rounds: int) -> list[RoundLog]:
    """Short rounds, and the long ones of what they put off."""
    short = short_column(setting, key)
    short.extend(rounds)
    if not defers(key.law, setting.target):
        return [short.log]
    wanted = rounds * setting.simulated_target // 2
    if key.mode == "exact":
        pool = long_draws(setting.draws, GROUP, key.cutoff, wanted)
    else:
        pool = setting.earlier.long_prompts(key.long_share, wanted) if key.mode == "predict" else short.deferred_prompts
    long = long_column(setting, LongKey(key.law, 1, LAYOUT))
    long.extend(rounds // 2, pool)
    return [short.log, long.log]


def assert_close(setting: Setting, key: ShortKey, rounds: int = 120, within: float = 0.01) -> None:
    whole = dataclasses.replace(setting, cell_prompts=0)
    for cells, full in zip(logs(setting, key, rounds), logs(whole, key, rounds), strict=True):
        assert len(cells) == len(full)
        mine, its = (spread_of([(1.0, log.step_s(TRAIN), [0.0] * len(log))]) for log in (cells, full))
        assert mine.mean == pytest.approx(its.mean, rel=within)
        assert mine.p95 == pytest.approx(its.p95, rel=1.5 * within)
        for name in ("tokens", "groups", "settled"):
            assert mean(getattr(cells, name)) == pytest.approx(mean(getattr(full, name)), rel=within), name


@pytest.mark.parametrize(
    "key",
    [
        ShortKey("sync", TARGET, GROUP, 0, LAYOUT),
        ShortKey("race", 1280, 6, 0, LAYOUT),
        ShortKey("race", TARGET + 1, 5, 0, LAYOUT),
        ShortKey("defer", 1152, GROUP, 0, LAYOUT),
        ShortKey("exact", 1900, GROUP, 200, LAYOUT),
        ShortKey("predict", TARGET, GROUP, 0, LAYOUT, 0.2),
    ],
    ids=lambda key: f"{key.mode}-{key.prompts}",
)
def test_rounds_by_cells_take_as_long_and_train_as_much_as_whole_ones(make_setting, key: ShortKey) -> None:
    assert_close(make_setting(), key)


@pytest.mark.parametrize("mode", ["sync", "exact"])
def test_and_so_they_do_under_dynamic_sampling_where_rows_are_refilled(make_setting, mode: str) -> None:
    key = ShortKey("sync", TARGET, GROUP, 0, LAYOUT) if mode == "sync" else ShortKey("exact", 1500, GROUP, 200, LAYOUT)
    assert_close(make_setting(dynamic_sampling=True), key, rounds=60)


def test_a_race_by_cells_is_as_biased_and_puts_off_prompts_as_hard(make_setting, model: LengthModel) -> None:
    key = ShortKey("race", 1280, 6, 0, LAYOUT)

    def seen(setting: Setting) -> tuple[float, float, float]:
        column = short_column(setting, key)
        column.extend(60)
        hardness = [model.tables[setting.draws.traced(int(name[1:8]))].mean() for name in column.deferred_prompts]
        return mean(column.log.excess), mean(hardness), mean(column.log.deferred)

    cells, whole = seen(make_setting()), seen(make_setting(cell_prompts=0))
    assert cells[0] == pytest.approx(whole[0], rel=0.02)
    assert cells[1] == pytest.approx(whole[1], rel=0.02)
    assert cells[2] == pytest.approx(whole[2], rel=0.001) == 256


def test_engines_that_are_handed_over_hide_as_much_of_the_update_by_cells(make_setting) -> None:
    train = dataclasses.replace(TRAIN, per_token_s=6e-6)
    key = LongKey(ShortKey("exact", 1900, GROUP, 200, LAYOUT).law, 1, LAYOUT, 0, 0.5)

    def update_s(setting: Setting) -> tuple[float, float]:
        column = long_column(setting, key)
        column.extend(24, long_draws(setting.draws, GROUP, 200, 24 * setting.simulated_target))
        return column.log.train_s(train), train.update_s(mean(column.log.tokens), 0.0)

    (cells, cells_all), (whole, whole_all) = update_s(make_setting()), update_s(make_setting(cell_prompts=0))
    assert whole < 0.95 * whole_all
    assert cells / cells_all == pytest.approx(whole / whole_all, abs=0.01)


def test_rounds_of_up_to_twice_the_prompts_of_a_cell_are_simulated_whole(make_setting) -> None:
    for target, kinds in ((2 * CELL, (ShortColumn, LongColumn)), (2 * CELL + 1, None)):
        setting = make_setting(target=target)
        key = ShortKey("exact", 2 * target, GROUP, 200, LAYOUT)
        made = (short_column(setting, key), long_column(setting, LongKey(key.law, 1, LAYOUT)))
        assert (tuple(map(type, made)) == kinds) == (kinds is not None)


@pytest.mark.parametrize("engines, target", [(32, 1024), (4096, 16384), (508, 2032), (1000, 5000), (127, 2048)])
def test_a_cell_is_as_crowded_as_its_round(engines: int, target: int) -> None:
    cell = sized_cell(engines, target, 8, 256)
    assert not cell.whole and cell.engines >= 8
    assert cell.trained / cell.engines == pytest.approx(target / engines, rel=0.004)
    assert cell.count * cell.trained == pytest.approx(target, rel=0.15)


def test_large_rounds_on_few_engines_are_simulated_whole_but_fewer_of_them(make_setting) -> None:
    few = LayoutKey(2, 8)
    cost = dataclasses.replace(COST, key=few)
    setting = make_setting(decode={few: cost}, target=4096)
    key = ShortKey("sync", 4096, GROUP, 0, few)
    assert cell_of(setting, key).whole
    column = short_column(setting, key)
    column.extend(24)
    assert len(column.log) == 24
    assert len(set(column.log.rollout_s)) == 24 * 2 * CELL // 4096 == 3


def test_groups_that_race_under_dynamic_sampling_are_simulated_whole(make_setting) -> None:
    race = ShortKey("race", 1280, 6, 0, LAYOUT)
    assert cell_of(make_setting(dynamic_sampling=True), race).whole
    assert not cell_of(make_setting(), race).whole
    assert not cell_of(make_setting(dynamic_sampling=True), LongKey(race.law, 1, LAYOUT)).whole


@pytest.mark.parametrize("workers", [1, 5, 64, 100])
def test_the_shares_of_reward_workers_score_together_as_many_a_second(workers: int) -> None:
    executions = Executions((0.5, 1.0), (0.2, 30.0), 0.5, 0.1)
    reward = RewardCost(workers, 0.4, 60.0, executions, TimeoutSpec(20.0, 2.0, 1.5))
    for parts in (1.0, 3.9, 16.0):
        share = reward_share(reward, parts)
        assert parts * share.workers / share.mean_s() == pytest.approx(workers / reward.mean_s())
        assert share.mean_s() + share.delay_s == pytest.approx(reward.mean_s() + reward.delay_s)


def test_cells_of_executions_that_take_unlike_times_have_several_workers(make_setting) -> None:
    key = ShortKey("sync", TARGET, GROUP, 0, LAYOUT)
    unlike = RewardCost(2 * LEAST_WORKERS, 0.0, 0.0, Executions((0.1,), (0.2, 9.0), 0.5, 0.1), TimeoutSpec(10.0))
    assert cell_of(make_setting(), key).count == 4
    assert cell_of(make_setting(reward=unlike), key).count == 2


def test_every_cell_is_dealt_to_as_many_rounds_as_every_other() -> None:
    picks = deal(40, 16, 0, 100)
    assert picks.shape == (100, 16)
    assert {int((picks == cell).sum()) for cell in range(40)} == {40}
    assert (deal(40, 16, 0, 100) == picks).all() and deal(8, 16, 24, 64).shape == (40, 16)


def test_composed_rounds_stay_when_a_column_is_simulated_further(make_setting) -> None:
    column = short_column(make_setting(), ShortKey("exact", 1900, GROUP, 200, LAYOUT))
    column.extend(8)
    before = list(column.log.rollout_s)
    column.extend(4)
    column.extend(20)
    assert column.log.rollout_s[:8] == before and len(column.log) == 20


def test_what_the_mean_of_a_log_is_off_by_is_told_from_its_cells(make_setting) -> None:
    """The means of independent columns scatter by the standard error that each states."""
    key = ShortKey("race", 1280, 6, 0, LAYOUT)
    steps, stated, excess, stated_excess = [], [], [], []
    for seed in range(24):
        column = short_column(make_setting(draws=Draws(make_setting().draws.model, seed, 2 * GROUP)), key)
        column.extend(12)
        steps.append(mean(column.log.step_s(TRAIN)))
        stated.append(column.log.step_error(TRAIN))
        excess.append(mean(column.log.excess))
        stated_excess.append(column.log.excess_error())
    for values, errors in ((steps, stated), (excess, stated_excess)):
        middle = mean(values)
        scatter = (sum((value - middle) ** 2 for value in values) / (len(values) - 1)) ** 0.5
        assert 0.6 < scatter / mean(errors) < 1.6


def test_a_larger_step_draws_no_more_lengths(make_setting) -> None:
    def drawn(target: int) -> int:
        layout = LayoutKey(2, target // 32)
        setting = make_setting(target=target, decode={layout: dataclasses.replace(COST, key=layout)})
        short = short_column(setting, ShortKey("exact", 2 * target, GROUP, 200, layout))
        short.extend(24)
        return sum(chunk.nbytes for chunk in setting.draws._chunks.values())

    assert drawn(16 * TARGET) <= 1.1 * drawn(TARGET)
