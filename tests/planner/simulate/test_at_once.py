"""max_num_seqs and kv_tokens of a plan: what its columns were simulated with, wide enough for the waves of exact long
rounds, and for what samples hold at once."""

import math
import random
from dataclasses import replace

import numpy as np
import pytest

from rlplan.planner.choose.candidates.round_kinds import DeferralRule, LongKey, ShortKey
from rlplan.planner.costs.round_costs import RoundCosts
from rlplan.planner.costs.update_costs import TrainCost
from rlplan.planner.explain.watched_rounds import watch_rounds
from rlplan.planner.simulate.columns import column_setting
from rlplan.planner.simulate.columns import whole_columns as columns
from rlplan.planner.simulate.columns.column_setting import kv_peak
from rlplan.planner.simulate.columns.whole_columns import long_draws
from rlplan.plans.schema.levers import EngineLayout, RoundPrefix, UpdateLayout
from rlplan.rounds.balancing.placement import Balancer
from rlplan.rounds.machines.events import Finished, SampleKey
from rlplan.rounds.machines.exact import MAX_DRAWS, ExactQueueRound, most_draws_at_once
from rlplan.rounds.machines.race import RaceRound

from ..conftest import CAP
from ..synthetic_run import QUICK, solved
from .columns.settings import GROUP, LAYOUT, TARGET, long_of, make_setting

SETTING = make_setting(icc=0.05)
"""Prompts that are alike are long now and then, and seldom: their long rounds take many waves."""
LATE = DeferralRule("exact", 0, 0, 700)
KEY = LongKey(LATE, 1, LAYOUT)


def most_running(setting):
    """The most sequences that any engine decodes at once in long rounds, and the seconds of these."""
    seen = []

    def observe(t_s, what, a, b, c):
        if what == "engine":
            seen.append(b)

    log = long_of(replace(setting, watch=lambda: observe), KEY, 6).log
    return max(seen), sum(log.rollout_s)


def test_columns_are_simulated_with_room_for_waves_or_what_was_measured():
    most, wide_s = most_running(SETTING)
    assert most > 2 * math.ceil(TARGET * GROUP * KEY.copies / LAYOUT.engines), "than is issued at first"
    assert most <= SETTING.at_once(KEY) <= SETTING.decode[LAYOUT].max_sequences
    narrow = replace(SETTING, decode={LAYOUT: replace(SETTING.decode[LAYOUT], max_sequences=5)})
    most, narrow_s = most_running(narrow)
    assert most == narrow.at_once(KEY) == 5 and narrow_s > wide_s


def test_the_plan_writes_what_its_columns_were_simulated_with(monkeypatch):
    seen = {}
    simulate_one_round = columns.simulate_one_round

    def recorded(round_kind, round_draws, decode, reward, max_num_seqs, *rest, **options):
        key = (round_kind.name, round_kind.prompts, round_kind.cutoff_tokens, round_kind.copies, decode.key)
        seen.setdefault(key, set()).add(max_num_seqs)
        return simulate_one_round(round_kind, round_draws, decode, reward, max_num_seqs, *rest, **options)

    monkeypatch.setattr(columns, "simulate_one_round", recorded)
    plan = solved.__wrapped__(mode="exact", passes=QUICK[:1]).plan  # not what tests before this one have solved
    rounds = plan.job.rounds
    for kind, of, copies in (
        ("short", rounds.short, ()),
        ("long", rounds.long, (rounds.long.issue.copies,) * rounds.long.issue.prompts),
    ):
        simulated = seen[kind, of.issue.prompts, rounds.short.cutoff_tokens, copies, of.rollout.layout]
        assert simulated == {of.rollout.max_num_seqs}


def test_no_sample_waits_where_enough_was_measured():
    short = ShortKey("race", 6, 5, None, LAYOUT)
    assert SETTING.at_once(short) == 15
    assert SETTING.at_once(LongKey(short.deferral, 1, LAYOUT)) == TARGET * GROUP // 2
    assert SETTING.at_once(ShortKey("sync", 4, 4, None, EngineLayout(2, 1))) == 16


