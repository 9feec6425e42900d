"""Which jobs moved, small edits of groups, and the placers of one arrival."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplan.benchmarks.rollmux.replay import MostIdle, Random
from rlplan.planner.groups.choose.group_nodes import (
    depart_in_place,
    grow,
    node_choices,
    pinned,
    resident,
    resident_bytes,
    solo_group,
)
from rlplan.planner.groups.choose.group_solution import GroupChecker
from rlplan.planner.groups.choose.placers import Algorithm1, BestFit, SoloD, lasts
from rlplan.planner.groups.inputs.group_model import (
    Group,
    GroupJob,
    GroupsState,
    PhaseOption,
    Pin,
    Rules,
    Slowdown,
    next_id,
    nodes_of_pins,
    without_idle_nodes,
)
from rlplan.planner.groups.moves import moved_jobs
from rlplan.planner.groups.simulate.slowdowns import training_per_hour

from ..made import assert_sound, group, job, named, node_types

NODE_TYPES = node_types(10.0, 30.0, memory=1e12)
RULES = Rules(permit_rule="first_come")
PAIR = GroupsState(named(job("x"), job("y")), {"g000001": group("xy", (0, 1))})
"""Two jobs that share a training node, each with a rollout node of its own."""


def moved(before, after):
    return moved_jobs(before, after, NODE_TYPES)


def placed(placer, jobs):
    state = GroupsState()
    for one in jobs:
        before, state = state, placer.arrive(state, one)
        assert moved(before, state) == []
    return state


def members(state):
    return sorted(tuple(pin.job for pin in each.pins) for each in state.groups.values())


def test_nodes_that_come_and_go_with_others_move_nobody():
    grown, new = grow(PAIR.groups["g000001"], ["roll", "train"], NODE_TYPES)
    third = pinned(grown, "z", (0, 0), new[:1], new[1:], NODE_TYPES)
    after = GroupsState({**PAIR.jobs, "z": job("z")}, {"g000001": third})
    assert third.nodes == ("roll", "roll", "roll", "train", "train") and moved(PAIR, after) == []
    left = depart_in_place(PAIR, "x", NODE_TYPES)
    assert left.groups["g000001"].nodes == ("roll", "train") and moved(PAIR, left) == []
    assert moved(PAIR, GroupsState()) == [] and next_id(PAIR.groups) not in PAIR.groups


def test_a_job_that_trains_elsewhere_or_wider_has_moved():
    alone = {f"g00000{at}": solo_group(PAIR.jobs[name], NODE_TYPES) for at, name in enumerate("xy", 1)}
    apart = GroupsState(PAIR.jobs, alone)
    assert moved(PAIR, apart) == moved(apart, PAIR) == ["y"]
    wide = job("x", wide=0.5)
    before, after = (
        GroupsState({"x": wide}, {"g000001": solo_group(wide, NODE_TYPES, ways)}) for ways in ((0, 0), (0, 1))
    )
    assert moved(before, after) == ["x"]


def test_residency_counts_both_states_of_every_job_on_a_node():
    jobs = named(job("x", gb=600.0), job("y", gb=500.0))
    assert resident_bytes(PAIR.groups["g000001"], jobs, NODE_TYPES) == [600e9, 500e9, 1100e9]
    assert not resident(PAIR.groups["g000001"], jobs, NODE_TYPES)
    assert not resident(PAIR.groups["g000001"], named(job("x", gb=500.0), job("y", gb=500.0)), NODE_TYPES), "full"


pools = st.sampled_from(["roll", "train"])


@settings(max_examples=40)
@given(st.lists(pools, max_size=5), st.lists(pools, max_size=3))
def test_growth_keeps_every_pin_on_its_nodes(first, second):
    x = job("x", nodes=(2, 2))
    once, _ = grow(solo_group(x, NODE_TYPES), first, NODE_TYPES)
    grown, new = grow(once, second, NODE_TYPES)
    assert sorted(grown.nodes) == list(grown.nodes) and len(new) == len(second)
    rollout, train = nodes_of_pins(grown, NODE_TYPES)["x"]
    assert {grown.nodes[at] for at in rollout} == {"roll"} and {grown.nodes[at] for at in train} == {"train"}
    assert not (rollout | train) & set(new)
    assert moved(GroupsState({"x": x}, {"g1": once}), GroupsState({"x": x}, {"g1": grown})) == []
    assert grow(Group((), ()), second, NODE_TYPES) == (Group(tuple(sorted(second)), ()), tuple(range(len(second))))


seconds = st.integers(50, 400)


@settings(max_examples=20)
@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3), seconds, seconds), min_size=2, max_size=5))
def test_placing_moves_nobody_and_keeps_bounds_whoever_leaves(rows) -> None:
    placer = BestFit(NODE_TYPES, Rules())
    state = placed(placer, [job(f"j{at}", a, b, 1.8, nodes=(r, t), spill=1.0) for at, (r, t, a, b) in enumerate(rows)])
    assert_sound(state.groups.values(), state.jobs, NODE_TYPES)
    for each in state.groups.values():
        for some in (s for size in range(1, len(each.pins)) for s in itertools.combinations(each.pins, size)):
            rest = without_idle_nodes(Group(each.nodes, some), NODE_TYPES)
            assert placer.checker.keeps([rest], state.jobs) == [True]
    for name in sorted(state.jobs)[:-1]:
        before, state = state, placer.depart(state, name)
        assert moved(before, state) == []


def test_a_group_lasts_if_whoever_is_left_keeps_all_bounds() -> None:
    # In the order of arrival a and b wait longer for each other when c does not come between them.
    jobs, three = (
        named(job("a", 230, 160, 1.8), job("b", 300, 250, 1.1), job("c", 150, 120, 1.8)),
        group("abc", (0, 0, 1)),
    )
    checker = GroupChecker(RULES)
    assert checker.holds(three, jobs) and not lasts(three, jobs, NODE_TYPES, checker)
    assert lasts(three, named(*(replace(each, slo=4.0) for each in jobs.values())), NODE_TYPES, checker)


def test_an_arrival_shares_nodes_that_have_room() -> None:
    state = placed(BestFit(NODE_TYPES, Rules()), [job("a", 300, 100, 1.8), job("b", 300, 100, 1.8)])
    assert members(state) == [("a", "b")]


nodes_of_10 = st.sets(st.integers(0, 9), min_size=1, max_size=6)


@settings(max_examples=40)
@given(st.lists(nodes_of_10, min_size=2, max_size=5), nodes_of_10, st.permutations(range(10)))
def test_only_the_job_that_goes_to_other_nodes_has_moved(on, to, renamed):
    def state(sets):
        pins = tuple(Pin(f"j{at}", 0, tuple(sorted(s)), 0, (10,)) for at, s in enumerate(sets))
        return GroupsState({}, {"g1": Group(("roll",) * 10 + ("train",), pins)})

    names = moved(state(on), state([{renamed[n] for n in s} for s in (*on[:-1], to)]))
    assert len(names) <= 1
    if len(to) != len(on[-1]):
        assert names == [f"j{len(on) - 1}"]


def test_a_job_is_priced_alone_at_its_nodes_once():
    colocated = GroupJob("c", 1.5, (PhaseOption("roll", 3, 1, 100.0, 1e9),), (PhaseOption("roll", 2, 1, 50.0, 1e9),))
    for one in (colocated, job("x", nodes=(2, 2))):
        assert one.solo_usd_per_hour(NODE_TYPES) == solo_group(one, NODE_TYPES).usd_per_hour(NODE_TYPES)
    # A unit is what one USD buys solo, so solo a job does as many units an hour as it pays.
    assert training_per_hour({"c": Slowdown(1.0, 1.0, 1.0)}, {"c": colocated}, NODE_TYPES) == 30.0
    assert training_per_hour({"c": Slowdown(1.5, 1.0, 1.0)}, {"c": colocated}, NODE_TYPES) == pytest.approx(20.0)


@settings(max_examples=40)
@given(st.lists(st.sets(st.integers(0, 2)), min_size=1, max_size=7), st.integers(0, 5))
def test_of_choices_of_nodes_that_are_alike_the_first_is_named(held: list[set[int]], count: int):
    """Nodes of one pool: which jobs hold each is all that tells them from each other."""
    on = [tuple(node for node, holders in enumerate(held) if at in holders) for at in range(3)]
    pins = tuple(Pin(f"j{at}", 0, units, 0, units) for at, units in enumerate(on) if units)
    first: dict[tuple[tuple[int, ...], ...], tuple[int, ...]] = {}
    for some in itertools.combinations(range(len(held)), count):
        first.setdefault(tuple(sorted(tuple(sorted(held[node])) for node in some)), some)
    choices = node_choices(Group(("roll",) * len(held), pins), range(len(held)), count, NODE_TYPES)
    assert choices == sorted(first.values())


def test_wide_jobs_that_cannot_share_nodes_get_their_own_at_once():
    """Of 60 nodes there are more sets of 30 than can ever be tried."""
    state = placed(Algorithm1(NODE_TYPES, RULES), [job(name, 100, 50, 1.0, nodes=(60, 60)) for name in "xyz"])
    assert sum(each.nodes.count("roll") for each in state.groups.values()) == 180


def test_with_tails_it_counts_how_many_units_are_shared():
    """A tail on half of the units leaves one of another's two units free, or both."""
    rules = Rules(tail_keep=0.5, permit_rule="first_come")
    jobs = named(*(job(name, 100, 10, 1.5, nodes=(4, 1), tail_share=0.5) for name in "xy"))
    few = Group(
        ("roll",) * 7 + ("train",) * 2, (Pin("x", 0, (0, 1, 2, 3), 0, (7,)), Pin("y", 0, (3, 4, 5, 6), 0, (8,)))
    )
    many = Group(
        ("roll",) * 5 + ("train",) * 2, (Pin("x", 0, (0, 1, 2, 3), 0, (5,)), Pin("y", 0, (1, 2, 3, 4), 0, (6,)))
    )
    checker = GroupChecker(rules)
    together = [checker.slowdowns(each, jobs) for each in (few, many)]
    assert together == [GroupChecker(rules).slowdowns(each, jobs) for each in (few, many)]
    assert together[0] != together[1]


