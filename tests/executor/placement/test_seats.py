"""Seats as data: no device twice in a phase, engines on one node, trainers in order, and what does not fit."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.executor.placement.live_nodes import ClusterNode, choose, shortage
from rlplan.executor.placement.seats import DoesNotFit, Placement, Room, Seat, place


def names(tp: int, number: int) -> list[str]:
    return [f"tp{tp}-{i}" for i in range(number)]


@given(
    nodes=st.integers(1, 9),
    devices=st.integers(1, 9),
    apart=st.integers(0, 4),
    sets=st.dictionaries(st.sampled_from([1, 2, 3, 4, 8]), st.integers(1, 30), min_size=1, max_size=3),
    ranks=st.dictionaries(st.sampled_from(["a", "b"]), st.integers(1, 80), min_size=1),
    workers=st.integers(1, 40),
)
def test_what_is_placed_holds_every_device_once_a_phase_and_what_is_refused_has_no_room(
    nodes, devices, apart, sets, ranks, workers
):
    room = Room(nodes, devices, cores=devices + 2, train_nodes=apart)
    try:
        placed = place(room, {tp: names(tp, number) for tp, number in sets.items()}, ranks, workers)
    except DoesNotFit:
        for_engines, for_ranks = nodes - apart, apart or nodes
        engines_fit = all(number <= for_engines * (devices // tp) for tp, number in sets.items())
        assert for_engines < 1 or not engines_fit or max(ranks.values()) > for_ranks * devices
        return
    assert placed.double_booked() == []
    for tp, engines in placed.engine_sets.items():
        assert all(len(placed.engines[name].devices) == tp for name in engines)
        per_node = [sum(placed.engines[name].node == node for name in engines) for node in range(nodes - apart)]
        assert max(per_node) - min(per_node) <= 1, "spread over nodes"
    for seats in placed.trainers.values():
        assert [(seat.node, seat.devices) for seat in seats] == sorted((seat.node, seat.devices) for seat in seats)
    everyone = [*placed.engines.values(), *(seat for seats in placed.trainers.values() for seat in seats)]
    assert all(0 <= seat.node < nodes and max(seat.devices) < devices for seat in everyone)
    if apart:
        assert all(seat.node < nodes - apart for seat in placed.engines.values())
        assert all(seat.node >= nodes - apart for seats in placed.trainers.values() for seat in seats)
    assert len(placed.reward_workers) == workers
    assert placed.nodes_in_use() <= nodes


def test_a_device_with_two_holders_in_one_phase_is_seen():
    twice = Placement(Room(1, 2, 2), {"a": Seat(0, (0, 1)), "b": Seat(0, (1,))}, {1: ("a", "b")}, {}, (0,))
    assert twice.double_booked() == [("rollout with TP 1", 0, 1)]
    in_turns = Placement(Room(1, 2, 2), {"a": Seat(0, (0, 1))}, {2: ("a",)}, {"plan": (Seat(0, (1,)),)}, (0,))
    assert in_turns.double_booked() == [], "engines and trainers take turns"


def test_reward_workers_go_where_cores_are_free():
    placed = place(Room(3, 4, 6, train_nodes=1), {1: names(1, 2)}, {"plan": 4}, 8)
    # Nodes 0 and 1 have five cores beside an engine's, node 2 has two beside the ranks'.
    assert sorted(placed.reward_workers) == [0, 0, 0, 0, 1, 1, 1, 1]
    assert sorted(place(Room(1, 2, 2), {1: names(1, 2)}, {"plan": 2}, 3).reward_workers) == [0, 0, 0]


@pytest.mark.parametrize(
    ("room", "engines", "ranks", "said"),
    [
        (Room(2, 8, 8), {8: names(8, 3)}, 1, "3 engines of TP 8 need 24 devices.*2 nodes of 8 devices hold 2 engines"),
        (Room(2, 4, 8), {8: names(8, 1)}, 1, "1 engine of TP 8 need 8 devices.*hold 0 engines"),
        (Room(3, 2, 8, 1), {1: names(1, 5)}, 1, "2 nodes of 2 devices beside 1 for trainers alone hold 4 engines"),
        (Room(2, 2, 8), {1: names(1, 1)}, 5, "5 trainer ranks need a device each; 2 nodes of 2 devices have 4"),
        (Room(2, 2, 8, 2), {1: names(1, 1)}, 1, "2 nodes for trainers alone leave none of 2 nodes to engines"),
    ],
)
def test_what_does_not_fit_is_named_with_its_size(room, engines, ranks, said):
    with pytest.raises(DoesNotFit, match=said):
        place(room, engines, {"plan": ranks}, 1)


def node(number: int, devices: int, free: int) -> ClusterNode:
    return ClusterNode(f"id{number}", f"10.0.0.{number}", devices, free)


def test_nodes_that_just_fit_are_taken_first_so_that_larger_ones_stay_whole():
    nodes = [node(1, 16, 16), node(2, 8, 8), node(3, 8, 4), node(4, 8, 8)]
    assert [n.address for n in choose(nodes, 2, 8)] == ["10.0.0.2", "10.0.0.4"]
    assert [n.address for n in choose(nodes, 5, 8)] == ["10.0.0.2", "10.0.0.4", "10.0.0.1"]


def test_a_shortage_names_each_node_that_lacks_devices():
    nodes = [node(1, 8, 8), node(2, 8, 3), node(3, 4, 4)]
    assert shortage(nodes, 1, 8, "GPU") is None
    said = shortage(nodes, 3, 8, "GPU")
    assert said is not None and re.fullmatch(
        "the plan needs 3 nodes with 8 free GPU each, and the cluster has 1; node 10.0.0.2 has 8, 3 of them free; "
        "node 10.0.0.3 has 4",
        said,
    )
    assert shortage([], 2, 8, "GPU") == "the plan needs 2 nodes with 8 free GPU each, and the cluster has none"
