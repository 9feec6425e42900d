"""Which jobs moved, and small edits of groups."""

from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from rlplan.planner.groups.choose.group_checker import Checker
from rlplan.planner.groups.inputs.group_model import (
    Group,
    GroupJob,
    NodeType,
    PhaseWay,
    Pin,
    Rules,
    Slowdown,
    nodes_of_pins,
)
from rlplan.planner.groups.inputs.groups_state import GroupsState, next_id
from rlplan.planner.groups.place.best_fit import BestFit
from rlplan.planner.groups.place.group_nodes import grow, node_choices, pinned, resident, resident_bytes, solo_group
from rlplan.planner.groups.place.placer import depart_in_place
from rlplan.planner.groups.place.published_placers import Algorithm1
from rlplan.planner.groups.replan.moved_jobs import moved_jobs
from rlplan.planner.groups.simulate.slowdowns import units_per_hour

NODE_TYPES = {"a": NodeType("a", 10.0, 1e12), "b": NodeType("b", 30.0, 1e12)}


def job(name: str, rollout_s: float = 100.0, train_s: float = 50.0, slo: float = 1.5, nodes: int = 1, gb: float = 1.0):
    return GroupJob(
        name, slo, (PhaseWay("a", nodes, 1, rollout_s, gb * 1e9),), (PhaseWay("b", nodes, 1, train_s, gb * 1e9),)
    )


def pair() -> GroupsState:
    """Two jobs that share a training node, each with a rollout node of its own."""
    x, y = job("x"), job("y")
    group, new = grow(solo_group(x, NODE_TYPES), ["a"], NODE_TYPES)
    return GroupsState({"x": x, "y": y}, {"g000001": pinned(group, "y", (0, 0), new, [2], NODE_TYPES)})


def test_a_job_keeps_its_nodes_when_nodes_are_added_for_others():
    state = pair()
    group, new = grow(state.groups["g000001"], ["a", "b"], NODE_TYPES)
    z = job("z")
    after = GroupsState({**state.jobs, "z": z}, {"g000001": pinned(group, "z", (0, 0), new[:1], new[1:], NODE_TYPES)})
    assert after.groups["g000001"].nodes == ("a", "a", "a", "b", "b")
    assert moved_jobs(state, after, NODE_TYPES) == []


def test_nodes_given_back_by_a_departure_move_nobody():
    state = pair()
    after = depart_in_place(state, "x", NODE_TYPES)
    assert after.groups["g000001"].nodes == ("a", "b")
    assert moved_jobs(state, after, NODE_TYPES) == []


def test_a_job_that_trains_on_another_jobs_node_has_moved():
    state = pair()
    alone_again = {
        "g000001": solo_group(state.jobs["x"], NODE_TYPES),
        "g000002": solo_group(state.jobs["y"], NODE_TYPES),
    }
    apart = GroupsState(state.jobs, alone_again)
    assert moved_jobs(state, apart, NODE_TYPES) == ["y"]
    assert moved_jobs(apart, state, NODE_TYPES) == ["y"]


def test_a_job_that_trains_wider_has_moved():
    x = job("x")
    wide = GroupJob("x", 1.5, x.rollout, (*x.train, PhaseWay("b", 2, 1, 50.0, 1e9)))
    before = GroupsState({"x": wide}, {"g000001": solo_group(wide, NODE_TYPES)})
    after = GroupsState({"x": wide}, {"g000001": solo_group(wide, NODE_TYPES, (0, 1))})
    assert moved_jobs(before, after, NODE_TYPES) == ["x"]


def test_a_departed_job_has_not_moved_and_a_new_id_is_free():
    state = pair()
    assert moved_jobs(state, GroupsState(), NODE_TYPES) == []
    assert next_id(state.groups) not in state.groups


def test_residency_counts_both_states_of_every_job_on_a_node():
    x, y = job("x", gb=600.0), job("y", gb=500.0)
    group, new = grow(solo_group(x, NODE_TYPES), ["a"], NODE_TYPES)
    both = pinned(group, "y", (0, 0), new, [2], NODE_TYPES)
    jobs = {"x": x, "y": y}
    assert resident_bytes(both, jobs, NODE_TYPES) == [600e9, 500e9, 1100e9]
    assert not resident(both, jobs, NODE_TYPES)


@given(st.lists(st.sampled_from("ab"), max_size=5), st.lists(st.sampled_from("ab"), max_size=3))
def test_growth_keeps_every_pin_on_its_nodes(first, second):
    x = job("x", nodes=2)
    group, _ = grow(solo_group(x, NODE_TYPES), first, NODE_TYPES)
    grown, new = grow(group, second, NODE_TYPES)
    assert sorted(grown.nodes) == list(grown.nodes)
    assert len(new) == len(second)
    rollout, train = nodes_of_pins(grown, NODE_TYPES)["x"]
    assert {grown.nodes[at] for at in rollout} == {"a"} and {grown.nodes[at] for at in train} == {"b"}
    assert not (rollout | train) & set(new)
    before = GroupsState({"x": x}, {"g000001": group})
    assert moved_jobs(before, GroupsState({"x": x}, {"g000001": grown}), NODE_TYPES) == []


