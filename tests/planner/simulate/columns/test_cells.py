"""Large rounds by their cells: beside whole rounds of the same kind, in every mode."""

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import pytest

from rlplan.planner.choose.candidates import LongKey, ShortKey, defers
from rlplan.planner.costs.decode_costs import DecodeCost
from rlplan.planner.costs.reward_costs import Executions, RewardCost
from rlplan.planner.costs.step_noise import spread_of
from rlplan.planner.costs.update_costs import TrainCost
from rlplan.planner.lengths.draws import Draws
from rlplan.planner.lengths.length_model import LengthModel, fit_lengths
from rlplan.planner.simulate.columns.cell_columns import long_column, short_column
from rlplan.planner.simulate.columns.cells import LEAST_WORKERS, cell_of, on_engines, reward_share, sized_cell
from rlplan.planner.simulate.columns.composed_log import deal
from rlplan.planner.simulate.columns.round_log import RoundLog, mean
from rlplan.planner.simulate.columns.whole_columns import LongColumn, Setting, ShortColumn, long_draws
from rlplan.planner.simulate.one_round import play
from rlplan.planner.simulate.round_arrays import FATES, Luck, Played
from rlplan.plans.schema.sections.layouts import EngineLayout, UpdateLayout
from rlplan.rounds.machines.outcome import Fate
from rlplan.rounds.round_spec import RoundKind
from rlplan.rounds.timeouts import TimeoutSpec

from ...conftest import heavy_trace