@pytest.mark.parametrize(
    ("jobs", "groups", "usd_per_hour"),
    [
        ([job("x"), job("y")], [("x", "y")], 40.0),  # packed on one pair of nodes
        ([job("x", 300, 50, 1.2), job("y", 300, 50, 1.2)], [("x", "y")], 50.0),  # with a rollout node more
        ([job("x"), job("y"), job("z", 1, 1)], [("x", "y"), ("z",)], 80.0),  # 200 s of load in a cycle of 200 s
        ([job("x", gb=500), job("y", gb=500)], [("x",), ("y",)], 80.0),  # host memory must be left
        ([job("x", slo=1.0), job("y", 90, slo=1.0)], [("x",), ("y",)], 80.0),  # unequal, with bounds of one
    ],
)
def test_algorithm_1_takes_the_cheapest_nodes_that_hold_all_bounds(jobs, groups, usd_per_hour):
    state = placed(Algorithm1(NODE_TYPES, RULES), jobs)
    assert members(state) == groups and state.usd_per_hour(NODE_TYPES) == usd_per_hour


def test_algorithm_1_takes_the_first_of_equal_prices():
    state = placed(SoloD(NODE_TYPES), [job("x"), job("y")])
    assert state.usd_per_hour(NODE_TYPES) == 80.0
    assert members(Algorithm1(NODE_TYPES, RULES).arrive(state, job("z"))) == [("x", "z"), ("y",)]


@pytest.mark.parametrize(
    "placer",
    [SoloD(NODE_TYPES), Algorithm1(NODE_TYPES, RULES), MostIdle(NODE_TYPES, RULES), Random(NODE_TYPES, RULES, 0)],
)
def test_departures_give_back_all_nodes(placer):
    state = placed(placer, [job(f"j{i}") for i in range(5)])
    for name in sorted(state.jobs):
        state = placer.depart(state, name)
    assert state == GroupsState()
