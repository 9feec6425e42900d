"""Plans for this executor: what it cannot run is no candidate, so that proofs and reasons are of what it can run."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from typing import Any

import pytest

from rlplan.planner.check import memory_rules
from rlplan.planner.choose.candidate_search import Pass
from rlplan.planner.choose.candidates import update_layouts
from rlplan.planner.choose.candidates.job_limits import Unplannable
from rlplan.planner.choose.candidates.update_layouts import feasible_train, sharding_of
from rlplan.planner.choose.schedules import all_cycles
from rlplan.planner.choose.ties import executable
from rlplan.planner.costs.job_pools import JobPools
from rlplan.planner.costs.update_costs import (
    TrainCost,
    is_allowed,
    law_dtype_fault,
    least_peak,
    train_cost_in,
    train_costs,
)
from rlplan.planner.solve import Solved, solve
from rlplan.planner.solve_options import SolveOptions
from rlplan.plans.facts.executable import SAME_IN_BOTH_KINDS, UPDATE_VALUES, is_for_any, not_executable, update_faults
from rlplan.plans.facts.model_shape import ModelShape, shape_from_architecture, shape_of_public
from rlplan.plans.schema.sections.layouts import UpdateLayout
from rlplan.plans.yaml.errors import Infeasible
from rlplan.profiles.architecture import architecture_of
from rlplan.profiles.laws.train_layouts import MEMORY_SHARE, peak_bytes, physics_of, train_layouts
from rlplan.profiles.library import library_profile
from rlplan.profiles.phase_schema import Train

from ..conftest import heavy_trace, laptop, small_job, small_profile
from ..gpu_run import gpu_cluster, solved_on_gpus
from ..synthetic_run import solved as solved_small

QUICK = (Pass(5, 2, math.inf), Pass(20, 8, 0.1))
SIZES = {"prompts_per_step": 8, "samples_per_prompt": 4}


def update(seconds_per_token: float, **layout: Any) -> Train:
    fields = {"dp": 1, "micro_batch_tokens": 4096, "step_s": 0.05, "step_s_per_token_squared": 0.0, "error": 0.03}
    return Train(**{**fields, **layout}, step_s_per_token=seconds_per_token)


def planned(train: tuple[Train, ...], search: dict[str, Any] | None = None, slo_s: float | None = None, **options: Any):
    """A small job solved with these updates and these levers."""
    job = small_job(
        SIZES, search={"tp": [1], "micro_batch_tokens": [4096], **(search or {})}, slo={"step_p95_s": slo_s}
    )
    inputs = solved_small(mode="sync").plan.inputs
    options = {"passes": QUICK, "mode": "exact", **options}
    return solve(laptop(), job, small_profile(train=train), heavy_trace(), inputs, SolveOptions(**options))


def proven(found: Solved) -> None:
    """The gap is 0, and no schedule of the search costs less than the bound."""
    assert found.plan.solver.gap <= 1e-6 and found.plan.solver.status == "optimal"
    limits = found.search.limits
    full = [c for c in found.search.cycles() if c.short.rounds >= 20 and not c.violations(limits)]
    assert min(c.cost(limits) for c in full if c.short.deferral.mode == "exact") >= found.solution.bound * (1 - 1e-6)


def test_an_update_that_only_others_run_is_planned_on_request_only_though_it_is_ten_times_as_fast():
    both = update(4e-4), update(4e-5, recompute="selective")
    here, anywhere = planned(both), planned(both, for_any=True)
    assert here.plan.job.rounds.short.train.recompute == "none" and not_executable(here.plan, None) == []
    assert [cost.layout.recompute for cost in here.search.space.train] == ["none"]
    assert not any("selective" in text for text in here.plan.job.why.values()), "it is no next best choice either"
    assert anywhere.plan.job.rounds.short.train.recompute == "selective"
    assert here.plan.predicted.seconds_per_sample > anywhere.plan.predicted.seconds_per_sample
    for found in (here, anywhere):
        proven(found)
    assert (here.plan.solver.for_any, anywhere.plan.solver.for_any) == (False, True)
    assert (is_for_any(here.plan, None), is_for_any(anywhere.plan, None)) == (False, True)
    unsaid = anywhere.plan.solver.model_copy(update={"for_any": False})
    assert is_for_any(anywhere.plan.model_copy(update={"solver": unsaid}), None), "an earlier version solved it"


def test_without_a_plan_that_can_run_here_the_error_says_whether_others_could_run_one():
    with pytest.raises(Infeasible) as caught:
        planned((update(4e-4, pp=2),))
    assert "none of its measured updates can be run by rlplan execute (pp is 2, and" in str(caught.value)
    assert str(caught.value).endswith("; other frameworks could run a plan: rlplan solve --for any")
    assert planned((update(4e-4, pp=2),), for_any=True).plan.job.rounds.short.train.pp == 2


@pytest.mark.parametrize("folder", [False, True])
def test_a_family_that_the_executor_does_not_train_is_planned_on_request_only(folder):
    """By the shape that a caller read from the model's folder, else by the model's name."""
    shape = shape_of_public("mistralai/Mixtral-8x7B")
    path = "model" if folder else "mistralai/Mixtral-8x7B"
    job = small_job(SIZES, model={"path": path, "dtype": "bfloat16"})
    inputs, options = solved_small(mode="sync").plan.inputs, {"passes": QUICK, "model": shape if folder else None}
    given = laptop(), job, small_profile(), heavy_trace(), inputs
    with pytest.raises(Unplannable, match=r"model\.path: .*family mixtral, .*qwen3_moe; .*--for any") as caught:
        solve(*given, SolveOptions(**options))
    assert (caught.value.document, caught.value.loc) == ("job", ("model", "path"))
    assert solve(*given, SolveOptions(**options, for_any=True)).plan.solver.for_any


def test_a_limit_that_only_other_frameworks_keep_is_told_so_and_one_that_none_keeps_is_not():
    both = update(4e-2), update(4e-5, recompute="selective")
    fast = planned(both, for_any=True)
    limit = 1.5 * fast.plan.predicted.step_s.p95
    assert limit < planned(both).plan.predicted.step_s.p50
    with pytest.raises(Infeasible, match=r"slo\.step_p95_s.*other frameworks could run a plan"):
        planned(both, slo_s=limit)
    assert planned(both, slo_s=limit, for_any=True).plan.predicted.step_s.p95 <= limit
    with pytest.raises(Infeasible) as caught:
        planned(both, slo_s=1e-3)
    assert "slo.step_p95_s" in str(caught.value) and "other frameworks" not in str(caught.value)


@pytest.mark.parametrize("objective", ["seconds", "usd"])
def test_on_gpus_both_kinds_of_round_share_one_layout_that_the_executor_runs(objective):
    found = solved_on_gpus("exact", objective=objective)
    rounds = found.plan.job.rounds
    assert not_executable(found.plan, None) == [] and rounds.long is not None
    for key in SAME_IN_BOTH_KINDS:
        assert getattr(rounds.short.train, key) == getattr(rounds.long.train, key)


def test_every_schedule_of_a_search_for_the_executor_can_run_here():
    both = update(4e-4, dp=1), update(3e-4, dp=2), update(2e-4, dp=2, micro_batch_tokens=8192)
    found = planned(both, {"micro_batch_tokens": [4096, 8192]})
    allowed = [c for c in found.search.cycles() if not c.violations(found.search.limits)]
    assert len({(c.train, c.long_train) for c in allowed}) > 1
    for cycle in allowed:
        trains = [found.search.space.train[m] for m in (cycle.train, cycle.long_train)]
        assert executable(cycle, trains)
    search = found.search
    choices = all_cycles(*search.columns(), search.needs_long, search.limits, every_train=True)
    counted = [c for c in choices if "sharding" not in c.violations(search.limits)]
    assert found.plan.solver.candidates == len(counted) < len(choices)


@pytest.mark.parametrize("seed", range(20))
def test_no_update_is_left_out_that_is_part_of_a_best_pair_of_one_sharding(seed):
    draw = random.Random(seed)
    sizes = [(8, 1, 1), (4, 2, 1), (4, 1, 2), (2, 4, 1), (2, 2, 2)]
    every = [
        TrainCost(
            UpdateLayout(dp=dp, tp=tp, sp=sp, micro_batch_tokens=tokens),
            step_s=draw.choice((1.0, 2.0, 3.0)),
            per_token_s=draw.choice((1.0, 2.0, 3.0)),
            per_token_squared_s=draw.choice((1.0, 2.0)),
        )
        for dp, tp, sp in sizes
        for tokens in (1024, 2048, 4096)
    ]
    kept = update_layouts._unbeaten_shardings(every, False)
    assert len(kept) < len(every)

    def best(costs: list[TrainCost], short: tuple[float, float], long: tuple[float, float]) -> float:
        return min(
            a.update_s(*short) + b.update_s(*long)
            for a, b in itertools.product(costs, repeat=2)
            if sharding_of(a.layout) == sharding_of(b.layout)
        )

    for _ in range(50):
        short, long = ((draw.choice((0.0, 0.3, 1.0, 5.0)), draw.choice((0.0, 0.5, 4.0))) for _ in range(2))
        assert best(kept, short, long) == pytest.approx(best(every, short, long))


def test_candidates_of_a_law_are_what_the_executor_runs_and_others_have_more():
    profile, job = library_profile("H800", "Qwen2.5-14B"), small_job(SIZES)
    here = feasible_train(JobPools(gpu_cluster().pools["main"]), job, profile)
    assert here and all(is_allowed(t.layout, UPDATE_VALUES) for t in here)
    every = {t.layout for t in train_costs(profile, 8, [4096], {})}
    runnable = {t.layout for t in train_costs(profile, 8, [4096], UPDATE_VALUES)}
    assert runnable and all(is_allowed(layout, UPDATE_VALUES) for layout in runnable)
    assert max(layout.pp for layout in every) > 1 and max(layout.cp for layout in every) > 1


def test_the_jobs_own_model_decides_what_divides_it_and_not_the_table_of_the_profile():
    seven = ModelShape("qwen2", heads=7, kv_heads=7, vocab=151936, intermediate=4864, experts=0)
    law, job = library_profile("H800", "Qwen2.5-14B"), small_job(SIZES)
    assert {t.layout.tp for t in feasible_train(JobPools(gpu_cluster().pools["main"]), job, law)} != {1}
    kept = feasible_train(JobPools(gpu_cluster().pools["main"]), job, law, model=seven)
    assert kept and {(t.layout.tp, t.layout.sp) for t in kept} == {(1, 1)}
    measured = small_profile(train=(update(1e-4), update(5e-5, dp=1, tp=2)))
    assert {t.layout.tp for t in feasible_train(JobPools(laptop().pools["main"]), job, measured)} == {1, 2}
    assert {t.layout.tp for t in feasible_train(JobPools(laptop().pools["main"]), job, measured, model=seven)} == {1}
    halves = small_profile(train=(update(5e-5, dp=1, tp=2),))
    with pytest.raises(Infeasible, match="tp is 2, which does not divide 7 attention and 7 key-value heads"):
        feasible_train(JobPools(laptop().pools["main"]), job, halves, model=seven)


def shared_evenly(layout: UpdateLayout) -> bool:
    """Whether the executor shares a Qwen2.5-14B evenly among the ranks."""
    shape = architecture_of("Qwen2.5-14B")
    assert shape is not None
    return not any(update_faults(layout, shape_from_architecture(shape)))


@pytest.mark.parametrize(("allowed", "runs"), [({}, lambda _: True), (UPDATE_VALUES, shared_evenly)])
def test_the_least_memory_of_any_layout_is_that_of_the_candidates(allowed, runs):
    law = library_profile("H800", "Qwen2.5-14B").train_law
    least = least_peak(law, 8, [4096], allowed, runs)
    every = [t for t in train_layouts(law, 8, [4096], **allowed) if runs(t)]
    assert least is not None and every
    assert least == min(peak_bytes(physics_of(law), t, law.memory_factors) for t in every)
    assert least_peak(law, 8, [4096], {}, lambda _: True) <= least
    assert least_peak(law, 8, [4096], allowed, lambda layout: layout.tp == 8 and runs(layout)) > least
    assert least_peak(law, 8, [4096], allowed, lambda _: False) is None


@pytest.mark.parametrize(
    ("gpu", "model", "nodes", "budget"),
    [("A100", "Llama-3.1-8B", 1, 8192), ("H100", "Qwen2.5-32B", 4, 16896), ("H100", "Qwen3-30B-A3B", 2, 8192)],
)
def test_no_layout_that_fits_beats_the_candidates_whatever_is_trained(gpu, model, nodes, budget):
    """By brute force: all sizes, recomputation, offloading, and both kinds of round in one sharding."""
    profile, ranks = library_profile(gpu, model), 8 * nodes
    law, physics = profile.train_law, physics_of(profile.train_law)
    a, limit = physics.architecture, MEMORY_SHARE * physics.gpu.memory_bytes
    cluster = gpu_cluster(
        nodes=nodes,
        accelerators={"kind": "cuda", "name": gpu, "per_node": 8, "memory_bytes": physics.gpu.memory_bytes},
    )
    budgets = [budget, 2 * budget]
    job = small_job({**SIZES, "max_prompt_tokens": 512, "max_response_tokens": 2048}, search={
        "tp": [1], "micro_batch_tokens": budgets})  # fmt: skip
    every = []
    for tp, sp, tokens, recompute, offload in itertools.product(
        (1, 2, 4, 8), (1, 2, 4, 8), budgets, ("none", "full"), (False, True)
    ):
        if ranks % (tp * sp):
            continue
        layout = UpdateLayout(
            dp=ranks // tp // sp, tp=tp, sp=sp, micro_batch_tokens=tokens, recompute=recompute, offload=offload
        )
        refused = any(update_faults(layout, shape_from_architecture(a)))
        if not refused and peak_bytes(physics, layout, law.memory_factors) <= limit:
            every.append(train_cost_in(profile, layout))
    kept = feasible_train(JobPools(cluster.pools["main"]), job, profile)
    assert {cost.layout for cost in kept} < {cost.layout for cost in every}

    def best(costs: Any, short: tuple[float, float], long: tuple[float, float]) -> float:
        pairs = (
            (x, y) for x, y in itertools.product(costs, repeat=2) if sharding_of(x.layout) == sharding_of(y.layout)
        )
        return min(x.update_s(*short) + y.update_s(*long) for x, y in pairs)

    for tokens, long_tokens in itertools.product((1e3, 1e5, 3e5, 1e6, 1e7), repeat=2):
        short, long = (tokens, tokens * 500), (long_tokens, long_tokens * 4000)
        assert best(kept, short, long) == pytest.approx(best(every, short, long), rel=1e-9)


def test_of_equal_updates_that_stays_which_saves_no_memory_and_one_that_saves_host_memory_is_kept():
    def cost(offload: bool, recompute: str = "none") -> TrainCost:
        return TrainCost(
            UpdateLayout(dp=8, micro_batch_tokens=4096, offload=offload, recompute=recompute), 1.0, 2.0, 3.0
        )

    plain, offloaded, again = cost(False), cost(True), cost(False, "full")
    assert update_layouts._unbeaten_shardings([offloaded, again, plain], False) == [plain]
    less = {plain: (12.0,), offloaded: (8.0,), again: (12.0,)}
    assert update_layouts._unbeaten_shardings([offloaded, again, plain], False, less) == [offloaded]
    slower = dataclasses.replace(offloaded, step_s=1.1)
    less = {plain: (12.0,), slower: (8.0,)}
    assert update_layouts._unbeaten_shardings([slower, plain], False, less) == [slower, plain]


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_law_of_bfloat16_prices_no_other_dtype_in_solve_or_check(dtype):
    documents = solved_on_gpus()
    assert documents.job.model.dtype == "bfloat16"
    job = documents.job.model_copy(update={"model": documents.job.model.model_copy(update={"dtype": dtype})})
    said = f"the profile's training law is of bfloat16 and the job's model.dtype is {dtype}.*write model.dtype bfloat16"
    with pytest.raises(Infeasible, match=said):
        feasible_train(JobPools(documents.cluster.pools["main"]), job, documents.profile)
    pool = documents.cluster.pools["main"]
    faults = list(memory_rules.priced(documents.plan, job, documents.profile, JobPools(pool)))
    (fault,) = [fault for fault in faults if "training law" in fault.message]
    assert fault.rule == "update-unmeasured" and fault.remedy.startswith("write model.dtype bfloat16")
    assert law_dtype_fault(small_profile(), dtype) is None, "updates that were measured are of the job's dtype"
