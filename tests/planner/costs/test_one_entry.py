"""Two entries of one TP in a profile: every command prices a layout by the same one, whatever their order."""

from functools import cache

import pytest

from rlplan.planner.check.memory_rules import bars_as_they_are, priced
from rlplan.planner.choose.candidates.solve_options import SolveOptions
from rlplan.planner.choose.cost_error import rollout_error
from rlplan.planner.costs.decode_costs import checks_of, decode_cost, entry_of
from rlplan.planner.costs.job_pools import JobPools
from rlplan.planner.costs.round_costs import round_costs
from rlplan.planner.solve import solve
from rlplan.planner.tune.executed_run import load_executed
from rlplan.planner.tune.refit import refit, replay_run
from rlplan.plans.schema.levers import EngineLayout
from rlplan.profiles.profile_schema import Machine, RoundCheck

from ..conftest import CAP, heavy_trace, laptop, rollout, small_job, small_profile, some_inputs
from ..synthetic_run import QUICK, synthesize

ONE = rollout(1, 1, 7e-3, 3e-5)
TWO = rollout(1, 2, 12e-3, 3e-5, kv_capacity_tokens=150_000).model_copy(update={"error": 0.2})
GPUS = Machine(accelerator="gpu", kind="cuda", accelerators=2, cores=8, host_memory_bytes=10**12)
PAIR = EngineLayout(1, 2)
CLUSTER = laptop(accelerators={"kind": "cuda", "name": "gpu", "per_node": 2, "memory_bytes": 80 * 10**9})
JOB = small_job({"prompts_per_step": 8, "samples_per_prompt": 4}, search={"tp": [1], "micro_batch_tokens": [2048]})


def profile_of(*entries, **changes):
    return small_profile(rollout=entries, machine=GPUS, **{"checks": (), **changes})


ENTRIES = {"one": (ONE,), "one, two": (ONE, TWO), "two, one": (TWO, ONE)}


@cache
def planned(entries):
    options = SolveOptions(passes=QUICK[:1], mode="sync")
    return solve(CLUSTER, JOB, profile_of(*ENTRIES[entries]), heavy_trace(), some_inputs(), options)


@pytest.mark.parametrize("entries", ["one, two", "two, one"])
def test_all_commands_price_a_layout_by_one_and_the_same_entry(entries, tmp_path):
    profile, found, pools = profile_of(*ENTRIES[entries]), planned(entries), JobPools(CLUSTER.pools["main"])
    plan = found.plan
    assert EngineLayout(plan.job.rounds.short.rollout.tp, plan.job.rounds.short.rollout.engines) == PAIR
    cost = found.search.space.decode[PAIR]
    assert cost == decode_cost(profile, TWO), "the entry that was measured with as many engines as the layout has"
    assert round_costs(plan.job, profile)[0].decode == cost.with_kv(plan.job.rounds.short.rollout.kv_tokens)
    kv = plan.predicted.rounds.short.memory.kv
    assert kv.capacity_bytes == TWO.kv_capacity_tokens * TWO.kv_bytes_per_token
    assert [*priced(plan, JOB, profile, pools, None), *bars_as_they_are(plan, profile, pools)] == []
    assert rollout_error(profile, PAIR) == rollout_error(profile_of(TWO), PAIR)
    run = load_executed(synthesize(tmp_path / "r", plan, JOB, profile, heavy_trace(), steps=8, noise=0.0))
    assert refit(profile, run, replay_run(run, CAP, False, profile)).rollout[1, 2].factor == pytest.approx(1, abs=1e-3)


def test_a_gpu_layout_takes_the_nearest_entry_and_a_cpu_layout_none():
    profile = profile_of(ONE, TWO, rollout(1, 8, 20e-3, 3e-5))
    nearest = {count: entry_of(profile, EngineLayout(1, count)).engines for count in (1, 2, 3, 4, 5, 64)}
    assert nearest == {1: 1, 2: 2, 3: 2, 4: 8, 5: 8, 64: 8}
    assert decode_cost(profile, TWO, 3).measured_engines == 2
    cpu = small_profile(rollout=(ONE, TWO), checks=())
    assert entry_of(cpu, EngineLayout(1, 3)) is None and entry_of(cpu, PAIR) == TWO
    assert entry_of(profile, EngineLayout(2, 1)) is None


def test_a_layout_is_checked_by_its_own_rounds_first():
    def check(tp, engines, factor):
        seconds = {"overhead_s": factor, "overhead_s_per_sample": factor / 10}
        return RoundCheck(tp=tp, engines=engines, rounds=3, **seconds, factor=factor, error=0.1)

    of_one, of_four, other = check(1, 1, 1.1), check(1, 4, 1.4), check(2, 1, 2.0)
    profile = profile_of(ONE, rollout(2, 1, 5e-3, 3e-5), rollout(4, 1, 4e-3, 3e-5), checks=(of_one, of_four, other))
    assert checks_of(profile, EngineLayout(1, 4)) == (of_four,)
    assert checks_of(profile, EngineLayout(1, 8)) == checks_of(profile, EngineLayout(1, 1)) == (of_one,)
    assert checks_of(profile, EngineLayout(4, 2)) == profile.checks
    assert decode_cost(profile, ONE, 4).a == pytest.approx(1.4 * ONE.step_s)
    mean = decode_cost(profile, profile.rollout[2])
    assert (mean.a / 4e-3, mean.round_s, mean.finish_s) == pytest.approx((1.5, 1.5, 0.15))


def test_a_plan_says_which_entry_prices_engines_not_measured_together():
    near, same = (
        planned(entries).plan.job.why.get("rounds.short.rollout.costs", "") for entries in ("one", "one, two")
    )
    assert "its costs are those of the nearest layout there, 1 x tp 1" in near and same == ""
    assert list(planned("one").search.space.decode) == [PAIR]


def test_updates_whose_layouts_differ_in_anything_are_entries_of_their_own():
    train = small_profile().train[0]
    changes = ({"dp": 2}, {"tp": 2}, {"pp": 2}, {"cp": 2}, {"ep": 2}, {"recompute": "full"}, {"offload": True})
    assert len(small_profile(train=(train, *(train.model_copy(update=change) for change in changes))).train) == 8
