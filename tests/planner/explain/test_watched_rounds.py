"""What watched rounds tell of a kind of round, against rounds worked out by hand and rounds that are counted."""

import dataclasses
import math
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.planner.choose.candidates.round_kinds import DeferralRule, LongKey, ShortKey
from rlplan.planner.choose.candidates.solve_options import Pass
from rlplan.planner.costs.decode_costs import DecodeCost, decode_cost
from rlplan.planner.costs.reward_costs import RewardCost, reward_cost
from rlplan.planner.explain.watched_rounds import RoundWatch, largest_of, watch_rounds
from rlplan.planner.lengths.draws import Draws
from rlplan.planner.lengths.length_model import fit_lengths
from rlplan.planner.simulate.columns.round_log import mean
from rlplan.planner.simulate.columns.whole_columns import LongColumn, Setting, ShortColumn, long_draws
from rlplan.planner.simulate.one_round import simulate_one_round
from rlplan.planner.simulate.round_arrays import RoundDraws
from rlplan.planner.simulate.whole_run import Watch, simulate_plan
from rlplan.plans.facts.round_bars import critical_path
from rlplan.plans.schema.levers import EngineLayout
from rlplan.rounds.round_shape import most_running, shape, tail_begins_s
from rlplan.rounds.round_spec import RoundKind

from ...golden import flat, same_as_golden
from ..assumed_drafts import assumed
from ..conftest import heavy_trace, small_profile
from ..solutions import eight_by_four, solution

GROUP, TARGET, CAP, CUTOFF = 4, 4, 1024, 200
LAYOUT = EngineLayout(1, 2)
AT_ONCE = RewardCost(1, 0.0, 0.0)
LENGTHS = [[10, 20], [40, 100]]


def watched(lengths: list[list[int]] = LENGTHS, reward: RewardCost = AT_ONCE, kv_tokens: int = 10**6, **changes):
    """(watch, played) of a round on one engine that takes a second a token, prompts being 5 tokens long."""
    cost = DecodeCost(EngineLayout(1, 1), 1.0, 0.0, 0.0, 0.0, 0.0, kv_tokens, 64, 0.0, 0, **changes)
    groups, samples = len(lengths), len(lengths[0])
    round_kind = RoundKind("short", groups, groups, samples, samples, 1000)
    round_draws = RoundDraws(np.array(lengths, dtype=np.int32), np.full(groups, 5, dtype=np.int32), 1000, 10.0)
    watch = RoundWatch()
    return watch, simulate_one_round(round_kind, round_draws, cost, reward, 64, observe=watch.observe)


def test_the_shape_of_a_rollout_is_who_still_runs():
    watch, simulated = watched()
    assert simulated.times.decode_end_s == 100.0
    # Four run up to 10 s, three up to 20 s, two up to 40 s, one up to the end at 100 s; a twentieth is 5 s.
    assert [4 * share for share in shape(watch.levels(), 100.0)] == [4, 4, 4, 3, 3, 2, 2, 2, 2, *[1] * 12]
    assert tail_begins_s(watch.levels(), 100.0) == 100.0  # one of four is no less than a quarter
    watch, _ = watched([[10, 10, 10, 10], [10, 30, 60, 100]])
    assert tail_begins_s(watch.levels(), 100.0) == 60.0
    watch, simulated = watched(round_s=50.0, finish_s=7.0)  # other work at both ends
    values = shape(watch.levels(), simulated.times.decode_end_s)
    assert values[0] == 1.0 and values[-1] == 0.25


def test_the_most_kv_is_that_just_before_a_sample_ends():
    # 4 x (5 + 10), 3 x (5 + 20), 2 x (5 + 40) and 1 x (5 + 100) tokens.
    assert watched()[0].kv_tokens == 105
    watch, simulated = watched([[100, 100], [100, 100]], kv_tokens=240)
    assert simulated.times.preemptions > 0 and watch.preemptions == simulated.times.preemptions
    assert 200 < watch.kv_tokens <= 240


def test_more_rounds_than_were_watched_hold_more_kv():
    rng = np.random.default_rng(7)
    many = rng.normal(100.0, 5.0, (200, 8))
    expected = np.mean([largest_of(list(few), 300) for few in many])
    assert expected == pytest.approx(100 + 5 * 2.85, rel=0.02)
    assert largest_of([3.0, 9.0, 4.0], 3) == 9.0 and largest_of([5.0], 300) == 5.0


