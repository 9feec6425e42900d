"""How many reward workers a job gets, and under which deadlines, where it leaves that to the solver."""

import dataclasses
import math
from typing import Any

import pytest

from rlplan.planner import refresh as refreshing
from rlplan.planner.choose.candidate_search import Pass
from rlplan.planner.choose.rewards.reward_choices import room_for_workers, safe_timeout, worker_counts
from rlplan.planner.choose.round_program import solve_program
from rlplan.planner.choose.schedule_choice import finalists_of
from rlplan.planner.choose.schedules import all_cycles
from rlplan.planner.costs.reward_costs import RewardCost, slower_of, slowest_of
from rlplan.planner.solve import Solved, solve
from rlplan.planner.solve_options import SolveOptions
from rlplan.plans.schema.cluster import Pool
from rlplan.plans.schema.sections.layouts import EngineLayout
from rlplan.plans.schema.sections.levers import timeout_numbers
from rlplan.plans.schema.sections.origin import Inputs
from rlplan.profiles.phase_schema import Executions, Reward
from rlplan.rounds.timeouts import TimeoutSpec

from ..conftest import heavy_trace, laptop, small_job, small_profile, spread
from ..gpu_run import gpu_cluster, solved_on_gpus

QUICK = (Pass(6, 3, math.inf), Pass(24, 10, 0.1))
SOLVED: dict[str, Solved] = {}


def scoring(seconds: float) -> Reward:
    """Rewards that all take a worker so long."""
    return Reward(workers=1, latency=spread(seconds), per_sample_s=seconds)


def solved(inputs: Inputs, reward: dict[str, Any], costs: Reward, mode: Any = "exact") -> Solved:
    """Solved once for all tests."""
    key = repr((reward, costs, mode))
    if key not in SOLVED:
        profile = small_profile(reward=costs)
        job = small_job(reward={"kind": "math", "deadline_s": 30.0, **reward})
        options = SolveOptions(passes=QUICK, mode=mode)
        SOLVED[key] = solve(laptop(cores=8), job, profile, heavy_trace(), inputs, options)
    return SOLVED[key]


def test_the_plan_has_as_many_workers_as_slow_rewards_need(inputs: Inputs) -> None:
    # 128 samples of 0.2 s are 25.6 s of a worker, beside rollouts of some seconds.
    slow = solved(inputs, {}, scoring(0.2), mode="sync")
    fast = solved(inputs, {}, scoring(1e-4), mode="sync")
    assert slow.plan.job.reward.workers > fast.plan.job.reward.workers == 1


def test_no_other_count_is_faster_than_the_planned_one_by_more_than_a_tie(inputs: Inputs) -> None:
    chosen = solved(inputs, {}, scoring(0.2), mode="sync")
    by_count = {
        workers: solved(inputs, {"workers": workers}, scoring(0.2), mode="sync").cycle.seconds_per_sample(8)
        for workers in worker_counts(8)
    }
    planned = by_count[chosen.plan.job.reward.workers]
    assert planned <= 1.02 * min(by_count.values()), by_count
    fewer = [seconds for workers, seconds in by_count.items() if workers < chosen.plan.job.reward.workers]
    assert all(seconds > planned for seconds in fewer), "fewer workers would do"


def test_a_job_that_fixes_its_workers_keeps_them(inputs: Inputs) -> None:
    plan = solved(inputs, {"workers": 3}, scoring(0.2)).plan
    assert plan.job.reward.workers == 3
    assert "reward.workers" not in plan.job.why


def test_why_says_what_one_worker_fewer_and_one_more_would_do(inputs: Inputs) -> None:
    plan = solved(inputs, {}, scoring(0.05)).plan
    workers = plan.job.reward.workers
    assert 1 < workers < 8
    text = plan.job.why["reward.workers"]
    assert f"with {workers - 1} a step takes +" in text and f"with {workers + 1} a step takes" in text
    assert "engines leave them 8 host cores" in text


def test_both_kinds_of_round_have_the_same_workers(inputs: Inputs) -> None:
    found = solved(inputs, {}, scoring(0.05))
    assert found.cycle.long is not None
    assert found.cycle.long.reward == found.cycle.short.reward
    short, long = found.search.columns()
    assert len({c.reward for c in short}) > 1, "several counts were simulated"
    for cycle in all_cycles(short, long, found.search.needs_long, found.search.limits):
        assert cycle.long is None or cycle.long.reward == cycle.short.reward


