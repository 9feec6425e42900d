"""max_num_seqs of a plan: what its columns were simulated with, and wide enough for the waves of exact long rounds."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from rlplan.planner.choose.candidates.round_kinds import DeferralRule, LongKey, ShortKey
from rlplan.planner.simulate.columns import whole_columns as columns
from rlplan.plans.schema.sections.layouts import EngineLayout
from rlplan.rounds.balance import Balancer, PrefixSharing
from rlplan.rounds.machines.events import Finished, SampleKey
from rlplan.rounds.machines.exact_long import MAX_DRAWS, ExactLongRound, most_draws_at_once
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
    for kind, of, copies in (("short", rounds.short, 1), ("long", rounds.long, rounds.long.issue.copies)):
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
    cost = replace(SETTING.decode[LAYOUT], key=layout, sharing=PrefixSharing(16, 320 // lead))
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
            copies = ExactLongRound(names[:TARGET], GROUP, 700, 2, CAP)
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
    machine = ExactLongRound(["a"], 2, 10, copies, 20)
    machine.start()
    most = issued = 0
    while issued < len(machine.draws):
        wave = machine.draws[issued:]
        most, issued = max(most, len(wave)), len(machine.draws)
        for draw in wave:
            for sample in range(2):
                machine.handle(Finished(SampleKey(draw.number, sample), 5, False))  # short, so a new wave begins
    assert most == most_draws_at_once(copies) and issued == MAX_DRAWS
