"""The errors that a plan states of its step: whose errors go in, how they add up, and what assumed figures do to it."""

import math

import pytest

from rlplan.planner.choose.candidates.round_kinds import ShortKey
from rlplan.planner.choose.cost_error import rollout_error, step_error, update_error
from rlplan.planner.choose.holdout_rounds import ScheduledRounds
from rlplan.planner.costs.update_costs import train_cost
from rlplan.planner.explain.assumed_effects import AssumedEffects, AssumedOutcome, Effect, assumed_why
from rlplan.planner.lengths.table_lengths import TableTrace
from rlplan.planner.simulate.columns.round_log import RoundLog
from rlplan.plans.schema.levers import EngineLayout
from rlplan.profiles.length_tables import parse_quantiles
from rlplan.profiles.phase_schema import Evidence
from rlplan.profiles.profile_schema import Profile, RoundCheck
from rlplan.profiles.reward_tables import reward_table

from ..conftest import small_profile

SIGMA = math.sqrt(2 / math.pi)
"""A mean error over a deviation."""
LAYOUT = EngineLayout(1, 2)


def checked(*errors: tuple[int, int, float]) -> Profile:
    """A profile whose rounds on so many engines of a tp are off by so much."""
    none = {"overhead_s": 0.0, "overhead_s_per_sample": 0.0}
    checks = (RoundCheck(tp=tp, engines=n, rounds=5, factor=1.0, error=error, **none) for tp, n, error in errors)
    return small_profile(checks=tuple(checks))


def part(profile: Profile, share: float = 1.0, reward_s: float = 0.0) -> ScheduledRounds:
    """Rounds of 2 s and 1,000 tokens, which take the profile's third update 0.08 s and 1 ms for their squares."""
    log = RoundLog(sync_s=0.15, rollout_s=[2.0] * 2, reward_s=[reward_s] * 2, tokens=[1000] * 2)
    log.squares = [10**6] * 2
    return ScheduledRounds(share, ShortKey("sync", 4, 4, None, LAYOUT), log, train_cost(profile.train[2]), 0.0)


def test_checked_rounds_go_before_other_layouts_and_these_before_the_line():
    assert rollout_error(checked((1, 2, 0.06), (2, 1, 0.02)), LAYOUT) == pytest.approx(0.06 / SIGMA)
    assert rollout_error(checked((2, 1, 0.02), (4, 1, 0.04)), LAYOUT) == pytest.approx(0.03 / SIGMA)
    assert rollout_error(checked(), LAYOUT) == pytest.approx(0.03 / SIGMA)
    sources = {"evidence": {"decode": Evidence(source="sheet", error=0.2)}}
    derived = tuple(entry.model_copy(update=sources) for entry in small_profile().rollout)
    assert rollout_error(small_profile(checks=(), rollout=derived, sources={"sheet": "x"}), LAYOUT) == 0.2


def test_an_update_has_the_error_of_its_own_entry():
    entries = tuple(e.model_copy(update={"error": 0.01 * k}) for k, e in enumerate(small_profile().train, 1))
    assert update_error(small_profile(train=entries), train_cost(entries[2])) == pytest.approx(0.03 / SIGMA)


def test_independent_parts_add_up_as_squares_of_their_seconds():
    profile = checked((1, 2, 0.06))
    update_s = 0.05 + 1000 * 3e-5 + 1e-3
    whole = 2.0 + update_s + 0.15
    expected = math.hypot(2.0 * 0.06 / SIGMA / whole, update_s * 0.03 / SIGMA / whole)
    assert step_error(profile, [part(profile)]) == pytest.approx(expected)
    assert step_error(profile, [part(profile, 0.5)] * 2) == pytest.approx(expected), "both kinds share that of decoding"
    diluted = step_error(profile, [part(profile, reward_s=4.0)])
    assert diluted == pytest.approx(expected * whole / (whole + 4.0)), "by seconds that are known exactly"


OWN = AssumedOutcome(2.0, 1.4)


def ends(down: float, up: float) -> Effect:
    return Effect(AssumedOutcome(down, 1.5), AssumedOutcome(up, 1.1))


def test_an_assumption_errs_by_half_the_logarithm_between_both_ends() -> None:
    effects = AssumedEffects(OWN, OWN.speedup, {"scale": ends(2 / 1.5, 2 * 1.5), "icc": ends(2.4, 2.0)})
    assert effects.lengths_error == pytest.approx(math.hypot(math.log(1.5), math.log(1.2) / 2))
    assert effects.rewards_error == 0
    effect = Effect(AssumedOutcome(1.0, 1.5), None)
    assert abs(effect.log_change(OWN)) == pytest.approx(math.log(2)), "by the other end where nothing is trained at one"
    assert Effect(None, None).log_change(OWN) == 0
    effects = AssumedEffects(OWN, OWN.speedup, {"scale": effect})
    assert "twice: no group ends within the cutoff" in effects.text("scale", "half", "twice")
    none = AssumedEffects()
    assert none.lengths_error == none.rewards_error == 0
    assert assumed_why(none, None, None) == {} and none.text("scale", "half", "twice") == ""


def test_words_say_seconds_and_speed_at_both_ends_or_that_nothing_changes() -> None:
    effects = AssumedEffects(OWN, OWN.speedup, {"scale": ends(1.0, 3.0)}, {"seconds": ends(2.0, 2.0001)})
    assert effects.text("scale", "half", "twice") == (
        "if half: step 0.50x, speed-up 1.50x; if twice: step 1.50x, speed-up 1.10x"
    )
    same = AssumedEffects(
        OWN, 1.0, {"scale": Effect(AssumedOutcome(1.0, OWN.speedup), AssumedOutcome(3.0, OWN.speedup))}
    )
    assert same.text("scale", "half", "twice") == "if half: step 0.50x; if twice: step 1.50x"
    assert effects.text("seconds", "half", "twice") == "whether half or twice, the step changes by less than 1%"
    trace = TableTrace(parse_quantiles("p50=800,p95=4000,max=16384"))
    why = assumed_why(effects, trace, reward_table("math"))
    assert list(why) == ["lengths", "reward.seconds"]
    assert "'assumed', written on the command line: p50 800, p95 4000, max 16384" in why["lengths"]
    assert "if responses are 1.6x as long: step 1.50x, speed-up 1.10x" in why["lengths"]
    assert why["reward.seconds"].endswith("whether rewards take 0.5x or 2x as long, the step changes by less than 1%")
