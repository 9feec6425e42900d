"""What a plan's predictions leave open: by rounds that the choice was not made on, by the trace's own prompts, and by
responses longer than any that was seen."""

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import pytest

from rlplan.planner.choose.candidates.solve_options import Pass
from rlplan.planner.explain.length_error import LEAST_ACCEPTED, REDRAWS, TRACES, length_error
from rlplan.planner.lengths.draws import Draws
from rlplan.planner.lengths.length_model import LengthModel, fit_lengths
from rlplan.planner.simulate.columns.round_log import mean
from rlplan.planner.solve import Solved
from rlplan.plans.facts.plan_text import drift_text
from rlplan.plans.schema.predicted_evidence import LengthBasis, LengthDrift, few_lengths
from rlplan.plans.yaml.errors import Infeasible, InputError
from rlplan.profiles.length_trace import LengthRow, LengthTrace
from rlplan.rounds.round_spec import Mode

from ..conftest import CAP, heavy_trace, small_job
from ..solutions import eight_by_four, solution, solve_afresh

JOB, SIZE = eight_by_four(tokens=(4096,)), 4
SETS = 44
"""Of prompts that a trace might have held; one of them is as odd as the tests want it."""

# -- rounds that the choice was not made on ----------------------------------------------------------------------------


def test_the_prediction_and_the_baseline_are_of_other_rounds_than_the_choice():
    found = solution(JOB, mode="exact")
    plan, predicted = found.plan, found.plan.predicted
    assert plan.solver.reached == pytest.approx(found.solution.cycle.seconds_per_sample(SIZE))
    assert predicted.seconds_per_sample != pytest.approx(plan.solver.reached, rel=1e-6)
    base = predicted.baseline.seconds_per_sample
    assert base != pytest.approx(found.baseline.seconds_per_sample(SIZE), rel=1e-6)
    # The chosen point of the front is the prediction, and the bound is of what was reached.
    (chosen,) = [point for point in predicted.front if point.chosen]
    assert chosen.seconds_per_sample == pytest.approx(predicted.seconds_per_sample)
    assert plan.solver.bound <= plan.solver.reached * (1 + 1e-9)
    speedup = f"{base / predicted.seconds_per_sample:.2f}x"
    assert f"{speedup} the samples per second of plain rounds" in plan.job.why["bias.mode"]
    assert found.search.short[found.solution.cycle.short.key].log.rollout_s, "the choice's own are still there"


def test_the_winner_of_few_rounds_does_not_flatter_its_prediction():
    """Chosen from many schedules on few rounds each, the objective is lower than what the schedule takes."""
    flattered, predicted = [], []
    for seed in range(4):
        found = solution(JOB, mode="exact", passes=(Pass(4, 2, math.inf),), seed=seed)
        cycle, search = found.solution.cycle, found.search
        truth = search.anew([cycle], Draws(search.setting.draws.model, 77 + seed, search.setting.draws.width))
        true_s = truth.simulate(cycle, 300, 150).seconds_per_sample(SIZE)
        flattered.append(found.plan.solver.reached / true_s)
        predicted.append(found.plan.predicted.seconds_per_sample / true_s)
    assert mean(flattered) < 0.95
    assert mean(predicted) > mean(flattered) + 0.03
    error = np.std(predicted, ddof=1) / math.sqrt(len(predicted))
    assert abs(mean(predicted) - 1) < max(0.05, 2.5 * error)


def test_no_plan_keeps_its_slo_by_the_luck_of_its_rounds():
    free = solution(JOB, mode="exact").plan.predicted.step_s
    for factor, must_be in ((0.97, False), (1.3, True)):
        limit = factor * free.p95
        try:
            plan = solve_afresh(eight_by_four(tokens=(4096,), slo={"step_p95_s": limit}), mode="exact").plan
        except Infeasible as error:
            assert not must_be and ("slo.step_p95_s" in str(error) or "other rounds" in str(error))
        else:
            assert plan.predicted.step_s.p95 <= limit * (1 + 1e-6)


# -- other prompts -----------------------------------------------------------------------------------------------------


def test_the_error_of_a_trace_is_what_other_traces_make():
    prompts = 48
    found = solution(JOB, trace=heavy_trace(prompts=prompts), mode="sync", prompt_sets=24)
    search, cycle = found.search, found.solution.cycle
    stated, costs = found.plan.predicted.error, []
    for seed in range(100, 116):
        model = fit_lengths(heavy_trace(prompts=prompts, seed=seed), CAP, 0)
        again = search.anew([cycle], Draws(model, seed, search.setting.draws.width))
        costs.append(again.simulate(cycle, 60, 0).cost(again.limits))
    true = float(np.std(costs, ddof=1)) / mean(costs)
    assert true / 2 < stated.lengths < 2 * true
    assert stated.total >= stated.lengths


