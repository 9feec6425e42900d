"""USD per unit of training: Dinkelbach's iteration against exhaustion."""

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplan.benchmarks.brute_force import placements_of_all
from rlplan.planner.groups.choose.group_program import solve_groups
from rlplan.planner.groups.choose.group_solution import Effort
from rlplan.planner.groups.inputs.group_model import Group, GroupJob, NodeType, PhaseWay, Rules
from rlplan.planner.groups.inputs.running_plan import unconnected_groups
from rlplan.planner.groups.place.group_nodes import resident
from rlplan.planner.groups.place.published_placers import within_cap_and_bounds
from rlplan.planner.groups.simulate.slowdowns import slowdowns

NODE_TYPES = {"H20": NodeType("H20", 14.8, 1.5e12), "H800": NodeType("H800", 42.24, 1.5e12)}
RULES = Rules(group_cap=3)


def job(name: str, rollout_s: float, train_s: float, slo: float, spill: bool, wide: bool) -> GroupJob:
    rollout = [PhaseWay("H20", 1, 1, rollout_s, 3e11)]
    if spill:
        rollout.append(PhaseWay("H800", 1, 1, 0.9 * rollout_s, 3e11))
    train = [PhaseWay("H800", 1, 1, train_s, 3e11)]
    if wide:
        train.append(PhaseWay("H800", 2, 1, 0.55 * train_s, 3e11))
    return GroupJob(name, slo, tuple(rollout), tuple(train))


def jobs_strategy(most: int) -> st.SearchStrategy[list[GroupJob]]:
    one = st.tuples(st.integers(50, 600), st.integers(50, 600), st.integers(0, 100), st.booleans(), st.booleans())
    return st.lists(one, min_size=1, max_size=most).map(
        lambda rows: [job(f"j{at}", r, t, 1 + s / 100, spill, wide) for at, (r, t, s, spill, wide) in enumerate(rows)]
    )


def exhausted(jobs: list[GroupJob]) -> float:
    """The least USD per unit of any partition into groups, each on any nodes: all pairs (price, units) that are not
    dominated, joined."""
    by_name = {j.name: j for j in jobs}
    names = sorted(by_name)
    of_set: dict[int, list[tuple[float, float]]] = {}
    for size in range(1, min(RULES.group_cap, len(names)) + 1):
        for some in combinations(range(len(names)), size):
            members = [by_name[names[at]] for at in some]
            rows = []
            for group in placements_of_all(Group((), ()), members, NODE_TYPES, float("inf")):
                if (
                    len(unconnected_groups(group, NODE_TYPES)) == 1
                    and resident(group, by_name, NODE_TYPES)
                    and within_cap_and_bounds(group, by_name, RULES)
                ):
                    slow = slowdowns(group, by_name, RULES)
                    units = sum(by_name[n].solo_usd_per_hour(NODE_TYPES) / s.mean for n, s in slow.items())
                    rows.append((group.usd_per_hour(NODE_TYPES), units))
            of_set[sum(1 << at for at in some)] = rows
    best: dict[int, list[tuple[float, float]]] = {0: [(0.0, 0.0)]}
    for mask in range(1, 1 << len(names)):
        first = mask & -mask
        rows = [
            (a + c, b + d)
            for part, found in of_set.items()
            if part & first and part & mask == part
            for a, b in found
            for c, d in best[mask ^ part]
        ]
        kept: list[tuple[float, float]] = []
        for usd, units in sorted(set(rows), key=lambda row: (row[0], -row[1])):
            if not kept or units > kept[-1][1]:
                kept.append((usd, units))
        best[mask] = kept
    return min(usd / units for usd, units in best[(1 << len(names)) - 1])


@settings(max_examples=8, deadline=None)
@given(jobs_strategy(3))
def test_few_jobs_get_the_ratio_that_exhaustion_finds(jobs: list[GroupJob]) -> None:
    found = solve_groups(jobs, NODE_TYPES, RULES, objective="usd_per_unit")
    assert found.usd_per_unit == pytest.approx(exhausted(jobs), rel=1e-5)
    assert found.bound_usd_per_unit == pytest.approx(found.usd_per_unit, rel=1e-4)
    assert found.universe == "groups of at most 3 jobs"


@settings(max_examples=6, deadline=None)
@given(jobs_strategy(5), st.booleans())
def test_neither_objective_is_worse_in_its_own_terms_than_the_other(jobs: list[GroupJob], exact: bool) -> None:
    effort = Effort() if exact else Effort(exact_jobs=0)
    hour = solve_groups(jobs, NODE_TYPES, RULES, effort=effort)
    unit = solve_groups(jobs, NODE_TYPES, RULES, effort=effort, objective="usd_per_unit")
    assert unit.usd_per_unit <= hour.usd_per_unit * (1 + 1e-9)
    assert hour.usd_per_hour <= unit.usd_per_hour * (1 + 2 * effort.gap)
    assert unit.bound_usd_per_hour <= unit.usd_per_hour + 1e-6
    assert unit.bound_usd_per_unit is not None and unit.bound_usd_per_unit <= unit.usd_per_unit
    assert sorted(pin.job for group in unit.groups for pin in group.pins) == sorted(j.name for j in jobs)


def test_training_that_is_worth_more_than_the_nodes_it_takes_is_not_slowed() -> None:
    jobs = [job("a", 300, 290, 2.0, False, False), job("b", 300, 290, 2.0, False, False)]
    hour = solve_groups(jobs, NODE_TYPES, RULES)
    unit = solve_groups(jobs, NODE_TYPES, RULES, objective="usd_per_unit")
    assert hour.usd_per_hour <= unit.usd_per_hour
    assert unit.usd_per_unit <= min(1.0, hour.usd_per_unit)
    assert (hour.objective, unit.objective) == ("usd_per_hour", "usd_per_unit")
    assert hour.bound_usd_per_unit is None


def test_a_search_whose_work_ran_out_says_that_its_gap_is_about_the_groups_tried() -> None:
    jobs = [job(f"j{at}", 100 + 37 * at % 300, 80 + 53 * at % 200, 1.9, False, False) for at in range(6)]
    found = solve_groups(jobs, NODE_TYPES, RULES, effort=Effort(simulations=20), objective="usd_per_unit")
    assert found.universe.startswith("the ") and "groups that were tried" in found.universe
    assert found.status == "limit"
