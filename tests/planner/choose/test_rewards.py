"""Who scores: how many reward workers a job gets, under which deadlines, and where its judge is."""

import dataclasses
from typing import Any

import pytest

from rlplan.planner.choose.candidates.pool_choice import Unplannable
from rlplan.planner.choose.candidates.reward_choices import judge_places, room_for_workers, safe_timeout, worker_counts
from rlplan.planner.choose.cycle_cost import all_cycles
from rlplan.planner.choose.round_program import solve_program
from rlplan.planner.choose.schedule_choice import finalists_of
from rlplan.planner.costs.reward_costs import RewardCost, slower_of, slowest_of
from rlplan.planner.costs.round_costs import judge_factors
from rlplan.planner.refresh import refresh
from rlplan.planner.solve import Solved
from rlplan.plans.check.plan_fit import misfits
from rlplan.plans.schema.cluster import Pool
from rlplan.plans.schema.levers import EngineLayout, RewardJudge, timeout_spec
from rlplan.plans.schema.planned_job import PlannedJob, PooledReward
from rlplan.plans.yaml.errors import InputError
from rlplan.profiles.judge_schema import Judge, JudgeShare
from rlplan.profiles.phase_schema import Reward, RewardExecutions

from ..conftest import heavy_trace, laptop, rollout, small_job, small_profile, some_inputs, spread
from ..gpu_run import gpu_cluster, solved_on_gpus
from ..solutions import QUICK, eight_by_four, few_prompt_sets, solution

MATH = {"kind": "math", "deadline_s": 30.0}


def scoring(seconds: float) -> Reward:
    """Rewards that all take a worker so long."""
    return Reward(workers=1, latency=spread(seconds), per_sample_s=seconds)


SLOW, MIDDLING, QUICKLY = scoring(0.2), scoring(0.05), scoring(1e-4)


def rewarded(reward: Any, costs: Reward, mode: str = "sync") -> Solved:
    """A job of 16 x 8 on eight cores."""
    search = {"tp": [1, 2], "micro_batch_tokens": [4096]}
    job = small_job(reward=reward, search=search)
    return solution(job, cluster=laptop(cores=8), profile=small_profile(reward=costs), mode=mode)


def test_no_other_count_of_workers_is_faster_than_the_planned_one() -> None:
    chosen = rewarded(MATH, SLOW)
    # 128 samples of 0.2 s are 25.6 s of a worker, beside rollouts of some seconds.
    assert chosen.plan.job.reward.workers > rewarded(MATH, QUICKLY).plan.job.reward.workers == 1
    fixed = {workers: rewarded({**MATH, "workers": workers}, SLOW) for workers in worker_counts(8)}
    assert all(found.plan.job.reward.workers == workers for workers, found in fixed.items())
    by_count = {workers: found.cycle.seconds_per_sample(8) for workers, found in fixed.items()}
    planned = by_count[chosen.plan.job.reward.workers]
    assert planned <= 1.02 * min(by_count.values()), by_count
    fewer = [seconds for workers, seconds in by_count.items() if workers < chosen.plan.job.reward.workers]
    assert all(seconds > planned for seconds in fewer), "fewer workers would do"


def test_the_program_chooses_one_count_for_both_kinds_of_round() -> None:
    """As listing every schedule does."""
    found = rewarded(MATH, MIDDLING, "exact")
    search, limits = found.search, found.search.limits
    assert found.cycle.long is not None and found.cycle.long.reward == found.cycle.short.reward
    short, long = search.columns()
    assert len({c.reward for c in short}) > 1, "several counts were simulated"
    for cycle in all_cycles(short, long, search.needs_long, limits):
        assert cycle.long is None or cycle.long.reward == cycle.short.reward
    short, long = finalists_of(search)
    listed = all_cycles(short, long, search.needs_long, limits, every_train=True)
    best = min(c.cost(limits) for c in listed if not c.violations(limits))
    program = solve_program(short, long, search.needs_long, limits, search.setting.target)
    assert program.objective == pytest.approx(best, rel=1e-6)


def test_workers_beyond_the_cores_that_engines_leave_are_never_chosen() -> None:
    search = rewarded(MATH, SLOW).search
    limits = dataclasses.replace(search.limits, worker_room=dict.fromkeys(search.limits.worker_room, 2))
    short, long = search.columns()
    program = solve_program(short, long, search.needs_long, limits, search.setting.target)
    assert limits.workers[program.cycle.short.reward] <= 2
    crowded = dataclasses.replace(program.cycle, short=next(c for c in short if limits.workers[c.reward] > 2))
    assert "cores" in crowded.violations(limits)


