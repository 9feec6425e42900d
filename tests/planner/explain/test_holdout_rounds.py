"""Predictions are of rounds that the choice was not made on, and state what the trace's own prompts leave open."""

import math

import numpy as np
import pytest

from rlplan.planner.choose.candidate_search import Pass
from rlplan.planner.explain.length_error import length_error
from rlplan.planner.lengths.draws import Draws
from rlplan.planner.lengths.length_model import fit_lengths
from rlplan.planner.simulate.columns.round_log import mean
from rlplan.planner.solve import solve
from rlplan.planner.solve_options import SolveOptions
from rlplan.plans.phrases.caveats import drift_text
from rlplan.plans.schema.predicted import LengthDrift
from rlplan.plans.yaml.errors import Infeasible
from rlplan.profiles.length_trace import LengthTrace

SMALL = {"prompts_per_step": 8, "samples_per_prompt": 4}
QUICK = (Pass(5, 2, math.inf), Pass(20, 8, 0.1))


@pytest.fixture
def solved_with(make_cluster, make_profile, make_trace, make_job, inputs):
    def run(trace=None, job=None, passes=QUICK, **options):
        job = make_job({**SMALL}, search={"tp": [1, 2], "micro_batch_tokens": [4096]}, **(job or {}))
        return solve(
            make_cluster(), job, make_profile(), trace or make_trace(), inputs, SolveOptions(passes=passes, **options)
        )

    return run


def test_the_prediction_is_of_other_rounds_than_the_choice_also_for_the_baseline(solved_with):
    solved = solved_with(mode="exact")
    plan, search, size = solved.plan, solved.search, SMALL["samples_per_prompt"]
    assert plan.solver.reached == pytest.approx(solved.solution.cycle.seconds_per_sample(size))
    assert plan.predicted.seconds_per_sample != pytest.approx(plan.solver.reached, rel=1e-6)
    base = plan.predicted.baseline.seconds_per_sample
    assert base != pytest.approx(solved.baseline.seconds_per_sample(size), rel=1e-6)
    # The chosen point of the front is the prediction, and the bound is of what was reached.
    (chosen,) = [point for point in plan.predicted.front if point.chosen]
    assert chosen.seconds_per_sample == pytest.approx(plan.predicted.seconds_per_sample)
    assert plan.solver.bound <= plan.solver.reached * (1 + 1e-9)
    assert f"{base / plan.predicted.seconds_per_sample:.2f}x plain synchronous rounds" in plan.job.why["bias.mode"]
    assert search.short[solved.solution.cycle.short.key].log.rollout_s  # the choice's own are still there


def test_the_winner_of_few_rounds_does_not_flatter_its_prediction(solved_with):
    """Chosen from many schedules on three rounds each, the objective is lower than what the schedule takes."""
    flattered, predicted = [], []
    for seed in range(4):
        solved = solved_with(mode="exact", passes=(Pass(4, 2, math.inf),), seed=seed)
        cycle, search = solved.solution.cycle, solved.search
        draws = Draws(search.setting.draws.model, 77 + seed, search.setting.draws.width)
        truth = search.anew([cycle], draws)
        true_s = truth.simulate(cycle, 300, 150).seconds_per_sample(SMALL["samples_per_prompt"])
        flattered.append(solved.plan.solver.reached / true_s)
        predicted.append(solved.plan.predicted.seconds_per_sample / true_s)
    assert mean(flattered) < 0.95
    assert mean(predicted) > mean(flattered) + 0.03
    error = np.std(predicted, ddof=1) / math.sqrt(len(predicted))
    assert abs(mean(predicted) - 1) < max(0.05, 2.5 * error)


def test_no_plan_keeps_its_slo_by_the_luck_of_the_rounds_it_was_chosen_on(solved_with):
    free = solved_with(mode="exact").plan.predicted.step_s
    outcomes = []
    for factor in (0.97, 1.01, 1.3):
        limit = factor * free.p95
        try:
            plan = solved_with(mode="exact", job={"slo": {"step_p95_s": limit}}).plan
        except Infeasible as error:
            outcomes.append(False)
            assert "slo.step_p95_s" in str(error) or "other rounds" in str(error)
            continue
        outcomes.append(True)
        assert plan.predicted.step_s.p95 <= limit * (1 + 1e-6)
    assert outcomes[-1]


def test_the_error_of_a_trace_is_what_other_traces_make_of_the_plan(solved_with, make_trace):
    prompts = 48
    solved = solved_with(make_trace(prompts=prompts), mode="sync")
    search, cycle = solved.search, solved.solution.cycle
    stated = solved.plan.predicted.error.lengths
    costs = []
    for seed in range(100, 124):
        model = fit_lengths(make_trace(prompts=prompts, seed=seed), 1024, 0)
        again = search.anew([cycle], Draws(model, seed, search.setting.draws.width))
        costs.append(again.simulate(cycle, 60, 0).cost(again.limits))
    true = float(np.std(costs, ddof=1)) / mean(costs)
    assert true / 2 < stated < 2 * true
    assert solved.plan.predicted.error.total >= stated


def test_more_prompts_leave_less_open_and_the_error_is_the_same_each_time(solved_with, make_trace):
    few, many = make_trace(prompts=24), make_trace(prompts=384)
    solved = {trace: solved_with(trace, mode="sync") for trace in (few, many)}
    assert solved[few].plan.predicted.error.lengths > 2 * solved[many].plan.predicted.error.lengths
    search = solved[few].search
    again = [length_error(search, solved[few].solution.cycle, search.setting.draws.model, 0) for _ in range(2)]
    assert again[0] == again[1] > 0


def test_one_prompt_and_equal_lengths_have_an_error_that_is_a_number(solved_with, make_trace):
    one = LengthTrace([row for row in make_trace(prompts=2).rows if row.prompt == "k0000"], 1024)
    with pytest.warns(UserWarning, match="guess"):
        error = solved_with(one, mode="sync").plan.predicted.error
    assert math.isfinite(error.lengths) and error.lengths >= 0


def test_what_learning_did_to_the_traces_lengths_is_stated(solved_with, make_trace):
    assert solved_with(mode="sync").plan.predicted.drift is None
    first = make_trace()
    later = [row.__class__(row.prompt, 1, row.sample, max(1, round(0.6 * row.tokens)), False, row.reward, 18)
             for row in first.rows]  # fmt: skip
    drift = solved_with(LengthTrace([*first.rows, *later], 1024), mode="sync").plan.predicted.drift
    assert drift is not None and (drift.first, drift.last) == (0, 1)
    assert drift.body == pytest.approx(math.log(0.6), abs=0.05)
    assert "an epoch moved the mean by -4" in drift_text(drift)


def test_a_drift_within_its_error_is_not_told_as_one():
    still = LengthDrift(body=-0.03, body_error=0.03, tail=0.01, tail_error=0.2, first=0, last=2)
    assert "lengths did not change measurably over epochs 0 to 2 of the length trace" in drift_text(still)
    assert "no two epochs" in drift_text(None)
    for text in (drift_text(still), drift_text(None)):
        assert text.startswith("predictions hold for the policy that the lengths were measured on")