def test_more_prompts_leave_less_open_each_time_alike():
    few, many = (
        solution(JOB, trace=heavy_trace(prompts=prompts), mode="sync", prompt_sets=16) for prompts in (24, 384)
    )
    assert few.plan.predicted.error.lengths > 2 * many.plan.predicted.error.lengths
    again = [length_error(few.search, few.solution.cycle, few.search.setting.draws.model, 0)[0] for _ in range(2)]
    assert again[0] == again[1] > 0


@pytest.mark.parametrize(("prompts", "samples"), [(1, 1), (1, 16), (3, 1)])
def test_lengths_of_next_to_no_prompts_are_refused(prompts, samples):
    with pytest.raises(InputError, match=f"to {prompts} prompts?, and 4 prompts are the least to plan by; measure"):
        solve_afresh(JOB, trace=trace_of(prompts, samples, lambda p: 5, bool), mode="sync")


@pytest.mark.filterwarnings("ignore:the length trace holds")
@pytest.mark.parametrize("samples", [1, 8])
def test_equal_lengths_of_few_prompts_leave_much_open(samples):
    """Few responses of five tokens do not show that all have five."""
    errors = [
        solve_afresh(JOB, trace=trace_of(prompts, samples, lambda p: 5, bool), mode="sync", prompt_sets=16)
        for prompts in (4, 16, 256)
    ]
    few, more, many = (found.plan.predicted.error.lengths for found in errors)
    assert few > 0.3 and few > 1.5 * more and more > 1.5 * many > 0


def trace_of(prompts: int, samples: int, tokens: Callable[[int], int], mixed: Callable[[int], bool]) -> LengthTrace:
    """By prompt: how long a response is, and whether every other one is right or all are."""
    rows = [
        LengthRow(f"k{p:02d}", 0, s, tokens(p), False, float(s % 2) if mixed(p) else 1.0, 18)
        for p in range(prompts) for s in range(samples)
    ]  # fmt: skip
    return LengthTrace(rows, CAP)


def planned(trace: LengthTrace, mode: Mode, samples: int = 4, **algorithm: object) -> tuple[Solved, list[LengthModel]]:
    """(a job of 4 prompts a step, other models that the trace might have given)."""
    job = small_job(
        {"prompts_per_step": 4, "samples_per_prompt": samples},
        algorithm={"name": "grpo", "learning_rate": 1e-3, **algorithm},
        search={"tp": [1, 2], "micro_batch_tokens": [4096]},
    )
    found = solution(job, trace=trace, mode=mode, prompt_sets=SETS)
    model = found.search.setting.draws.model
    return found, [model.another(np.random.default_rng([0, 53, place])) for place in range(SETS)]


@pytest.mark.filterwarnings("ignore:the length trace holds")
def test_prompts_can_be_solved_although_others_might_all_be_long() -> None:
    rng = np.random.default_rng(0)
    trace = trace_of(5, 8, lambda p: int(rng.integers(2, 5) if p < 3 else 0.75 * CAP + rng.integers(-20, 21)), bool)
    found, sets = planned(trace, "exact", samples=8)
    cutoff = found.plan.job.rounds.short.cutoff_tokens
    fewest = min(other.short_groups(cutoff, 8) for other in sets)
    assert fewest < LEAST_ACCEPTED, "the case that is looked at comes up"
    assert 0 < found.plan.predicted.error.lengths < 2


def test_prompts_can_be_solved_although_others_might_have_no_mixed_rewards(monkeypatch) -> None:
    rng = np.random.default_rng(1)
    trace = trace_of(24, 8, lambda p: int(rng.integers(20, 200)), lambda p: p == 0)
    found, sets = planned(trace, "sync", dynamic_sampling=True)
    assert not all(any(len(set(rewards)) > 1 for rewards in other.rewards) for other in sets)
    assert 0 < found.plan.predicted.error.lengths < 2
    drawn = []

    def another(self: LengthModel, rng: np.random.Generator) -> LengthModel:
        drawn.append(rng)
        return dataclasses.replace(self, rewards=((1.0,),) * len(self.rewards))

    # Sets that never train anything are given up, and say nothing of the error.
    monkeypatch.setattr(LengthModel, "another", another)
    assert length_error(found.search, found.solution.cycle, found.search.setting.draws.model, 0)[0] < 1e-9
    assert len(drawn) == TRACES * REDRAWS


