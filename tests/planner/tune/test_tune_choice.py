"""What tuning judges by: the objective of the plan in force, and the mode that was forced on it."""

import dataclasses
import math

import pytest

from rlplan.planner.costs.job_pools import JobPools
from rlplan.planner.costs.round_costs import nodes_of
from rlplan.planner.simulate.whole_run import simulate_plan
from rlplan.planner.tune import plan_gain
from rlplan.planner.tune import tune as tuning
from rlplan.planner.tune.executed_run import load_run
from rlplan.plans.schema.plan import Plan
from rlplan.plans.yaml.yaml_io import dump, loads

from ..conftest import laptop
from ..gpu_run import gpu_cluster, solved_on_gpus
from ..synthetic_run import QUICK, solved, synthesize


def tuned(documents, folder, **options):
    plan, job, profile, trace = documents.plan, documents.job, documents.profile, documents.trace
    run = load_run(synthesize(folder, plan, job, profile, trace, steps=12, **options))
    return tuning.tune(run, documents, documents, passes=QUICK)


def changed(plan, solver=None, rollout=None):
    rounds = plan.job.rounds
    short = rounds.short.model_copy(update={"rollout": rounds.short.rollout.model_copy(update=rollout or {})})
    job = plan.job.model_copy(update={"rounds": rounds.model_copy(update={"short": short})})
    return plan.model_copy(update={"job": job, "solver": plan.solver.model_copy(update=solver or {})})


@pytest.fixture(autouse=True)
def short_comparisons(monkeypatch):
    monkeypatch.setattr(plan_gain, "_GAIN_SAMPLES", 3_000)


def test_a_plan_for_the_fewest_usd_is_tuned_by_usd(tmp_path):
    base = solved_on_gpus()
    two_nodes = {"engines": 4, "tp": 4, "max_num_seqs": 8}
    plan = changed(base.plan, {"objective": "usd_per_sample"}, two_nodes)
    documents = dataclasses.replace(base, plan=plan, cluster=gpu_cluster(nodes=2))
    assert nodes_of(plan.job, base.profile, JobPools(documents.cluster.pools["main"]), 2) == (2, 0)
    result = tuned(documents, tmp_path / "r")
    assert result.plan.predicted.nodes == 1 and result.plan.solver.objective == "usd_per_sample"
    # Two nodes are quicker, and not twice as quick.
    assert result.change and 0.3 < result.gain < 0.5
    fast = plan_gain.plan_gain(result.plan.job, plan.job, with_seconds(documents), base.profile, model(documents), 0)[0]
    assert fast < 0.0


def with_seconds(documents):
    return dataclasses.replace(documents, plan=changed(documents.plan, {"objective": "seconds_per_sample"}))


def model(documents):
    return tuning._fitted(documents.trace, documents.job.rollout.max_response_tokens, 0)


def test_a_mode_that_was_forced_stands_in_the_plan_and_is_kept_by_tuning(tmp_path):
    sync, free = solved(mode="sync"), solved()
    assert free.plan.job.bias.mode == "exact" and free.plan.solver.forced_mode is None
    assert "forced_mode" not in dump(free.plan)
    assert loads(dump(sync.plan), Plan).solver.forced_mode == "sync"
    kept = tuned(sync, tmp_path / "forced")
    assert kept.plan.job.bias.mode == kept.plan.solver.forced_mode == "sync"
    unforced = dataclasses.replace(sync, plan=changed(sync.plan, {"forced_mode": None}))
    assert tuned(unforced, tmp_path / "free").plan.job.bias.mode == "exact"


@pytest.mark.parametrize("for_any", [False, True])
def test_a_plan_is_tuned_among_the_candidates_that_it_was_solved_from(for_any, tmp_path):
    documents = solved(mode="sync", for_any=for_any)
    assert ("for_any: true" in dump(documents.plan)) == for_any
    assert tuned(documents, tmp_path / "r").plan.solver.for_any == for_any


@pytest.mark.parametrize("budget", [None, 0.5])
def test_a_forced_mode_is_tuned_within_the_bias_budget_that_was_asked_for_and_none_else(budget, tmp_path, monkeypatch):
    documents = solved(mode="race", bias_budget=budget)
    assert loads(dump(documents.plan), Plan).solver.forced_budget == budget
    if budget is None:
        # What was predicted is no bound: by the refitted lengths the plan may well be over it.
        assert documents.plan.job.bias.budget > 0 and "forced_budget" not in dump(documents.plan)
    searches, solve = [], tuning.solve

    def recorded(*args, **options):
        found = solve(*args, **options)
        searches.append(found.search)
        return found

    monkeypatch.setattr(tuning, "solve", recorded)
    result = tuned(documents, tmp_path / "r")
    [search] = searches
    assert search.limits.bias_budget == (math.inf if budget is None else budget)
    assert result.plan.solver.forced_budget == budget
    if budget is None:
        assert all("bias" not in cycle.violations(search.limits) for cycle in search.cycles())


def test_a_free_mode_is_tuned_within_the_plans_own_budget(tmp_path):
    documents = solved(bias_budget=0.1)
    assert documents.plan.solver.forced_budget is None
    assert tuned(documents, tmp_path / "r").plan.job.bias.budget == 0.1


def test_a_simulated_plan_of_mode_predict_has_the_history_that_it_was_predicted_with():
    documents = solved(mode="predict")
    plan, rounds = documents.plan, documents.plan.job.rounds
    # An epoch of more steps than are simulated: its plain first epoch would be all that is seen.
    run = simulate_plan(plan, documents.job, documents.profile, documents.trace, steps=150, prompts=2400)
    assert run.steps[-1].epoch == 0
    assert run.long_share() == pytest.approx(rounds.short.long_share, rel=0.2)
    assert run.seconds_per_sample() < 0.8 * plan.predicted.baseline.seconds_per_sample


def test_the_nodes_of_a_plan_hold_its_engines_its_trainers_and_their_host_memory():
    documents = solved(mode="sync")
    plan = changed(documents.plan, rollout={"engines": 2, "tp": 1})
    pool = laptop(nodes=3).pools["main"]
    assert plan.job.rounds.long is None and nodes_of(plan.job, documents.profile, JobPools(pool), 4) == (1, 0)
    small = pool.model_copy(update={"host_memory_bytes": 4 * 10**9})
    assert nodes_of(plan.job, documents.profile, JobPools(small), 4) == (2, 0)
    none = pool.model_copy(update={"host_memory_bytes": 3 * 10**9})
    assert nodes_of(plan.job, documents.profile, JobPools(none), 4) == (none.nodes, 0), "an engine is on one node"