def test_the_program_chooses_what_listing_every_schedule_finds(inputs: Inputs) -> None:
    found = solved(inputs, {}, scoring(0.05))
    search = found.search
    short, long = finalists_of(search)
    listed = all_cycles(short, long, search.needs_long, search.limits, every_train=True)
    best = min(c.cost(search.limits) for c in listed if not c.violations(search.limits))
    program = solve_program(short, long, search.needs_long, search.limits, search.setting.target)
    assert program.objective == pytest.approx(best, rel=1e-6)


def test_workers_beyond_the_cores_that_engines_leave_are_never_chosen(inputs: Inputs) -> None:
    found = solved(inputs, {}, scoring(0.2), mode="sync")
    search = found.search
    room = dict.fromkeys(search.limits.worker_room, 2)
    limits = dataclasses.replace(search.limits, worker_room=room)
    short, long = search.columns()
    program = solve_program(short, long, search.needs_long, limits, search.setting.target)
    assert limits.workers[program.cycle.short.reward] <= 2
    crowded = dataclasses.replace(program.cycle, short=next(c for c in short if limits.workers[c.reward] > 2))
    assert "cores" in crowded.violations(limits)


def test_accelerators_that_are_gpus_keep_a_core_each_and_cores_are_shared() -> None:
    node: dict[str, Any] = {"nodes": 2, "cores": 16, "host_memory_bytes": 10**11, "usd_per_node_hour": 1.0}
    gpu = {"kind": "cuda", "name": "H800", "per_node": 8, "memory_bytes": 80 * 10**9}
    cpu = {"kind": "cpu", "name": "core", "per_node": 8, "memory_bytes": 10**9}
    gpus = Pool.model_validate({**node, "accelerators": gpu})
    cpus = Pool.model_validate({**node, "accelerators": cpu})
    assert room_for_workers(EngineLayout(2, 4), gpus) == 16 - 8, "one node is taken"
    assert room_for_workers(EngineLayout(2, 8), gpus) == 32 - 16
    assert room_for_workers(EngineLayout(2, 8), cpus) == 32


def test_worker_counts_grow_by_a_third_to_a_half_and_end_at_the_most() -> None:
    assert worker_counts(1) == [1]
    assert worker_counts(2) == [1, 2]
    assert worker_counts(20) == [1, 2, 3, 4, 6, 8, 12, 16, 20]


# 5 % of the wrong answers hang; right answers to one prompt differed by up to 1.5 times.
CODE = Reward(
    workers=1,
    latency=spread(0.4),
    per_sample_s=0.4,
    executions=Executions(
        correct_s=(0.05,) * 18 + (4.0, 9.0), wrong_s=(0.05,) * 9 + (30.0,), correct=0.6, unsolved=0.2, scatter=1.5
    ),
)


def test_deadlines_adapt_within_the_bounds_of_the_job_where_that_saves_time(inputs: Inputs) -> None:
    plan = solved(inputs, {"kind": "code", "shortest_deadline_s": 2.0, "workers": 4}, CODE, mode="sync").plan
    adaptive = plan.job.reward.adaptive_timeout
    assert plan.job.reward.deadline_s == 30.0
    assert adaptive is not None and adaptive.min_s == 2.0
    assert adaptive.anchor_factor > 1.5, "right answers were seen to differ by so much"
    assert "reward.adaptive_timeout" in plan.job.why


def test_deadlines_that_solve_chooses_judge_no_right_answer_wrong_that_the_profile_saw() -> None:
    found = safe_timeout(0.1, 30.0, CODE)
    assert found is not None and CODE.executions is not None and CODE.executions.scatter is not None
    spec = TimeoutSpec(**timeout_numbers(30.0, found))
    for slowest_s in CODE.executions.correct_s:
        fastest_s = slowest_s / CODE.executions.scatter if slowest_s >= 0.5 else 1e-3
        assert spec.deadline_s(fastest_s) >= slowest_s


def test_deadlines_stay_where_the_bounds_leave_nothing_to_save() -> None:
    assert safe_timeout(30.0, 30.0, CODE) is None
    assert safe_timeout(0.5, 1.0, CODE) is None, "nothing is known of how shorter right answers differ"
    assert safe_timeout(2.0, 30.0, scoring(0.4)) is None, "all samples take the same"


