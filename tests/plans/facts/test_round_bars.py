"""What a Gantt chart of a plan draws, the critical path beside it, and what nodes cost."""

import itertools
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.plans.facts.round_bars import LANES, critical_path, longest_path, round_bars, slack_text
from rlplan.plans.schema.cluster import Cluster
from rlplan.plans.schema.plan import Plan
from rlplan.plans.schema.predicted import PredictedPhases
from rlplan.plans.yaml.yaml_io import dump, loads

from ...documents import CLUSTER
from ..conftest import PLAN_TEXT
from ..test_bad_input import GPUS

PLAN = loads(PLAN_TEXT, Plan)


@pytest.mark.parametrize("kind", ["short", "long"])
def test_critical_bars_follow_each_other_and_others_fill_their_lanes(kind):
    mean = getattr(PLAN.predicted.rounds, kind)
    bars = [bar for bar in round_bars(PLAN) if bar.kind == kind]
    critical = [bar for bar in bars if bar.critical]
    assert [bar.phase for bar in critical] == ["sync", "rollout", "tail", "reward_exposed", "train"]
    ends = [0.0, *itertools.accumulate(bar.seconds for bar in critical)]
    assert [bar.begin_s for bar in critical] == pytest.approx(ends[:-1]) and ends[-1] == pytest.approx(mean.step_s.mean)
    for lane in LANES:
        own = sorted((bar for bar in bars if bar.lane == lane), key=lambda bar: bar.begin_s)
        assert own and all(one.begin_s + one.seconds <= other.begin_s + 1e-9 for one, other in itertools.pairwise(own))
    [scoring] = [bar for bar in bars if bar.phase == "scoring"]
    end_s = mean.sync_s + mean.rollout_s.mean + mean.reward_exposed_s.mean - mean.reward_slack_s
    assert scoring.begin_s + scoring.seconds == pytest.approx(end_s) and not scoring.critical


def test_a_plan_without_long_rounds_has_bars_of_short_ones_alone():
    rounds = PLAN.predicted.rounds.model_copy(update={"long": None})
    alone = PLAN.model_copy(update={"predicted": PLAN.predicted.model_copy(update={"rounds": rounds})})
    assert {bar.kind for bar in round_bars(alone)} == {"short"}


def test_the_critical_path_is_the_mean_step():
    path = critical_path(PLAN.predicted)
    assert path.total_s == pytest.approx(sum(PLAN.predicted.phases_s.model_dump().values()))
    assert [step.phase for step in path.steps] == ["sync", "rollout", "reward_exposed", "train"]
    assert sum(step.share for step in path.steps) == pytest.approx(1.0)
    # 0.8 x 2.5 s in short rounds, 0.2 x 6.5 s in long ones.
    assert path.slack_s == {"sync": 0.0, "engines": 0.0, "rewards": pytest.approx(3.3), "trainers": 0.0}
    assert path.text() == (
        "the mean step of 6.40 s is weight transfer 2%, rollout 70%, waiting for rewards 2% and training 27%; "
        "rewards have 3.30 s slack, save for the last samples"
    )
    assert slack_text(0.05, 6.4) == "rewards have no slack", "under 1 % of the step"


seconds = st.floats(0, 1e5, allow_nan=False)


@given(seconds, seconds, seconds, seconds, seconds)
def test_the_path_through_the_phases_is_never_beaten_by_scoring(rollout, exposed, train, sync, slack):
    phases = PredictedPhases(rollout=rollout, reward_exposed=exposed, train=train, sync=sync)
    path = longest_path(phases, slack)
    assert "scoring" not in [step.phase for step in path.steps]
    assert path.total_s == float(sum(map(Fraction, (rollout, exposed, train, sync))))
    assert 0 <= path.slack_s["rewards"] <= min(rollout + exposed + 1e-9, slack * (1 + 1e-12))


def test_a_node_costs_its_gpus_or_what_is_stated_of_it():
    def price(text):
        return loads(text, Cluster).pools["main"].node_price

    eight = GPUS.replace("per_node: 2", "per_node: 8").replace("cores: 2", "cores: 8")
    assert (price(eight), price(eight.replace("2.5", "0.0")), price(CLUSTER)) == (20.0, 0.0, 0.1)
    assert price(eight.replace("gpu_hour: 2.5", "node_hour: 19.5")) == 19.5
    written = dump(loads(GPUS, Cluster))
    assert "usd_per_gpu_hour: 2.5" in written and "usd_per_node_hour" not in written
    assert "usd_per_gpu_hour" not in dump(loads(CLUSTER, Cluster))
