"""A plan is compared with plain rounds of its own nodes and limits, also where another number of nodes is cheaper."""

from __future__ import annotations

import dataclasses
import math
from functools import cache

import pytest

from benchmarks.copula_trace import copula_lengths
from rlplan.planner.choose.candidate_search import Pass, is_plain
from rlplan.planner.choose.plain_baseline import baseline_of, baseline_text, keeps_slo
from rlplan.planner.solve import Solved, solve
from rlplan.planner.solve_options import SolveOptions
from rlplan.profiles.library import library_profile

from ..conftest import small_job
from ..gpu_run import gpu_cluster
from ..synthetic_run import solved

SIZE = 4
QUICK = (Pass(5, 2, math.inf), Pass(12, 6, 0.1))


@cache
def on_two_nodes(objective: str = "usd") -> Solved:
    """A 7B job that is cheapest on one node of two."""
    sizes = {"prompts_per_step": 16, "samples_per_prompt": SIZE, "max_prompt_tokens": 256, "max_response_tokens": 4096}
    search = {"tp": [1, 2], "micro_batch_tokens": [8192]}
    job = small_job(sizes, search=search)
    trace = copula_lengths([(10, 0.05), (200, 0.6), (4096, 0.99)], 0.4, 4096, 48, 8)
    cluster = gpu_cluster(nodes=2, usd_per_node_hour=40.0)
    profile = library_profile("H800", "Qwen2.5-7B")
    inputs = solved(mode="sync").plan.inputs
    return solve(cluster, job, profile, trace, inputs, SolveOptions(passes=QUICK, objective=objective))


def test_for_usd_plan_and_baseline_take_the_same_nodes_so_that_both_gains_are_one():
    found = on_two_nodes()
    predicted, limits = found.plan.predicted, found.search.limits
    assert predicted.baseline.nodes == predicted.nodes == found.baseline.nodes(limits)
    assert predicted.baseline.keeps_slo is None, "the job has no SLO"
    plain = [c for c in found.search.plain_cycles() if c.nodes(limits) <= predicted.nodes]
    assert found.baseline.seconds_per_sample(SIZE) <= min(c.seconds_per_sample(SIZE) for c in plain) * 1.05


def test_a_plan_on_more_nodes_is_compared_on_these_and_the_cheaper_plain_rounds_are_named():
    """As an SLO would put it there: plain rounds on one node cost less, and are slower."""
    search = on_two_nodes().search
    limits = search.limits
    chosen = min(
        (c for c in search.cycles() if c.short.law.mode == "exact" and c.nodes(limits) == 2),
        key=lambda c: (c.cost(limits), c.name),
    )
    baseline = baseline_of(search, chosen)
    cheap = min(search.plain_cycles(), key=lambda c: (c.cost(limits), c.name))
    assert (cheap.nodes(limits), baseline.nodes(limits)) == (1, 2)
    assert baseline.seconds_per_sample(SIZE) < cheap.seconds_per_sample(SIZE)
    said = baseline_text(search, baseline)
    seconds = cheap.seconds_per_sample(SIZE) / baseline.seconds_per_sample(SIZE)
    assert said.startswith("compared on 2 nodes, as the plan takes; plain synchronous rounds cost least on 1 node")
    assert f"{seconds:.2f} times the seconds" in said


def test_a_baseline_that_no_plain_rounds_make_fast_enough_says_that_it_breaks_the_slo():
    free = on_two_nodes("seconds")
    search, chosen = free.search, free.cycle
    calm = dataclasses.replace(search.limits, slo=True)
    assert keeps_slo(free.baseline, search.limits), "without an SLO all do"
    column = dataclasses.replace(free.baseline.short, slow=tuple(1.0 for _ in free.baseline.short.slow))
    assert not keeps_slo(dataclasses.replace(free.baseline, short=column), calm)
    assert baseline_text(search, free.baseline) is None
    assert not is_plain(chosen) and baseline_of(search, free.baseline) is free.baseline


@pytest.mark.parametrize("objective", ["seconds", "usd"])
def test_the_baseline_has_all_rounds_of_a_last_pass(objective):
    found = on_two_nodes(objective)
    assert found.baseline.short.rounds >= QUICK[-1].short_rounds and is_plain(found.baseline)