def test_accelerators_that_are_gpus_keep_a_core_each() -> None:
    node: dict[str, Any] = {"nodes": 2, "cores": 16, "host_memory_bytes": 10**11, "usd_per_node_hour": 1.0}
    gpu = {"kind": "cuda", "name": "H800", "per_node": 8, "memory_bytes": 80 * 10**9}
    cpu = {"kind": "cpu", "name": "core", "per_node": 8, "memory_bytes": 10**9}
    gpus, cpus = (Pool.model_validate({**node, "accelerators": accelerators}) for accelerators in (gpu, cpu))
    assert room_for_workers(EngineLayout(2, 4), gpus) == 16 - 8, "one node is taken"
    assert room_for_workers(EngineLayout(2, 8), gpus) == 32 - 16
    assert room_for_workers(EngineLayout(2, 8), cpus) == 32, "engines and workers share cores"
    # Counts grow by a third to a half.
    assert worker_counts(1) == [1]
    assert worker_counts(2) == [1, 2]
    assert worker_counts(20) == [1, 2, 3, 4, 6, 8, 12, 16, 20]


# 5 % of the wrong answers hang; right answers to one prompt differed by up to 1.5 times.
CODE = Reward(
    workers=1,
    latency=spread(0.4),
    per_sample_s=0.4,
    executions=RewardExecutions(
        correct_s=(0.05,) * 18 + (4.0, 9.0), wrong_s=(0.05,) * 9 + (30.0,), correct=0.6, unsolved=0.2, scatter=1.5
    ),
)


def test_safe_deadlines_judge_no_right_answer_wrong_that_was_seen() -> None:
    found = safe_timeout(0.1, 30.0, CODE)
    assert found is not None and CODE.executions is not None and CODE.executions.scatter is not None
    spec = timeout_spec(30.0, found)
    for slowest_s in CODE.executions.correct_s:
        fastest_s = slowest_s / CODE.executions.scatter if slowest_s >= 0.5 else 1e-3
        assert spec.deadline_s(fastest_s) >= slowest_s
    # Nothing adapts where the bounds leave nothing to save.
    assert safe_timeout(30.0, 30.0, CODE) is None
    assert safe_timeout(0.5, 1.0, CODE) is None, "nothing is known of how shorter right answers differ"
    assert safe_timeout(2.0, 30.0, scoring(0.4)) is None, "all samples take the same"


def test_a_plan_with_another_number_of_workers_is_refreshed_with_it() -> None:
    profile, cluster, job = small_profile(reward=SLOW), laptop(cores=8), eight_by_four(reward=MATH)
    plan = solution(job, cluster=cluster, profile=profile, mode="sync").plan
    assert plan.job.reward.workers > 1
    fewer = plan.job.reward.model_copy(update={"workers": 1})
    edited = plan.model_copy(update={"job": plan.job.model_copy(update={"reward": fewer})})
    with few_prompt_sets():
        again = refresh(edited, cluster, job, profile, heavy_trace(), some_inputs(), None, passes=QUICK)
    assert again.job.reward.workers == 1
    assert again.predicted.seconds_per_sample > plan.predicted.seconds_per_sample


def test_a_plan_on_fewer_nodes_has_its_workers_on_their_cores() -> None:
    # Slow rewards on nodes with hardly more cores than GPUs: as many workers as fit are wanted.
    profile = solved_on_gpus().profile.model_copy(update={"reward": scoring(2.0)})
    cluster = gpu_cluster(nodes=2, cores=16)
    found = solution(
        eight_by_four((2, 4), (4096,), reward=MATH), cluster=cluster, profile=profile, mode="sync", objective="usd"
    )
    rollout = found.plan.job.rounds.short.rollout
    nodes = cluster.pools["main"].nodes_of(rollout.engines, rollout.tp)
    assert 1 < found.plan.job.reward.workers <= 16 * nodes - rollout.engines * rollout.tp
    taken = {c.nodes(found.search.limits) for c in found.search.cycles() if not c.violations(found.search.limits)}
    assert taken == {1, 2}, "plans on one node and on two were compared"


FURTHER = {"kind": "code", "deadline_s": 30.0, "shortest_deadline_s": 2.0}


def test_a_slow_further_part_gets_the_workers_that_are_free() -> None:
    alone, both, one = (
        rewarded(parts, QUICKLY).plan for parts in (MATH, [MATH, FURTHER], [MATH, {**FURTHER, "workers": 1}])
    )
    planned = both.job.reward
    code = planned.further["code"]
    assert both.predicted.step_s.mean > 1.2 * alone.predicted.step_s.mean
    assert planned.workers == 1 < code.workers and planned.all_workers <= 8
    assert code.adaptive_timeout is not None and code.adaptive_timeout.min_s == 2.0, "its own safe deadlines"
    assert one.job.reward.further["code"].workers == 1
    assert one.predicted.step_s.mean > both.predicted.step_s.mean
    fixed = {"kind": "format", "pattern": ".*", "deadline_s": 1.0, "workers": 6}
    planned = rewarded([MATH, fixed], SLOW).plan.job.reward
    assert planned.further["format"].workers == 6 and planned.workers <= 2, "they take cores of the others"


# -- judges ------------------------------------------------------------------------------------------------------------

