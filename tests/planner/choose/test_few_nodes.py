"""Plans for the fewest dollars: nodes are counted by host memory too, and tiny jobs have a front."""

from __future__ import annotations

from functools import cache

import pytest

from rlplan.planner.choose.cycle_cost import length_ratio
from rlplan.planner.solve import solve
from rlplan.planner.solve_options import SolveOptions
from rlplan.planner.what_if import Documents

from ..conftest import heavy_trace, laptop, small_job, small_profile
from ..synthetic_run import QUICK, solved


def with_host_memory(host_memory_bytes: int, nodes: int = 2):
    cluster = laptop()
    pool = cluster.pools["main"].model_copy(update={"nodes": nodes, "host_memory_bytes": host_memory_bytes})
    return cluster.model_copy(update={"pools": {"main": pool}})


@cache
def dearest(host_memory_bytes: int) -> Documents:
    base = solved(mode="exact")
    cluster = with_host_memory(host_memory_bytes)
    plan = solve(
        cluster,
        base.job,
        base.profile,
        base.trace,
        base.plan.inputs,
        SolveOptions(passes=QUICK, mode="exact", objective="usd"),
    ).plan
    return Documents(plan, base.job, cluster, base.profile, base.trace, None)


@pytest.mark.parametrize("host_memory_bytes", [4 * 10**9, 6 * 10**9, 24 * 10**9])
def test_the_nodes_that_a_plan_pays_for_hold_its_engines(host_memory_bytes):
    predicted = dearest(host_memory_bytes).plan.predicted
    assert predicted.host_memory.capacity_bytes == host_memory_bytes
    assert predicted.host_memory.needed_bytes <= predicted.host_memory.capacity_bytes
    assert predicted.usd_per_hour == pytest.approx(predicted.nodes * laptop().pools["main"].usd_per_node_hour)


def test_more_memory_never_takes_more_nodes():
    nodes = [dearest(gb * 10**9).plan.predicted.nodes for gb in (4, 6, 24)]
    assert nodes == sorted(nodes, reverse=True)


@pytest.mark.parametrize("samples", [2, 4])
def test_a_step_of_one_prompt_has_a_front_although_few_rounds_say_little(samples):
    job = small_job({"prompts_per_step": 1, "samples_per_prompt": samples})
    base = solved()
    plan = solve(laptop(), job, small_profile(), heavy_trace(), base.plan.inputs, SolveOptions(passes=QUICK)).plan
    assert all(point.length_ratio > 0 for point in plan.predicted.front)


def test_the_chosen_point_of_the_front_is_the_plan():
    predicted = solved().plan.predicted
    (chosen,) = (point for point in predicted.front if point.chosen)
    assert chosen.length_ratio == predicted.length_ratio
    assert chosen.seconds_per_sample == pytest.approx(predicted.seconds_per_sample)


def test_a_length_ratio_is_at_least_one_token():
    assert length_ratio(-1000.0, 100.0) == 0.01 and length_ratio(-50.0, 100.0) == 0.5
