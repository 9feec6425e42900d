"""Where the program puts a judge, and what several parts of a reward come to in a plan."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from rlplan.planner.choose.candidate_search import Pass
from rlplan.planner.choose.candidates.job_limits import Unplannable
from rlplan.planner.choose.rewards.judge_places import judge_places
from rlplan.planner.costs.reward_costs import RewardCost, slower_of
from rlplan.planner.costs.round_costs import judge_factors
from rlplan.planner.solve import solve
from rlplan.planner.solve_options import SolveOptions
from rlplan.plans.check.plan_fit import misfits
from rlplan.plans.schema.sections.levers import RewardJudge
from rlplan.plans.schema.sections.planned_job import PooledReward
from rlplan.plans.yaml.errors import InputError
from rlplan.profiles.judge_schema import Judge, JudgeShare

SMALL = {"prompts_per_step": 8, "samples_per_prompt": 4}
MATH = {"kind": "math", "workers": 1, "deadline_s": 2.0}
JUDGED = [
    MATH,
    {"kind": "format", "name": "shape", "pattern": "a+", "workers": 1, "deadline_s": 1.0},
    {"kind": "length", "target_tokens": 100, "per_token": 0.01},
    {"kind": "judge", "model": "m/m", "prompt": "{response}?", "scale": [0, 1], "deadline_s": 5.0, "weight": 0.1},
]


def judge(beside: float = 1.0, rollout: float = 1.0, **costs: Any) -> Judge:
    return Judge(**{"per_sample_s": 1e-4, "per_token_s": 0.0, **costs}, beside_factor=beside, rollout_factor=rollout)


@pytest.fixture
def solved(make_cluster, make_profile, make_trace, make_job, make_rollout, inputs):
    """A plan on so many cores; a sequence costs so much that two engines decode faster than one."""

    def of(judge: Judge | None, cores: int = 2):
        layouts = tuple(make_rollout(1, engines, 2e-3, 1e-3) for engines in range(1, cores + 1))
        cluster = make_cluster(
            cores=cores, accelerators={"kind": "cpu", "name": "cpu", "per_node": cores, "memory_bytes": 10**9}
        )
        job = make_job(SMALL, reward=JUDGED)
        options = SolveOptions(mode="sync", passes=(Pass(5, 2, math.inf), Pass(10, 4, 0.1)))
        profile = make_profile(rollout=layouts, judge=judge)
        plan = solve(cluster, job, profile, make_trace(), inputs, options).plan
        assert list(misfits(plan, cluster, job, None)) == []
        return plan.job

    return of


def test_a_judge_that_takes_little_is_beside_two_engines_and_one_that_takes_much_has_a_core_of_its_own(solved) -> None:
    beside = solved(judge(beside=2.0, rollout=1.02))
    assert (beside.reward.judge.place, beside.rounds.short.rollout.engines) == ("beside", 2)
    assert "on accelerators of its own costs" in beside.why["reward.judge"]
    own = solved(judge(beside=2.0, rollout=4.0))
    assert (own.reward.judge.place, own.rounds.short.rollout.engines) == ("own", 1)
    assert beside.reward.further == {"shape": PooledReward(kind="format", workers=1, deadline_s=1.0)}


def test_a_share_is_chosen_where_the_engines_lose_less_by_it(solved) -> None:
    shares = (JudgeShare(share=0.2, beside_factor=5.0, rollout_factor=1.02),)
    chosen = solved(judge(beside=2.0, rollout=4.0, shares=shares)).reward.judge
    assert (chosen.place, chosen.share, chosen.instances) == ("beside", 0.2, 1)


def test_a_second_copy_is_taken_where_one_lets_the_step_wait(solved) -> None:
    quick, slow = judge(rollout=50.0), judge(rollout=50.0, per_sample_s=0.2)
    assert [solved(each, cores=4).reward.judge.instances for each in (quick, slow)] == [1, 2]


def test_a_job_with_a_judge_needs_its_costs(solved) -> None:
    with pytest.raises(Unplannable, match="the profile does not hold what it costs"):
        solved(None)


def test_the_simplest_place_comes_first_and_the_executor_runs_each(make_job, make_profile, make_cluster) -> None:
    shares = (JudgeShare(share=0.2, beside_factor=5.0, rollout_factor=1.02),)
    job, profile = make_job(reward=JUDGED), make_profile(judge=judge(shares=shares, at_once=8))
    pool = make_cluster().pools["main"]
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
    assert judge_places(make_job(), profile, pool, apart=False, for_any=False) == [None]


def test_a_share_that_was_not_measured_is_refused(make_profile) -> None:
    planned = RewardJudge(place="beside", instances=1, share=0.3)
    with pytest.raises(InputError, match=r"share of 0\.3 .* the profile's shares are: none"):
        judge_factors(make_profile(judge=judge()), planned)
    assert judge_factors(make_profile(judge=judge(2.0, 3.0)), RewardJudge(place="own", instances=1)) == (1.0, 1.0)


def test_rewards_are_known_with_the_slower_of_workers_and_judge() -> None:
    workers, quick = RewardCost(4, 0.4, 0.0), RewardCost(1, 0.05, 0.0)
    slow = RewardCost(1, 0.05, 0.0, per_token_s=1e-3)
    assert slower_of(workers, quick) is workers
    assert slower_of(workers, slow) == dataclasses.replace(slow, all_workers=4)