def test_what_learning_did_to_the_traces_lengths_is_stated():
    assert solution(JOB, mode="sync").plan.predicted.drift is None
    first = heavy_trace().rows
    later = [
        dataclasses.replace(row, epoch=1, tokens=max(1, round(0.6 * row.tokens)), truncated=False) for row in first
    ]
    drift = solution(JOB, trace=LengthTrace([*first, *later], CAP), mode="sync").plan.predicted.drift
    assert drift is not None and (drift.first, drift.last) == (0, 1)
    assert drift.body == pytest.approx(math.log(0.6), abs=0.05)
    assert "each epoch moved the mean by -4" in drift_text(drift)
    still = LengthDrift(body=-0.03, body_error=0.03, tail=0.01, tail_error=0.2, first=0, last=2)
    assert "lengths did not change measurably over epochs 0 to 2 of the length trace" in drift_text(still)
    assert "no prompt has two epochs" in drift_text(None)
    for text in (drift_text(still), drift_text(None)):
        assert text.startswith("predictions hold for the policy that the lengths were measured on")


# -- longer than any that was seen -------------------------------------------------------------------------------------


def cut_at(tokens: int) -> Solved:
    """By a trace of 24 prompts of which no response reached the cap, as in one of few samples."""
    rows = [row for row in heavy_trace(24, 6, seed=1).rows if row.tokens <= tokens]
    trace = LengthTrace([dataclasses.replace(row, truncated=False) for row in rows], CAP)
    return solution(JOB, trace=trace, mode="exact")


def test_lengths_beyond_the_longest_seen_are_marked_and_widen_the_error():
    predicted = cut_at(500).plan.predicted
    basis, error = predicted.length_basis, predicted.error
    assert basis.longest_seen_tokens <= 500 < basis.longest_simulated_tokens <= CAP
    assert basis.longest_simulated_tokens == predicted.lengths_tokens[-1]
    assert 0 < basis.beyond_share < 0.05
    assert basis.step_share > 0.02 and error.extrapolation == basis.step_share
    assert error.total > math.hypot(error.costs, error.lengths, error.sampling)
    gain = predicted.baseline.seconds_per_sample / predicted.seconds_per_sample
    words = basis.sentence(gain)
    assert f"{basis.longest_simulated_tokens:,}, are extrapolated" in words
    assert f"{basis.speedup_within:.2f}x instead of {gain:.2f}x" in words


def test_the_share_is_what_the_step_takes_less_without_longer_responses():
    """Held against the same schedule, simulated with a model that never goes beyond the longest seen."""
    found = cut_at(500)
    basis, search, cycle = found.plan.predicted.length_basis, found.search, found.cycle
    model = search.setting.draws.model
    cut = dataclasses.replace(model, tables=np.minimum(model.tables, basis.longest_seen_tokens))
    whole, without = (
        search.anew([cycle], Draws(lengths, 99, search.setting.draws.width)).simulate(cycle, 200, 100)
        for lengths in (model, cut)
    )
    share = 1 - without.seconds_per_sample(4) / whole.seconds_per_sample(4)
    assert share == pytest.approx(basis.step_share, abs=0.05)


def test_few_prompts_or_much_that_was_never_seen_make_a_trace_thin():
    assert few_lengths(20, 40) is None and few_lengths(128, 1024) is None
    assert "40 samples of 19 prompts" in few_lengths(19, 40)
    assert "39 samples of 20 prompts" in few_lengths(20, 39)
    basis = LengthBasis(
        prompts=64, samples=512, longest_seen_tokens=2109, longest_simulated_tokens=8761, beyond_share=0.001,
        step_share=0.02, speedup_within=1.33,
    )  # fmt: skip
    assert basis.thin_reasons(1.34) == []
    (why,) = basis.model_copy(update={"speedup_within": 1.17}).thin_reasons(1.34)
    assert "2,109" in why and "8,761" in why and "1.17x instead of 1.34x" in why
    assert "the speed-up stays 1.34x" in basis.model_copy(update={"speedup_within": 1.342}).sentence(1.34)
    within = basis.model_copy(update={"longest_seen_tokens": 8761}).sentence(1.34)
    assert within == "the length trace reaches 8,761 tokens or more, and no longer ones are simulated"
    assert len(basis.model_copy(update={"step_share": 0.2, "prompts": 5}).thin_reasons(1.34)) == 2
