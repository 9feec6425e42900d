"""Moving jobs that run: for money, to repair a bound, or not at all."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplan.planner.groups.choose.group_solution import GroupChecker
from rlplan.planner.groups.choose.placers import BestFit
from rlplan.planner.groups.inputs.group_model import GroupJob, GroupsState, Rules
from rlplan.planner.groups.moves import MovePatience
from rlplan.planner.groups.replanner import Replanner
from rlplan.plans.yaml.errors import Infeasible

from ..made import NODE_TYPES, assert_sound, group, job, limited, named

RULES = Rules()


def movable(name: str, rollout_s: float, train_s: float, slo: float, spill: float = 1.0) -> GroupJob:
    return job(name, rollout_s, train_s, slo, gb=200, spill=spill, cold_s=82.0)


def placed(placer, *jobs: GroupJob, state: GroupsState | None = None) -> GroupsState:
    state = state or GroupsState()
    for each in jobs:
        state = placer.arrive(state, each)
    return state


def sound(state: GroupsState, kinds=NODE_TYPES) -> None:
    assert_sound(state.groups.values(), state.jobs, kinds)


def apart(*jobs: GroupJob) -> GroupsState:
    """Each job in a group of its own."""
    alone = [BestFit(NODE_TYPES, RULES).arrive(GroupsState(), each).groups["g000001"] for each in jobs]
    return GroupsState(named(*jobs), {f"g{at:06d}": each for at, each in enumerate(alone, 1)})


APART = apart(movable("a", 300, 100, 1.9), movable("b", 300, 100, 1.9))
"""Two jobs that could share nodes."""


def ahead(state: GroupsState, patience: MovePatience | None = None, hours: float = 10.0) -> Replanner:
    """A placer whose jobs have been as fast as alone for so long."""
    placer = Replanner(NODE_TYPES, RULES, patience or MovePatience())
    placer.observe(hours * 3600, dict.fromkeys(state.jobs, hours * 3600), state.jobs)
    return placer


@settings(max_examples=5)
@given(st.lists(st.tuples(st.integers(50, 600), st.integers(50, 600), st.integers(0, 100)), min_size=1, max_size=6))
def test_replanning_keeps_every_bound_through_arrivals_and_departures(rows: list[tuple[int, int, int]]) -> None:
    placer, state = Replanner(NODE_TYPES, RULES), GroupsState()
    for at, (r, t, s) in enumerate(rows):
        state = placer.arrive(state, movable(f"j{at}", r, t, 1 + s / 100))
        sound(state)
        placer.observe(36000.0, dict.fromkeys(state.jobs, 36000.0), state.jobs)
    for at in range(len(rows)):
        state = placer.depart(state, f"j{at}")
        sound(state)
    assert not state.groups


def test_a_move_that_pays_is_made_once_the_job_has_credit() -> None:
    assert Replanner(NODE_TYPES, RULES).replan(APART).moves == ()
    found = ahead(APART).replan(APART)
    [move] = found.moves
    assert found.saves_usd_per_hour == pytest.approx(
        APART.usd_per_hour(NODE_TYPES) - found.state.usd_per_hour(NODE_TYPES)
    )
    assert found.saves_usd_per_hour > 0
    assert move.outage_s == pytest.approx(82.0 + 200.0)
    assert move.price_usd == pytest.approx((82.0 + 282.0) / 3600 * (14.8 + 42.24))
    at_boundary = ahead(APART, MovePatience(wait_for_boundary=True)).replan(APART)
    assert [move.outage_s for move in at_boundary.moves] == [82.0], "no work is lost"


def test_a_move_that_would_be_undone_too_soon_is_not_made() -> None:
    assert ahead(APART, MovePatience(change_every_h=0.01)).replan(APART).moves == ()


def test_nodes_are_not_saved_where_the_training_lost_is_worth_more() -> None:
    # Both wait for each other's training, and share nothing else that is dear.
    state = apart(*(movable(name, 100, 300, 1.9, spill=0.0) for name in "ab"))
    placer = ahead(state, hours=100.0)
    assert len(placer.replan(state).moves) == 1
    placer.prices.usd_per_unit = 3.0
    assert placer.replan(state).moves == ()


def test_a_job_beyond_its_bound_is_at_risk_without_a_lead() -> None:
    # Two phases of about 190 s on each node: neither waits long for the other.
    one, two = movable("a", 200, 190, 1.2), movable("b", 190, 180, 1.2)
    shared = group("ab", (0, 0))
    now = {"a": replace(one, train=(replace(one.train[0], mean_s=420.0),)), "b": two}
    state = GroupsState(named(one, two), {"g1": shared})
    planner = Replanner(NODE_TYPES, RULES)
    assert GroupChecker(RULES).holds(shared, state.jobs)
    assert planner.at_risk(state, state.jobs, 3600.0) == []
    assert planner.at_risk(state, now, 3600.0) == ["g1"], "b now waits for a's longer training, and has no lead"
    planner.prices.credit_s = {"a": 1e6, "b": 1e6}
    assert planner.at_risk(state, now, 3600.0) == []
    assert planner.at_risk(state, now, 1e8) == ["g1"]


def test_jobs_that_drifted_out_of_their_bounds_are_repaired() -> None:
    state = placed(BestFit(NODE_TYPES, RULES), movable("a", 300, 100, 1.8), movable("b", 250, 90, 1.8))
    [shared] = state.groups.values()
    now = named(movable("a", 300, 500, 1.3), movable("b", 250, 450, 1.3))
    assert GroupChecker(RULES).keeps([shared], now) == [False]
    sound(Replanner(NODE_TYPES, RULES).drifted(state, now))


def whole(name: str, slo: float = 1.05) -> GroupJob:
    """A job that no other fits beside."""
    return movable(name, 300, 400, slo, spill=0.0)


def test_a_job_without_nodes_left_is_told_how_many_are_missing() -> None:
    placer = Replanner(limited(5, 2), RULES)
    state = placed(placer, whole("a"), whole("b"))
    with pytest.raises(Infeasible, match=r"3 jobs do not fit .* 1 more of pool train \(limit 2\)"):
        placer.arrive(state, whole("c"))


def test_jobs_that_broke_their_bounds_stay_where_there_is_no_room() -> None:
    kinds = limited(1, 1)
    state = placed(BestFit(kinds, RULES), whole("a", 2.5), whole("b", 2.5))
    assert len(state.groups) == 1
    now = named(whole("a"), whole("b"))
    assert Replanner(kinds, RULES).drifted(state, now).groups == state.groups
    sound(Replanner(limited(2, 2), RULES).drifted(state, now), limited(2, 2))


def test_a_job_goes_to_the_scarce_nodes_only_where_no_others_do() -> None:
    kinds = limited(1, 3)
    sound(placed(Replanner(kinds, RULES), *(movable(name, 300, 100, 1.1) for name in "abc")), kinds)
