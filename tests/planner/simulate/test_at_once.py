"""max_num_seqs of a plan: what its columns were simulated with, and wide enough for the waves of exact long rounds."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from rlplan.planner.choose.candidates.round_kinds import DeferralRule, LongKey, ShortKey
from rlplan.planner.costs.decode_costs import decode_cost
from rlplan.planner.costs.reward_costs import reward_cost
from rlplan.planner.lengths.draws import Draws
from rlplan.planner.lengths.length_model import fit_lengths
from rlplan.planner.simulate.columns import whole_columns as columns
from rlplan.planner.simulate.columns.whole_columns import LongColumn, Setting, long_draws
from rlplan.plans.schema.sections.layouts import EngineLayout
from rlplan.rounds.balance import Balancer, PrefixSharing
from rlplan.rounds.machines.events import Finished, SampleKey
from rlplan.rounds.machines.exact_long import MAX_DRAWS, ExactLongRound, most_draws_at_once
from rlplan.rounds.machines.race import RaceRound

from ..conftest import CAP, heavy_trace, small_profile
from ..synthetic_run import solved

TARGET, GROUP, LAYOUT = 4, 4, EngineLayout(1, 2)


@pytest.fixture(scope="module")
def setting() -> Setting:
    profile = small_profile()
    decode = {r.layout: decode_cost(profile, r) for r in profile.rollout}
    # Prompts that are alike are long now and then, and seldom: their long rounds take many waves.
    draws = Draws(fit_lengths(heavy_trace(icc=0.05)), 0, 8)
    return Setting(TARGET, GROUP, CAP, False, decode, reward_cost(profile.reward, 1), draws)


def most_running(setting, key):
    """The most sequences that any engine decodes at once in long rounds of `key`, and the column's rounds."""
    seen = []

    def observe(t_s, what, a, b, c):
        if what == "engine":
            seen.append(b)

    column = LongColumn(replace(setting, watch=lambda: observe), key)
    column.extend(6, long_draws(setting.draws, GROUP, key.deferral.cutoff_tokens, 6 * TARGET))
    return max(seen), column


def test_waves_of_an_exact_long_round_need_several_times_what_is_issued_at_first(setting):
    key = LongKey(DeferralRule("exact", 0, 0, 700), 1, LAYOUT)
    at_first = math.ceil(TARGET * GROUP * key.copies / LAYOUT.engines)
    most, _ = most_running(setting, key)
    assert most > 2 * at_first
    assert most <= setting.at_once(key) <= setting.decode[LAYOUT].max_sequences


def test_a_column_is_simulated_with_what_a_plan_of_it_writes(setting):
    key = LongKey(DeferralRule("exact", 0, 0, 700), 1, LAYOUT)
    narrow = replace(setting, decode={LAYOUT: replace(setting.decode[LAYOUT], max_sequences=5)})
    assert narrow.at_once(key) == 5
    most, column = most_running(narrow, key)
    assert most == 5
    _, wide = most_running(setting, key)
    assert sum(column.log.rollout_s) > sum(wide.log.rollout_s)


def test_the_plan_writes_what_the_columns_of_its_rounds_were_simulated_with(monkeypatch):
    seen = {}
    simulate_one_round = columns.simulate_one_round

    def recorded(round_kind, round_draws, decode, reward, max_num_seqs, *rest, **options):
        key = (round_kind.name, round_kind.prompts, round_kind.cutoff_tokens, round_kind.copies, decode.key)
        seen.setdefault(key, set()).add(max_num_seqs)
        return simulate_one_round(round_kind, round_draws, decode, reward, max_num_seqs, *rest, **options)

    monkeypatch.setattr(columns, "simulate_one_round", recorded)
    rounds = solved.__wrapped__(mode="exact").plan.job.rounds  # not the plan that tests before this one have solved
    for kind, of, copies in (("short", rounds.short, 1), ("long", rounds.long, rounds.long.issue.copies)):
        layout = of.rollout.layout
        simulated = seen[kind, of.issue.prompts, rounds.short.cutoff_tokens, copies, layout]
        assert simulated == {of.rollout.max_num_seqs}


def test_no_sample_waits_where_more_was_measured_than_a_round_can_have_in_flight(setting):
    short = ShortKey("race", 6, 5, None, LAYOUT)
    assert setting.at_once(short) == 15
    assert setting.at_once(LongKey(short.deferral, 1, LAYOUT)) == TARGET * GROUP // 2
    assert setting.at_once(ShortKey("sync", 4, 4, None, EngineLayout(2, 1))) == 16


def sharing_setting(setting, lead, engines):
    """`setting` with engines that keep a prompt together up to a lead of `lead` samples for the longest prompt."""
    layout = EngineLayout(1, engines)
    cost = replace(setting.decode[LAYOUT], key=layout, sharing=PrefixSharing(16, 320 // lead))
    return replace(setting, decode={layout: cost}, max_prompt_tokens=321), layout


def placed(machine, sharing, engines, tokens_of):
    """Samples of the first issue by engine, as the balancer spreads them."""
    balancer = Balancer(engines, sharing)
    for action in machine.start():
        balancer.assign(action.key, 100, None, action.prompt, tokens_of(action.prompt))
    return [len(balancer.running(engine)) for engine in range(engines)]


@pytest.mark.parametrize("lead", [1, 2, 4, 8, 40])
@pytest.mark.parametrize("engines", [2, 3, 5])
@pytest.mark.parametrize(("prompts", "samples"), [(4, 4), (5, 4), (7, 5)])
def test_with_the_plans_cap_no_sample_of_the_first_issue_waits_where_prompts_are_kept_together(
    setting, lead, engines, prompts, samples
):
    together, layout = sharing_setting(setting, lead, engines)
    sharing, names = together.decode[layout].sharing, [f"k{p}" for p in range(prompts)]
    rng = random.Random(prompts)
    short = ShortKey("race", prompts, samples, None, layout)
    for _ in range(20):
        tokens = {name: rng.choice((1, 100, 321)) for name in names}
        for of in (tokens.__getitem__, lambda name: 321):
            most = max(placed(RaceRound(names, TARGET, GROUP, samples, CAP), sharing, engines, of))
            assert most <= together.at_once(short)
            copies = ExactLongRound(names[:TARGET], GROUP, 700, 2, CAP)
            key = LongKey(DeferralRule("exact", 0, 0, 700), 2, layout)
            assert max(placed(copies, sharing, engines, of)) <= together.at_once(key)


def test_one_engine_gets_ahead_of_an_even_share_and_the_cap_grows_by_no_more_than_the_lead(setting):
    together, layout = sharing_setting(setting, 4, 2)
    key, even = ShortKey("race", 5, 4, None, layout), 10
    names = [f"k{p}" for p in range(5)]
    most = max(placed(RaceRound(names, TARGET, GROUP, 4, CAP), together.decode[layout].sharing, 2, lambda _: 321))
    assert even < most <= together.at_once(key) <= even + 4
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
