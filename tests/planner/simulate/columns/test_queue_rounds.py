"""The queue of `exact` by lengths alone: what it holds, whom it trains, how long prompts wait, epochs' ends."""

import math
from dataclasses import astuple, replace

import numpy as np
import pytest

from rlplan.planner.choose.candidates.candidate_rounds import queue_rule
from rlplan.planner.choose.candidates.round_kinds import LongKey
from rlplan.planner.explain.watched_rounds import watch_rounds
from rlplan.planner.simulate.columns.cell_columns import long_column
from rlplan.planner.simulate.columns.queue_rounds import KEPT, QueueStates
from rlplan.planner.simulate.columns.round_log import mean, standard_error
from rlplan.planner.simulate.columns.whole_columns import expected_deferrals
from rlplan.plans.schema.levers import EngineLayout
from rlplan.rounds.round_spec import QueueRule

from .settings import EXACT, GROUP, LAYOUT, long_of, make_setting, short_of

TARGET = 32
SETTING = make_setting(TARGET, GROUP)
MODEL = SETTING.draws.model
HARD = EXACT._replace(cutoff_tokens=500).deferral
"""A cutoff that many prompts seldom exceed."""


def law(rule=HARD, target=TARGET, **changes):
    return LongKey(rule, 1, LAYOUT, queue=astuple(replace(queue_rule(MODEL, rule, GROUP, target), **changes)))


@pytest.mark.parametrize("cutoff_tokens", [100, 200, 500])
@pytest.mark.parametrize("target", [32, 128, 512])
def test_the_planned_queue_is_the_least_that_trains_nearly_all(cutoff_tokens, target):
    deferral = HARD._replace(cutoff_tokens=cutoff_tokens)
    rule = queue_rule(MODEL, deferral, GROUP, target)

    def trained(prompts):
        states = QueueStates(SETTING.draws, GROUP, target, cutoff_tokens, replace(rule, prompts=prompts))
        return mean(states.trained) / target

    assert trained(rule.prompts) > 0.98
    assert trained(math.ceil(rule.prompts * (1 - 1.2 / math.sqrt(target)))) < 0.98


def test_prompts_wait_as_the_rule_says_and_no_longer():
    short = MODEL.groups_within(HARD.cutoff_tokens, GROUP)
    states = SETTING.queue_of(law())
    assert len(states.kept) == len(states.trained) == KEPT
    bounded = SETTING.queue_of(law(until_long_after=4))
    assert bounded.waits.max() <= 7 < states.waits.max(), "two rounds of which did not reach it, and its own"
    oldest = [issued for issued in states.kept if issued.ages.max() >= 8]
    hard = np.concatenate([short[issued.prompts[issued.ages >= 8]] for issued in oldest])
    fresh = np.concatenate([short[issued.prompts[issued.ages == 0]] for issued in oldest])
    assert hard.mean() > fresh.mean() + 0.05, "what waits long is seldom long"


def test_an_epoch_trains_all_that_it_defers_and_ends_with_waves():
    setting = replace(SETTING, prompts=2000)
    states = setting.queue_of(law())
    waves = [issued.waves for issued in states.kept]
    ends = [k for k, (one, after) in enumerate(zip(waves, [*waves[1:], False], strict=True)) if one and not after]
    long = 1 - MODEL.short_groups(HARD.cutoff_tokens, GROUP)
    of_epochs = np.diff([0, *(k + 1 for k in ends)], prepend=0)[1:]
    assert len(ends) >= 2 and waves[-1]
    trained = np.add.reduceat(states.trained, [0, *(k + 1 for k in ends[:-1])])
    assert trained == pytest.approx(2000 * long, abs=TARGET), "and the last wave is filled from the next epoch"
    assert of_epochs.min() > 2
    share = sum(waves) / len(waves)
    assert share == pytest.approx(law().queue[0] / TARGET / (2000 * long / TARGET), rel=0.4)


def test_short_and_queued_rounds_train_the_unconditioned_mean_length():
    setting, key = make_setting(TARGET, GROUP), EXACT._replace(prompts=40, cutoff_tokens=500)
    short, long = short_of(setting, key, 150).log, long_of(setting, law(), 150).log
    ratio = expected_deferrals(short_of(setting, key, 150), setting) / mean(long.settled)
    samples = GROUP * (TARGET + ratio * mean(long.groups))
    error = math.hypot(standard_error(short.kept), ratio * standard_error(long.kept)) / samples
    trained = (mean(short.kept) + ratio * mean(long.kept)) / samples
    assert error < 0.03 * MODEL.mean_tokens
    assert abs(trained - MODEL.mean_tokens) < 3.5 * error


@pytest.mark.parametrize("dynamic", [False, True])
def test_queued_rounds_are_the_same_by_both_machines(dynamic):
    setting = make_setting(8, GROUP, dynamic_sampling=dynamic, prompts=400)
    key = law(target=8)
    watched = replace(setting, watch=lambda: lambda *event: None)  # by the machines themselves
    logs = [long_of(mine, key, 12).log for mine in (watched, setting)]
    assert logs[0] == logs[1]
    assert max(logs[0].groups) <= 8 and mean(logs[0].deferred) > 0


def test_layouts_share_what_the_queue_issues():
    one, two = (long_of(SETTING, law()._replace(layout=layout), 4).log for layout in SETTING.decode)
    assert one.issued == two.issued and one.groups == two.groups
    assert one.rollout_s != two.rollout_s


def test_queued_rounds_have_room_for_what_they_issue():
    setting = make_setting(8, GROUP)
    key = law(target=8)
    watched = watch_rounds(setting, key, [], 12)
    assert watched.preemptions == 0
    assert watched.kv_tokens <= setting.kv_tokens(key)
    assert setting.at_once(key) * LAYOUT.engines >= setting.queue_of(key).most_draws * GROUP


def test_large_queued_rounds_are_composed_of_cells():
    layout = EngineLayout(1, 64)
    whole = make_setting(1024, GROUP, decode={layout: replace(next(iter(SETTING.decode.values())), key=layout)})
    key = law(target=1024)._replace(layout=layout)
    composed, simulated = (long_column(replace(whole, cell_prompts=cells), key) for cells in (128, 0))
    for column, rounds in ((composed, 8), (simulated, 3)):
        column.extend(rounds, ["s0000000.0"])
    for read in ("rollout_s", "groups", "tokens"):
        of_cells, of_whole = (mean(getattr(column.log, read)) for column in (composed, simulated))
        assert of_cells == pytest.approx(of_whole, rel=0.08)


def test_a_queue_is_followed_once_for_all_its_rounds():
    rule = QueueRule(40, 3, 5)
    key = LongKey(HARD, 1, LAYOUT, queue=astuple(rule))
    assert key.queue_rule == rule
    assert SETTING.queue_of(key) is SETTING.queue_of(key._replace(layout=EngineLayout(2, 1)))
