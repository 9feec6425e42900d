"""Slowdowns and feasibility of groups."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from rlplan.planner.groups.inputs.group_model import Group, GroupJob, PhaseWay, Pin, Rules
from rlplan.planner.groups.simulate.slowdowns import cannot_hold, feasible, feasible_many, slowdowns
from rlplan.planner.groups.simulate.steady_state import steady_state

TOP_10 = [
    (134, 113),
    (310, 120),
    (580, 241),
    (238, 197),
    (121, 51),
    (496, 180),
    (267, 271),
    (888, 559),
    (80, 77),
    (262, 87),
]
"""Rollout and train seconds of the Top-10 production jobs (RollMux, arXiv 2512.11306)."""


def job(name: str, rollout_s: float, train_s: float, slo: float, **more: object) -> GroupJob:
    ways = PhaseWay("rollout", 1, 1, rollout_s, 0.0), PhaseWay("train", 1, 1, train_s, 0.0)
    return GroupJob(name, slo, (ways[0],), (ways[1],), **more)  # type: ignore[arg-type]


def group(jobs: list[GroupJob], nodes: list[int]) -> tuple[Group, dict[str, GroupJob]]:
    """One training node; each job on the rollout node given."""
    count = max(nodes) + 1
    pins = [Pin(one.name, 0, (node,), 0, (count,)) for one, node in zip(jobs, nodes, strict=True)]
    return Group(("rollout",) * count + ("train",), tuple(pins)), {one.name: one for one in jobs}


def random_groups(count: int, seed: int) -> tuple[list[Group], dict[str, GroupJob]]:
    rng = np.random.default_rng(seed)
    groups, jobs = [], {}
    for number in range(count):
        size = int(rng.integers(2, 5))
        nodes = [int(node) for node in rng.integers(0, 2, size)]
        nodes[0] = 0
        if max(nodes) == 1 and 0 not in nodes:
            nodes = [0] * size
        members = [
            job(f"{number:03d}-{j}", *TOP_10[int(rng.integers(10))], slo=float(rng.uniform(1, 2))) for j in range(size)
        ]
        made, known = group(members, nodes)
        groups.append(made)
        jobs |= known
    return groups, jobs


def test_the_digests_counter_example_slows_the_short_job_fivefold_in_round_robin_and_by_a_quarter_in_ours() -> None:
    pair, jobs = group([job("long", 400, 100, 1.3), job("short", 50, 50, 1.3)], [0, 1])
    strict = slowdowns(pair, jobs, Rules(permit_rule="round_robin"))
    assert strict["short"].mean == pytest.approx(5.0)
    assert not feasible(pair, jobs, Rules(permit_rule="round_robin"))
    for slo in (1.3, 2.0):
        loose = {name: replace(one, slo=slo) for name, one in jobs.items()}
        ours = slowdowns(pair, loose, Rules())
        assert max(ours["long"].mean, ours["short"].mean) <= 1.3
        assert feasible(pair, loose, Rules())


def test_ours_admits_half_as_many_random_groups_again_as_first_come() -> None:
    groups, jobs = random_groups(400, 1)
    first = feasible_many(groups, jobs, Rules(permit_rule="first_come"))
    ours = feasible_many(groups, jobs, Rules())
    assert sum(ours) > 1.5 * sum(first) > 0
    assert sum(a and not b for a, b in zip(first, ours, strict=True)) <= 0.01 * len(groups)


def test_turns_that_can_be_paused_admit_more_still() -> None:
    groups, jobs = random_groups(300, 2)
    paused = {name: replace(one, train=(replace(one.train[0], resume_s=2.0),)) for name, one in jobs.items()}
    assert sum(feasible_many(groups, paused, Rules())) > 1.1 * sum(feasible_many(groups, jobs, Rules()))


@pytest.mark.parametrize("policy", ["round_robin", "first_come", "multi_rate"])
def test_feasible_and_slowdowns_agree(policy: str) -> None:
    groups, jobs = random_groups(120, 3)
    rules = Rules(permit_rule=policy)
    verdicts = feasible_many(groups, jobs, rules)
    worst = [max(s.mean / jobs[name].slo for name, s in slowdowns(g, jobs, rules).items()) for g in groups]
    assert [w <= 1.0 for w, v in zip(worst, verdicts, strict=True) if abs(w - 1) > 2e-3] == [
        v for w, v in zip(worst, verdicts, strict=True) if abs(w - 1) > 2e-3
    ]


def test_what_cannot_hold_is_not_feasible_under_any_policy() -> None:
    groups, jobs = random_groups(200, 4)
    for policy in ("round_robin", "first_come", "multi_rate"):
        rules = Rules(permit_rule=policy)
        for made in groups:
            if cannot_hold(made, jobs, rules):
                worst = max(s.mean / jobs[name].slo for name, s in slowdowns(made, jobs, rules).items())
                assert worst > 1 - 2e-3


def test_a_lone_job_on_its_reference_ways_is_always_feasible_and_on_slower_ones_only_within_its_bound() -> None:
    solo, jobs = group([job("a", 100, 50, 1.0, spread=((1.5, 1.5), (0.5, 0.5)))], [0])
    assert feasible(solo, jobs, Rules(margin=0.5))
    slow = replace(jobs["a"], slo=1.1, train=(jobs["a"].train[0], PhaseWay("train", 1, 1, 80.0, 0.0)), spread=())
    elsewhere = Group(solo.nodes, (replace(solo.pins[0], train=1),))
    assert not feasible(elsewhere, {"a": slow}, Rules())
    assert feasible(elsewhere, {"a": replace(slow, slo=1.3)}, Rules())
    assert slowdowns(elsewhere, {"a": slow}, Rules())["a"].mean == pytest.approx(180 / 150)


def test_a_group_of_equal_jobs_on_one_node_takes_the_load_of_the_node() -> None:
    pair, jobs = group([job("a", 134, 113, 2.0), job("b", 134, 113, 2.0)], [0, 0])
    for policy in ("round_robin", "first_come", "multi_rate"):
        found = slowdowns(pair, jobs, Rules(permit_rule=policy))
        assert found["a"].mean == pytest.approx(268 / 247, rel=1e-3)


def test_switches_and_interference_are_paid_only_where_jobs_meet() -> None:
    jobs = [job("a", 100, 50, 2.0), job("b", 100, 50, 2.0)]
    warm = [replace(one, rollout=(replace(one.rollout[0], warm_s=2.0),)) for one in jobs]
    apart, known = group(warm, [0, 1])
    shared, _ = group(warm, [0, 0])
    rules = Rules(permit_rule="first_come")
    assert slowdowns(apart, known, rules)["a"].mean == pytest.approx(1.0)
    assert slowdowns(shared, known, rules)["a"].mean == pytest.approx(204 / 150)
    # Two phases always run but for the 2 x 50 s in which the other waits for the training node.
    assert slowdowns(apart, known, replace(rules, interference=0.1))["a"].mean == pytest.approx(1.1, rel=1e-2)


def test_spread_makes_bad_stretches_worse_than_the_mean_and_is_the_same_on_every_call() -> None:
    rng = np.random.default_rng(0)
    factors = np.exp(rng.normal(0, 0.2, (50, 2)))
    spread = tuple((float(a), float(b)) for a, b in factors / factors.mean(0))
    pair, jobs = group([job("a", 134, 113, 1.9, spread=spread), job("b", 238, 197, 1.9, spread=spread)], [0, 1])
    found = slowdowns(pair, jobs, Rules())
    assert found == slowdowns(pair, jobs, Rules())
    for name in jobs:
        assert 1.0 < found[name].p50 < found[name].p95
    assert feasible(pair, jobs, Rules())
    tight = {name: replace(one, slo=found[name].mean) for name, one in jobs.items()}
    assert not feasible(pair, tight, Rules())


def test_luck_that_was_drawn_is_no_slowdown_of_a_lone_job() -> None:
    lucky = GroupJob(
        "a", 1.3, (PhaseWay("r", 1, 1, 400.0, 1e11),), (PhaseWay("t", 1, 1, 100.0, 1e11),), ((0.5, 0.9), (1.5, 1.1))
    )
    alone = slowdowns(Group(("r", "t"), (Pin("a", 0, (0,), 0, (1,)),)), {"a": lucky}, Rules())["a"]
    assert alone.mean == pytest.approx(1.0, abs=1e-12)
    assert alone.p95 > 1.0


def test_the_chain_that_limits_a_round_robin_group_runs_through_the_longest_job() -> None:
    pair, jobs = group([job("long", 400, 100, 1.3), job("short", 50, 50, 1.3)], [0, 1])
    found = steady_state(pair, jobs, Rules(permit_rule="round_robin"), {})
    assert found.period_s == pytest.approx(500.0)
    assert found.iterations == {"long": 1, "short": 1}
    assert str(found.chain) == "rollout of long -> train of long"
    assert found.chain.limits
    assert found.busy == pytest.approx((0.8, 0.1, 0.3))
    ours = steady_state(pair, jobs, Rules(), {})
    assert ours.iterations == {"long": 1, "short": 4}
    assert ours.busy[2] == pytest.approx(0.6)


def test_a_steady_period_has_every_turn_once_and_no_unit_twice_at_a_time() -> None:
    groups, jobs = random_groups(40, 5)
    for made in groups:
        found = steady_state(made, jobs, Rules(), {})
        assert found.chain.turns
        if found.repeats:
            # A few seconds of chain more than the period are as far as `NEARLY` the same state is from the same.
            assert found.chain.seconds <= found.period_s * (1 + 2e-3)
        for unit in range(len(made.nodes)):
            on = [slot for slot in found.held if unit in slot.units]
            assert all(a.end_s <= b.start_s + 1e-6 for a, b in pairwise(on))
            assert sum(slot.end_s - slot.start_s for slot in on) == pytest.approx(found.busy[unit] * found.period_s)
