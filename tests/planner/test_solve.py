"""Solve: what it chooses on fabricated inputs, for seconds and for dollars, that it is repeatable, how it refuses."""

import dataclasses
import math
import os
import subprocess
import sys

import numpy as np
import pytest

from benchmarks.copula_trace import copula_lengths
from rlplan.planner.choose.candidate_search import is_plain
from rlplan.planner.choose.candidates.solve_options import Pass, SolveOptions
from rlplan.planner.choose.cycle_cost import length_ratio
from rlplan.planner.choose.schedule_choice import baseline_of, keeps_slo
from rlplan.planner.explain.why import baseline_text
from rlplan.planner.nodes_front import nodes_front
from rlplan.planner.simulate.whole_run import simulate_plan
from rlplan.planner.solve import Solved, solve
from rlplan.plans.check.plan_fit import misfits
from rlplan.plans.facts.model_shape import ModelShape
from rlplan.plans.facts.plan_text import cut_text
from rlplan.plans.schema.cluster import Cluster
from rlplan.plans.schema.plan import Plan
from rlplan.plans.yaml.errors import Infeasible
from rlplan.plans.yaml.yaml_io import dump, loads
from rlplan.profiles.library import library_profile
from rlplan.profiles.phase_schema import Train

from .conftest import heavy_trace, laptop, small_job, small_profile, some_inputs
from .gpu_run import gpu_cluster
from .solutions import QUICK, SMALL, eight_by_four, solution, solve_afresh


def without_volatile(plan: Plan) -> str:
    return dump(plan).split("\nvolatile:")[0]


def test_exact_beats_sync_by_a_third_and_race_beats_exact() -> None:
    job, passes = (
        small_job(search={"tp": [1, 2], "micro_batch_tokens": [4096]}),
        (Pass(8, 4, math.inf), Pass(32, 16, 0.05)),
    )
    plan, race = (solution(job, passes=passes, mode=mode).plan for mode in (None, "race"))
    assert plan.job.bias.mode == "exact" and plan.job.bias.budget == 0.0
    assert plan.solver.status == "optimal" and plan.solver.gap <= 1e-6
    assert plan.predicted.baseline.seconds_per_sample / plan.predicted.seconds_per_sample >= 1.3
    assert plan.predicted.length_ratio == pytest.approx(1.0, abs=0.05)
    assert list(misfits(plan, laptop(), job, ModelShape("qwen2", 8, 8, None, None, 0))) == []
    assert loads(dump(plan), Plan) is not None
    assert race.predicted.seconds_per_sample < plan.predicted.seconds_per_sample
    assert race.predicted.length_ratio < 0.9
    assert abs(1 - race.predicted.length_ratio) <= race.job.bias.budget <= abs(1 - race.predicted.length_ratio) + 0.01
    assert race.predicted.baseline == plan.predicted.baseline
    run = simulate_plan(plan, job, small_profile(), heavy_trace(), steps=150)
    assert run.seconds_per_sample() == pytest.approx(plan.predicted.seconds_per_sample, rel=0.1)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="cores cannot be pinned here")
def test_solving_again_on_one_core_gives_the_same_bytes() -> None:
    first, cores = solution().plan, os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(cores)})
        again = solve_afresh().plan
    finally:
        os.sched_setaffinity(0, cores)
    assert without_volatile(again) == without_volatile(first)
    assert without_volatile(solve_afresh(seed=1).plan) != without_volatile(first)
    # A search that a limit cut has a bound that holds.
    whole, cut = first.solver, solve_afresh(max_nodes=0).plan.solver
    assert whole.status == "optimal" and cut.bound <= whole.reached <= cut.reached * (1 + 1e-6)


