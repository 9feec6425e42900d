"""The error that a plan states of its step: whose errors go in, and how they add up."""

import math

import pytest

from rlplan.planner.choose.candidates import ShortKey
from rlplan.planner.costs.update_costs import train_cost
from rlplan.planner.explain.cost_error import MEAN_OVER_DEVIATION, rollout_error, step_error, update_error
from rlplan.planner.explain.scheduled_rounds import ScheduledRounds
from rlplan.planner.simulate.columns.round_log import RoundLog
from rlplan.plans.schema.sections.layouts import EngineLayout
from rlplan.profiles.phase_schema import Evidence
from rlplan.profiles.profile_schema import RoundCheck

SIGMA = math.sqrt(2 / math.pi)


def check(tp: int, engines: int, error: float) -> RoundCheck:
    return RoundCheck(
        tp=tp, engines=engines, rounds=5, overhead_s=0.0, overhead_s_per_sample=0.0, factor=1.0, error=error
    )


def part(profile, layout: EngineLayout, rollout_s: float, share: float = 1.0, reward_s: float = 0.0) -> ScheduledRounds:
    """Rounds of 1,000 tokens, which take the profile's third update 0.08 s and 1 ms for their squares."""
    log = RoundLog(sync_s=0.15, rollout_s=[rollout_s] * 2, reward_s=[reward_s] * 2, tokens=[1000] * 2)
    log.squares = [10**6] * 2
    return ScheduledRounds(share, ShortKey("sync", 4, 4, None, layout), log, train_cost(profile.train[2]), 0.0)


def test_a_mean_error_is_four_fifths_of_a_deviation():
    assert pytest.approx(0.798, abs=0.001) == MEAN_OVER_DEVIATION


def test_rounds_that_were_checked_go_before_other_layouts_and_these_before_the_line(make_profile, make_rollout):
    profile = make_profile(checks=(check(1, 2, 0.06), check(2, 1, 0.02)))
    assert rollout_error(profile, EngineLayout(1, 2)) == pytest.approx(0.06 / SIGMA)
    other = make_profile(checks=(check(2, 1, 0.02), check(4, 1, 0.04)))
    assert rollout_error(other, EngineLayout(1, 2)) == pytest.approx(0.03 / SIGMA)
    assert rollout_error(make_profile(checks=()), EngineLayout(1, 2)) == pytest.approx(0.03 / SIGMA)
    sources = {"evidence": {"decode": Evidence(source="sheet", error=0.2)}}
    derived = tuple(entry.model_copy(update=sources) for entry in make_profile().rollout)
    assert rollout_error(make_profile(checks=(), rollout=derived, sources={"sheet": "x"}), EngineLayout(1, 2)) == 0.2


def test_an_update_has_the_error_of_its_own_entry(make_profile):
    profile = make_profile()
    entries = [entry.model_copy(update={"error": 0.01 * k}) for k, entry in enumerate(profile.train, 1)]
    assert update_error(make_profile(train=tuple(entries)), train_cost(entries[2])) == pytest.approx(0.03 / SIGMA)


def test_independent_parts_add_up_as_squares_of_their_seconds(make_profile):
    profile = make_profile(checks=(check(1, 2, 0.06),))
    one = part(profile, EngineLayout(1, 2), 2.0)
    update_s = 0.05 + 1000 * 3e-5 + 1e-3
    whole = 2.0 + update_s + 0.15
    expected = math.hypot(2.0 * 0.06 / SIGMA / whole, update_s * 0.03 / SIGMA / whole)
    assert step_error(profile, [one]) == pytest.approx(expected)


def test_both_kinds_of_round_share_the_error_of_decoding(make_profile):
    profile = make_profile(checks=(check(1, 2, 0.06),))
    alone = step_error(profile, [part(profile, EngineLayout(1, 2), 2.0)])
    halves = [part(profile, EngineLayout(1, 2), 2.0, 0.5)] * 2
    assert step_error(profile, halves) == pytest.approx(alone)


def test_seconds_that_are_known_exactly_dilute_the_error(make_profile):
    profile = make_profile(checks=(check(1, 2, 0.06),))
    layout = EngineLayout(1, 2)
    errors = [step_error(profile, [part(profile, layout, 2.0, reward_s=reward_s)]) for reward_s in (0.0, 1.0, 4.0)]
    assert errors == sorted(errors, reverse=True)
