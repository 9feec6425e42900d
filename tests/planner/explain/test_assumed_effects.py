"""What assumed figures put a plan's seconds off: from simulations at both ends of each parameter."""

from __future__ import annotations

import math

import pytest

from rlplan.planner.explain.assumed_effects import AssumedEffects, Effect, Outcome, assumed_why
from rlplan.planner.lengths.table_lengths import TableTrace
from rlplan.profiles.length_tables import parse_quantiles
from rlplan.profiles.reward_tables import reward_table

OWN = Outcome(2.0, 1.4)


def ends(down: float, up: float) -> Effect:
    return Effect(Outcome(down, 1.5), Outcome(up, 1.1))


def test_the_error_is_half_the_logarithm_between_both_ends_over_independent_parameters() -> None:
    effects = AssumedEffects(OWN, OWN.speedup, {"scale": ends(2 / 1.5, 2 * 1.5), "icc": ends(2.4, 2.0)})
    assert effects.lengths_error == pytest.approx(math.hypot(math.log(1.5), math.log(1.2) / 2))
    assert effects.rewards_error == 0


def test_an_end_at_which_nothing_is_trained_counts_by_the_other_one() -> None:
    effect = Effect(Outcome(1.0, 1.5), None)
    assert effect.log_deviation(OWN) == pytest.approx(math.log(2))
    assert Effect(None, None).log_deviation(OWN) == 0
    effects = AssumedEffects(OWN, OWN.speedup, {"scale": effect})
    assert "twice: no group ends within the cutoff" in effects.text("scale", "half", "twice")


def test_nothing_assumed_is_no_error_and_no_words() -> None:
    effects = AssumedEffects()
    assert effects.lengths_error == effects.rewards_error == 0
    assert assumed_why(effects, None, None) == {} and effects.text("scale", "half", "twice") == ""


def test_words_say_seconds_and_speed_at_both_ends_or_that_nothing_changes() -> None:
    effects = AssumedEffects(OWN, OWN.speedup, {"scale": ends(1.0, 3.0)}, {"seconds": ends(2.0, 2.0001)})
    assert effects.text("scale", "half", "twice") == (
        "half: 0.50x the seconds, 1.50x plain rounds; twice: 1.50x the seconds, 1.10x plain rounds"
    )
    assert effects.text("seconds", "half", "twice") == "half or twice do not change the step"
    trace = TableTrace(parse_quantiles("p50=800,p95=4000,max=16384"))
    why = assumed_why(effects, trace, reward_table("math"))
    assert list(why) == ["lengths", "reward.seconds"]
    assert "'assumed', written on the command line: p50 800, p95 4000, max 16384" in why["lengths"]
    assert "lengths 1.6x: 1.50x the seconds" in why["lengths"]
    assert why["reward.seconds"].endswith("rewards 0.5x or rewards 2x do not change the step")
