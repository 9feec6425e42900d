"""What watched rounds tell of a kind of round, against rounds worked out by hand and rounds that are counted."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.planner.choose.candidates.round_kinds import DeferralRule, LongKey, ShortKey
from rlplan.planner.costs.decode_costs import DecodeCost, decode_cost
from rlplan.planner.costs.draft_costs import drafted
from rlplan.planner.costs.reward_costs import RewardCost, reward_cost
from rlplan.planner.explain.watched_rounds import RoundWatch, watch_rounds
from rlplan.planner.lengths.draws import Draws
from rlplan.planner.lengths.length_model import fit_lengths
from rlplan.planner.simulate.columns.whole_columns import LongColumn, Setting, ShortColumn, long_draws
from rlplan.planner.simulate.one_round import simulate_one_round
from rlplan.planner.simulate.round_arrays import RoundDraws
from rlplan.plans.schema.sections.layouts import EngineLayout
from rlplan.rounds.round_shape import most_running, shape, tail_begins_s
from rlplan.rounds.round_spec import RoundKind

from ..assumed_drafts import assumed

GROUP, TARGET, CAP, CUTOFF = 4, 4, 1024, 200
LAYOUT = EngineLayout(1, 2)


def watched(lengths: list[list[int]], reward: RewardCost, kv_capacity_tokens: int = 10**6, **changes):
    """(watch, played) of a round on one engine that takes a second a token, prompts being 5 tokens long."""
    cost = DecodeCost(EngineLayout(1, 1), 1.0, 0.0, 0.0, 0.0, 0.0, kv_capacity_tokens, 64, 0.0, 0, **changes)
    groups, samples = len(lengths), len(lengths[0])
    round_kind = RoundKind("short", groups, groups, samples, samples, 1000)
    round_draws = RoundDraws(np.array(lengths, dtype=np.int32), np.full(groups, 5, dtype=np.int32), 1000, 10.0)
    watch = RoundWatch()
    return watch, simulate_one_round(round_kind, round_draws, cost, reward, 64, observe=watch.observe)


def test_the_shape_of_a_rollout_is_who_still_runs():
    watch, simulated = watched([[10, 20], [40, 100]], RewardCost(1, 0.0, 0.0))
    assert simulated.times.decode_end_s == 100.0
    # Four run up to 10 s, three up to 20 s, two up to 40 s, one up to the end at 100 s; a twentieth is 5 s.
    assert [4 * share for share in shape(watch.levels(), 100.0)] == [4, 4, 4, 3, 3, 2, 2, 2, 2, *[1] * 12]
    assert tail_begins_s(watch.levels(), 100.0) == 100.0  # one of four is no less than a quarter


def test_the_tail_begins_when_fewer_than_a_quarter_run():
    watch, _ = watched([[10, 10, 10, 10], [10, 30, 60, 100]], RewardCost(1, 0.0, 0.0))
    assert tail_begins_s(watch.levels(), 100.0) == 60.0


def test_the_most_kv_is_that_of_the_engine_just_before_a_sample_ends():
    watch, _ = watched([[10, 20], [40, 100]], RewardCost(1, 0.0, 0.0))
    # 4 x (5 + 10), 3 x (5 + 20), 2 x (5 + 40) and 1 x (5 + 100) tokens.
    assert watch.kv_tokens == 105
    watch, simulated = watched([[100, 100], [100, 100]], RewardCost(1, 0.0, 0.0), kv_capacity_tokens=240)
    assert simulated.times.preemptions > 0 and watch.preemptions == simulated.times.preemptions
    assert 200 < watch.kv_tokens <= 240


def test_scoring_has_slack_up_to_the_last_score_that_the_round_does_not_end_with():
    watch, simulated = watched([[10, 20], [40, 100]], RewardCost(1, 2.0, 3.0))
    assert simulated.times.end_s == 105.0
    assert watch.reward_slack_s(105.0) == 105.0 - 45.0
    # Nobody is decoded before the last ones: all that the round waits for is on its path.
    watch, _ = watched([[50, 50], [50, 50]], RewardCost(4, 2.0, 0.0))
    assert watch.reward_slack_s(52.0) == 52.0


def test_a_round_that_begins_and_ends_with_other_work_has_no_empty_ends():
    watch, simulated = watched([[10, 20], [40, 100]], RewardCost(1, 0.0, 0.0), round_s=50.0, finish_s=7.0)
    values = shape(watch.levels(), simulated.times.decode_end_s)
    assert values[0] == 1.0 and values[-1] == 0.25


@given(
    st.lists(st.tuples(st.floats(0, 100), st.integers(0, 50)), min_size=1, max_size=40).map(
        lambda pairs: sorted(pairs, key=lambda pair: pair[0])
    ),
    st.floats(100, 200),
)
def test_shapes_are_shares_of_what_was_there(levels, end_s):
    values = shape(levels, end_s)
    assert len(values) == 21 and all(0 <= value <= 1 for value in values)
    assert {round(value * most_running(levels)) for value in values} <= {0, *(level for _, level in levels)}
    assert 0 <= tail_begins_s(levels, end_s) <= end_s


# -- columns -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def setting(make_trace, make_profile) -> Setting:
    profile = make_profile()
    decode = {r.layout: decode_cost(profile, r) for r in profile.rollout}
    draws = Draws(fit_lengths(make_trace()), 0, 8)
    fast = {(LAYOUT, 3): drafted(decode[LAYOUT], assumed(3, 0.7, 16))}
    return Setting(TARGET, GROUP, CAP, False, decode, reward_cost(profile.reward, 1), draws, drafted=fast)


EXACT = DeferralRule("exact", 0, 0, CUTOFF)
KEYS = {
    "sync": ShortKey("sync", TARGET, GROUP, None, LAYOUT),
    "exact": ShortKey("exact", 7, GROUP, CUTOFF, LAYOUT),
    "race": ShortKey("race", 6, 6, None, LAYOUT),
    "defer": ShortKey("defer", 5, GROUP, None, LAYOUT),
    "predict": ShortKey("predict", TARGET, GROUP, None, LAYOUT, 0.2),
    "drafts": ShortKey("exact", 7, GROUP, CUTOFF, LAYOUT, 0.0, 3),
    "long": LongKey(EXACT, 2, LAYOUT),
    "long with a hand-over": LongKey(EXACT, 1, LAYOUT, 0, 0.5),
    "long with drafts": LongKey(EXACT, 1, LAYOUT, 3),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", KEYS)
def test_every_kind_of_round_has_a_picture_within_its_bounds_twice_the_same(setting, name, dynamic):
    setting = dataclasses.replace(setting, dynamic_sampling=dynamic)
    key = KEYS[name]
    pool = long_draws(setting.draws, GROUP, CUTOFF, 8 * TARGET)
    seen = watch_rounds(setting, key, pool, 5)
    assert seen == watch_rounds(setting, key, pool, 5)
    assert len(seen.running) == 21 and all(0 < share <= 1 for share in seen.running)
    assert 0 <= seen.tail < 1 and 0 <= seen.reward_slack <= 1
    assert 0 < seen.kv_tokens <= setting.decode[LAYOUT].kv_capacity_tokens


@pytest.mark.parametrize("name", KEYS)
def test_the_watched_rounds_are_the_first_of_those_that_are_counted(setting, name):
    key, seen = KEYS[name], []

    def watch():
        seen.append(RoundWatch())
        return seen[-1].observe

    def column(own):
        return ShortColumn(own, key) if isinstance(key, ShortKey) else LongColumn(own, key)

    pool = () if isinstance(key, ShortKey) else (long_draws(setting.draws, GROUP, CUTOFF, 8 * TARGET),)
    counted, looked_at = column(setting), column(dataclasses.replace(setting, watch=watch))
    counted.extend(6, *pool)
    looked_at.extend(4, *pool)
    assert looked_at.log.rollout_s == counted.log.rollout_s[:4]
    assert len(seen) >= 4


def test_a_long_tail_is_seen(setting):
    sync, exact = (watch_rounds(setting, KEYS[name], [], 8) for name in ("sync", "exact"))
    assert sync.tail > exact.tail
    assert sum(sync.running) < sum(exact.running)


def test_scoring_has_no_slack_where_what_is_drawn_anew_waits_for_it(setting):
    key, seen = KEYS["sync"], set()
    for seed in range(12):
        own = dataclasses.replace(setting, dynamic_sampling=True, draws=Draws(setting.draws.model, seed, 8))
        column = ShortColumn(own, key)
        column.extend(1)
        refilled = column.log.issued[0] > TARGET * GROUP
        assert (watch_rounds(own, key, [], 1).reward_slack == 0.0) == refilled
        seen.add(refilled)
    assert seen == {False, True}