JUDGED = [
    {"kind": "math", "workers": 1, "deadline_s": 2.0},
    {"kind": "format", "name": "shape", "pattern": "a+", "workers": 1, "deadline_s": 1.0},
    {"kind": "length", "target_tokens": 100, "per_token": 0.01},
    {"kind": "judge", "model": "m/m", "prompt": "{response}?", "scale": [0, 1], "deadline_s": 5.0, "weight": 0.1},
]
SHARES = (JudgeShare(share=0.2, beside_factor=5.0, rollout_factor=1.02),)


def judge(beside: float = 1.0, rollout: float = 1.0, **costs: Any) -> Judge:
    return Judge(**{"per_sample_s": 1e-4, "per_token_s": 0.0, **costs}, beside_factor=beside, rollout_factor=rollout)


def judged(judge: Judge | None, cores: int = 2) -> PlannedJob:
    """A plan on so many cores; a sequence costs so much that two engines decode faster than one."""
    accelerators = {"kind": "cpu", "name": "cpu", "per_node": cores, "memory_bytes": 10**9}
    cluster, job = laptop(cores=cores, accelerators=accelerators), eight_by_four((1,), (4096,), reward=JUDGED)
    layouts = tuple(rollout(1, engines, 2e-3, 1e-3) for engines in range(1, cores + 1))
    plan = solution(job, cluster=cluster, profile=small_profile(rollout=layouts, judge=judge), mode="sync").plan
    assert list(misfits(plan, cluster, job, None)) == []
    return plan.job


def test_a_judge_is_where_the_step_takes_least() -> None:
    beside = judged(judge(beside=2.0, rollout=1.02))
    assert (beside.reward.judge.place, beside.rounds.short.rollout.engines) == ("beside", 2)
    assert "on accelerators of its own costs" in beside.why["reward.judge"]
    assert beside.reward.further == {"shape": PooledReward(kind="format", workers=1, deadline_s=1.0)}
    own = judged(judge(beside=2.0, rollout=4.0))
    assert (own.reward.judge.place, own.rounds.short.rollout.engines) == ("own", 1)
    # A share is chosen where the engines lose less by it.
    chosen = judged(judge(beside=2.0, rollout=4.0, shares=SHARES)).reward.judge
    assert (chosen.place, chosen.share, chosen.instances) == ("beside", 0.2, 1)
    quick, slow = judge(rollout=50.0), judge(rollout=50.0, per_sample_s=0.2)
    assert [judged(each, cores=4).reward.judge.instances for each in (quick, slow)] == [1, 2], "one lets the step wait"
    with pytest.raises(Unplannable, match="the profile does not hold what it costs"):
        judged(None)


def test_the_simplest_place_comes_first_and_the_executor_runs_each() -> None:
    job, profile = small_job(reward=JUDGED), small_profile(judge=judge(shares=SHARES, at_once=8))
    pool = laptop().pools["main"]
    places = judge_places(job, profile, pool, apart=False, for_any=False)
    assert [(p.place, p.instances, p.share) for p in places if p] == [
        ("own", 1, None), ("beside", 1, None), ("beside", 1, 0.2),
        ("own", 2, None), ("beside", 2, None), ("beside", 2, 0.2),
    ]  # fmt: skip
    assert {place.at_once for place in places if place} == {8}
    gpus = pool.model_copy(update={"accelerators": pool.accelerators.model_copy(update={"kind": "cuda"})})
    assert [p.place for p in judge_places(job, profile, gpus, apart=True, for_any=False) if p] == ["own", "own"]
    with pytest.raises(Unplannable, match="books no memory of a GPU"):
        judge_places(job, profile, gpus, apart=False, for_any=False)
    assert len(judge_places(job, profile, gpus, apart=False, for_any=True)) == 6
    assert judge_places(small_job(), profile, pool, apart=False, for_any=False) == [None]


def test_a_share_that_was_not_measured_is_refused() -> None:
    with pytest.raises(InputError, match=r"share of 0\.3 .* the profile's shares are: none"):
        judge_factors(small_profile(judge=judge()), RewardJudge(place="beside", instances=1, share=0.3))
    own = RewardJudge(place="own", instances=1)
    assert judge_factors(small_profile(judge=judge(2.0, 3.0)), own) == (1.0, 1.0)


def test_rewards_are_known_with_the_slower_of_workers_and_judge() -> None:
    workers, quick = RewardCost(4, 0.4, 0.0), RewardCost(1, 0.05, 0.0)
    slow = RewardCost(1, 0.05, 0.0, per_token_s=1e-3)
    assert slower_of(workers, quick) is workers
    assert slower_of(workers, slow) == dataclasses.replace(slow, all_workers=4)
    slowest = slowest_of(RewardCost(3, 0.1, 0.0), [RewardCost(2, 0.2, 0.0)])
    assert (slowest.workers, slowest.of_further, slowest.on_cores) == (2, True, 5)
    judged = slower_of(slowest, RewardCost(1, 9.0, 0.0, of_judge=True))
    assert judged.of_judge and (judged.workers, judged.on_cores) == (1, 5), "a judge takes no core of workers"