def sharing_setting(lead, engines):
    """Engines that keep a prompt together up to a lead of `lead` samples for the longest prompt."""
    layout = EngineLayout(1, engines)
    cost = replace(
        SETTING.decode[LAYOUT], key=layout, sharing=RoundPrefix(block_tokens=16, tokens_per_sample=320 // lead)
    )
    return replace(SETTING, decode={layout: cost}, max_prompt_tokens=321), layout


def most_placed(machine, setting, engines, tokens_of):
    """Samples of the first issue on the fullest engine, as the balancer spreads them."""
    [cost] = setting.decode.values()
    balancer = Balancer(engines, cost.sharing)
    for action in machine.start():
        balancer.assign(action.key, 100, None, action.prompt, tokens_of(action.prompt))
    return max(len(balancer.running(engine)) for engine in range(engines))


@pytest.mark.parametrize("lead", [1, 4, 40])
@pytest.mark.parametrize("engines", [2, 5])
@pytest.mark.parametrize(("prompts", "samples"), [(4, 4), (7, 5)])
def test_no_sample_waits_for_prompts_that_are_kept_together(lead, engines, prompts, samples):
    together, layout = sharing_setting(lead, engines)
    names, rng = [f"k{p}" for p in range(prompts)], random.Random(prompts)
    short, key = ShortKey("race", prompts, samples, None, layout), LongKey(LATE, 2, layout)
    for _ in range(10):
        tokens = {name: rng.choice((1, 100, 321)) for name in names}
        for of in (tokens.__getitem__, lambda name: 321):
            race = RaceRound(names, TARGET, GROUP, samples, CAP)
            assert most_placed(race, together, engines, of) <= together.at_once(short)
            copies = ExactQueueRound(
                names[:TARGET], TARGET, GROUP, 700, CAP, copies=[2] * TARGET, until_long=[True] * TARGET
            )
            assert most_placed(copies, together, engines, of) <= together.at_once(key)


def test_the_cap_grows_by_no_more_than_the_lead_of_one_engine():
    together, layout = sharing_setting(4, 2)
    key, even = ShortKey("race", 5, 4, None, layout), 10
    race = RaceRound([f"k{p}" for p in range(5)], TARGET, GROUP, 4, CAP)
    assert even < most_placed(race, together, 2, lambda _: 321) <= together.at_once(key) <= even + 4
    assert replace(together, max_prompt_tokens=16).at_once(key) == even, "no whole block to share"
    narrow = replace(together, decode={layout: replace(together.decode[layout], max_sequences=11)})
    assert narrow.at_once(key) == 11


@pytest.mark.parametrize("copies", [1, 2, 3, 5, 64])
def test_the_most_draws_at_once_are_those_of_the_largest_wave(copies):
    machine = ExactQueueRound(["a"], 1, 2, 10, 20, copies=[copies], until_long=[True])
    machine.start()
    most = issued = 0
    while issued < len(machine.draws):
        wave = machine.draws[issued:]
        most, issued = max(most, len(wave)), len(machine.draws)
        for draw in wave:
            for sample in range(2):
                machine.handle(Finished(SampleKey(draw.number, sample), 5, False))  # short, so a new wave begins
    assert most == most_draws_at_once(copies) and issued == MAX_DRAWS


def test_what_samples_hold_at_once_is_most_as_one_of_them_ends():
    """By hand: prompts of 10, 10 and 20 tokens, responses of 5, 30 and 8. At 5 tokens 3 run: 40 + 15 = 55; at 8 tokens
    two: 30 + 16 = 46; at 30 tokens one: 40. Of the other load, which is fuller in the end, 100 + 7."""
    prompts = np.array([[10, 10, 20], [1, 1, 100]])
    tokens = np.array([[5, 30, 8], [1, 1, 7]])
    assert kv_peak(prompts[:1], tokens[:1]) == 55
    assert kv_peak(prompts, tokens) == 107 == max(102 + 3 * 1, 100 + 7)
    assert kv_peak(prompts[:1], tokens[:1], waits=True) == 40 + 5 + 30 + 8, "all at their ends"


def test_an_engine_has_room_for_what_its_rounds_hold():
    """Rounds that are watched hold less than engines have room for, and no sample is preempted; less room than that is
    simulated as it is."""
    for key in (ShortKey("sync", TARGET, GROUP, None, LAYOUT), ShortKey("exact", 7, GROUP, 200, LAYOUT), KEY):
        setting = SETTING if key is KEY else make_setting()
        tokens = setting.kv_tokens(key)
        pool = long_draws(setting.draws, GROUP, LATE.cutoff_tokens, 8 * TARGET)
        watched = watch_rounds(setting, key, pool, 8)
        assert watched.kv_tokens <= tokens < setting.decode[LAYOUT].kv_capacity_tokens and not watched.preemptions
        assert tokens % 16 == 0 and tokens > CAP + int(setting.draws.model.prompt_tokens.max())
        assert setting.cost_of(key).kv_capacity_tokens == tokens
    short = ShortKey("sync", TARGET, GROUP, None, LAYOUT)
    cost, at_once = SETTING.cost_of(short).with_kv(CAP + 100), SETTING.at_once(short)
    train = TrainCost(UpdateLayout(dp=1, micro_batch_tokens=2048), 1.0, 0.0, 0.0)
    less = RoundCosts(cost, at_once, train, kv_tokens=CAP + 100)
    assert watch_rounds(replace(SETTING, as_written={short: less}), short, (), 8).preemptions > 0


def test_kv_is_no_more_than_samples_of_the_greatest_length_take(monkeypatch):
    """By hand: 8 samples of an engine, each of a prompt of 100 tokens, a response of 1024 at most and one more as it
    ends, are 9000 tokens; 9 blocks of 32 more are 9288, or 291 blocks."""
    monkeypatch.setattr(column_setting, "KV_MARGIN", 100.0)
    setting = replace(SETTING, max_prompt_tokens=100)
    key = ShortKey("sync", TARGET, GROUP, None, LAYOUT)
    assert (setting.at_once(key), setting.decode[LAYOUT].block_tokens, CAP) == (8, 32, 1024)
    assert setting.kv_tokens(key) == 291 * 32
    one = ShortKey("sync", 1, 1, None, LAYOUT)
    assert setting.at_once(one) == 1
    assert setting.kv_tokens(one) == math.ceil((100 + CAP + 1 + 2 * 32) / 32) * 32, "one sample, and two blocks"


def test_short_and_long_rounds_share_the_larger_cache():
    short = ShortKey("exact", TARGET, GROUP, LATE.cutoff_tokens, LAYOUT)
    assert SETTING._kv_needed(short) < SETTING._kv_needed(KEY) == SETTING.kv_tokens(KEY) == SETTING.kv_tokens(short)
    early = DeferralRule("exact", 0, 0, 3)
    assert SETTING.kv_tokens(LongKey(early, 1, LAYOUT)) >= SETTING._kv_needed(short._replace(cutoff_tokens=3))
