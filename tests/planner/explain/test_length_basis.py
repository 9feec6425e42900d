"""What of a plan rests on responses longer than any in its trace is marked, and enters its error."""

import dataclasses
import math
from functools import cache

import numpy as np
import pytest

from rlplan.planner.choose.candidate_search import Pass
from rlplan.planner.lengths.draws import Draws
from rlplan.planner.solve import Solved, solve
from rlplan.planner.solve_options import SolveOptions
from rlplan.plans.schema.sections.length_evidence import LengthBasis, few_lengths
from rlplan.profiles.length_trace import LengthTrace

from ..conftest import CAP, heavy_trace, laptop, small_job, small_profile
from ..synthetic_run import solved

QUICK = (Pass(5, 2, math.inf), Pass(20, 8, 0.1))


def never_longer_than(tokens: int) -> LengthTrace:
    """A trace of 24 prompts of which no response reached the cap, as in one of few samples."""
    rows = [row for row in heavy_trace(24, 6, seed=1).rows if row.tokens <= tokens]
    return LengthTrace([dataclasses.replace(row, truncated=False) for row in rows], CAP)


@cache
def planned(tokens: int | None) -> Solved:
    trace = heavy_trace() if tokens is None else never_longer_than(tokens)
    job = small_job({"prompts_per_step": 8, "samples_per_prompt": 4}, search={"tp": [1], "micro_batch_tokens": [4096]})
    inputs = solved(mode="sync").plan.inputs
    return solve(laptop(), job, small_profile(), trace, inputs, SolveOptions(passes=QUICK, mode="exact"))


def test_a_trace_that_reaches_the_cap_leaves_nothing_to_extrapolate():
    predicted = planned(None).plan.predicted
    basis = predicted.length_basis
    assert (basis.longest_seen_tokens, basis.longest_simulated_tokens) == (CAP, CAP)
    assert not basis.extrapolated and basis.step_share == 0 and predicted.error.extrapolation is None
    gain = predicted.baseline.seconds_per_sample / predicted.seconds_per_sample
    assert basis.speedup_within == pytest.approx(gain) and basis.thin_reasons(gain) == []
    assert "no longer ones are simulated" in basis.sentence(gain)


def test_lengths_beyond_the_longest_seen_are_marked_with_what_rests_on_them_and_widen_the_error():
    predicted = planned(500).plan.predicted
    basis, error = predicted.length_basis, predicted.error
    assert basis.longest_seen_tokens <= 500 < basis.longest_simulated_tokens <= CAP
    assert basis.longest_simulated_tokens == predicted.lengths_tokens[-1]
    assert 0 < basis.beyond_share < 0.05
    assert basis.step_share > 0.02 and error.extrapolation == basis.step_share
    assert error.total > math.hypot(error.costs, error.lengths, error.sampling)
    gain = predicted.baseline.seconds_per_sample / predicted.seconds_per_sample
    words = basis.sentence(gain)
    assert f"{basis.longest_simulated_tokens:,} tokens are extrapolated" in words
    assert f"{basis.speedup_within:.2f}x instead of {gain:.2f}x" in words


def test_the_share_is_what_the_step_takes_less_without_longer_responses():
    """Held against the same schedule, simulated with a model that never goes beyond the longest seen."""
    found = planned(500)
    basis, search, cycle = found.plan.predicted.length_basis, found.search, found.cycle
    model = search.setting.draws.model
    cut = dataclasses.replace(model, tables=np.minimum(model.tables, basis.longest_seen_tokens))
    seconds = [
        search.anew([cycle], Draws(lengths, 99, search.setting.draws.width)).simulate(cycle, 200, 100)
        for lengths in (model, cut)
    ]
    whole, without = (c.seconds_per_sample(4) for c in seconds)
    assert 1 - without / whole == pytest.approx(basis.step_share, abs=0.05)


def test_few_prompts_one_sample_each_or_much_that_was_never_seen_make_a_trace_thin():
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