def test_a_plan_with_another_number_of_workers_is_refreshed_with_it(inputs: Inputs) -> None:
    profile, cluster = small_profile(reward=scoring(0.05)), laptop(cores=8)
    job = small_job(reward={"kind": "math", "deadline_s": 30.0})
    options = SolveOptions(passes=QUICK, mode="sync")
    plan = solve(cluster, job, profile, heavy_trace(), inputs, options).plan
    fewer = plan.job.reward.model_copy(update={"workers": 1})
    edited = plan.model_copy(update={"job": plan.job.model_copy(update={"reward": fewer})})
    assert plan.job.reward.workers > 1
    again = refreshing.refresh(edited, cluster, job, profile, heavy_trace(), inputs, None, passes=QUICK)
    assert again.job.reward.workers == 1
    assert again.predicted.seconds_per_sample > plan.predicted.seconds_per_sample


def test_a_plan_on_fewer_nodes_has_its_workers_on_the_cores_of_these(inputs: Inputs) -> None:
    # Slow rewards on nodes with hardly more cores than GPUs: as many workers as fit are wanted.
    base = solved_on_gpus()
    job = small_job(
        {"prompts_per_step": 8, "samples_per_prompt": 4},
        reward={"kind": "math", "deadline_s": 30.0},
        search={"tp": [2, 4], "micro_batch_tokens": [4096]},
    )
    profile = base.profile.model_copy(update={"reward": scoring(2.0)})
    cluster = gpu_cluster(nodes=2, cores=16)
    options = SolveOptions(passes=QUICK, mode="sync", objective="usd")
    found = solve(cluster, job, profile, base.trace, inputs, options)
    rollout = found.plan.job.rounds.short.rollout
    nodes = cluster.pools["main"].nodes_of(rollout.engines, rollout.tp)
    assert 1 < found.plan.job.reward.workers <= 16 * nodes - rollout.engines * rollout.tp
    taken = {c.nodes(found.search.limits) for c in found.search.cycles() if not c.violations(found.search.limits)}
    assert taken == {1, 2}, "plans on one node and on two were compared"


FORMAT_AND_CODE: list[dict[str, Any]] = [
    {"kind": "math", "deadline_s": 30.0},
    {"kind": "code", "deadline_s": 30.0, "shortest_deadline_s": 2.0},
]


def several(inputs: Inputs, parts: list[dict[str, Any]], costs: Reward, cores: int = 8) -> Solved:
    job = small_job(reward=parts)
    options = SolveOptions(passes=QUICK, mode="sync")
    return solve(laptop(cores=cores), job, small_profile(reward=costs), heavy_trace(), inputs, options)


def test_a_slow_further_part_is_priced_and_gets_the_workers_that_the_first_does_not_need(inputs: Inputs) -> None:
    quick = scoring(1e-4)
    alone = several(inputs, FORMAT_AND_CODE[:1], quick)
    both = several(inputs, FORMAT_AND_CODE, quick)
    planned = both.plan.job.reward
    code = planned.further["code"]
    assert both.plan.predicted.step_s.mean > 1.2 * alone.plan.predicted.step_s.mean
    assert planned.workers == 1 < code.workers and planned.all_workers <= 8
    assert code.adaptive_timeout is not None and code.adaptive_timeout.min_s == 2.0, "its own safe deadlines"
    assert "those that ship" in both.plan.job.why["reward.further"]
    one = several(inputs, [FORMAT_AND_CODE[0], {**FORMAT_AND_CODE[1], "workers": 1}], quick)
    assert one.plan.job.reward.further["code"].workers == 1
    assert one.plan.predicted.step_s.mean > both.plan.predicted.step_s.mean


def test_workers_of_further_parts_take_cores_of_the_others(inputs: Inputs) -> None:
    fixed = [{"kind": "math", "deadline_s": 30.0}, {"kind": "format", "pattern": ".*", "deadline_s": 1.0, "workers": 6}]
    planned = several(inputs, fixed, scoring(0.2)).plan.job.reward
    assert planned.further["format"].workers == 6 and planned.workers <= 2


def test_a_judge_takes_no_core_of_reward_workers() -> None:
    pools = [RewardCost(3, 0.1, 0.0), RewardCost(2, 0.2, 0.0)]
    slowest = slowest_of(pools[0], pools[1:])
    assert (slowest.workers, slowest.of_further, slowest.on_cores) == (2, True, 5)
    judged = slower_of(slowest, RewardCost(1, 9.0, 0.0, of_judge=True))
    assert judged.of_judge and (judged.workers, judged.on_cores) == (1, 5)
