"""Nodes that a group's driver gives to its jobs: parts of one machine, and seats on them."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

pytest.importorskip("ray")

from rlplan.executor.placement import live_nodes
from rlplan.executor.placement.live_nodes import LeasedNode, NodeFacts, part_of_this_machine
from rlplan.executor.placement.seat_keeper import SeatKeeper
from rlplan.executor.placement.seats import Room, place


@pytest.fixture
def machine(monkeypatch):
    """A machine of three cores, as its own node."""
    facts = NodeFacts("127.0.0.1", "here", (2, 5, 7), (), ())
    monkeypatch.setattr(live_nodes, "this_machine", lambda kind, devices: LeasedNode("id", facts))


def parts(*devices):
    """Parts of the machine with so many cores each."""
    users, held = Counter(), []
    for own in devices:
        held.append(part_of_this_machine("cpu", own, users))
        users.update(held[-1].facts.cores)
    return held


def test_parts_of_a_machine_have_cores_of_their_own_while_there_are_enough(machine):
    assert [node.facts.cores for node in parts(1, 2)] == [(2,), (5, 7)]
    assert [node.facts.cores for node in parts(2, 2)] == [(2, 5), (2, 7)]
    with pytest.raises(ValueError, match="GPUs"):
        part_of_this_machine("cuda", 1, {})


def test_a_jobs_engines_and_trainers_sit_on_the_nodes_that_it_is_given_and_keep_to_their_cores(machine):
    decoding, training = parts(1, 2)
    placement = place(Room("main", 1, 1, 1), {1: ["engine"]}, {"plan": 2}, 0, Room("learn", 1, 2, 2))
    keeper = SeatKeeper(placement, "cpu", given=(decoding, training))

    async def seats():
        await keeper.open(own_machine=False)
        return await keeper.engine("engine"), await keeper.ranks("plan", 1.0)

    engine, ranks = asyncio.run(seats())
    assert engine.cores == engine.stays_on == (2,)
    assert [rank.cores for rank in ranks] == [(5,), (7,)]
    assert {rank.stays_on for rank in ranks} == {(5, 7)}
