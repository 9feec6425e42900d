"""A run's means over its cycle: what it still owes a long round is charged, and phases add up to the step."""

from pathlib import Path

import pytest

from rlplan.plans.schema.plan import load_plan
from rlplan.traces.cycle_means import CycleMeans, means_by_plan, seconds_of

from .events import step_of

EXAMPLE = Path(__file__).parents[2] / "plans" / "examples" / "cpu-demo.yaml"


def row(kind, seconds, samples, deferred=0):
    phases = {"rollout_s": 0.5 * seconds, "train_s": 0.3 * seconds, "sync_s": 0.1 * seconds, "other_s": 0.1 * seconds}
    return step_of(1, kind=kind, trained_samples=samples, deferred=deferred, total_s=seconds, **phases)


def means(*rows, planned_s=None):
    return CycleMeans(rows, 4, 2, {"total_s": 9.0, "rollout_s": 6.0} if planned_s is None else planned_s)


def test_a_run_that_owes_nothing_has_its_own_means():
    found = means(row("short", 2.0, 8), row("short", 4.0, 8))
    assert (found.seconds("total_s"), found.owed_prompts, found.long_weight, found.expected_s("total_s")) == (
        3,
        0,
        1,
        0,
    )
    assert found.seconds_per_sample == pytest.approx(6.0 / 16) and found.measured_seconds("total_s") == 3.0


def test_owed_prompts_are_charged_like_those_of_the_runs_long_rounds():
    # Long rounds trained 4 and 2 prompts, 3 on average: 2 owed prompts are two thirds of one of 9 s.
    nothing = row("long", 1.0, 0)
    rows = row("short", 2.0, 8), row("long", 12.0, 8), row("long", 6.0, 4), row("short", 2.0, 8, deferred=2)
    found = means(*rows)
    assert (found.owed_prompts, found.owed_rounds, found.long_prompts) == (2, pytest.approx(2 / 3), 6)
    assert found.long_weight == pytest.approx(4 / 3) and found.steps == pytest.approx(4 + 2 / 3)
    assert found.seconds("total_s") == pytest.approx((22 + 6) / (4 + 2 / 3)) == found.measured_seconds("total_s")
    assert found.long_share == pytest.approx((2 + 2 / 3) / (4 + 2 / 3)) and found.expected_s("total_s") == 0.0
    assert found.seconds_per_sample == pytest.approx(28 / (28 + 2 * 2))
    # Waits around a round count as rollout, so that phases add up to the step.
    assert found.seconds("rollout_s") == pytest.approx(0.6 * found.seconds("total_s"))
    phases = [found.seconds(key) for key in ("rollout_s", "train_s", "sync_s")]
    assert sum(phases) == pytest.approx(found.seconds("total_s"))
    without = means(nothing, *rows)
    assert without.owed_rounds == pytest.approx(2 / 3), "a long round that trained nothing measures nothing"


def test_chance_is_the_standard_error_of_a_mean_of_two_strata():
    found = means(row("short", 2.0, 8), row("short", 4.0, 8))
    assert found.chance("total_s") == pytest.approx(1.0 / 3.0)  # sqrt(2 / 2) of a mean of 3
    both = means(row("short", 2.0, 8), row("long", 12.0, 8), row("short", 4.0, 8), row("long", 6.0, 8))
    assert both.chance("total_s") == pytest.approx((0.25 * 2 / 2 + 0.25 * 18 / 2) ** 0.5 / 6.0)
    assert means(row("short", 2.0, 8), row("long", 12.0, 8), row("short", 4.0, 8)).chance("total_s") is None
    assert means(row("short", 2.0, 8)).chance("total_s") is None


def test_before_the_first_long_round_the_plans_own_is_charged():
    owing = row("short", 2.0, 8, deferred=2)
    found = means(owing)
    assert found.seconds("total_s") == pytest.approx((2.0 + 0.5 * 9.0) / 1.5)
    assert found.measured_seconds("total_s") == 2.0 and found.expected_s("total_s") == pytest.approx(4.5)
    assert found.expected_s("rollout_s") == pytest.approx(3.0)
    assert found.expected_s("train_s") == pytest.approx(0.5 * 0.6), "what the plan does not predict is the run's own"
    assert found.seconds_per_sample == pytest.approx(6.5 / (8 + 2 * 2))
    assert means(owing, planned_s={}).expected_s("total_s") == 0.0


def test_seconds_around_a_round_count_for_its_rollout_unless_negative():
    assert seconds_of(row("short", 2.0, 8), "rollout_s") == pytest.approx(1.2)
    for other_s in (-0.1, None):
        assert seconds_of(step_of(1, rollout_s=1.0, other_s=other_s), "rollout_s") == 1.0


def test_a_plan_gives_sizes_of_steps_and_seconds_of_its_long_round():
    plan = load_plan(EXAMPLE)
    found, long = means_by_plan([row("short", 2.0, 8)], plan), plan.predicted.rounds.long
    issue = plan.job.issue
    assert (found.prompts_per_step, found.samples_per_prompt) == (issue.prompts_per_step, issue.samples_per_prompt)
    assert found.planned_long_s == {"total_s": long.step_s.mean, "rollout_s": long.rollout_s.mean}
    rounds = plan.predicted.rounds.model_copy(update={"long": None})
    plain = plan.model_copy(update={"predicted": plan.predicted.model_copy(update={"rounds": rounds})})
    assert means_by_plan([row("short", 2.0, 8)], plain).planned_long_s == {}