TARGET, GROUP, CAP, CELL = 640, 4, 1024, 128
LAYOUT = EngineLayout(2, 40)
COST = DecodeCost(LAYOUT, 7e-3, 3e-5, 2e-8, 2e-4, 1e-5, 60_000, 512, 0.15, 1)
TRAIN = TrainCost(UpdateLayout(dp=64, micro_batch_tokens=2048), step_s=0.05, per_token_s=2e-6, per_token_squared_s=0.0)
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
    if not defers(key.law, setting.target) or key.prompts == TARGET + 1:
        return [short.log]
    wanted = rounds * setting.simulated_target // 2
    if key.mode == "exact":
        pool = long_draws(setting.draws, GROUP, key.cutoff_tokens, wanted)
    else:
        pool = setting.earlier.long_prompts(key.long_share, wanted) if key.mode == "predict" else short.deferred_prompts
    long = long_column(setting, LongKey(key.law, 1, LAYOUT))
    long.extend(rounds // 2, pool)
    return [short.log, long.log]


def assert_close(setting: Setting, key: ShortKey, rounds: int, p95: bool = True) -> None:
    """Within 1 % (p95: 2 %), or within three standard errors where so few rounds tell no better."""
    whole = dataclasses.replace(setting, cell_prompts=0)
    for cells, full in zip(logs(setting, key, rounds), logs(whole, key, rounds), strict=True):
        assert len(cells) == len(full)
        mine, its = (spread_of([(1.0, log.step_s(TRAIN), [0.0] * len(log))]) for log in (cells, full))
        noise_s = 3 * math.hypot(cells.step_error(TRAIN), full.step_error(TRAIN))
        assert noise_s < 0.08 * its.mean
        assert mine.mean == pytest.approx(its.mean, abs=max(0.01 * its.mean, noise_s))
        assert not p95 or mine.p95 == pytest.approx(its.p95, abs=max(0.02 * its.p95, 2 * noise_s))
        for name in ("tokens", "groups", "settled"):
            assert mean(getattr(cells, name)) == pytest.approx(mean(getattr(full, name)), rel=0.015), name


@pytest.mark.parametrize(
    "key",
    [
        ShortKey("race", 800, 6, None, LAYOUT),
        ShortKey("defer", 720, GROUP, None, LAYOUT),
        ShortKey("exact", 1190, GROUP, 200, LAYOUT),
        ShortKey("exact", 700, GROUP, 200, LAYOUT),
        ShortKey("predict", TARGET, GROUP, None, LAYOUT, 0.2),
    ],
    ids=lambda key: f"{key.mode}-{key.prompts}",
)
def test_rounds_by_cells_take_as_long_and_train_as_much_as_whole_ones(make_setting, key: ShortKey) -> None:
    assert_close(make_setting(), key, 100)


def test_and_so_they_do_where_dynamic_sampling_refills_the_row(make_setting) -> None:
    # Waves of refills come in whole numbers, so that a quantile of so few rounds jumps.
    assert_close(make_setting(dynamic_sampling=True), ShortKey("exact", 940, GROUP, 200, LAYOUT), 120, p95=False)


# 16 engines and samples of four: prompt p is on engines 4 (p mod 4) to 4 (p mod 4) + 3, a cell of its own.
SIDES = 4
TIGHT = dataclasses.replace(COST, key=EngineLayout(2, 16), kv_capacity_tokens=1100)
MANY = RewardCost(workers=1000, per_sample_s=0.2, delay_s=0.3)


@pytest.fixture(scope="module")
def luck() -> Luck:
    rng = np.random.default_rng(5)
    lengths = np.exp(rng.normal(4.8, 0.7, (64, 1)) + rng.normal(0, 0.7, (64, 4)))
    tokens = np.full(64, 18, dtype=np.int32)
    return Luck(np.clip(lengths, 1, CAP).astype(np.int32), tokens, CAP, 60.0)


def play_sides(round_kind: RoundKind, luck: Luck, targets: list[int]) -> list[Played]:
    """The four cells of a round, each with the prompts that are on its engines."""
    found = []
    for side, target in enumerate(targets):
        lengths, tokens = luck.lengths[side::SIDES], luck.prompt_tokens[side::SIDES]
        mine = dataclasses.replace(luck, lengths=lengths, prompt_tokens=tokens)
        part = dataclasses.replace(round_kind, prompts=round_kind.prompts // SIDES, target=target)
        found.append(play(part, mine, on_engines(TIGHT, 4), MANY, 16))
    return found


def test_a_plain_round_ends_with_the_last_of_its_cells(luck: Luck) -> None:
    round_kind = RoundKind("short", 64, 64, 4, 4, CAP)
    whole, cells = play(round_kind, luck, TIGHT, MANY, 16), play_sides(round_kind, luck, [16] * SIDES)
    assert whole.times.preemptions == sum(cell.times.preemptions for cell in cells) > 0
    assert whole.times.decode_end_s == max(cell.times.decode_end_s for cell in cells)
    assert whole.times.end_s == max(cell.times.end_s for cell in cells)
    assert whole.times.decoded_tokens == sum(cell.times.decoded_tokens for cell in cells)


def test_a_race_ends_with_the_last_needed_of_the_groups_of_all_cells(luck: Luck) -> None:
    round_kind = RoundKind("short", 64, 48, 3, 4, CAP)
    whole, cells = play(round_kind, luck, TIGHT, MANY, 16), play_sides(round_kind, luck, [16] * SIDES)
    ready = np.sort(np.concatenate([cell.ready_s for cell in cells]))
    assert whole.times.end_s == ready[47] < ready[48]
    trained = {side: np.flatnonzero(played.ready_s <= ready[47]) for side, played in enumerate(cells)}
    assert sorted(SIDES * place + side for side, places in trained.items() for place in places) == sorted(
        np.flatnonzero(whole.fate == FATES[Fate.TRAINED])
    )


def test_an_exact_round_ends_when_the_draws_that_count_are_classified_in_every_cell(luck: Luck) -> None:
    cutoff_tokens, counting = 300, 44
    accepted = luck.lengths.max(axis=1) <= cutoff_tokens
    accepted[counting - SIDES : counting] = True  # each cell's last draw that counts is short
    lengths = np.where(accepted[:, None], np.minimum(luck.lengths, cutoff_tokens), luck.lengths)
    mine = dataclasses.replace(luck, lengths=lengths.astype(np.int32))
    round_kind = RoundKind("short", 64, int(accepted[:counting].sum()), 4, 4, CAP, cutoff_tokens)
    whole = play(round_kind, mine, TIGHT, MANY, 16)
    cells = play_sides(round_kind, mine, [int(accepted[side:counting:SIDES].sum()) for side in range(SIDES)])
    assert (whole.fate == FATES[Fate.DEFERRED]).sum() > 0 and (whole.fate == FATES[Fate.RETURNED]).sum() > 0
    assert whole.times.decode_end_s == max(cell.times.decode_end_s for cell in cells)
    for fate in (Fate.TRAINED, Fate.DEFERRED):
        assert (whole.fate == FATES[fate]).sum() == sum((cell.fate == FATES[fate]).sum() for cell in cells)


def test_a_race_by_cells_is_as_biased_and_puts_off_prompts_as_hard(make_setting, model: LengthModel) -> None:
    key = ShortKey("race", 800, 6, None, LAYOUT)

    def seen(setting: Setting) -> tuple[float, float, float]:
        column = short_column(setting, key)
        column.extend(60)
        hardness = [model.tables[setting.draws.traced(int(name[1:8]))].mean() for name in column.deferred_prompts]
        return mean(column.log.excess), mean(hardness), mean(column.log.deferred)

    cells, whole = seen(make_setting()), seen(make_setting(cell_prompts=0))
    assert cells[0] == pytest.approx(whole[0], rel=0.02)
    assert cells[1] == pytest.approx(whole[1], rel=0.02)
    assert cells[2] == pytest.approx(whole[2], rel=0.001) == 160


def test_engines_that_are_handed_over_hide_as_much_of_the_update_by_cells(make_setting) -> None:
    train = dataclasses.replace(TRAIN, per_token_s=6e-6)
    key = LongKey(ShortKey("exact", 1190, GROUP, 200, LAYOUT).law, 1, LAYOUT, 0, 0.5)

    def exposed(**changes) -> float:
        """Share of the update that is left after the round, mean over some luck: it scatters by a fifth."""
        shares = []
        for seed in range(3):
            setting = make_setting(draws=Draws(make_setting().draws.model, seed, 2 * GROUP), **changes)
            column = long_column(setting, key)
            column.extend(24, long_draws(setting.draws, GROUP, 200, 24 * setting.simulated_target))
            shares.append(column.log.train_s(train) / train.update_s(mean(column.log.tokens), 0.0))
        return mean(shares)

    whole = exposed(cell_prompts=0)
    assert whole < 0.95
    assert exposed() == pytest.approx(whole, abs=0.01)


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
    few = EngineLayout(2, 8)
    cost = dataclasses.replace(COST, key=few)
    setting = make_setting(decode={few: cost}, target=1024)
    key = ShortKey("sync", 1024, GROUP, None, few)
    assert cell_of(setting, key).whole
    column = short_column(setting, key)
    column.extend(24)
    assert len(column.log) == 24
    assert len(set(column.log.rollout_s)) == 24 * 2 * CELL // 1024 == 6


def test_groups_that_race_under_dynamic_sampling_are_simulated_whole(make_setting) -> None:
    race = ShortKey("race", 800, 6, None, LAYOUT)
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
    key = ShortKey("sync", TARGET, GROUP, None, LAYOUT)
    unlike = RewardCost(2 * LEAST_WORKERS, 0.0, 0.0, Executions((0.1,), (0.2, 9.0), 0.5, 0.1), TimeoutSpec(10.0))
    assert cell_of(make_setting(), key).count == 5
    assert cell_of(make_setting(reward=unlike), key).count == 2


def test_every_cell_is_dealt_to_as_many_rounds_as_every_other() -> None:
    picks = deal(40, 16, 100)
    assert picks.shape == (100, 16)
    assert {int((picks == cell).sum()) for cell in range(40)} == {40}
    assert (deal(40, 16, 100) == picks).all()


@pytest.mark.parametrize(
    "key",
    [
        ShortKey("exact", 1190, GROUP, 200, LAYOUT),
        ShortKey("exact", 700, GROUP, 200, LAYOUT),
        ShortKey("race", 800, 6, None, LAYOUT),
        ShortKey("sync", TARGET, GROUP, None, LAYOUT),
    ],
    ids=lambda key: f"{key.mode}-{key.prompts}",
)
def test_columns_of_unlike_length_are_compared_on_the_same_cells(make_setting, key: ShortKey) -> None:
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


def test_what_the_mean_of_a_log_is_off_by_is_told_from_its_cells(make_setting) -> None:
    """The means of independent columns scatter by the standard error that each states."""
    key = ShortKey("race", 800, 6, None, LAYOUT)
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
        layout = EngineLayout(2, target // 16)
        setting = make_setting(target=target, decode={layout: dataclasses.replace(COST, key=layout)})
        short = short_column(setting, ShortKey("exact", 2 * target, GROUP, 200, layout))
        short.extend(24)
        return sum(chunk.nbytes for chunk in setting.draws._chunks.values())

    assert drawn(16 * TARGET) <= 1.5 * drawn(TARGET)
