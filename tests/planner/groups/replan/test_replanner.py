"""Placing one arrival, and moving jobs that run."""

from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplan.planner.groups.choose.group_checker import Checker
from rlplan.planner.groups.inputs.group_model import Group, GroupJob, NodeType, PhaseWay, Pin, Rules, without_idle_nodes
from rlplan.planner.groups.inputs.groups_state import GroupsState
from rlplan.planner.groups.place.best_fit import BestFit
from rlplan.planner.groups.place.group_nodes import resident
from rlplan.planner.groups.replan.move_prices import Patience
from rlplan.planner.groups.replan.moved_jobs import moved_jobs
from rlplan.planner.groups.replan.replanner import Replanner
from rlplan.plans.yaml.errors import Infeasible

NODE_TYPES = {"H20": NodeType("H20", 14.8, 1.5e12), "H800": NodeType("H800", 42.24, 1.5e12)}
RULES = Rules()


def job(name: str, rollout_s: float, train_s: float, slo: float) -> GroupJob:
    return GroupJob(
        name,
        slo,
        (PhaseWay("H20", 1, 1, rollout_s, 2e11), PhaseWay("H800", 1, 1, rollout_s, 2e11)),
        (PhaseWay("H800", 1, 1, train_s, 2e11),),
        cold_s=82.0,
    )


rows = st.lists(st.tuples(st.integers(50, 600), st.integers(50, 600), st.integers(0, 100)), min_size=1, max_size=7)


def sound(state: GroupsState) -> None:
    """Every job is in exactly one group, fits and keeps its bound."""
    assert sorted(pin.job for group in state.groups.values() for pin in group.pins) == sorted(state.jobs)
    for group in state.groups.values():
        assert len(group.pins) <= RULES.group_cap
        assert resident(group, state.jobs, NODE_TYPES)
        assert Checker(RULES).keeps([group], state.jobs) == [True]


@settings(max_examples=15, deadline=None)
@given(rows)
def test_placing_keeps_bounds_whoever_leaves_and_moves_nobody(rows: list[tuple[int, int, int]]) -> None:
    placer, state = BestFit(NODE_TYPES, RULES), GroupsState()
    for at, (r, t, s) in enumerate(rows):
        after = placer.arrive(state, job(f"j{at}", r, t, 1 + s / 100))
        assert moved_jobs(state, after, NODE_TYPES) == []
        state = after
        sound(state)
    for group in state.groups.values():
        for size in range(1, len(group.pins)):
            for some in combinations(group.pins, size):
                rest = without_idle_nodes(Group(group.nodes, some), NODE_TYPES)
                assert placer.checker.keeps([rest], state.jobs) == [True]


def test_an_arrival_shares_nodes_that_have_room() -> None:
    placer = BestFit(NODE_TYPES, RULES)
    state = placer.arrive(placer.arrive(GroupsState(), job("a", 300, 100, 1.8)), job("b", 300, 100, 1.8))
    alone = sum(placer.arrive(GroupsState(), j).usd_per_hour(NODE_TYPES) for j in state.jobs.values())
    assert state.usd_per_hour(NODE_TYPES) < alone


@settings(max_examples=8, deadline=None)
@given(rows)
def test_replanning_keeps_every_bound_through_arrivals_and_departures(rows: list[tuple[int, int, int]]) -> None:
    placer, state = Replanner(NODE_TYPES, RULES), GroupsState()
    for at, (r, t, s) in enumerate(rows):
        state = placer.arrive(state, job(f"j{at}", r, t, 1 + s / 100))
        sound(state)
        placer.observe(36000.0, dict.fromkeys(state.jobs, 36000.0), state.jobs)
    for at in range(len(rows)):
        state = placer.depart(state, f"j{at}")
        sound(state)
    assert not state.groups


def running_apart() -> GroupsState:
    """Two jobs that could share nodes, each on its own."""
    jobs = [job("a", 300, 100, 1.9), job("b", 300, 100, 1.9)]
    groups = {
        f"g{at:06d}": BestFit(NODE_TYPES, RULES).arrive(GroupsState(), j).groups["g000001"]
        for at, j in enumerate(jobs, 1)
    }
    return GroupsState({j.name: j for j in jobs}, groups)


def test_a_move_that_pays_is_made_once_the_job_has_the_credit_for_it() -> None:
    state = running_apart()
    placer = Replanner(NODE_TYPES, RULES)
    assert placer.replan(state).moves == ()
    placer.observe(36000.0, dict.fromkeys(state.jobs, 36000.0), state.jobs)
    found = placer.replan(state)
    assert len(found.moves) == 1
    assert found.saves_usd_per_hour > 0
    assert found.moves[0].price_usd > 0
    assert found.moves[0].outage_s == pytest.approx(82.0 + 200.0)
    assert found.state.usd_per_hour(NODE_TYPES) < state.usd_per_hour(NODE_TYPES)


def test_a_move_that_would_be_undone_too_soon_is_not_made() -> None:
    state = running_apart()
    placer = Replanner(NODE_TYPES, RULES, Patience(change_every_h=0.01))
    placer.observe(36000.0, dict.fromkeys(state.jobs, 36000.0), state.jobs)
    assert placer.replan(state).moves == ()


