"""Seats as data: no device twice in a phase, engines on one node, trainers in order, and what does not fit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.executor.placement.live_nodes import ClusterNode, choose
from rlplan.executor.placement.seats import DeviceSeat, DoesNotFit, Judges, Placement, Room, place


def names(tp, number):
    return [f"tp{tp}-{i}" for i in range(number)]


@given(
    nodes=st.integers(1, 9),
    devices=st.integers(1, 9),
    apart=st.integers(0, 4),
    sets=st.dictionaries(st.sampled_from([1, 2, 3, 4, 8]), st.integers(1, 30), min_size=1, max_size=3),
    ranks=st.dictionaries(st.sampled_from(["a", "b"]), st.integers(1, 80), min_size=1),
    workers=st.integers(1, 40),
)
def test_what_is_placed_holds_every_device_once_a_phase(nodes, devices, apart, sets, ranks, workers):
    room, train_room = Room("main", nodes, devices, devices + 2), Room("train", apart, 3, 5) if apart else None
    engines = {tp: names(tp, number) for tp, number in sets.items()}
    try:
        placed = place(room, engines, ranks, workers, train_room)
    except DoesNotFit:
        engines_fit = all(number <= nodes * (devices // tp) for tp, number in sets.items())
        assert not engines_fit or max(ranks.values()) > (apart * 3 if apart else nodes * devices)
        return
    assert placed.double_booked() == []
    for tp, of_size in placed.engine_sets.items():
        assert all(len(placed.engines[name].devices) == tp for name in of_size)
        per_node = [sum(placed.engines[name].node == node for name in of_size) for node in range(nodes)]
        assert max(per_node) - min(per_node) <= 1, "spread over nodes"
        order = [(placed.engines[name].node, placed.engines[name].devices) for name in of_size]
        assert order == sorted(order), "numbered node by node"
    assert all(seat.node < nodes and max(seat.devices) < devices for seat in placed.engines.values())
    first, most = (nodes, 3) if apart else (0, devices)
    for seats in placed.trainers.values():
        assert [(seat.node, seat.devices) for seat in seats] == sorted((seat.node, seat.devices) for seat in seats)
        assert all(first <= seat.node < first + (apart or nodes) and max(seat.devices) < most for seat in seats)
    assert len(placed.reward_workers) == workers and max(placed.reward_workers) < nodes
    used = {seat.node for _, seats in placed.phases() for seat in seats} | set(placed.reward_workers)
    assert list(placed.nodes_in_use()) == sorted(used)
    of_holders = placed.device_names("cuda")
    for tp, of_size in placed.engine_sets.items():
        held = [device for name in of_size for device in of_holders[name]]
        assert len(set(held)) == tp * len(of_size)
    for plan, count in ranks.items():
        assert len(set(of_holders[f"trainer {plan}"])) == count
        assert of_holders[f"trainer {plan}"][0] == f"GPU 0 of node {first}"


def test_a_device_with_two_holders_in_one_phase_is_seen():
    twice = Placement(
        (Room("p", 1, 2, 2),), {"a": DeviceSeat(0, (0, 1)), "b": DeviceSeat(0, (1,))}, {1: ("a", "b")}, {}, (0,)
    )
    assert twice.double_booked() == [("rollout with TP 1", 0, 1)]
    in_turns = Placement(
        (Room("p", 1, 2, 2),), {"a": DeviceSeat(0, (0, 1))}, {2: ("a",)}, {"plan": (DeviceSeat(0, (1,)),)}, (0,)
    )
    assert in_turns.double_booked() == [], "engines and trainers take turns"
    assert in_turns.device_names("cpu")["trainer plan"] == ["core 1 of node 0"]


def test_reward_workers_go_where_cores_are_free():
    placed = place(Room("p", 4, 4, 6), {1: names(1, 3)}, {"plan": 4}, 8)
    # Node 0 has two cores beside the four of the ranks, nodes 1 and 2 five beside an engine; node 3 is left alone.
    assert sorted(placed.reward_workers) == [0, 1, 1, 1, 1, 2, 2, 2] and list(placed.nodes_in_use()) == [0, 1, 2]
    assert sorted(place(Room("p", 1, 2, 2), {1: names(1, 2)}, {"plan": 2}, 3).reward_workers) == [0, 0, 0]


@pytest.mark.parametrize(
    ("room", "engines", "ranks", "train_room", "said"),
    [
        (Room("p", 2, 8, 8), {8: names(8, 3)}, 1, None, "3 engines of TP 8 need 24 devices, each engine's on one node; "
         "the 2 nodes of pool 'p', with 8 devices each, can hold 2 engines"),
        (Room("p", 2, 4, 8), {8: names(8, 1)}, 1, None, "1 engine of TP 8 needs 8 devices.*can hold 0 engines"),
        (Room("p", 2, 2, 8), {1: names(1, 1)}, 5, None, "5 trainer ranks need a device each; the 2 nodes of pool 'p', "
         "with 2 devices each, have 4"),
        (Room("p", 9, 9, 8), {1: names(1, 1)}, 5, Room("t", 1, 4, 4), "the 1 node of pool 't', with 4 devices each"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named_with_its_size(room, engines, ranks, train_room, said):
    with pytest.raises(DoesNotFit, match=said):
        place(room, engines, {"plan": ranks}, 1, train_room)


def judged(copies, tp, beside, engines=2, nodes=2, devices=2):
    judges = Judges(tuple(f"judge-{number}" for number in range(copies)), tp, beside)
    room = Room("main", nodes, devices, 8)
    placement = place(room, {1: names(1, engines)}, {"plan": nodes * devices}, workers=0, judges=judges)
    assert placement.double_booked() == [], "a judge of its own shares with trainers, which have the devices later"
    return [placement.engines[name] for name in judges.names]


def test_judges_are_on_devices_of_engines_or_spread_over_others():
    assert judged(2, 1, beside=False) == [DeviceSeat(0, (1,)), DeviceSeat(1, (1,))]
    assert judged(1, 2, beside=False, nodes=1, devices=4) == [DeviceSeat(0, (2, 3))]
    assert judged(2, 1, beside=True) == [DeviceSeat(0, (0,)), DeviceSeat(1, (0,))]
    for beside, engines, room in ((False, 2, "engines leave room for 0"), (True, 1, "engines have room for 1")):
        with pytest.raises(DoesNotFit, match=f"2 copies of the judge need 1 device each on one node; .* the {room}"):
            judged(2, 1, beside, engines, nodes=1)


def node(number, devices, free, pool="", drains=False):
    return ClusterNode(f"id{number}", f"10.0.0.{number}", devices, free, pool, drains)


def chosen(nodes, *rooms):
    taken, lack = choose(nodes, rooms, "GPU")
    return [None if each is None else each.address.rpartition(".")[2] for each in taken], lack


BIG, SMALL = Room("big", 9, 8, 8), Room("small", 9, 4, 8)


def test_nodes_that_just_fit_are_taken_before_larger_ones():
    nodes = [node(1, 16, 16), node(2, 8, 8), node(3, 8, 4), node(4, 8, 8)]
    assert chosen(nodes, BIG, BIG) == (["2", "4"], None)
    assert chosen(nodes, BIG, BIG, BIG) == (["2", "4", "1"], None)
    assert chosen(nodes, SMALL, BIG, BIG, BIG) == (["3", "2", "4", "1"], None)


def test_a_node_that_bears_the_name_of_a_pool_serves_no_other():
    nodes = [node(1, 8, 8), node(2, 8, 8, "big"), node(3, 8, 8, "small")]
    assert chosen(nodes, BIG, SMALL) == (["2", "3"], None)
    assert chosen(nodes, SMALL, SMALL)[0] == ["3", "1"]
    taken, lack = chosen(nodes[1:], BIG, BIG)
    assert taken == ["2", None] and "node 10.0.0.3 has 8, and is of pool 'small'" in lack


def test_a_shortage_names_each_node_that_lacks_devices():
    nodes = [node(1, 8, 8), node(2, 8, 3), node(3, 4, 4), node(4, 8, 8, drains=True)]
    assert chosen(nodes, BIG)[1] is None
    assert chosen(nodes, BIG, BIG, BIG)[1] == (
        "pool 'big' needs 3 nodes with 8 free GPU each, and the cluster has 1; node 10.0.0.2 has 8, 3 of them free; "
        "node 10.0.0.3 has 4; node 10.0.0.4 has 8, and is to be taken away"
    )
    assert chosen([], BIG, BIG)[1] == "pool 'big' needs 2 nodes with 8 free GPU each, and the cluster has none"