def test_decode_steps_read_the_kv_of_all_that_run():
    # Prompts of 5 tokens and responses of 10, 20, 40 and 100: 100 steps, which read t prompts and t (t - 1) / 2 tokens.
    watch, simulated = watched()
    assert watch.decode_steps(1) == 100
    assert watch.read_kv_tokens == sum(5 * t + t * (t - 1) // 2 for t in (10, 20, 40, 100))
    assert simulated.times.decoded_tokens == 170
    assert watch.steps_of(1) == {4: 10**7, 3: 10**7, 2: 2 * 10**7, 1: 6 * 10**7}, "by the samples that run"


def test_engines_of_a_tail_decode_after_the_others():
    watch = RoundWatch()
    for engine, steps in enumerate((70, 90, 40)):
        watch.observe(1.0, "worked", engine, steps, 1000)
    assert (watch.decode_steps(2), watch.decode_steps(3), watch.read_kv_tokens) == (130, 90, 3000)


def test_scoring_has_slack_unless_the_round_ends_with_it():
    watch, simulated = watched(reward=RewardCost(1, 2.0, 3.0))
    assert simulated.times.end_s == 105.0
    assert watch.reward_slack_s(105.0) == 105.0 - 45.0
    # Nobody is decoded before the last ones: all that the round waits for is on its path.
    watch, _ = watched([[50, 50], [50, 50]], RewardCost(4, 2.0, 0.0))
    assert watch.reward_slack_s(52.0) == 52.0


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


@pytest.fixture(scope="module")
def setting() -> Setting:
    profile = small_profile()
    decode = {r.layout: decode_cost(profile, r) for r in profile.rollout}
    fast = {(LAYOUT, 3): dataclasses.replace(decode[LAYOUT], drafts=assumed(3, 0.7, 16))}
    draws = Draws(fit_lengths(heavy_trace()), 0, 8)
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


def test_every_kind_of_round_has_the_picture_that_it_had(setting):
    told = {}
    for name, key in KEYS.items():
        for dynamic in (False, True):
            own = dataclasses.replace(setting, dynamic_sampling=dynamic)
            seen = watch_rounds(own, key, long_draws(own.draws, GROUP, CUTOFF, 8 * TARGET), 5)
            assert len(seen.running) == 21 and 0 < seen.kv_tokens <= own.decode[LAYOUT].kv_capacity_tokens
            sequences = {"steps_of": sum(count * share for count, share in seen.steps_of.items())}
            told[f"{name}{' filtered' * dynamic}"] = dataclasses.asdict(seen) | sequences
    same_as_golden(list(flat(told)), Path(__file__).with_name("golden") / "watched_rounds.txt")


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


def test_scoring_has_no_slack_where_what_is_drawn_anew_waits_for_it(setting):
    key, seen = KEYS["sync"], set()
    for seed in range(6):
        own = dataclasses.replace(setting, dynamic_sampling=True, draws=Draws(setting.draws.model, seed, 8))
        column = ShortColumn(own, key)
        column.extend(1)
        refilled = column.log.issued[0] > TARGET * GROUP
        assert (watch_rounds(own, key, [], 1).reward_slack == 0.0) == refilled
        seen.add(refilled)
    assert seen == {False, True}


# -- of a plan ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def solved():
    """(plan, job, profile, trace)"""
    found = solution(mode="exact", passes=(Pass(5, 2, math.inf), Pass(48, 48, 0.1)))
    return found.plan, eight_by_four(), small_profile(), heavy_trace()


def kinds(plan):
    return {"short": plan.predicted.rounds.short, "long": plan.predicted.rounds.long}


def test_phases_of_a_kind_of_round_add_up_to_its_step(solved):
    plan = solved[0]
    for kind in kinds(plan).values():
        phases = kind.rollout_s.mean + kind.reward_exposed_s.mean + kind.train_s.mean + kind.sync_s
        assert phases == pytest.approx(kind.step_s.mean, rel=1e-9)
    means = sum(kind.share * kind.step_s.mean for kind in kinds(plan).values())
    assert means == pytest.approx(plan.predicted.step_s.mean, rel=1e-9)
    assert critical_path(plan.predicted).total_s == pytest.approx(means, rel=1e-9)
    assert plan.job.why["step"] == critical_path(plan.predicted).text()
    assert all(0 < kind.tail_s < kind.rollout_s.mean and max(kind.running) <= 1 for kind in kinds(plan).values())


class Look(Watch):
    """Watches every round of a run."""

    def __init__(self):
        self.seen = defaultdict(list)

    def round_begins(self, number, kind, cost):
        self.last = RoundWatch()
        return self.last.observe

    def step_done(self, number, step, deferred):
        self.seen[step.kind].append((self.last, step))


def test_a_run_of_the_plan_is_as_its_rounds_are_predicted(solved):
    plan, job, profile, trace = solved
    look = Look()
    simulate_plan(plan, job, profile, trace, steps=80, prompts=2048, watch=look)
    for name, kind in kinds(plan).items():
        rounds = look.seen[name]
        assert len(rounds) >= 10
        tails = [step.rollout_s - tail_begins_s(watch.levels(), step.rollout_s) for watch, step in rounds]
        assert mean(tails) == pytest.approx(kind.tail_s, rel=0.25)
        slack = [watch.reward_slack_s(step.rollout_s + step.reward_exposed_s) for watch, step in rounds]
        assert mean(slack) == pytest.approx(kind.reward_slack_s, abs=0.1 * kind.rollout_s.mean)
        most = max(watch.kv_tokens for watch, _ in rounds) * 4096
        assert most == pytest.approx(kind.memory.kv.needed_bytes, rel=0.3)