def test_predictions_add_up_and_the_front_trades_bias_for_speed() -> None:
    plan = solution().plan
    predicted, phases = plan.predicted, plan.predicted.phases_s
    total = phases.rollout + phases.reward_exposed + phases.train + phases.sync
    assert predicted.step_s.mean == pytest.approx(total)
    assert predicted.seconds_per_sample == pytest.approx(predicted.step_s.mean / (8 * 4), rel=1e-6)
    # 0.36 USD an hour is 0.1 USD per 1000 s.
    assert predicted.usd_per_1k_samples == pytest.approx(0.1 * predicted.seconds_per_sample)
    biases = [abs(1 - point.length_ratio) for point in predicted.front]
    seconds = [point.seconds_per_sample for point in predicted.front]
    assert biases == sorted(biases) and seconds == sorted(seconds, reverse=True) and len(seconds) >= 3
    (chosen,) = [point for point in predicted.front if point.chosen]
    assert chosen.seconds_per_sample == pytest.approx(predicted.seconds_per_sample, rel=1e-12)
    assert chosen.length_ratio == predicted.length_ratio
    sync = solution(mode="sync").plan.predicted
    assert sync.seconds_per_sample == sync.baseline.seconds_per_sample and sync.length_ratio == 1.0


def test_the_share_cut_at_the_cap_is_of_what_is_trained() -> None:
    job = small_job({**SMALL, "max_response_tokens": 256}, search=eight_by_four().search.model_dump())
    exact, race = (solution(job, mode=mode).plan for mode in ("exact", "race"))
    of_all = float(np.mean([row.tokens >= 256 for row in heavy_trace().rows]))
    assert exact.predicted.cut_share == pytest.approx(of_all, rel=0.05) and exact.predicted.cut.cap_tokens == 256
    assert race.predicted.cut_share < 0.9 * of_all, "the samples that finish first are the short ones"
    run = simulate_plan(race, job, small_profile(), heavy_trace(), steps=150)
    assert run.cut_share() == pytest.approx(race.predicted.cut_share, rel=0.25)
    uncut = solution().plan.predicted
    assert uncut.cut_share < 0.2 * of_all and not uncut.cut_extrapolated


def test_a_cap_above_all_traced_lengths_is_extrapolated_and_told() -> None:
    longer = small_job({**SMALL, "max_response_tokens": 2048}, search=eight_by_four().search.model_dump())
    for job, said in ((longer, True), (eight_by_four(), False)):
        predicted = solution(job, mode="sync").plan.predicted
        assert predicted.cut_share > 0 and ("extrapolated" in cut_text(predicted)) is said


def test_a_budget_lets_biased_modes_in_and_is_kept() -> None:
    free, half = solution(mode="race").plan, solution(bias_budget=0.5).plan
    assert half.job.bias.mode == "race" and half.job.bias.budget == 0.5
    assert half.predicted.seconds_per_sample >= free.predicted.seconds_per_sample
    with pytest.raises(Infeasible, match="bias budget"):
        solve_afresh(mode="race", bias_budget=0.001)


def test_an_slo_is_kept_or_the_lowest_p95_is_told() -> None:
    def p95(limit: float) -> float:
        return solve_afresh(eight_by_four(slo={"step_p95_s": limit})).plan.predicted.step_s.p95

    sync = solution(mode="sync").plan.predicted.step_s.p95
    told = []
    for limit in (0.01, 0.6 * sync):
        with pytest.raises(Infeasible, match=r"step_p95_s.*lowest p95") as error:
            p95(limit)
        told.append(float(str(error.value).split(" is ")[-1].removesuffix(" s")))
    assert all(0.6 * sync < seconds < 1.1 * sync for seconds in told), "no plan that breaks its bias budget counts"
    assert p95(1.1 * told[0]) <= 1.1 * told[0]


def test_a_forced_mode_that_is_slower_is_simulated_to_the_end() -> None:
    even = heavy_trace(sigma=0.05, icc=0.1)  # nothing to gain, and every deferral is a loss
    solved = solution(trace=even, mode="exact")
    predicted = solved.plan.predicted
    assert solved.plan.job.bias.mode == "exact" and predicted.seconds_per_sample > predicted.baseline.seconds_per_sample
    assert solved.solution.cycle.short.rounds == QUICK[-1].short_rounds
    assert solution(trace=even).plan.job.bias.mode == "sync"


