"""Algorithm 1, the other published policies, and exhaustion."""

import itertools
import random

import pytest

from rlplan.benchmarks.brute_force import BruteForce, cheapest_group, cheapest_groups
from rlplan.benchmarks.rollmux.baseline_placers import Colocated, MostIdle, Random
from rlplan.planner.groups.inputs.group_model import GroupJob, NodeType, PhaseWay, Rules
from rlplan.planner.groups.inputs.groups_state import GroupsState
from rlplan.planner.groups.place.group_nodes import resident, solo_group
from rlplan.planner.groups.place.published_placers import Algorithm1, SoloD, within_cap_and_bounds
from rlplan.planner.groups.replan.moved_jobs import moved_jobs

NODE_TYPES = {"a": NodeType("a", 10.0, 1e12), "b": NodeType("b", 30.0, 1e12)}
RULES = Rules(permit_rule="first_come")


def job(name, rollout_s=100.0, train_s=100.0, slo=2.0, gb=100.0, nodes=1, spill=False):
    rollout = [PhaseWay("a", nodes, 1, rollout_s, gb * 1e9)] + [PhaseWay("b", nodes, 1, rollout_s, gb * 1e9)] * spill
    return GroupJob(name, slo, tuple(rollout), (PhaseWay("b", nodes, 1, train_s, gb * 1e9),))


def placed(placer, jobs):
    state = GroupsState()
    for one in jobs:
        before, state = state, placer.arrive(state, one)
        assert moved_jobs(before, state, NODE_TYPES) == []
    return state


def members(state):
    return sorted(tuple(pin.job for pin in group.pins) for group in state.groups.values())


def test_algorithm_1_packs_two_balanced_jobs_on_one_pair_of_nodes():
    state = placed(Algorithm1(NODE_TYPES, RULES), [job("x"), job("y")])
    assert members(state) == [("x", "y")]
    assert state.usd_per_hour(NODE_TYPES) == 40.0


def test_algorithm_1_adds_a_rollout_node_when_rollouts_do_not_fit_one():
    long = [job("x", 300.0, 50.0, slo=1.2), job("y", 300.0, 50.0, slo=1.2)]
    state = placed(Algorithm1(NODE_TYPES, RULES), long)
    assert members(state) == [("x", "y")]
    assert state.usd_per_hour(NODE_TYPES) == 50.0


def test_algorithm_1_skips_a_group_that_is_exactly_saturated():
    first = [job("x"), job("y")]  # 200 s of load in a cycle of 200 s
    state = placed(Algorithm1(NODE_TYPES, RULES), [*first, job("z", 1.0, 1.0)])
    assert members(state) == [("x", "y"), ("z",)]


def test_algorithm_1_wants_host_memory_to_be_left():
    state = placed(Algorithm1(NODE_TYPES, RULES), [job("x", gb=500.0), job("y", gb=500.0)])
    assert members(state) == [("x",), ("y",)]


def test_algorithm_1_takes_the_first_of_equal_prices():
    state = placed(SoloD(NODE_TYPES), [job("x"), job("y")])
    assert members(Algorithm1(NODE_TYPES, RULES).arrive(state, job("z"))) == [("x", "z"), ("y",)]


def test_unequal_jobs_with_a_bound_of_one_stay_apart():
    state = placed(Algorithm1(NODE_TYPES, RULES), [job("x", slo=1.0), job("y", slo=1.0, rollout_s=90.0)])
    assert len(state.groups) == 2


def test_solo_d_and_colocated_cost_what_their_nodes_cost():
    jobs = [job(n, spill=True) for n in "xyz"]
    assert placed(SoloD(NODE_TYPES), jobs).usd_per_hour(NODE_TYPES) == 3 * 40.0
    assert placed(Colocated(NODE_TYPES), jobs).usd_per_hour(NODE_TYPES) == 3 * 30.0
    with pytest.raises(ValueError, match="no rollout way"):
        Colocated(NODE_TYPES).arrive(GroupsState(), job("x"))


