"""Sub-node pinning: phases that hold some slots of a node."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplan.planner.groups.choose.group_columns import attach, built, placed_solo, unit_shares
from rlplan.planner.groups.choose.group_program import solve_groups
from rlplan.planner.groups.choose.placements import job_placements
from rlplan.planner.groups.inputs.group_model import Group, GroupJob, NodeType, PhaseWay, Pin, Rules, without_idle_nodes
from rlplan.planner.groups.inputs.groups_state import GroupsState
from rlplan.planner.groups.place.best_fit import BestFit
from rlplan.planner.groups.place.group_nodes import resident, resident_bytes, solo_group
from rlplan.planner.groups.place.placer import depart_in_place
from rlplan.planner.groups.replan.moved_jobs import moved_jobs
from rlplan.planner.groups.replan.replanner import Replanner
from rlplan.planner.groups.simulate.slowdowns import slowdowns

NODE_TYPES = {"roll": NodeType("roll", 20.0, 1e12, slots=2), "train": NodeType("train", 40.0, 1e12)}
RULES = Rules()


def job(name: str, half_gb: float = 200.0, slo: float = 1.6, whole_s: float = 300.0) -> GroupJob:
    """Rolls out on a whole node, or on half of one in 1.5 times the seconds."""
    return GroupJob(
        name,
        slo,
        (
            PhaseWay("roll", 1, 2, whole_s, 2 * half_gb * 1e9, 1.0),
            PhaseWay("roll", 1, 1, 1.5 * whole_s, half_gb * 1e9, 1.0),
        ),
        (PhaseWay("train", 1, 1, 60.0, 1e11, 2.0),),
        cold_s=80.0,
    )


def halves(*names: str) -> Group:
    """Rollouts on the halves of one node, training on another."""
    return Group(("roll", "train"), tuple(Pin(name, 1, (at,), 0, (2,)) for at, name in enumerate(names)))


def test_two_rollouts_on_the_halves_of_a_node_run_at_the_same_time():
    jobs = {name: job(name) for name in "ab"}
    side_by_side = slowdowns(halves("a", "b"), jobs, RULES)
    queued = Group(("roll", "train"), (Pin("a", 1, (0,), 0, (2,)), Pin("b", 1, (0,), 0, (2,))))
    one_half = slowdowns(queued, jobs, RULES)
    for name in "ab":
        # An iteration is half-node rollout and training, no matter what the other does on its half.
        assert side_by_side[name].mean == pytest.approx((450.0 + 60.0) / 360.0, rel=0.03)
        assert one_half[name].mean > 2 * 450.0 / 360.0


def test_host_memory_counts_per_node_whatever_the_slot():
    jobs = {name: job(name, half_gb=600.0) for name in "ab"}
    assert resident_bytes(halves("a", "b"), jobs, NODE_TYPES) == [1200e9, 200e9]
    assert not resident(halves("a", "b"), jobs, NODE_TYPES)
    fitting = {name: job(name, half_gb=400.0) for name in "ab"}
    assert resident(halves("a", "b"), fitting, NODE_TYPES)


def test_the_program_puts_two_rollouts_side_by_side_where_that_is_cheaper():
    jobs = [job("a"), job("b")]
    found = solve_groups(jobs, NODE_TYPES, RULES)
    assert found.usd_per_hour == pytest.approx(60.0)
    [group] = found.groups
    assert group.nodes == ("roll", "train")
    assert sorted(pin.rollout_units for pin in group.pins) == [(0,), (1,)]
    whole_only = [replace(j, rollout=j.rollout[:1]) for j in jobs]
    assert solve_groups(whole_only, NODE_TYPES, RULES).usd_per_hour > found.usd_per_hour
    # SolveMemory of one node holds only one of the halves.
    heavy = solve_groups([job("a", half_gb=600.0), job("b", half_gb=600.0)], NODE_TYPES, RULES)
    assert heavy.usd_per_hour > found.usd_per_hour


def test_a_job_alone_on_half_a_node_pays_for_all_of_it_until_another_joins():
    found = BestFit(NODE_TYPES, RULES).arrive(GroupsState(), job("a"))
    assert found.usd_per_hour(NODE_TYPES) == 60.0
    both = BestFit(NODE_TYPES, RULES).arrive(found, job("b"))
    assert moved_jobs(found, both, NODE_TYPES) == []


def test_whoever_stays_keeps_its_slot_when_the_other_half_is_given_up():
    jobs = {name: job(name) for name in "ab"}
    state = GroupsState(jobs, {"g000001": halves("a", "b")})
    after = depart_in_place(state, "a", NODE_TYPES)
    assert after.groups["g000001"].pins[0].rollout_units == (1,)
    assert moved_jobs(state, after, NODE_TYPES) == []
    assert without_idle_nodes(after.groups["g000001"], NODE_TYPES) == after.groups["g000001"]


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.integers(50, 300), st.integers(130, 250)), min_size=1, max_size=4))
def test_units_of_any_mix_of_halves_and_wholes_lie_in_their_nodes_and_bounds_hold(rows):
    jobs = [job(f"j{at}", whole_s=float(s), slo=slo / 100) for at, (s, slo) in enumerate(rows)]
    by_name = {j.name: j for j in jobs}
    placed = GroupsState()
    replanner = Replanner(NODE_TYPES, RULES)
    for j in jobs:
        placed = replanner.arrive(placed, j)
    for group in (*solve_groups(jobs, NODE_TYPES, RULES).groups, *placed.groups.values()):
        assert resident(group, by_name, NODE_TYPES)
        assert max(unit_shares(group, by_name, RULES, NODE_TYPES)) <= 1 + 1e-6
        got = slowdowns(group, by_name, RULES)
        for pin in group.pins:
            way = by_name[pin.job].rollout[pin.rollout]
            assert len(pin.rollout_units) == way.nodes * way.slots
            assert got[pin.job].mean <= by_name[pin.job].slo + 1e-6 or group == solo_group(by_name[pin.job], NODE_TYPES)


def test_a_third_half_goes_to_the_slot_that_is_held_least():
    jobs = {"a": job("a", whole_s=200.0), "b": job("b", whole_s=40.0), "c": job("c", whole_s=40.0)}
    half = {name: modes_of_half(j) for name, j in jobs.items()}
    group = built([(half["a"], [0], [1]), (half["b"], [0], [1])], ["roll", "train"], NODE_TYPES)
    held = unit_shares(group, {n: jobs[n] for n in "ab"}, RULES, NODE_TYPES)
    grown = attach(group, half["c"], ([0], [1]), held, NODE_TYPES)
    units = {pin.job: pin.rollout_units for pin in grown.pins}
    assert units["c"] == units["b"] != units["a"]
    assert placed_solo(half["a"], NODE_TYPES).pins[0].rollout_units == (0,)


def modes_of_half(j: GroupJob):
    return next(m for m in job_placements(j, NODE_TYPES, RULES) if m.ways[0] == 1)
