"""The error of the difference of two plans: what a plan states of its sources, what is told of a pair."""

import math
from pathlib import Path

import pytest

from rlplan.planner.choose.candidates.solve_options import SolveOptions
from rlplan.planner.solve import solve
from rlplan.planner.what_if import load_documents
from rlplan.plans.diff.job_diff import diff_jobs
from rlplan.plans.diff.job_report import job_verdict

from ..solutions import QUICK

EXAMPLE = Path(__file__).parents[3] / "plans" / "examples" / "math-32b.yaml"


@pytest.fixture(scope="module")
def plans():
    """Plans of the 32B example by mode, from the same inputs, of different seeds."""
    found = load_documents(EXAMPLE)
    search = found.job.search.model_copy(update={"tp": (8,), "micro_batch_tokens": (16896,)})
    job = found.job.model_copy(update={"search": search})

    def of(mode, seed):
        options = SolveOptions(mode=mode, seed=seed, passes=QUICK)
        return solve(found.cluster, job, found.profile, found.trace, found.plan.inputs, options).plan

    return {"sync": of("sync", 0), "exact": of(None, 1), "defer": of("defer", 2)}


@pytest.mark.parametrize("other", ["exact", "defer"])
def test_a_real_difference_is_claimed_with_a_few_percent(plans, other):
    old, new = plans["sync"], plans[other]
    diff = diff_jobs(old, new)
    seconds = diff.effect("seconds_per_sample")
    apart = math.hypot(old.predicted.error.total, new.predicted.error.total)
    assert seconds.relative < -0.2 and not seconds.within_error
    assert 0.01 < seconds.relative_sigma < min(0.1, apart / 3)
    assert job_verdict(diff).startswith("faster: ") and "errors that they share cancel" in diff.errors.sentence()
    back = diff_jobs(new, old).effect("seconds_per_sample")
    assert back.relative > 0.25 and back.relative_sigma / (1 + back.relative) == pytest.approx(
        seconds.relative_sigma / (1 + seconds.relative)
    )


def test_errors_of_other_inputs_do_not_cancel(plans):
    old, new = plans["sync"], plans["exact"]
    profile = new.inputs.profile.model_copy(update={"sha256": "f" * 64})
    inputs = new.inputs.model_copy(update={"profile": profile, "solver_read": None})
    other = diff_jobs(old, new.model_copy(update={"inputs": inputs}))
    assert other.effect("seconds_per_sample").relative_sigma > 0.15
    assert "profiles differ" in other.errors.sentence() and not other.comparable


def test_a_plans_sources_have_the_error_that_it_states(plans):
    for plan in plans.values():
        error = plan.predicted.error
        costs = math.hypot(*(part for name, part in error.parts.items() if not name.startswith("lengths-")))
        assert costs == pytest.approx(error.of_costs, rel=0.1)
        assert [len(column) for column in error.prompts] == [32, 32]
    # One profile prices all, so that all name the same sources; a transfer of 17 s counts more in a shorter step.
    sources = [set(plan.predicted.error.parts) for plan in plans.values()]
    assert sources[0] == sources[1] == sources[2]
    sync = {name: plan.predicted.error.parts["sync"] * plan.predicted.step_s.mean for name, plan in plans.items()}
    assert sync["exact"] == pytest.approx(sync["sync"], rel=0.02)


def test_fewer_nodes_share_what_the_law_of_updates_misses_between_nodes(plans):
    found = load_documents(EXAMPLE)
    search = found.job.search.model_copy(update={"tp": (8,), "micro_batch_tokens": (16896,)})
    job = found.job.model_copy(update={"search": search})
    pools = {name: pool.model_copy(update={"nodes": 4}) for name, pool in found.cluster.pools.items()}
    half = found.cluster.model_copy(update={"pools": pools})
    options = SolveOptions(mode="sync", seed=3, passes=QUICK)
    plan = solve(half, job, found.profile, found.trace, found.plan.inputs, options).plan
    seconds = diff_jobs(plans["sync"], plan).effect("seconds_per_sample")
    assert seconds.relative > 0.1 and not seconds.within_error
    # Alone the law between nodes would make it 16%: the updates of half the nodes are twice as long, so that a part
    # of it stays.
    assert seconds.relative_sigma < 0.35 * plan.predicted.error.of_costs
