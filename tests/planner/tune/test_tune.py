"""Tuning from runs whose truth is known: what was wrong is found, the plan changes only for good reason, and stays."""

import dataclasses

import pytest

from rlplan.planner.tune import plan_gain
from rlplan.planner.tune import tune as tuning
from rlplan.planner.tune.executed_run import load_run
from rlplan.planner.tune.run_lengths import scaled
from rlplan.planner.tune.tune import tune
from rlplan.planner.what_if import Documents
from rlplan.plans.yaml.errors import InputError

from ..conftest import CAP, heavy_trace
from ..synthetic_run import QUICK, slower, solved, synthesize


@pytest.fixture(scope="module")
def exact():
    return solved(mode="exact")


@pytest.fixture
def tuned(tmp_path, monkeypatch):
    """Tune `documents` on a run of their plan in a world with other costs and lengths."""
    monkeypatch.setattr(plan_gain, "_GAIN_SAMPLES", 6_000)

    def run(documents, profile=None, factor=1.0, force=None, name="r", seed=5):
        truth = scaled(heavy_trace(), factor, CAP)
        folder = tmp_path / name
        synthesize(folder, documents.plan, documents.job, profile or documents.profile, truth, seed=seed, steps=36)
        return tune(load_run(folder), documents, force or documents, passes=QUICK)

    return run


def in_force(result, documents):
    return Documents(result.plan, documents.job, documents.cluster, result.profile, result.trace, None)


def test_a_run_that_went_as_predicted_changes_nothing(exact, tuned):
    result = tuned(exact)
    assert not result.change
    assert result.error == max(result.errors.values()) >= tuning.LEAST_GAIN
    assert set(result.errors) == {"costs", "run", "simulation", "transfer", "least"}
    assert result.phases["rollout"].why == "as predicted"
    assert result.phases["train"].why == "as predicted"
    assert result.errors["costs"] < 0.04
    assert all(line.factor == pytest.approx(1.0, abs=0.03) for line in result.costs.rollout.values())


def test_the_phase_that_was_mispredicted_is_named_with_its_cause(exact, tuned):
    result = tuned(exact, slower(exact.profile, decode=1.7, train=3.0))
    rollout, train = result.phases["rollout"], result.phases["train"]
    assert rollout.why.startswith("decode speed: ") and train.why.startswith("training speed: ")
    assert result.phases["sync"].why == "as predicted"
    for phase in result.phases.values():
        assert sum(phase.parts_s.values()) == pytest.approx(phase.measured_s - phase.predicted_s, abs=1e-9)
    assert rollout.parts_s["decode speed"] == pytest.approx(0.7 * rollout.predicted_s, rel=0.25)


def test_longer_answers_are_told_from_slower_engines(tuned):
    sync = solved(mode="sync")
    result = tuned(sync, factor=1.8)
    assert result.phases["rollout"].why.startswith("lengths: ")
    assert result.length_factor > 1.5
    assert all(line.factor == pytest.approx(1.0, abs=0.03) for line in result.costs.rollout.values())


def test_a_plan_changes_where_it_gains_more_than_the_error_and_then_stays(exact, tuned):
    # Answers three times as long: the old cutoff defers most of the prompts. What gains less than the costs' error goes
    # to the simpler plan.
    first = tuned(exact, factor=3.0)
    assert first.change and first.gain > first.error
    assert first.plan.job.rounds.short.cutoff_tokens > exact.plan.job.rounds.short.cutoff_tokens
    new = in_force(first, exact)
    again = tuned(exact, factor=3.0, force=new, name="same run")
    assert not again.change and again.gain <= again.error
    assert again.costs.train.factor == pytest.approx(1.0, abs=0.02)
    after = tuned(new, exact.profile, factor=3.0, name="run of the new plan", seed=7)
    assert not after.change, (after.gain, after.errors)


def test_runs_of_other_jobs_and_other_sizes_are_refused(exact, tmp_path):
    run = load_run(synthesize(tmp_path / "r", exact.plan, exact.job, exact.profile, exact.trace, steps=1))
    other = dataclasses.replace(exact, job=exact.job.model_copy(update={"name": "other"}))
    with pytest.raises(InputError, match="'toy', the plan is of 'other'"):
        tune(run, other, other, passes=QUICK)
    rollout = exact.job.rollout.model_copy(update={"prompts_per_step": 16})
    grown = dataclasses.replace(exact, job=exact.job.model_copy(update={"rollout": rollout}))
    with pytest.raises(InputError, match="8 prompts x 4 samples a step, the job now has 16 x 4"):
        tune(run, exact, grown, passes=QUICK)
