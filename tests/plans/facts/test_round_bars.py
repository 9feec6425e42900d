"""What a Gantt chart of a plan draws, and the critical path beside it."""

import itertools
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.plans.facts.critical_path import critical_path, longest_path
from rlplan.plans.facts.round_bars import LANES, round_bars
from rlplan.plans.schema.plan import load_plan
from rlplan.plans.schema.predicted import PredictedPhases


@pytest.fixture
def plan(folder):
    return load_plan(folder.path("plan.yaml"))


def test_critical_bars_of_a_round_follow_each_other_to_its_mean_step(plan):
    for kind, mean in (("short", plan.predicted.rounds.short), ("long", plan.predicted.rounds.long)):
        bars = [bar for bar in round_bars(plan) if bar.kind == kind]
        at = 0.0
        for bar in (bar for bar in bars if bar.critical):
            assert bar.begin_s == pytest.approx(at)
            at += bar.seconds
        assert at == pytest.approx(mean.step_s.mean)
        assert [bar.phase for bar in bars if bar.critical] == ["sync", "rollout", "tail", "reward_exposed", "train"]


def test_bars_of_a_lane_do_not_overlap(plan):
    for kind, lane in itertools.product(("short", "long"), LANES):
        bars = [bar for bar in round_bars(plan) if (bar.kind, bar.lane) == (kind, lane)]
        assert bars, f"nothing on {lane}"
        for one, other in itertools.pairwise(sorted(bars, key=lambda bar: bar.begin_s)):
            assert one.begin_s + one.seconds <= other.begin_s + 1e-9


def test_scoring_ends_its_slack_before_the_round(plan):
    [scoring] = [bar for bar in round_bars(plan) if bar.phase == "scoring" and bar.kind == "long"]
    mean = plan.predicted.rounds.long
    decoded = mean.sync_s + mean.rollout_s.mean
    assert scoring.begin_s + scoring.seconds == pytest.approx(
        decoded + mean.reward_exposed_s.mean - mean.reward_slack_s
    )
    assert not scoring.critical


def test_a_plan_without_long_rounds_has_bars_of_short_ones_alone(plan):
    rounds = plan.predicted.rounds.model_copy(update={"long": None})
    alone = plan.model_copy(update={"predicted": plan.predicted.model_copy(update={"rounds": rounds})})
    assert {bar.kind for bar in round_bars(alone)} == {"short"}


def test_the_critical_path_is_the_mean_step(plan):
    path = critical_path(plan.predicted)
    phases = plan.predicted.phases_s
    assert path.total_s == pytest.approx(sum(phases.model_dump().values()))
    assert [step.phase for step in path.steps] == ["sync", "rollout", "reward_exposed", "train"]
    assert sum(step.share for step in path.steps) == pytest.approx(1.0)
    # 0.8 x 2.5 s in short rounds, 0.2 x 6.5 s in long ones.
    assert path.slack_s == {"sync": 0.0, "engines": 0.0, "rewards": pytest.approx(3.3), "trainers": 0.0}
    assert (
        "rollout 70%" in path.text()
        and "scores could take 3.3 s longer, except for the samples decoded last" in path.text()
    )


seconds = st.floats(0, 1e5, allow_nan=False)


@given(seconds, seconds, seconds, seconds, seconds)
def test_the_path_through_the_phases_is_never_beaten_by_scoring(rollout, exposed, train, sync, slack):
    phases = PredictedPhases(rollout=rollout, reward_exposed=exposed, train=train, sync=sync)
    path = longest_path(phases, slack)
    assert "scoring" not in [step.phase for step in path.steps]
    assert path.total_s == float(sum(map(Fraction, (rollout, exposed, train, sync))))
    assert 0 <= path.slack_s["rewards"] <= rollout + exposed + 1e-9
    assert path.slack_s["rewards"] <= slack * (1 + 1e-12)
