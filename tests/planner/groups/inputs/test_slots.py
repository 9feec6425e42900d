"""Sub-node pinning: phases that hold some slots of a node."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplan.planner.groups.choose.group_columns import attach, built, job_placements, placed_solo, unit_shares
from rlplan.planner.groups.choose.group_nodes import depart_in_place, resident, resident_bytes, solo_group
from rlplan.planner.groups.choose.group_program import solve_groups
from rlplan.planner.groups.inputs.group_model import (
    Group,
    GroupJob,
    GroupsState,
    PhaseWay,
    Pin,
    Rules,
    without_idle_nodes,
)
from rlplan.planner.groups.moves import moved_jobs
from rlplan.planner.groups.replanner import Replanner
from rlplan.planner.groups.simulate.slowdowns import slowdowns

from ..made import assert_sound, named, node_types

NODE_TYPES = node_types(20.0, 40.0, 1e12, slots=2)
RULES = Rules()


def job(name: str, half_gb: float = 200.0, slo: float = 1.6, whole_s: float = 300.0) -> GroupJob:
    """Rolls out on a whole node, or on half of one in 1.5 times the seconds."""
    whole = PhaseWay("roll", 1, 2, whole_s, 2 * half_gb * 1e9, 1.0)
    half = PhaseWay("roll", 1, 1, 1.5 * whole_s, half_gb * 1e9, 1.0)
    return GroupJob(name, slo, (whole, half), (PhaseWay("train", 1, 1, 60.0, 1e11, 2.0),), cold_s=80.0)


HALVES = Group(("roll", "train"), (Pin("a", 1, (0,), 0, (2,)), Pin("b", 1, (1,), 0, (2,))))
"""Rollouts on the halves of one node, training on another."""


def test_rollouts_on_the_halves_of_a_node_run_at_the_same_time():
    jobs = named(job("a"), job("b"))
    side_by_side = slowdowns(HALVES, jobs, RULES)
    queued = Group(HALVES.nodes, (HALVES.pins[0], replace(HALVES.pins[1], rollout_units=(0,))))
    one_half = slowdowns(queued, jobs, RULES)
    for name in "ab":
        # An iteration is half-node rollout and training, no matter what the other does on its half.
        assert side_by_side[name].mean == pytest.approx((450.0 + 60.0) / 360.0, rel=0.03)
        assert one_half[name].mean > 2 * 450.0 / 360.0


def test_host_memory_counts_per_node_whatever_the_slot():
    jobs = named(job("a", 600.0), job("b", 600.0))
    assert resident_bytes(HALVES, jobs, NODE_TYPES) == [1200e9, 200e9]
    assert not resident(HALVES, jobs, NODE_TYPES)
    assert resident(HALVES, named(job("a", 400.0), job("b", 400.0)), NODE_TYPES)


def test_the_program_puts_rollouts_side_by_side_where_that_is_cheaper():
    jobs = [job("a"), job("b")]
    found = solve_groups(jobs, NODE_TYPES, RULES)
    assert found.usd_per_hour == pytest.approx(60.0)
    [group] = found.groups
    assert group.nodes == ("roll", "train")
    assert sorted(pin.rollout_units for pin in group.pins) == [(0,), (1,)]
    whole_only = [replace(j, rollout=j.rollout[:1]) for j in jobs]
    heavy = [job("a", half_gb=600.0), job("b", half_gb=600.0)]  # of one node's memory only one half fits
    for others in (whole_only, heavy):
        assert solve_groups(others, NODE_TYPES, RULES).usd_per_hour > found.usd_per_hour


def test_whoever_stays_keeps_its_slot_when_the_other_leaves():
    state = GroupsState(named(job("a"), job("b")), {"g000001": HALVES})
    after = depart_in_place(state, "a", NODE_TYPES)
    assert after.groups["g000001"].pins[0].rollout_units == (1,)
    assert moved_jobs(state, after, NODE_TYPES) == []
    assert without_idle_nodes(after.groups["g000001"], NODE_TYPES) == after.groups["g000001"]


@settings(max_examples=6)
@given(st.lists(st.tuples(st.integers(50, 300), st.integers(130, 250)), min_size=1, max_size=3))
def test_any_mix_of_halves_and_wholes_lies_in_its_nodes(rows):
    jobs = named(*(job(f"j{at}", whole_s=float(s), slo=slo / 100) for at, (s, slo) in enumerate(rows)))
    placed = GroupsState()
    for each in jobs.values():
        placed = Replanner(NODE_TYPES, RULES).arrive(placed, each)
    for groups in (solve_groups(list(jobs.values()), NODE_TYPES, RULES).groups, tuple(placed.groups.values())):
        assert_sound(groups, jobs, NODE_TYPES)
        for pin in (pin for group in groups for pin in group.pins):
            way = jobs[pin.job].rollout[pin.rollout]
            assert len(pin.rollout_units) == way.nodes * way.slots
        for group in groups:
            for name, slow in slowdowns(group, jobs, RULES).items():
                assert slow.mean <= jobs[name].slo + 1e-6 or group == solo_group(jobs[name], NODE_TYPES)


def test_a_third_half_goes_to_the_slot_that_is_held_least():
    jobs = named(job("a", whole_s=200.0), job("b", whole_s=40.0), job("c", whole_s=40.0))
    half = {
        name: next(m for m in job_placements(each, NODE_TYPES, RULES) if m.ways[0] == 1) for name, each in jobs.items()
    }
    group = built([(half["a"], [0], [1]), (half["b"], [0], [1])], ["roll", "train"], NODE_TYPES)
    held = unit_shares(group, {n: jobs[n] for n in "ab"}, RULES, NODE_TYPES)
    grown = attach(group, half["c"], ([0], [1]), held, NODE_TYPES)
    units = {pin.job: pin.rollout_units for pin in grown.pins}
    assert units["c"] == units["b"] != units["a"]
    assert placed_solo(half["a"], NODE_TYPES).pins[0].rollout_units == (0,)
