"""Reward seconds refitted from the samples of a run."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from rlplan.planner.tune.executed_run import ExecutedRun, ExecutedStep
from rlplan.planner.tune.fitted_line import Line
from rlplan.planner.tune.reward_times import FEWEST, refitted_reward
from rlplan.profiles.phase_schema import Executions, Reward

from ..conftest import spread
from ..synthetic_run import solved

OLD = Executions(correct_s=(0.1,), wrong_s=(0.1, 30.0), correct=0.5, unsolved=0.0)
PROFILED = Reward(workers=1, latency=spread(0.2), per_sample_s=0.1, executions=OLD, load=0.5)
TWICE = Line(0.0, 2.0, 0.1, 0.1, 10)


def row(prompt: str, seconds: float, right: bool = True, late: bool = False) -> dict[str, Any]:
    outcome = "policy_timeout" if late else "ok" if right else "policy_error"
    return {"prompt": prompt, "reward": float(right), "reward_s": seconds, "reward_outcome": outcome}


@pytest.fixture(scope="module")
def plan() -> Any:
    return solved(mode="sync").plan


def ran(plan: Any, rows: list[dict[str, Any]], workers: int = 3) -> ExecutedRun:
    """A run of one step of 10 s with these samples, scored by so many workers under a deadline of 30 s."""
    reward = plan.job.reward.model_copy(update={"workers": workers, "deadline_s": 30.0})
    plan = plan.model_copy(update={"job": plan.job.model_copy(update={"reward": reward})})
    none = {field.name: 0 for field in dataclasses.fields(ExecutedStep)}
    step = ExecutedStep(**{**none, "kind": "short", "rollout_s": 10.0, "rows": tuple(rows), "warm": True})
    return ExecutedRun(Path(), plan, None, (step,), 0)


def test_a_run_with_samples_enough_gives_the_seconds_of_its_own_answers(plan: Any) -> None:
    rows = [row("a", 2.0), row("a", 3.0), *(row("b", 0.5, right=False) for _ in range(FEWEST))]
    found = refitted_reward(PROFILED, ran(plan, rows), TWICE)
    assert found.executions is not None
    assert found.executions.correct_s == (3.0,) and set(found.executions.wrong_s) == {0.5}
    assert found.executions.scatter == pytest.approx(1.5)
    assert found.load == pytest.approx((5.0 + 0.5 * FEWEST) / 10.0)
    assert found.workers == 3, "its rounds decoded beside three"


def test_an_answer_that_a_short_deadline_ended_counts_as_one_that_never_ends(plan: Any) -> None:
    rows = [row("a", 1.0) for _ in range(FEWEST)] + [row("a", 2.0, right=False, late=True) for _ in range(FEWEST)]
    found = refitted_reward(PROFILED, ran(plan, rows), TWICE)
    assert found.executions is not None
    assert set(found.executions.wrong_s) == {30.0}


def test_a_run_with_few_samples_leaves_the_distribution_as_it_was(plan: Any) -> None:
    found = refitted_reward(PROFILED, ran(plan, [row("a", 2.0), row("b", 0.5, right=False)]), TWICE)
    assert found.executions == OLD


def test_seconds_that_are_one_number_for_all_samples_are_multiplied_by_the_factor(plan: Any) -> None:
    constant = PROFILED.model_copy(update={"executions": None, "load": None})
    found = refitted_reward(constant, ran(plan, [row("a", 2.0)] * FEWEST), TWICE)
    assert found.per_sample_s == pytest.approx(0.2) and found.latency.p50 == pytest.approx(0.4)
    assert found.executions is None and found.load is None and found.workers == 1


def test_of_several_parts_only_the_first_pool_s_own_seconds_and_values_count(plan: Any) -> None:
    def summed(prompt: str, right: bool) -> dict[str, Any]:
        judge = {"value": 1.0, "s": 6.0, "outcome": "ok", "deadline_s": None, "attempts": 1}
        code = {"value": float(right), "s": 0.3, "outcome": "ok", "deadline_s": 30.0, "attempts": 1}
        return {**row(prompt, 6.0), "reward_parts": {"taste": judge, "code": code}}

    rows = [summed(f"p{number % 8}", number % 2 == 0) for number in range(FEWEST)]
    found = refitted_reward(PROFILED, ran(plan, rows), TWICE)
    assert found.executions is not None and found.executions.correct == 1.0 and found.executions.unsolved == 0.5
    assert [*found.executions.correct_s, *found.executions.wrong_s] == pytest.approx(
        [0.3] * (len(found.executions.correct_s) + len(found.executions.wrong_s))
    )
    assert found.load == pytest.approx(0.3 * FEWEST / 10.0), "a judge is on no core of the workers"
