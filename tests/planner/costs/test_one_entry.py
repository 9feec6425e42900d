"""Two entries of one TP in a profile: every command prices a layout by the same one, whatever their order."""

import pytest
from pydantic import ValidationError

from rlplan.planner.check.memory_rules import bars_as_they_are, priced
from rlplan.planner.choose.candidates.engine_layouts import feasible_layouts
from rlplan.planner.choose.candidates.pool_choice import choose_pools
from rlplan.planner.costs.decode_costs import checks_of, decode_cost, entry_of
from rlplan.planner.costs.job_pools import JobPools
from rlplan.planner.costs.round_costs import round_costs
from rlplan.planner.explain.cost_error import rollout_error
from rlplan.planner.solve import solve
from rlplan.planner.solve_options import SolveOptions
from rlplan.planner.tune.executed_run import load_run
from rlplan.planner.tune.refit import refit, replay_run
from rlplan.plans.schema.sections.layouts import EngineLayout
from rlplan.profiles.profile_schema import Machine, RoundCheck

from ..conftest import CAP, heavy_trace, laptop, rollout, small_job, small_profile
from ..synthetic_run import QUICK, solved, synthesize

ONE = rollout(1, 1, 7e-3, 3e-5)
TWO = rollout(1, 2, 12e-3, 3e-5, kv_capacity_tokens=150_000).model_copy(update={"error": 0.2})
GPUS = Machine(accelerator="gpu", kind="cuda", accelerators=2, cores=8, host_memory_bytes=10**12)
PAIR = EngineLayout(1, 2)


def profile_of(*entries, **changes):
    return small_profile(rollout=entries, machine=GPUS, **{"checks": (), **changes})


@pytest.mark.parametrize("entries", [(ONE, TWO), (TWO, ONE)])
def test_solve_predict_check_simulate_and_tune_price_a_layout_by_one_and_the_same_entry(entries, tmp_path):
    profile = profile_of(*entries)
    accelerators = {"kind": "cuda", "name": "gpu", "per_node": 2, "memory_bytes": 80 * 10**9}
    cluster = laptop(accelerators=accelerators)
    job = small_job({"prompts_per_step": 8, "samples_per_prompt": 4}, search={"tp": [1], "micro_batch_tokens": [2048]})
    found = solve(
        cluster, job, profile, heavy_trace(), solved(mode="sync").plan.inputs, SolveOptions(passes=QUICK, mode="sync")
    )
    plan, pool = found.plan, cluster.pools["main"]
    assert EngineLayout(plan.job.rounds.short.rollout.tp, plan.job.rounds.short.rollout.engines) == PAIR
    cost = found.search.space.decode[PAIR]
    assert cost == decode_cost(profile, TWO), "the entry that was measured with as many engines as the layout has"
    assert round_costs(plan.job, profile)[0].decode == cost
    kv = plan.predicted.rounds.short.memory.kv
    assert kv.capacity_bytes == TWO.kv_capacity_tokens * TWO.kv_bytes_per_token
    assert [*priced(plan, job, profile, JobPools(pool)), *bars_as_they_are(plan, profile, JobPools(pool))] == []
    assert rollout_error(profile, PAIR) == rollout_error(profile_of(TWO), PAIR)
    run = load_run(synthesize(tmp_path / "r", plan, job, profile, heavy_trace(), steps=8, noise=0.0))
    assert refit(profile, run, replay_run(run, CAP, False, profile)).rollout[1, 2].factor == pytest.approx(
        1.0, abs=1e-3
    )


def test_without_one_of_as_many_engines_a_gpu_layout_takes_the_nearest_and_a_cpu_layout_none():
    profile = profile_of(ONE, TWO, rollout(1, 8, 20e-3, 3e-5))
    nearest = {count: entry_of(profile, EngineLayout(1, count)).engines for count in (1, 2, 3, 4, 5, 64)}
    assert nearest == {1: 1, 2: 2, 3: 2, 4: 8, 5: 8, 64: 8}
    assert decode_cost(profile, TWO, 3).measured_engines == 2
    cpu = small_profile(rollout=(ONE, TWO), checks=())
    assert entry_of(cpu, EngineLayout(1, 3)) is None and entry_of(cpu, PAIR) == TWO
    assert entry_of(profile, EngineLayout(2, 1)) is None


def test_a_layout_is_checked_by_its_own_rounds_then_by_its_entrys_then_by_all():
    def check(tp, engines, factor):
        return RoundCheck(
            tp=tp, engines=engines, rounds=3, overhead_s=0, overhead_s_per_sample=0, factor=factor, error=0.1
        )

    of_one, of_four, other = check(1, 1, 1.1), check(1, 4, 1.4), check(2, 1, 2.0)
    profile = profile_of(ONE, rollout(2, 1, 5e-3, 3e-5), rollout(4, 1, 4e-3, 3e-5), checks=(of_one, of_four, other))
    assert checks_of(profile, EngineLayout(1, 4)) == (of_four,)
    assert checks_of(profile, EngineLayout(1, 8)) == checks_of(profile, EngineLayout(1, 1)) == (of_one,)
    assert checks_of(profile, EngineLayout(4, 2)) == profile.checks
    assert decode_cost(profile, ONE, 4).a == pytest.approx(1.4 * ONE.step_s)


def test_a_plan_says_which_entry_prices_engines_that_were_not_measured_together():
    accelerators = {"kind": "cuda", "name": "gpu", "per_node": 2, "memory_bytes": 80 * 10**9}
    cluster, base = laptop(accelerators=accelerators), solved(mode="sync")
    job = small_job({"prompts_per_step": 8, "samples_per_prompt": 4}, search={"tp": [1], "micro_batch_tokens": [2048]})

    def why(*entries):
        profile, inputs = profile_of(*entries), base.plan.inputs
        plan = solve(cluster, job, profile, base.trace, inputs, SolveOptions(passes=QUICK, mode="sync")).plan
        return plan.job.why.get("rounds.short.rollout.costs", "")

    assert "is priced by the nearest entry of the profile: 1 engine of tp 1" in why(ONE) and why(ONE, TWO) == ""
    chosen = choose_pools(cluster, job, profile_of(ONE))
    assert list(feasible_layouts(chosen, job, profile_of(ONE))[0]) == [PAIR]


@pytest.mark.parametrize(("of", "key"), [("rollout", "tp 1, engines 2"), ("train", "dp 1, .* micro_batch_tokens 1024")])
def test_a_profile_with_two_entries_of_one_key_is_refused_and_the_key_is_named(of, key):
    """Some commands would take the first of them, and others the best or the last."""
    first, *others = getattr(small_profile(), of)
    with pytest.raises(ValidationError, match=f"two entries of {of} are both for {key}"):
        small_profile(**{of: (first, *others, first.model_copy(update={"error": 0.5}))})


def test_a_profile_with_two_checks_of_one_layout_is_refused_and_one_whose_updates_differ_in_anything_is_not():
    profile = small_profile()
    [check], train = profile.checks, profile.train[0]
    with pytest.raises(ValidationError, match="two entries of checks are both for tp 1, engines 2"):
        small_profile(checks=(check, check.model_copy(update={"factor": 2.0})))
    changes = ({"dp": 2}, {"tp": 2}, {"pp": 2}, {"cp": 2}, {"ep": 2}, {"recompute": "full"}, {"offload": True})
    entries = (train, *(train.model_copy(update=change) for change in changes))
    assert len(small_profile(train=entries).train) == 8