def test_progress_goes_up_to_the_end() -> None:
    told: list[float] = []
    documents = laptop(), eight_by_four(), small_profile(), heavy_trace(), some_inputs()
    solve(*documents, SolveOptions(mode="sync", passes=QUICK), lambda text, share: told.append(share))
    assert told == sorted(told) and told[0] < 0.1 and told[-1] == 1.0


def test_importing_the_planner_imports_no_training_or_serving_stack() -> None:
    code = (
        "import sys, rlplan.planner.solve, rlplan.planner.simulate.whole_run, rlplan.profiles.length_trace;"
        "print(sorted({'torch', 'vllm', 'ray', 'transformers', 'numba'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd="/")
    assert done.stdout.strip() == "[]"


def test_deadlines_that_adapt_are_planned_though_their_gain_is_unknown() -> None:
    timeout = {"min_s": 0.1, "anchor_factor": 1.5}
    reward = {"kind": "code", "workers": 2, "deadline_s": 2.0, "adaptive_timeout": timeout}
    with pytest.warns(UserWarning, match=r"adaptive_timeout.*what it saves is not predicted"):
        planned = solve_afresh(eight_by_four(reward=reward), mode="sync").plan.job
    assert planned.reward.adaptive_timeout.model_dump() == timeout


# -- for the fewest dollars --------------------------------------------------------------------------------------------

SIZE, USD = 4, 40.0
CLUSTER = gpu_cluster(nodes=2, usd_per_node_hour=USD)
JOB = small_job(
    {"prompts_per_step": 16, "samples_per_prompt": SIZE, "max_prompt_tokens": 256, "max_response_tokens": 4096},
    search={"tp": [1, 2], "micro_batch_tokens": [8192]},
)


def on_two_nodes(objective: str, cluster: Cluster = CLUSTER, **options: float) -> Solved:
    """A 7B job that is cheapest on one node of two."""
    trace = copula_lengths([(10, 0.05), (200, 0.6), (4096, 0.99)], 0.4, 4096, 48, 8)
    profile = library_profile("H800", "Qwen2.5-7B")
    return solution(JOB, cluster=cluster, profile=profile, trace=trace, objective=objective, **options)


def test_for_usd_a_plan_may_leave_nodes_unused():
    fast, cheap = (on_two_nodes(objective).plan for objective in ("seconds", "usd"))
    assert cheap.predicted.nodes == 1 and fast.predicted.nodes == 2
    assert cheap.predicted.usd_per_1k_samples < fast.predicted.usd_per_1k_samples
    assert cheap.predicted.seconds_per_sample > fast.predicted.seconds_per_sample
    dollars = 1000 * cheap.predicted.seconds_per_sample * USD / 3600
    assert cheap.predicted.usd_per_1k_samples == pytest.approx(dollars, rel=1e-4)
    assert fast.job.rounds.short.train.accelerators == 16
    assert list(misfits(cheap, CLUSTER, JOB, None)) == []
    found = on_two_nodes("usd")
    limits, baseline = found.search.limits, found.baseline
    assert cheap.predicted.baseline.nodes == 1 == baseline.nodes(limits), "both gains are one"
    assert is_plain(baseline) and baseline.short.rounds >= QUICK[-1].short_rounds
    plain = [c.seconds_per_sample(SIZE) for c in found.search.plain_cycles() if c.nodes(limits) == 1]
    assert baseline.seconds_per_sample(SIZE) <= min(plain) * 1.05


def test_dollars_within_seconds_take_the_nodes_that_these_need():
    free, fast = (on_two_nodes(objective).plan.predicted for objective in ("usd", "seconds"))
    within_s = (free.step_s.mean + fast.step_s.mean) / 2
    found = on_two_nodes("usd", within_s=within_s).plan
    assert found.predicted.nodes == 2 and found.predicted.step_s.mean <= within_s
    assert (found.solver.within_s, found.solver.method) == (within_s, "integer program")


def test_seconds_that_nothing_keeps_are_told_with_the_least():
    fast = on_two_nodes("seconds").plan.predicted
    with pytest.raises(Infeasible, match=r"usd-within.*; the least mean step that was simulated is \d+(\.\d+)? s"):
        on_two_nodes("usd", within_s=0.9 * fast.step_s.mean)
    with pytest.raises(Infeasible, match=r"keeps the 1 s of .* take .* s at least, and no plan is 3 times as fast"):
        on_two_nodes("usd", within_s=1.0)


def test_the_pool_is_chosen_where_several_are_like_the_profile():
    pool = CLUSTER.pools["main"]
    pools = {"a": pool, "b": pool.model_copy(update={"usd_per_node_hour": USD / 2})}
    found = on_two_nodes("usd", cluster=CLUSTER.model_copy(update={"pools": pools})).plan
    assert found.job.rounds.short.rollout.pool == "b" and found.solver.method == "enumeration"
    assert "a costs 100.0% more" in found.job.why["rounds.short.rollout.pool"]


def test_the_front_of_nodes_has_each_number_of_them():
    trace = copula_lengths([(10, 0.05), (200, 0.6), (4096, 0.99)], 0.4, 4096, 48, 8)
    cluster = CLUSTER.model_copy(update={"pools": {"main": CLUSTER.pools["main"].model_copy(update={"nodes": 3})}})
    profile, options = library_profile("H800", "Qwen2.5-7B"), SolveOptions(mode="sync")
    # Of 16 prompts a step the tail takes as long on any number of nodes.
    job = JOB.model_copy(update={"rollout": JOB.rollout.model_copy(update={"prompts_per_step": 64})})
    one, two, three = nodes_front(cluster, job, profile, trace, options)
    assert [one.nodes, two.nodes, three.nodes] == [1, 2, 3] and one.pool == "main"
    assert one.step_s > two.step_s > three.step_s and "of the step" in one.binds
    assert one.usd_per_1k_samples == pytest.approx(1000 * one.seconds_per_sample * USD / 3600)
    assert three.usd_per_1k_samples == pytest.approx(1000 * three.seconds_per_sample * 3 * USD / 3600)


def test_a_plan_on_more_nodes_names_the_cheaper_plain_rounds():
    """As an SLO would put it there: plain rounds on one node cost less, and are slower."""
    search = on_two_nodes("usd").search
    limits = search.limits
    chosen = min(
        (c for c in search.cycles() if c.short.deferral.mode == "exact" and c.nodes(limits) == 2),
        key=lambda c: (c.cost(limits), c.name),
    )
    baseline = baseline_of(search, chosen)
    cheap = min(search.plain_cycles(), key=lambda c: (c.cost(limits), c.name))
    assert (cheap.nodes(limits), baseline.nodes(limits)) == (1, 2)
    assert baseline.seconds_per_sample(SIZE) < cheap.seconds_per_sample(SIZE)
    seconds = cheap.seconds_per_sample(SIZE) / baseline.seconds_per_sample(SIZE)
    usd = cheap.usd_per_sample(limits) / baseline.usd_per_sample(limits)
    assert baseline_text(search, baseline) == (
        "compared on 2 nodes, as the plan takes; plain rounds cost least on 1 node, where a sample takes "
        f"{seconds:.2f} times the seconds and {usd:.2f} times the USD"
    )


def test_a_baseline_that_breaks_the_slo_is_told():
    free = on_two_nodes("seconds")
    search, calm = free.search, dataclasses.replace(free.search.limits, slo=True)
    assert keeps_slo(free.baseline, search.limits), "without an SLO all do"
    column = dataclasses.replace(free.baseline.short, slow=tuple(1.0 for _ in free.baseline.short.slow))
    assert not keeps_slo(dataclasses.replace(free.baseline, short=column), calm)
    assert baseline_text(search, free.baseline) is None
    assert not is_plain(free.cycle) and baseline_of(search, free.baseline) is free.baseline


def test_the_nodes_that_a_plan_pays_for_hold_its_engines():
    nodes = []
    for host_memory_bytes in (4 * 10**9, 6 * 10**9, 24 * 10**9):
        cluster = laptop(nodes=2, host_memory_bytes=host_memory_bytes)
        predicted = solution(cluster=cluster, mode="exact", objective="usd").plan.predicted
        assert predicted.host_memory.capacity_bytes == host_memory_bytes >= predicted.host_memory.needed_bytes
        assert predicted.usd_per_hour == pytest.approx(predicted.nodes * 0.36)
        nodes.append(predicted.nodes)
    assert nodes == sorted(nodes, reverse=True), "more memory never takes more nodes"


def test_a_length_ratio_is_at_least_one_token():
    """Few rounds say little of a step of one prompt."""
    assert length_ratio(-1000.0, 100.0) == 0.01 and length_ratio(-50.0, 100.0) == 0.5
    sizes, search = {"prompts_per_step": 1, "samples_per_prompt": 2}, {"tp": [1], "micro_batch_tokens": [2048]}
    assert all(point.length_ratio > 0 for point in solution(small_job(sizes, search=search)).plan.predicted.front)


# -- the distance to the hardware's limit ------------------------------------------------------------------------------


def measured_updates(*times):
    """Of a profile: for each recompute the seconds of an update and of a token."""
    return tuple(
        Train(dp=1, micro_batch_tokens=4096, step_s=step_s, step_s_per_token=per_token, step_s_per_token_squared=0.0,
              error=0.05, recompute=recompute)
        for recompute, step_s, per_token in times
    )  # fmt: skip


def test_no_plan_recomputes_because_that_was_measured_faster():
    impossible = small_profile(train=measured_updates(("none", 0.5, 8e-4), ("full", 0.3, 4e-4)))
    plan = solve_afresh(profile=impossible, mode="sync").plan
    assert plan.job.rounds.short.train.recompute == "none"
    slower = small_profile(train=measured_updates(("none", 0.5, 8e-4), ("full", 0.5, 1e-3)))
    assert plan.predicted == solve_afresh(profile=slower, mode="sync").plan.predicted, "it is priced as without"


def test_a_plan_states_its_limit_where_a_peak_is_known():
    assert solution(mode="sync").plan.predicted.limit is None
    profile = small_profile()
    peaks = {"peak_flops": 5e10, "peak_bytes_per_s": 1e10}
    profile = profile.model_copy(update={"machine": profile.machine.model_copy(update=peaks)})
    plan = solution(profile=profile, mode="exact").plan
    predicted, limit, planned = plan.predicted, plan.predicted.limit, plan.job.rounds
    assert (limit.peak_flops, limit.peak_bytes_per_s, limit.parameters) == (5e10, 1e10, 2_000_000)
    assert (limit.weight_bytes, limit.kv_bytes_per_token, limit.attention_width) == (2, 4096, 0)
    rollout_s = train_s = 0.0
    for kind in ("short", "long"):
        least, engines, share = (
            getattr(limit, kind),
            getattr(planned, kind).rollout,
            getattr(predicted.rounds, kind).share,
        )
        read = least.decode_steps * 4e6 / engines.tp + least.read_kv_tokens * 4096 / (engines.engines * engines.tp)
        rollout_s, train_s = rollout_s + share * least.rollout_s, train_s + share * least.train_s
        assert least.rollout_s == pytest.approx(read / 1e10)
        assert least.train_s == pytest.approx(6 * 2e6 * least.trained_tokens / (2 * 5e10)), "two cores for one rank"
        assert least.decode_steps >= predicted.lengths_tokens[10], "more than the median response of one sample"
        assert least.trained_squares >= least.trained_tokens**2 / 33, "of 32 samples"
    assert (limit.phases.rollout.limit_s, limit.phases.train.limit_s) == pytest.approx((rollout_s, train_s))
    assert limit.step_s == pytest.approx(rollout_s + train_s)
    assert limit.phases.train.ratio == pytest.approx(train_s / predicted.phases_s.train)
