"""Whether solve balances rounds by history: only where a job allows it, and where it saves time."""

from __future__ import annotations

import math

import pytest
import yaml

from rlplan.planner.choose.candidate_search import Pass
from rlplan.planner.explain import length_error
from rlplan.planner.simulate.whole_run import simulate_plan
from rlplan.planner.solve import solve
from rlplan.planner.solve_options import SolveOptions
from rlplan.plans.schema.plan import Plan
from rlplan.plans.yaml.errors import InputError
from rlplan.plans.yaml.yaml_io import dump, loads
from rlplan.rounds.balancing.balance_spec import BalanceSpec

QUICK = (Pass(5, 2, math.inf), Pass(20, 8, 0.1))
SOLVED: dict = {}


@pytest.fixture(autouse=True)
def few_traces(monkeypatch):
    """The error that lengths leave, which no test here looks at, by two simulated traces: balanced rounds take long."""
    monkeypatch.setattr(length_error, "TRACES", 2)


@pytest.fixture
def solved(make_cluster, make_profile, make_rollout, make_trace, make_job, inputs):
    """The plan of a job whose steps cost by running sequence, so that engines that end early are a loss.

    Each is solved once for all tests.
    """

    def solve_job(mode, balance, per_sequence=3e-3):
        profile = make_profile(rollout=[make_rollout(1, 2, 0.004, per_sequence)])
        search = {"tp": [1], "micro_batch_tokens": [2048], **({"balance": True} if balance else {})}
        job, key = make_job(search=search), (mode, balance, per_sequence)
        if key not in SOLVED:
            options = SolveOptions(mode=mode, passes=QUICK)
            SOLVED[key] = solve(make_cluster(), job, profile, make_trace(), inputs, options)
        return SOLVED[key], job, profile

    return solve_job


@pytest.mark.parametrize("mode", ["sync", "exact"])
def test_rounds_are_balanced_where_a_job_allows_it_and_it_saves_time(solved, make_trace, mode) -> None:
    plain, *_ = solved(mode, balance=False)
    result, job, profile = solved(mode, balance=True)
    assert "balance" not in dump(plain.plan), "a job that does not name the lever gets plans without it"
    rounds = result.plan.job.rounds
    balances = [kind.rollout.balance for kind in (rounds.short, rounds.long) if kind is not None]
    assert any(balances)
    assert all(BalanceSpec(**balance.numbers()).step_s > 0 for balance in balances if balance)
    assert result.plan.predicted.seconds_per_sample < plain.plan.predicted.seconds_per_sample
    assert result.plan.predicted.length_ratio == pytest.approx(1.0, abs=0.05)
    why = result.plan.job.why
    assert any("longest expected samples first; next best" in text for key, text in why.items() if "balance" in key)
    run = simulate_plan(result.plan, job, profile, make_trace(), steps=40, prompts=96)
    seconds = sum(step.rollout_s for step in run.steps) / len(run.steps)
    assert seconds == pytest.approx(result.plan.predicted.phases_s.rollout, rel=0.15)


def test_samples_that_differ_by_chance_alone_are_not_worth_balancing_where_sequences_cost_nothing(solved) -> None:
    result, *_ = solved("sync", balance=True, per_sequence=1e-7)
    assert result.plan.job.rounds.short.rollout.balance is None


@pytest.mark.parametrize("mode", ["race", "defer"])
def test_modes_that_train_whoever_ends_first_are_never_balanced(solved, mode) -> None:
    result, *_ = solved(mode, balance=True)
    plan = result.plan.model_dump(mode="json")
    assert plan["job"]["rounds"]["short"]["rollout"].get("balance") is None
    balanced, *_ = solved("sync", balance=True)
    plan["job"]["rounds"]["short"]["rollout"]["balance"] = balanced.plan.job.rounds.short.rollout.balance.model_dump()
    plan["job"]["rounds"]["short"]["rollout"].pop("prefix", None)
    with pytest.raises(
        InputError, match=f"balance belongs to modes sync, exact and predict; write null for mode {mode}"
    ):
        loads(yaml.safe_dump(plan), Plan)
