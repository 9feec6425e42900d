"""max_num_seqs of a plan: what its columns were simulated with, and wide enough for the waves of exact long rounds."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from rlplan.planner import columns
from rlplan.planner.candidates import Law, LongKey, ShortKey
from rlplan.planner.columns import LongColumn, Setting, long_draws
from rlplan.planner.costs import LayoutKey, decode_cost, reward_cost
from rlplan.planner.draws import Draws
from rlplan.planner.length_model import fit_lengths
from rlplan.rounds.events import Finished, SampleKey
from rlplan.rounds.exact import MAX_DRAWS, ExactLongRound, most_draws_at_once

from .conftest import CAP, heavy_trace, small_profile
from .synthetic_run import solved

TARGET, GROUP, LAYOUT = 4, 4, LayoutKey(1, 2)


@pytest.fixture(scope="module")
def setting() -> Setting:
    profile = small_profile()
    decode = {LayoutKey(r.tp, r.engines): decode_cost(profile, r) for r in profile.rollout}
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
    column.extend(6, long_draws(setting.draws, GROUP, key.law.cutoff, 6 * TARGET))
    return max(seen), column


def test_waves_of_an_exact_long_round_need_several_times_what_is_issued_at_first(setting):
    key = LongKey(Law("exact", 0, 0, 700), 1, LAYOUT)
    at_first = math.ceil(TARGET * GROUP * key.copies / LAYOUT.engines)
    most, _ = most_running(setting, key)
    assert most > 2 * at_first
    assert most <= setting.at_once(key) <= setting.decode[LAYOUT].max_sequences


def test_a_column_is_simulated_with_what_a_plan_of_it_writes(setting):
    key = LongKey(Law("exact", 0, 0, 700), 1, LAYOUT)
    narrow = replace(setting, decode={LAYOUT: replace(setting.decode[LAYOUT], max_sequences=5)})
    assert narrow.at_once(key) == 5
    most, column = most_running(narrow, key)
    assert most == 5
    _, wide = most_running(setting, key)
    assert sum(column.log.rollout_s) > sum(wide.log.rollout_s)


def test_the_plan_writes_what_the_columns_of_its_rounds_were_simulated_with(monkeypatch):
    seen = {}
    play = columns.play

    def recorded(setup, luck, decode, reward, max_num_seqs, *rest, **options):
        seen.setdefault((setup.kind, setup.prompts, setup.cutoff_tokens, setup.copies, decode.key), set()).add(
            max_num_seqs
        )
        return play(setup, luck, decode, reward, max_num_seqs, *rest, **options)

    monkeypatch.setattr(columns, "play", recorded)
    rounds = solved(mode="exact").plan.job.rounds
    for kind, of, copies in (("short", rounds.short, 1), ("long", rounds.long, rounds.long.issue.copies)):
        layout = LayoutKey(of.rollout.tp, of.rollout.engines)
        simulated = seen[kind, of.issue.prompts, rounds.short.cutoff_tokens, copies, layout]
        assert simulated == {of.rollout.max_num_seqs}


def test_no_sample_waits_where_more_was_measured_than_a_round_can_have_in_flight(setting):
    short = ShortKey("race", 6, 5, 0, LAYOUT)
    assert setting.at_once(short) == 15
    assert setting.at_once(LongKey(short.law, 1, LAYOUT)) == TARGET * GROUP // 2
    assert setting.at_once(ShortKey("sync", 4, 4, 0, LayoutKey(2, 1))) == 16


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