def test_waiting_for_the_boundary_loses_no_work() -> None:
    state = running_apart()
    placer = Replanner(NODE_TYPES, RULES, Patience(wait_for_boundary=True))
    placer.observe(36000.0, dict.fromkeys(state.jobs, 36000.0), state.jobs)
    assert [move.outage_s for move in placer.replan(state).moves] == [82.0]


def test_a_job_beyond_its_bound_is_at_risk_only_when_its_lead_does_not_last() -> None:
    one, two = job("a", 200, 190, 1.2), job("b", 190, 180, 1.2)
    shared = Group(
        ("H20", "H800"), (Pin("a", 0, (0,), 0, (1,)), Pin("b", 0, (0,), 0, (1,)))
    )  # two phases of about 190 s on each node: neither waits long for the other
    now = {"a": replace(one, train=(replace(one.train[0], mean_s=420.0),)), "b": two}
    state = GroupsState({"a": one, "b": two}, {"g1": shared})
    planner = Replanner(NODE_TYPES, RULES)
    assert Checker(RULES).holds(shared, state.jobs)
    assert planner.at_risk(state, state.jobs, 3600.0) == []
    assert planner.at_risk(state, now, 3600.0) == ["g1"], "b now waits for a's longer training, and has no lead"
    planner.prices.credit_s = {"a": 1e6, "b": 1e6}
    assert planner.at_risk(state, now, 3600.0) == []
    assert planner.at_risk(state, now, 1e8) == ["g1"]


def test_jobs_that_drifted_out_of_their_bounds_are_repaired() -> None:
    placer = BestFit(NODE_TYPES, RULES)
    state = placer.arrive(placer.arrive(GroupsState(), job("a", 300, 100, 1.8)), job("b", 250, 90, 1.8))
    assert len(state.groups) == 1
    now = {"a": job("a", 300, 500, 1.3), "b": job("b", 250, 450, 1.3)}
    shared = next(iter(state.groups.values()))
    assert Checker(RULES).keeps([shared], now) == [False]
    sound(Replanner(NODE_TYPES, RULES).drifted(state, now))


def limited(h20: int, h800: int) -> dict[str, NodeType]:
    return {"H20": replace(NODE_TYPES["H20"], limit=h20), "H800": replace(NODE_TYPES["H800"], limit=h800)}


def whole(name: str, slo: float = 1.05) -> GroupJob:
    """A job that no other fits beside."""
    return GroupJob(
        name, slo, (PhaseWay("H20", 1, 1, 300.0, 2e11),), (PhaseWay("H800", 1, 1, 400.0, 2e11),), cold_s=82.0
    )


def test_a_job_for_which_there_are_no_nodes_left_names_the_pool_and_how_many_are_missing() -> None:
    placer = Replanner(limited(5, 2), RULES)
    state = placer.arrive(placer.arrive(GroupsState(), whole("a")), whole("b"))
    with pytest.raises(Infeasible, match=r"3 jobs do not fit .* 1 more of pool H800 \(limit 2\)"):
        placer.arrive(state, whole("c"))


def test_jobs_that_broke_their_bounds_and_can_go_nowhere_stay_where_they_are() -> None:
    node_types = limited(1, 1)
    loose = [whole(name, 2.5) for name in "ab"]
    state = BestFit(node_types, RULES).arrive(BestFit(node_types, RULES).arrive(GroupsState(), loose[0]), loose[1])
    assert len(state.groups) == 1
    now = {name: whole(name) for name in "ab"}
    after = Replanner(node_types, RULES).drifted(state, now)
    assert after.groups == state.groups
    # With room there is a repair.
    sound(Replanner(limited(2, 2), RULES).drifted(state, now))


def test_a_job_goes_to_the_scarce_nodes_only_where_no_others_do() -> None:
    node_types = limited(1, 3)
    placer, state = Replanner(node_types, RULES), GroupsState()
    for name in "abc":
        state = placer.arrive(state, job(name, 300, 100, 1.1))
    sound(state)
    for pool, kind in node_types.items():
        assert sum(group.nodes.count(pool) for group in state.groups.values()) <= (kind.limit or 0)


def test_a_move_that_saves_nodes_is_not_made_where_the_training_it_costs_is_worth_more() -> None:
    # Both wait for each other's training, and share nothing else that is dear.
    jobs = [
        GroupJob(n, 1.9, (PhaseWay("H20", 1, 1, 100.0, 2e11),), (PhaseWay("H800", 1, 1, 300.0, 2e11),), cold_s=82.0)
        for n in "ab"
    ]
    groups = {
        f"g{at}": BestFit(NODE_TYPES, RULES).arrive(GroupsState(), j).groups["g000001"] for at, j in enumerate(jobs, 1)
    }
    state = GroupsState({j.name: j for j in jobs}, groups)
    placer = Replanner(NODE_TYPES, RULES)
    placer.observe(360000.0, dict.fromkeys(state.jobs, 360000.0), state.jobs)
    assert len(placer.replan(state).moves) == 1
    placer.prices.usd_per_unit = 3.0
    assert placer.replan(state).moves == ()