def test_random_and_most_idle_look_at_memory_and_at_no_bound():
    jobs = [job(f"j{i}", slo=1.0, gb=300.0) for i in range(12)]
    for placer in (Random(NODE_TYPES, RULES, seed=1), MostIdle(NODE_TYPES, RULES)):
        state = placed(placer, jobs)
        assert all(resident(group, state.jobs, NODE_TYPES) for group in state.groups.values())
        assert not all(within_cap_and_bounds(group, state.jobs, RULES) for group in state.groups.values())


def test_most_idle_goes_where_most_is_idle():
    state = placed(SoloD(NODE_TYPES), [job("x", 100.0, 100.0), job("y", 10.0, 10.0)])
    busier = MostIdle(NODE_TYPES, RULES).arrive(state, job("z"))  # two nodes, each held for half of the cycle: a tie
    assert members(busier) == [("x", "z"), ("y",)]
    assert members(MostIdle(NODE_TYPES, RULES).arrive(busier, job("v"))) == [("v", "y"), ("x", "z")]


def test_random_is_the_same_for_the_same_seed():
    jobs = [job(f"j{i}") for i in range(8)]
    assert placed(Random(NODE_TYPES, RULES, 3), jobs) == placed(Random(NODE_TYPES, RULES, 3), jobs)


def test_departures_give_back_all_nodes():
    for placer in (
        SoloD(NODE_TYPES),
        Algorithm1(NODE_TYPES, RULES),
        MostIdle(NODE_TYPES, RULES),
        Random(NODE_TYPES, RULES, 0),
    ):
        jobs = [job(f"j{i}") for i in range(5)]
        state = placed(placer, jobs)
        for one in jobs:
            state = placer.depart(state, one.name)
        assert state == GroupsState()


def some_jobs(seed, count, ways=False):
    rng = random.Random(seed)
    return {
        f"j{i}": job(
            f"j{i}", rng.uniform(50, 400), rng.uniform(50, 400), rng.uniform(1, 2), rng.uniform(50, 450), spill=ways
        )
        for i in range(count)
    }


@pytest.mark.parametrize("seed", range(6))
def test_exhaustion_is_never_dearer_than_any_policy_and_feasible(seed):
    jobs = some_jobs(seed, 5)
    groups = cheapest_groups(jobs, NODE_TYPES, RULES)
    assert sorted(pin.job for group in groups for pin in group.pins) == sorted(jobs)
    assert all(resident(g, jobs, NODE_TYPES) and within_cap_and_bounds(g, jobs, RULES) for g in groups)
    best = sum(group.usd_per_hour(NODE_TYPES) for group in groups)
    for order in itertools.islice(itertools.permutations(jobs.values()), 0, 120, 17):
        assert best <= placed(Algorithm1(NODE_TYPES, RULES), order).usd_per_hour(NODE_TYPES) + 1e-9


def test_exhaustion_uses_ways_beyond_the_reference_when_they_are_cheaper():
    one = job("x", 60.0, 60.0, spill=True)
    assert cheapest_group([one], NODE_TYPES, RULES, 1e9).usd_per_hour(NODE_TYPES) == 30.0
    assert BruteForce(NODE_TYPES, RULES).arrive(GroupsState(), one).usd_per_hour(NODE_TYPES) == 30.0
    assert solo_group(one, NODE_TYPES).usd_per_hour(NODE_TYPES) == 40.0


def test_exhaustion_refuses_more_jobs_than_it_can_end():
    with pytest.raises(ValueError, match="too many"):
        cheapest_groups(some_jobs(0, 9), NODE_TYPES, RULES)


def test_shared_training_is_a_restriction():
    jobs = some_jobs(3, 4)
    free = sum(g.usd_per_hour(NODE_TYPES) for g in cheapest_groups(jobs, NODE_TYPES, RULES))
    shared = sum(g.usd_per_hour(NODE_TYPES) for g in cheapest_groups(jobs, NODE_TYPES, RULES, shared_training=True))
    assert free <= shared
