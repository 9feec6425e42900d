"""The standing pool of columns, and re-planning out of it."""

import random

import pytest

from rlplan.planner.groups.assemble import keeps_bounds, resident
from rlplan.planner.groups.brute_force import cheapest_groups
from rlplan.planner.groups.model import GroupJob, NodeKind, Rules, Way
from rlplan.planner.groups.policy import State, moves
from rlplan.planner.groups.pool import Pool, shapes
from rlplan.planner.groups.repack import Repack

KINDS = {"a": NodeKind("a", 10.0, 1.5e12), "b": NodeKind("b", 30.0, 1.5e12)}
RULES = Rules(policy="multi_rate")


def job(name, rollout_s=100.0, train_s=100.0, slo=2.0, nodes=1):
    ways = (Way("a", nodes, 1, rollout_s, 2e11), Way("b", nodes, 1, rollout_s, 2e11))
    return GroupJob(name, slo, ways, (Way("b", nodes, 1, train_s, 2e11),), cold_s=80.0)


def some_jobs(seed, count):
    rng = random.Random(seed)
    return [
        job(f"j{i}", rng.uniform(50, 400), rng.uniform(50, 300), rng.uniform(1, 2), 2 if i == 3 else 1)
        for i in range(count)
    ]


def good(state):
    assert sorted(pin.job for group in state.groups.values() for pin in group.pins) == sorted(state.jobs)
    assert all(resident(g, state.jobs, KINDS) for g in state.groups.values())
    assert all(keeps_bounds(g, state.jobs, RULES) for g in state.groups.values())


def test_shapes_are_each_pattern_once():
    assert shapes(1) == ((0, (-1,)), (1, (0,)))
    assert len(shapes(3)) == len(set(shapes(3))) == 15


def test_the_pool_follows_the_jobs_and_does_not_depend_on_who_came_first():
    jobs = {j.name: j for j in some_jobs(1, 6)}
    grown = Pool(KINDS, RULES)
    for upto in range(1, 7):
        grown.update(dict(list(jobs.items())[:upto]))
    backwards = Pool(KINDS, RULES)
    for start in range(5, -1, -1):
        backwards.update(dict(list(jobs.items())[start:]))
    assert {n: c.usd_per_hour for n, c in grown.columns.items()} == {
        n: c.usd_per_hour for n, c in backwards.columns.items()
    }
    grown.update({name: one for name, one in jobs.items() if name != "j2"})
    assert not any("j2" in names for names in grown.columns)


@pytest.mark.parametrize("seed", range(4))
def test_re_planning_keeps_bounds_and_memory_and_comes_near_the_optimum(seed):
    placer, state = Repack(KINDS, RULES, horizon_h=1000.0), State()
    for one in some_jobs(seed, 3):
        state = placer.arrive(state, one)
        good(state)
    best = sum(group.usd_per_hour(KINDS) for group in cheapest_groups(state.jobs, KINDS, RULES, shared_training=True))
    assert best - 1e-9 <= state.usd_per_hour(KINDS) <= 1.01 * best
    for one in some_jobs(seed, 6)[3:]:
        state = placer.arrive(state, one)
        good(state)
    for name in ("j1", "j4", "j0"):
        state = placer.depart(state, name)
        good(state)


def test_jobs_that_may_not_move_stay_and_short_horizons_move_nobody():
    for placer in (Repack(KINDS, RULES, may_move=lambda name: False), Repack(KINDS, RULES, horizon_h=1e-6)):
        state = State()
        for one in some_jobs(2, 6):
            after = placer.arrive(state, one)
            assert moves(state, after, KINDS) == []
            state = after
            good(state)


def test_pools_with_a_limit_are_refused():
    with pytest.raises(ValueError, match="without a limit"):
        Repack({**KINDS, "b": NodeKind("b", 30.0, 1e12, limit=3)}, RULES)
