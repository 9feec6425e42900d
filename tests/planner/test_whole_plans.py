"""Whole plans, held against files: a changed cost, choice or word is a changed line there (tests/golden.py)."""

import math
import warnings
from pathlib import Path
from typing import Any

import pytest

from rlplan.planner.choose.candidates.solve_options import Pass
from rlplan.planner.lengths.table_lengths import named_lengths
from rlplan.plans.schema.cluster import Cluster
from rlplan.profiles.judge_schema import Judge, JudgeShare
from rlplan.profiles.library import library_profile
from rlplan.profiles.phase_schema import RewardExecutions

from ..golden import flat, same_as_golden
from .conftest import laptop, rollout, small_job, small_profile
from .gpu_run import gpu_cluster
from .solutions import SMALL, eight_by_four, solution

GOLDEN = Path(__file__).with_name("golden")
LINKS = [
    {"pools": ["main", "learn"], "stream_bytes_per_s": 4e6}, {"pools": ["main", "main"], "stream_bytes_per_s": 1e9}
]  # fmt: skip
SEARCH = {"tp": [1, 2], "micro_batch_tokens": [2048, 4096]}
GRPO = {"name": "grpo", "learning_rate": 1e-3}
CODE = {"kind": "code", "deadline_s": 30.0, "shortest_deadline_s": 2.0}
JUDGE = {"kind": "judge", "model": "m/m", "prompt": "{response}?", "scale": [0, 1], "deadline_s": 5.0, "weight": 0.1}


def two_pools(pool: Cluster, **more: Any) -> Cluster:
    """The cluster with its only pool twice."""
    fields = pool.model_dump(mode="json")
    (main,) = fields["pools"].values()
    return Cluster.model_validate({**fields, "pools": {"main": main, "learn": main}, **more})


def case(name: str) -> dict[str, Any]:
    """What is solved: together the cases have every lever, reward, kind of machine and source of lengths."""
    if name == "free":
        return {}
    if name == "race":
        limits = {
            "slo": {"step_p95_s": 9.0},
            "algorithm": {**GRPO, "mask_truncated": True, "loss_aggregation": "token-mean"},
        }
        return {"job": eight_by_four(**limits), "mode": "race", "bias_budget": 0.6, "seed": 3}
    if name == "defer":
        return {"job": eight_by_four(algorithm={**GRPO, "dynamic_sampling": True}), "mode": "defer", "prompts": 40}
    if name == "predict":
        search = {**SEARCH, "drafts": {"tokens": [2, 4], "acceptance": 0.7}, "balance": True}
        return {"job": eight_by_four(search=search), "mode": "predict", "passes": (Pass(4, 2, math.inf),)}
    if name == "levers":
        search = {**SEARCH, "hand_over": [0.5], "tail": [0.5], "cutoff_tokens": {"min": 100}, "max_over_issue": 3.0}
        executions = RewardExecutions(
            correct_s=(0.1, 0.2, 4.0), wrong_s=(0.1, 9.0), correct=0.6, unsolved=0.2, scatter=1.4
        )
        reward = small_profile().reward.model_copy(update={"executions": executions})
        job = eight_by_four(search=search, reward=[CODE, {"kind": "math", "deadline_s": 5.0}])
        return {
            "job": job, "cluster": laptop(cores=6, nodes=2), "profile": small_profile(reward=reward), "mode": "exact",
            "for_any": True, "objective": "usd",
        }  # fmt: skip
    if name == "judge":
        shares = (JudgeShare(share=0.2, beside_factor=5.0, rollout_factor=1.02),)
        costs = Judge(per_sample_s=1e-2, per_token_s=1e-4, beside_factor=2.0, rollout_factor=1.5, shares=shares)
        layouts = tuple(rollout(1, engines, 2e-3, 1e-3) for engines in (1, 2))
        job = eight_by_four((1,), (4096,), reward=[{"kind": "math", "workers": 1, "deadline_s": 2.0}, JUDGE])
        return {"job": job, "profile": small_profile(rollout=layouts, judge=costs), "mode": "sync"}
    if name == "apart":
        job = eight_by_four(placement={"train_pool": "learn"})
        accelerators = {"kind": "cpu", "name": "cpu", "per_node": 1, "memory_bytes": 10**9}
        cluster = two_pools(laptop(nodes=2, accelerators=accelerators), links=LINKS)
        return {"job": job, "cluster": cluster, "mode": "exact"}
    if name == "gpus":
        model = {"path": "Qwen/Qwen2.5-14B", "dtype": "bfloat16"}
        job = small_job(SMALL, model=model, search={"tp": [2, 4], "micro_batch_tokens": [4096], "hand_over": [0.5]})
        cluster, profile = gpu_cluster(nodes=2), library_profile("H800", "Qwen2.5-14B")
        return {"job": job, "cluster": cluster, "profile": profile, "mode": "exact", "objective": "usd"}
    if name == "gpus apart":
        model = {"path": "Qwen/Qwen2.5-14B", "dtype": "bfloat16"}
        job = eight_by_four((2, 4), (4096,), model=model, placement={"train_pool": "learn"})
        profile = library_profile("H800", "Qwen2.5-14B")
        return {"job": job, "cluster": two_pools(gpu_cluster()), "profile": profile, "mode": "exact", "for_any": True}
    assert name == "assumed"
    sizes = {**SMALL, "max_prompt_tokens": 256, "max_response_tokens": 20000}
    job = small_job(sizes, model={"path": "Qwen/Qwen2.5-7B", "dtype": "bfloat16"}, reward={**CODE, "workers": 2},
                    search={"tp": [2], "micro_batch_tokens": [32768]})  # fmt: skip
    profile = library_profile("H100", "Qwen2.5-7B")
    accelerators = {"kind": "cuda", "name": "H100", "per_node": 8, "memory_bytes": 80 * 10**9}
    trace = named_lengths("math-16k")[0]
    return {"job": job, "cluster": gpu_cluster(accelerators=accelerators), "profile": profile, "trace": trace,
            "mode": "exact", "passes": (Pass(3, 2, math.inf),)}  # fmt: skip


@pytest.mark.parametrize(
    "name", ["free", "race", "defer", "predict", "levers", "judge", "apart", "gpus", "gpus apart", "assumed"]
)
def test_a_plan_is_whole_as_it_was(name):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = solution(prompt_sets=3, **case(name))
    # The integer program's own figures end where its tolerance does.
    solver = {"name", "gap", "bound"}
    unlike = {"volatile": True, "inputs": True, "solver": solver}
    plan = found.plan.model_dump(mode="json", exclude_none=True, exclude=unlike)
    lines = [line for line in flat(plan) if "_sha256" not in line]
    same_as_golden([*lines, *(str(w.message) for w in caught)], GOLDEN / f"{name.replace(' ', '_')}.txt")
