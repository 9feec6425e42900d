"""A seat keeper on real Ray nodes of this machine, some of which are killed."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest


class Leased:
    """A leased node with a version of torch."""

    def __init__(self, number: int, torch: str) -> None:
        self.node_id, self.released = str(number), 0
        self.facts = SimpleNamespace(address=f"10.0.0.{number}", versions=(("torch", torch),))

    def release(self) -> None:
        self.released += 1


def test_a_node_with_other_packages_in_place_of_a_lost_one_is_given_back(monkeypatch):
    pytest.importorskip("ray")
    from rlplan.executor.placement import seat_keeper as module
    from rlplan.executor.placement.seats import Room, place
    from rlplan.plans.yaml.errors import InputError

    leased = [Leased(1, "2.13"), Leased(2, "2.13"), Leased(3, "2.12")]
    coming = iter(leased)

    async def lease(*place):
        return next(coming)

    async def answers(node):
        return False

    monkeypatch.setattr(module, "device_resource", lambda kind: "rlplan_core")
    monkeypatch.setattr(module, "cluster_nodes", lambda resource: [])
    monkeypatch.setattr(module, "choose", lambda nodes, rooms, resource: ([SimpleNamespace()] * len(rooms), None))
    monkeypatch.setattr(module, "lease", lease)
    monkeypatch.setattr(module, "answers", answers)

    async def run():
        room = Room("rollout", nodes=2, devices=1, cores=1)
        keeper = module.SeatKeeper(place(room, {1: ["one", "two"]}, {}, 0), "cpu")
        await keeper.open(own_machine=False)
        keeper._lose(1)
        with pytest.raises(InputError, match=r"torch is 2.12 on node 10.0.0.3 and 2.13 on node 10.0.0.1"):
            await keeper.engine("two")
        assert keeper.address(1) == "10.0.0.2"
        keeper.close()

    asyncio.run(run())
    assert [node.released for node in leased] == [1, 1, 1]


@pytest.fixture(scope="module")
def seen():
    # In a process of its own: this one is connected to a Ray of the other tests.
    script = Path(__file__).with_name("keeper_on_nodes.py")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    (line,) = done.stdout.splitlines()  # Ray prints nothing of the nodes' deaths
    return json.loads(line)


def test_each_node_of_a_placement_is_another_node_and_other_jobs_are_refused_its_devices(seen):
    assert seen["before"] == ["127.0.0.3", "127.0.0.4", "127.0.0.5", "127.0.0.5"]
    assert seen["cores"] == [1, 1] and seen["left_in_folder"] == []
    assert seen["rival"].startswith(
        "pool 'rollout' needs 2 nodes with 2 free rlplan_core each, and the cluster has none"
    )
    assert "node 127.0.0.4 has 2, 0 of them free" in seen["rival"]


def test_an_engine_of_a_lost_node_waits_for_another_one_while_the_others_go_on(seen):
    assert seen["two_after_death"] == "127.0.0.4" and seen["waits"]
    assert seen["worker"] == "127.0.0.3" and seen["worker_after_death"] in ("127.0.0.4", "127.0.0.5"), (
        "a worker holds no device and does not wait"
    )
    assert seen["one_after_death"] == seen["added"] == "127.0.0.6"
    assert seen["news"][:2] == ["node_lost 0 127.0.0.3", "node_back 0 127.0.0.6"]


def test_trainer_ranks_wait_for_a_node_only_so_long(seen):
    assert "no node with 2 free rlplan_core came in place of one that was lost, within 30 s" in seen["gave_up"]
    assert seen["news"][-1] == "node_lost 2 127.0.0.5"


def test_a_node_that_is_to_be_taken_away_is_told_once_and_left_as_soon_as_another_one_has_room(seen):
    assert seen["drains"] == {"1": True} and seen["drains_again"] == 0
    assert not seen["left_without_room"], "it stays where it is until there is room elsewhere"
    assert seen["left"] and seen["two_after_drain"] == seen["second_added"] == "127.0.0.7"
    assert seen["news"][2:4] == ["node_lost 1 127.0.0.4", "node_back 1 127.0.0.7"]
