"""The placement of a run while nodes of the cluster come and go: on fake nodes in virtual time, and on real ones."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from rlplan.executor.placement import actor_placer, live_nodes
from rlplan.executor.placement.actor_placer import ActorPlacement, ActorPlacer
from rlplan.executor.placement.live_nodes import LeasedNode, NodeFacts, part_of_this_machine
from rlplan.executor.placement.node_pool import NodePool
from rlplan.executor.placement.run_placement import Room, place
from rlplan.executor.processes.faults import ActorFailed
from rlplan.plans.yaml.errors import InputError, RunFailed

from ..virtual_loop import now_s, played
from . import keeper_on_nodes
from .cluster_fakes import cluster as cluster
from .cluster_fakes import id_of


def check(seen):
    """What an actor placer must have seen in `keeper_on_nodes.observe`."""
    assert seen["before"] == ["127.0.0.3", "127.0.0.4", "127.0.0.5", "127.0.0.5"]
    assert seen["cores"] == [1, 1] and seen["left_in_folder"] == []
    lack = "pool 'rollout' needs 2 nodes with 2 free rlplan_core each, and the cluster has none"
    assert seen["rival"].startswith(lack) and "node 127.0.0.4 has 2, 0 of them free" in seen["rival"]
    assert seen["two_after_death"] == "127.0.0.4" and seen["waits"], "an engine of a lost node waits for another one"
    others = ("127.0.0.4", "127.0.0.5")
    assert seen["worker"] == "127.0.0.3" and seen["worker_after_death"] in others, "a worker does not wait"
    assert seen["one_after_death"] == seen["added"] == "127.0.0.6"
    assert seen["drains"] in ({"1": True}, {1: True}) and seen["drains_again"] == 0
    assert not seen["left_without_room"], "it stays where it is until there is room elsewhere"
    assert seen["left"] and seen["two_after_drain"] == seen["second_added"] == "127.0.0.7"
    assert "no node with 2 free rlplan_core came in place of one that was lost, within 30 s" in seen["gave_up"]
    assert seen["news"] == [
        "node_lost 0 127.0.0.3", "node_back 0 127.0.0.6", "node_lost 1 127.0.0.4", "node_back 1 127.0.0.7",
        "node_lost 2 127.0.0.5",
    ]  # fmt: skip


def test_actors_move_from_nodes_that_are_lost_or_drain(cluster):
    nodes = cluster([2, 2, 2])

    async def scene():
        began = now_s()
        seen = await keeper_on_nodes.observe(nodes)
        assert 33.0 <= now_s() - began <= 40.0, "3 s of looking, and 30 s of patience"
        return seen

    check(played(scene()))
    assert {node.free for node in nodes.all.values() if node.alive} == {2}, "all devices were given back"


@pytest.mark.search
def test_actors_move_from_real_nodes_that_are_lost_or_drain():
    # In a process of its own: this one is connected to a Ray of the other tests.
    script = Path(__file__).with_name("keeper_on_nodes.py")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    (line,) = done.stdout.splitlines()  # Ray prints nothing of the nodes' deaths
    check(json.loads(line))


def two_engines(devices=1):
    return place(Room("rollout", 2, devices, devices), {1: ["one", "two"]}, {}, 0)


def test_a_replacement_node_with_other_packages_is_given_back(cluster):
    nodes = cluster([1, 1, 1])
    nodes.versions["127.0.0.5"] = "2.12"

    async def scene():
        news = []
        keeper = ActorPlacer(two_engines(), "cpu", news.append)
        await keeper.open(own_machine=False)
        before = await keeper.engine("two")
        assert keeper.stands("two", before.node_id)
        nodes.kill("127.0.0.4")
        waits = asyncio.create_task(keeper.engine("two"))
        await asyncio.sleep(10.0)
        assert not keeper.stands("two", before.node_id)
        assert news[1].event == "node_excluded" and news[1].reason.startswith(
            "torch is 2.12 on node 127.0.0.5 and 2.13"
        )
        assert not waits.done() and keeper.waits("two") and keeper.address(1) == "127.0.0.4"
        assert nodes.node("127.0.0.5").free == 1
        nodes.add(1)
        assert (await waits).address == "127.0.0.6" and not keeper.waits("two")
        assert keeper.stands("two", waits.result().node_id) and not keeper.stands("two", before.node_id)
        keeper.close()
        assert nodes.node("127.0.0.3").free == 1

    played(scene())


def test_a_cluster_is_refused_for_what_it_lacks(cluster):
    nodes = cluster([1, 4])

    def opened(placement, **options):
        async def scene():
            keeper = ActorPlacer(placement, "cpu")
            await keeper.open(**{"own_machine": False, **options})

        return scene()

    with pytest.raises(InputError, match=r"needs 2 nodes with 4 free .*; node 127.0.0.3 has 1; start more nodes"):
        played(opened(two_engines(4)))
    with pytest.raises(InputError, match="2 nodes are needed, and this machine is one; start Ray on all nodes"):
        played(opened(two_engines(), own_machine=True))
    nodes.versions["127.0.0.4"] = ModuleNotFoundError("rlplan")
    with pytest.raises(RunFailed, match=r"node 127.0.0.4: no process of rlplan starts there \(.*rlplan"):
        played(opened(two_engines()))
    assert nodes.node("127.0.0.4").free == 4
    nodes.versions.clear()
    nodes.slow, nodes.node("127.0.0.3").free = 1, 1
    played(opened(two_engines()))  # the first lease came too late; it is tried again


@pytest.mark.parametrize(("kind", "visible"), [("cpu", None), ("cuda", "6,2"), ("cuda", None)])
def test_on_a_machine_of_its_own_a_run_has_all_devices(cluster, monkeypatch, kind, visible):
    cluster([1])
    monkeypatch.setattr(live_nodes.os, "sched_getaffinity", lambda pid: {3, 1})
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible or "")
    monkeypatch.setattr(live_nodes, "device_faults", lambda kind, gpus, devices: {})

    async def scene():
        keeper = ActorPlacer(place(Room("p", 1, 2, 2), {1: ["one", "two"]}, {"plan": 2}, 1), kind)
        await keeper.open(own_machine=True)
        assert keeper.newly_draining() == {} and keeper.nodes[0].lease is None
        return [await keeper.engine(name) for name in ("one", "two")], await keeper.worker(0)

    (one, two), worker = played(scene())
    own = {"cpu": ((1,), (3,)), "cuda": ((), ())}[kind]
    gpus = tuple((visible or "0,1").split(",")) if kind == "cuda" else ((), ())
    assert one == ActorPlacement(id_of("127.0.0.3"), "127.0.0.3", own[0], tuple(gpus[0]), 2)
    assert two[2:5] == (own[1], tuple(gpus[1]), 2) and worker[2:4] == ((), ())


@pytest.mark.parametrize("given", [False, True])
def test_a_node_without_a_successor_ends_the_run(cluster, given):
    nodes = cluster([1])
    leased = LeasedNode(id_of("127.0.0.3"), NodeFacts("127.0.0.3", "here", (0,), (), ()))

    async def scene():
        keeper = ActorPlacer(place(Room("p", 1, 1, 1), {1: ["one"]}, {}, 0), "cpu", given=(leased,) if given else ())
        await keeper.open(own_machine=True)
        await keeper.engine("one")
        nodes.kill("127.0.0.3")
        await keeper.engine("one")

    says = "node 127.0.0.3 of the group is gone" if given else "Ray is gone from this machine"
    with pytest.raises(RunFailed, match=f"{says}; go on with --resume"):
        played(scene())


# -- nodes that fail ---------------------------------------------------------------------------------------------------


def fails(keeper, actor, times=2):
    for _ in range(times):
        keeper.engine_failed(actor, "its core process died")


def excluding(placement, news=None, excluded=()):
    tell = (lambda each: None) if news is None else news.append
    return ActorPlacer(placement, "cpu", tell, (), dict(excluded))


def test_a_node_on_which_an_engine_failed_twice_is_never_leased_again(cluster):
    nodes, news = cluster([1, 1, 1]), []

    async def scene():
        keeper = excluding(two_engines(), news)
        await keeper.open(own_machine=False)
        await keeper.engine("two")
        fails(keeper, "two", 1)
        assert (await keeper.engine("two")).address == "127.0.0.4" and not news, "one fault may be a passing one"
        fails(keeper, "two", 1)
        assert (await keeper.engine("two")).address == "127.0.0.5"
        assert [(each.event, each.address) for each in news] == [
            ("node_excluded", "127.0.0.4"), ("node_back", "127.0.0.5")
        ]  # fmt: skip
        assert news[0].reason == "2 failures there; the last: two: its core process died"
        fails(keeper, "two", 9)
        assert (await keeper.engine("two")).address == "127.0.0.5", (
            "what fails on another node, too, is no node's fault"
        )
        nodes.kill("127.0.0.5")
        again = asyncio.create_task(keeper.engine("two"))
        await asyncio.sleep(100.0)
        assert not again.done() and nodes.node("127.0.0.4").free == 1, "it waits rather than take the excluded one"
        again.cancel()
        keeper.close()

    played(scene())


def test_a_failing_node_is_left_out_also_without_another(cluster):
    nodes = cluster([1, 1])

    async def scene():
        keeper = excluding(two_engines())
        await keeper.open(own_machine=False)
        for name in ("one", "two"):
            await keeper.engine(name)
        fails(keeper, "two")
        waits = asyncio.create_task(keeper.engine("two"))
        await asyncio.sleep(10.0)
        assert keeper.waits("two") and not keeper.waits("one") and [*keeper.excluded] == ["127.0.0.4"]
        fails(keeper, "one")
        assert (await keeper.engine("one")).address == "127.0.0.3", "the last node stays"
        waits.cancel()
        keeper.close()
        resumed = excluding(two_engines(), excluded=keeper.excluded)
        await resumed.open(own_machine=False)
        assert resumed.waits("two") and (await resumed.engine("one")).address == "127.0.0.3"
        resumed.close()
        with pytest.raises(InputError, match=r"node 127.0.0.4 is excluded \(2 failures there.*; start more nodes"):
            await excluding(place(Room("p", 2, 1, 1), {1: ["one"]}, {"plan": 2}, 0), excluded=keeper.excluded).open(
                False
            )
        readmitted = excluding(two_engines())
        await readmitted.open(own_machine=False)
        assert not readmitted.waits("two")

    played(scene())
    assert nodes.node("127.0.0.4").free == 0


@pytest.mark.parametrize(
    ("faulty", "ranks"),
    [("one two three four", 0), ("three four", 4), ("three", 0)],
    ids=["all nodes fail alike", "a trainer needs the node", "another engine of the node works"],
)
def test_without_another_node_a_node_stays_if(cluster, faulty, ranks):
    cluster([2, 2])
    engines = {1: ["one", "two", "three", "four"]}

    async def scene():
        keeper = excluding(place(Room("p", 2, 2, 2), engines, {"plan": ranks}, 0))
        await keeper.open(own_machine=False)
        await keeper.engine("three")
        for name in faulty.split():
            fails(keeper, name)
        assert (await keeper.engine("three")).address == "127.0.0.4" and not keeper.excluded

    played(scene())


def test_a_device_that_multiplies_wrongly_is_not_taken(cluster):
    nodes, news = cluster([2, 2, 2]), []
    nodes.faults = {"127.0.0.3": ((1, "GPU 1: multiplies wrongly in float32"),)}
    placement = place(Room("p", 2, 2, 2), {1: ["one", "two", "three", "four"]}, {}, 0)

    async def scene():
        keeper = excluding(placement, news)
        await keeper.open(own_machine=False)
        assert [each.address for each in news] == ["127.0.0.3"] and nodes.node("127.0.0.3").free == 2
        keeper.close()
        nodes.kill("127.0.0.5")
        keeper = excluding(placement, news)
        await keeper.open(own_machine=False)
        await keeper.engine("one")
        with pytest.raises(ActorFailed, match=r"node 127\.0\.0\.3: GPU 1: multiplies wrongly"):
            await keeper.engine("two")

    played(scene())


@pytest.mark.parametrize("ranks", [0, 2])
def test_of_two_faulty_nodes_one_is_kept_if_one_other_is_there(cluster, ranks):
    nodes, news = cluster([2, 2, 2]), []
    nodes.faults = dict.fromkeys(("127.0.0.3", "127.0.0.4"), ((1, "GPU 1: multiplies wrongly"),))
    placement = place(Room("p", 2, 2, 2), {1: ["one", "two", "three", "four"]}, {"plan": ranks}, 0)

    async def scene():
        keeper = excluding(placement, news)
        await keeper.open(own_machine=False)
        assert [each.address for each in news] == ["127.0.0.3"]
        assert sorted(node.facts.address for node in keeper.nodes) == ["127.0.0.4", "127.0.0.5"]

    played(scene())


@pytest.mark.parametrize("busy", [0, 1])
def test_a_run_begins_without_as_many_nodes_as_are_excluded(cluster, busy):
    nodes, news = cluster([1] * 4), []
    for number in range(busy):
        nodes.node(f"127.0.0.{6 - number}").free = 0  # another job's
    placement = place(Room("p", 4, 1, 1), {1: ["one", "two", "three", "four"]}, {}, 0)

    async def scene():
        keeper = excluding(placement, news, {"127.0.0.4": "2 failures there"})
        if busy:
            with pytest.raises(InputError, match=r"node 127.0.0.4 is excluded \(2 failures there\); start more nodes"):
                await keeper.open(own_machine=False)
            return
        await keeper.open(own_machine=False)
        assert [(each.event, each.node, each.address) for each in news] == [("node_lost", 3, "127.0.0.4")]
        assert news[0].reason == "excluded, and no other has room in its place: the run begins without it"

    played(scene())


def test_memory_that_ran_out_is_no_failure_of_the_node(cluster):
    cluster([1, 1, 1])

    async def scene():
        keeper = excluding(two_engines())
        await keeper.open(own_machine=False)
        await keeper.engine("two")
        for _ in range(9):
            keeper.engine_failed("two", "vLLM failed: CUDA out of memory. Tried to allocate 2 GiB")
        assert (await keeper.engine("two")).address == "127.0.0.4" and not keeper.excluded

    played(scene())


def test_that_an_actor_has_moved_is_forgotten_like_its_failures(cluster):
    cluster([1, 1, 1, 1])

    async def scene():
        keeper = excluding(two_engines())
        await keeper.open(own_machine=False)
        await keeper.engine("two")
        for after, stands_on in ((0.0, 5), (actor_placer.FAILURES_S - 60.0, 5), (120.0, 6)):
            await asyncio.sleep(after)
            fails(keeper, "two")
            assert (await keeper.engine("two")).address == f"127.0.0.{stands_on}"

    played(scene())


def test_ranks_whose_node_is_excluded_meanwhile_stay_together(cluster, monkeypatch):
    cluster([2, 2])

    async def slow(node):
        await asyncio.sleep(3.0)
        return True

    async def scene():
        keeper = excluding(place(Room("p", 1, 2, 2), {1: ["e"]}, {"plan": 2}, 0))
        await keeper.open(own_machine=False)
        await keeper.ranks("plan", 600.0)
        monkeypatch.setattr(actor_placer, "answers", slow)
        keeper.rank_failed("plan", 0, "ECC")
        placed = asyncio.create_task(keeper.ranks("plan", 600.0))
        await asyncio.sleep(4.0)  # one rank is placed, and the next is asked for
        keeper.engine_failed("e", "its core died")
        assert {rank.address for rank in await placed} == {"127.0.0.4"} and [*keeper.excluded] == ["127.0.0.3"]

    played(scene())


@pytest.mark.parametrize("fault", [InputError("is another model on node 127.0.0.5"), ActorFailed("node", "no answer")])
def test_a_node_that_comes_in_is_compared_as_those_of_the_start(cluster, fault):
    nodes, news, compared = cluster([1, 1, 1]), [], []

    async def fits(pair):
        compared.append([node.facts.address for node in pair])
        if len(compared) == 1:
            raise fault

    async def scene():
        keeper = ActorPlacer(two_engines(), "cpu", news.append, excluded={}, fits=fits)
        await keeper.open(own_machine=False)
        await keeper.engine("two")
        nodes.kill("127.0.0.4")
        waits = asyncio.create_task(keeper.engine("two"))
        await asyncio.sleep(1.0)
        assert not waits.done() and nodes.node("127.0.0.5").free == 1 and compared == [["127.0.0.3", "127.0.0.5"]]
        nodes.add(1)
        differs = isinstance(fault, InputError)
        assert (await waits).address == ("127.0.0.6" if differs else "127.0.0.5"), "without an answer it is asked again"
        assert keeper.excluded == ({"127.0.0.5": str(fault)} if differs else {})
        assert [each.event for each in news][1:] == ["node_excluded"] * differs + ["node_back"]

    played(scene())


def test_two_lost_nodes_are_not_replaced_by_one(cluster):
    nodes = cluster([1, 1, 4])

    async def scene():
        keeper = excluding(two_engines())
        await keeper.open(own_machine=False)
        for name in ("one", "two"):
            await keeper.engine(name)
        for last in (3, 4):
            nodes.kill(f"127.0.0.{last}")
        calls = [asyncio.create_task(keeper.engine(name)) for name in ("one", "two")]
        await asyncio.sleep(20.0)
        assert [call.done() for call in calls].count(True) == 1 and nodes.node("127.0.0.5").free == 3
        for call in calls:
            call.cancel()

    played(scene())


def test_a_node_that_comes_in_is_compared_with_one_that_lives(cluster):
    nodes, compared = cluster([1, 1, 1, 1]), []

    async def fits(pair):
        compared.append([node.facts.address for node in pair])

    async def scene():
        three = place(Room("rollout", 3, 1, 1), {1: ["one", "two", "three"]}, {}, 0)
        keeper = ActorPlacer(three, "cpu", excluded={}, fits=fits)
        await keeper.open(own_machine=False)
        await keeper.engine("three")
        nodes.kill("127.0.0.3")  # which nobody knows
        nodes.kill("127.0.0.5")
        assert (await keeper.engine("three")).address == "127.0.0.6" and compared == [["127.0.0.4", "127.0.0.6"]]

    played(scene())


def test_devices_are_tried_by_products_that_are_exact():
    assert live_nodes.device_faults("cpu", (), 2) == {} == live_nodes.gpu_faults(1, "cpu")
    assert "meta" in live_nodes.gpu_faults(1, "meta")[0]
    tried = live_nodes.device_faults("cuda", ("7",), 1)  # there is none here
    assert tried[0].startswith("GPU 7: ") or torch.cuda.is_available()


# -- nodes of groups ---------------------------------------------------------------------------------------------------


def rooms(*pools):
    return [Room(pool, 1, 2, 2) for pool in pools]


def test_a_pool_keeps_leased_nodes_for_the_next_job(cluster):
    nodes = cluster([2, 2])
    third = nodes.add(2, pool="b")

    async def scene():
        pool = NodePool("cpu", own_machine=False)
        first, second = await pool.take(rooms("a", "a"))
        with pytest.raises(InputError, match=r"pool 'a' needs 1 node .*; start more nodes, wait for other jobs"):
            await pool.take(rooms("b", "a"))
        assert nodes.node(third).free == 2, "no node is held then"
        pool.keeps = True
        pool.give_back(first)
        assert nodes.node(first.facts.address).free == 0
        assert await pool.take(rooms("a")) == [first], "which is another job's now"
        for node in (first, second):
            pool.give_back(node)
        nodes.kill(first.facts.address)
        assert await pool.take(rooms("a")) == [second], "of those that are still there"
        pool.give_back(second)
        pool.release_spare()
        assert not pool.keeps and nodes.node(second.facts.address).free == 2
        nodes.versions[third] = "2.12"
        await pool.take(rooms("a"))
        with pytest.raises(InputError, match="install the same on all nodes"):
            await pool.take(rooms("b"))
        assert nodes.node(third).free == 2
        nodes.slow = 1
        with pytest.raises(InputError, match="a node of pool 'b' was taken by others meanwhile"):
            await pool.take(rooms("b"))
        pool.close()
        assert [node.free for node in nodes.all.values() if node.alive] == [2, 2]

    played(scene())


def test_parts_of_a_machine_have_own_cores_while_enough_remain(cluster, monkeypatch):
    cluster([3])
    monkeypatch.setattr(live_nodes.os, "sched_getaffinity", lambda pid: {2, 5, 7})

    def cores(pool, *devices):
        taken = asyncio.run(pool.take([Room("p", 1, each, each) for each in devices]))
        assert all(node.part for node in taken)
        return taken, [node.facts.cores for node in taken]

    pool = NodePool("cpu", own_machine=True)
    taken, held = cores(pool, 1, 2)
    assert held == [(2,), (5, 7)]
    pool.give_back(taken[1])
    assert cores(pool, 1, 2)[1] == [(5,), (2, 7)], "then those that the fewest have"
    with pytest.raises(ValueError, match="GPUs"):
        part_of_this_machine("cuda", 1, {})
    assert not NodePool("cuda", own_machine=True)._own_machine


def test_a_jobs_engines_and_trainers_keep_to_the_cores_of_their_nodes():
    decoding, training = (
        LeasedNode("id", NodeFacts("127.0.0.1", "here", cores, (), ()), part=True) for cores in ((2,), (5, 7))
    )
    placement = place(Room("main", 1, 1, 1), {1: ["engine"]}, {"plan": 2}, 0, Room("learn", 1, 2, 2))
    keeper = ActorPlacer(placement, "cpu", given=(decoding, training))

    async def seats():
        await keeper.open(own_machine=False)
        return await keeper.engine("engine"), await keeper.ranks("plan", 1.0)

    engine, ranks = asyncio.run(seats())
    assert engine.cores == engine.stays_on == (2,)
    assert [rank.cores for rank in ranks] == [(5,), (7,)] and {rank.stays_on for rank in ranks} == {(5, 7)}
    assert keeper.trains_on("plan", 1) and not keeper.trains_on("plan", 0)
    assert keeper.runs_on("engine", 0) and not keeper.runs_on("engine", 1)
    assert actor_placer.LOOK_S == 2.0