def test_an_empty_group_grows_from_nothing():
    group, new = grow(Group((), ()), ["b", "a"], NODE_TYPES)
    assert group.nodes == ("a", "b") and new == (0, 1)


wide_jobs = st.lists(
    st.tuples(st.integers(1, 5), st.integers(1, 4), st.integers(50, 400), st.integers(50, 400)), min_size=2, max_size=5
)


@settings(max_examples=25, deadline=None)
@given(wide_jobs)
def test_who_is_placed_beside_wide_jobs_moves_none_of_them(rows):
    placer, state = BestFit(NODE_TYPES, Rules()), GroupsState()
    for at, (r, t, rollout_s, train_s) in enumerate(rows):
        ways = (PhaseWay("a", r, 1, float(rollout_s), 1e9),), (PhaseWay("b", t, 1, float(train_s), 1e9),)
        after = placer.arrive(state, GroupJob(f"j{at}", 2.0, *ways))
        assert moved_jobs(state, after, NODE_TYPES) == []
        state = after
    for name in sorted(state.jobs)[:-1]:
        after = placer.depart(state, name)
        assert moved_jobs(state, after, NODE_TYPES) == []
        state = after


nodes_of_10 = st.sets(st.integers(0, 9), min_size=1, max_size=6)


@given(st.lists(nodes_of_10, min_size=2, max_size=5), nodes_of_10, st.permutations(range(10)))
def test_one_job_that_goes_to_other_nodes_of_a_large_group_is_the_only_one_that_moved(on, to, renamed):
    def group(sets):
        pins = tuple(Pin(f"j{at}", 0, tuple(sorted(s)), 0, (10,)) for at, s in enumerate(sets))
        return Group(("a",) * 10 + ("b",), pins)

    after = group([{renamed[n] for n in s} for s in (*on[:-1], to)])
    moved = moved_jobs(GroupsState({}, {"g1": group(on)}), GroupsState({}, {"g1": after}), NODE_TYPES)
    assert len(moved) <= 1
    if len(to) != len(on[-1]):
        assert moved == [f"j{len(on) - 1}"]


def test_a_job_whose_phases_share_nodes_is_priced_alone_at_these_nodes_once():
    colocated = GroupJob("c", 1.5, (PhaseWay("a", 3, 1, 100.0, 1e9),), (PhaseWay("a", 2, 1, 50.0, 1e9),))
    for one in (colocated, job("x", nodes=2)):
        assert one.solo_usd_per_hour(NODE_TYPES) == solo_group(one, NODE_TYPES).usd_per_hour(NODE_TYPES)
    # A unit is what one USD buys solo, so solo a job does as many units an hour as it pays.
    assert units_per_hour({"c": Slowdown(1.0, 1.0, 1.0)}, {"c": colocated}, NODE_TYPES) == 30.0


@given(st.lists(st.sets(st.integers(0, 2)), min_size=1, max_size=7), st.integers(0, 5))
def test_of_choices_of_nodes_that_are_alike_the_first_is_named(held: list[set[int]], count: int):
    """Nodes of one pool: which jobs hold each is all that tells them from each other."""
    pins = []
    for at in range(3):
        units = tuple(node for node, holders in enumerate(held) if at in holders)
        pins += [Pin(f"j{at}", 0, units, 0, units)] if units else []
    group = Group(("a",) * len(held), tuple(pins))
    first: dict[tuple[tuple[int, ...], ...], tuple[int, ...]] = {}
    for some in combinations(range(len(held)), count):
        first.setdefault(tuple(sorted(tuple(sorted(held[node])) for node in some)), some)
    assert node_choices(group, range(len(held)), count, NODE_TYPES) == sorted(first.values())


def test_wide_jobs_that_cannot_share_rollout_nodes_get_their_own_at_once():
    """Of 60 nodes there are more sets of 30 than can ever be tried."""
    state, policy = GroupsState(), Algorithm1(NODE_TYPES, Rules(permit_rule="first_come"))
    for name in "xyz":
        state = policy.arrive(state, job(name, nodes=60, slo=1.0))
    assert sum(group.nodes.count("a") for group in state.groups.values()) == 180


def test_with_tails_it_counts_how_many_units_are_shared():
    """A tail on half of the units leaves one of another's two units free, or both."""
    rules = Rules(tail_keep=0.5, permit_rule="first_come")
    jobs = {
        name: GroupJob(name, 1.5, (PhaseWay("a", 4, 1, 100.0, 1e9),), (PhaseWay("b", 1, 1, 10.0, 1e9),), tail_share=0.5)
        for name in "xy"
    }
    few = Group(("a",) * 7 + ("b",) * 2, (Pin("x", 0, (0, 1, 2, 3), 0, (7,)), Pin("y", 0, (3, 4, 5, 6), 0, (8,))))
    many = Group(("a",) * 5 + ("b",) * 2, (Pin("x", 0, (0, 1, 2, 3), 0, (5,)), Pin("y", 0, (1, 2, 3, 4), 0, (6,))))
    checker = Checker(rules)
    together = [checker.slowdowns(group, jobs) for group in (few, many)]
    assert together == [Checker(rules).slowdowns(group, jobs) for group in (few, many)]
    assert together[0] != together[1]
