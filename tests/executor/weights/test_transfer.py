"""Transfers between parties that are threads here: real memory and network groups, no Ray and no vLLM.

Where slots are on devices these are CPUs: the same parties and control flow, with gloo in place of NCCL. The store is
one of torch's within a process: to connect to a server takes seconds where names are resolved slowly.
"""

import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

pytest.importorskip("torch")

import torch
from torch._C._distributed_c10d import HashStore

from rlplan.executor.weights.checksum import tensor_checksum
from rlplan.executor.weights.network import network_group
from rlplan.executor.weights.network.network_group import NetworkGroup, connected_group
from rlplan.executor.weights.slots.node_memory import NodeMemory
from rlplan.executor.weights.transfer import message_board
from rlplan.executor.weights.transfer.boxes import chunk, whole
from rlplan.executor.weights.transfer.bucket_plan import bucket_plan, whole_source
from rlplan.executor.weights.transfer.bucket_reader import ReaderPlace, ReaderRank
from rlplan.executor.weights.transfer.device_sender import DeviceSender
from rlplan.executor.weights.transfer.message_board import MessageBoard, TransferBroken
from rlplan.executor.weights.transfer.node_receiver import NodeReceiver
from rlplan.executor.weights.transfer.sender import Sender
from rlplan.executor.weights.transfer.session import RankAnswer, ReceivingNode, Session, session_of_reader

SHAPES = {"embed": (40, 8), "q": (16, 8), "k": (6, 8), "norm": (8,), "head": (40, 8)}
HOST, CPU = "127.0.0.1", torch.device("cpu")


@pytest.fixture(autouse=True)
def in_one_process(monkeypatch):
    """Who waits looks often whether the transfer was ended; parties of the same port have the same store."""
    stores = {}

    class Store(HashStore):
        port = 0

    def connected(host, port, *_):
        store = stores[port] if port else Store()
        store.port = port or len(stores) + 1
        stores[store.port] = store
        return store

    joined, made, leave = weakref.WeakSet(), NetworkGroup.__init__, NetworkGroup.leave

    def join(group, *arguments):
        made(group, *arguments)
        joined.add(group)

    def left(group):
        joined.discard(group)
        leave(group)

    monkeypatch.setattr(NetworkGroup, "__init__", join)
    monkeypatch.setattr(NetworkGroup, "leave", left)
    monkeypatch.setattr(Transfers, "joined", joined)
    monkeypatch.setattr(message_board, "TCPStore", connected)
    monkeypatch.setattr(message_board, "LOOK_S", 0.02)
    monkeypatch.setattr(network_group, "CHECK_S", 0.02)


def box_of(name, rank, ranks):
    """What a rank of FSDP 2 x TP 2 holds, or one alone."""
    box = whole(SHAPES[name])
    if ranks == 1:
        return box
    if name != "norm":
        box = chunk(box, 0, 2, rank % 2)
    return chunk(box, 0, 2, rank // 2)


class Engine:
    """An engine rank that keeps what it loads."""

    def __init__(self, device):
        self.loaded = {}
        self.resets = 0
        self.rank = ReaderRank(self._load, self._reset, ReaderPlace(device, CPU, HOST))

    def _load(self, tensors):
        self.loaded = dict(tensors)  # keeps all: what is given back must have been copied

    def _reset(self):
        self.resets += 1


class Transfers:
    """Trainer ranks and, on nodes or devices of these keys, so many engine ranks each, as one session.

    `ranks` are the nodes of the trainer ranks or, with slots on devices, their devices.
    """

    joined = ()

    def __init__(self, ranks, readers, relay=False, slots="host", deadline_s=20.0):
        self.values = {name: torch.rand(shape) for name, shape in SHAPES.items()}
        places, count, on_host = tuple(ranks.split()), len(ranks.split()), slots == "host"
        held = [{name: box_of(name, rank, count) for name in SHAPES} for rank in range(count)]
        sources = [whole_source(name, shape) for name, shape in SHAPES.items()]
        self.plan = bucket_plan(sources, SHAPES, held, "bfloat16", 700)
        self.board = MessageBoard(HOST, 0, deadline_s, serves=True)
        self.receivers = {key: NodeReceiver(self.plan.largest, count) for key in readers} if on_host else {}
        paths = {key: receiver.memory.path for key, receiver in self.receivers.items()}
        nodes = tuple(ReceivingNode(key, paths.get(key, ""), number) for key, number in readers.items())
        nodes_of_ranks, devices = (places, ()) if on_host else (("a",) * count, places)
        self.session = Session(
            "s", HOST, self.board.port, deadline_s, nodes, nodes_of_ranks, self.plan, relay, slots, devices
        )
        self.pool = ThreadPoolExecutor(32)

        def sender(rank):
            def parts():
                return {name: self.values[name][held[rank][name].slices] for name in SHAPES}

            arguments = self.session, rank, HOST, parts
            return Sender(*arguments) if on_host else DeviceSender(*arguments, CPU)

        self.engines = [Engine(key) for key, number in readers.items() for _ in range(number)]
        keys = [key for key, number in readers.items() for _ in range(number)]
        joins = [self.pool.submit(r.join, self.session, key, HOST) for key, r in self.receivers.items()]
        made = [self.pool.submit(sender, rank) for rank in range(count)]
        opened = [
            self.pool.submit(engine.rank.open, self.session.for_reader(key))
            for engine, key in zip(self.engines, keys, strict=True)
        ]
        self.senders = [each.result(30) for each in made]  # the board's word reaches those who wait for a reader
        self.refusals = [each.result(30) for each in opened]
        for join in joins:
            join.result(30)

    def send(self, turn, version):
        calls = [self.pool.submit(sender.publish, turn, version) for sender in self.senders]
        return calls + [self.pool.submit(r.receive, turn) for r in self.receivers.values() if r.is_needed]

    def read(self, engine, turn, version):
        return self.pool.submit(engine.rank.receive, "s", turn, version, tensor_checksum)

    def is_written(self, bucket):
        """Whether a bucket is whole in the slots of the first engine rank, and not read by all."""
        return self.board._is_there(f"{self.session.nodes[0].key}/{bucket}/written/all")

    def leave(self):
        """Else the end of a group with a broadcast under way waits for it, and holds up whichever test runs then."""
        for party in [*self.senders, *self.receivers.values()]:
            party.leave()
        for engine in self.engines:
            engine.rank.leave("s")
        assert not self.joined, "a party is in its groups still"


def until(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.002)


FOUR = "a a a a"
TOPOLOGIES = {
    "one node": (FOUR, {"a": 3}),
    "engines elsewhere": (FOUR, {"b": 2}),
    "two nodes, engines on both": ("a a b b", {"a": 1, "b": 1}),
    "engines on two more nodes too": ("a a b b", {"a": 1, "b": 1, "c": 2, "d": 1}),
    "two pools, relayed": ("a a b b", {"c": 2, "d": 1}, True),
    "engines everywhere, three nodes relay": ("a a b b", {"a": 1, "b": 1, "c": 1, "d": 1, "e": 1}, True),
    "ipc, an engine rank with each trainer rank": ("g0 g1 g2 g3", {"g0": 1, "g1": 1, "g2": 1, "g3": 1}, False, "ipc"),
    "ipc, engine ranks with two of four trainer ranks": ("g0 g1 g2 g3", {"g3": 1, "g1": 1}, False, "ipc"),
    "ipc, one of each": ("g0", {"g0": 1}, False, "ipc"),
    "nccl, two engine ranks": ("g0 g1 g2 g3", {"g4": 1, "g5": 1}, False, "nccl"),
    "nccl, one of each": ("g0", {"g1": 1}, False, "nccl"),
}


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_all_engine_ranks_get_the_trainers_weights_bit_for_bit(topology):
    transfers = Transfers(*TOPOLOGIES[topology])
    assert len(transfers.plan.buckets) == 3, "more buckets than slots"
    kept = []
    for turn in range(3):
        for name, shape in SHAPES.items():
            transfers.values[name] = torch.randn(shape)
        wanted = {name: value.to(torch.bfloat16) for name, value in transfers.values.items()}
        sent = transfers.send(turn, f"v{turn}")
        loads = [transfers.read(engine, turn, f"v{turn}") for engine in transfers.engines]
        for load, engine in zip(loads, transfers.engines, strict=True):
            sums = {name: tensor_checksum(value) for name, value in wanted.items()}
            assert load.result(30) == RankAnswer(f"v{turn}", sums)
            assert all(torch.equal(engine.loaded[name], value) for name, value in wanted.items())
        for each in sent:
            each.result(30)
        kept.append(transfers.board._store.num_keys())
    assert kept[1] == kept[2], "a session keeps no keys of transfers that are over"
    transfers.leave()


SOME = ["one node", "ipc, engine ranks with two of four trainer ranks", "nccl, two engine ranks"]


@pytest.mark.parametrize("topology", SOME)
def test_bytes_of_another_version_are_refused_before_a_tensor_is_loaded(topology):
    transfers = Transfers(*TOPOLOGIES[topology])
    sent = transfers.send(0, "run:4")
    for load in [transfers.read(engine, 0, "run:5") for engine in transfers.engines]:
        assert load.result(30) == RankAnswer("run:4", {})
    assert not any(engine.loaded or engine.resets for engine in transfers.engines)
    transfers.board.end("the engine refused it")
    for each in sent:
        error = each.exception(30)
        assert error is None or (isinstance(error, TransferBroken) and "the engine refused it" in str(error))
    assert any(each.exception() for each in sent)
    transfers.leave()


@pytest.mark.parametrize("topology", [*SOME, "two nodes, engines on both", "two pools, relayed"])
def test_a_missing_reader_holds_up_nobody_once_the_transfer_ends(topology):
    transfers = Transfers(*TOPOLOGIES[topology])
    sent = transfers.send(0, "v")
    loads = [transfers.read(engine, 0, "v") for engine in transfers.engines[1:]]
    if transfers.session.slots != "nccl":  # there the missing one takes part in each message
        until(lambda: transfers.is_written(1))
    assert not all(each.done() for each in sent), "the missing reader has slots that cannot be used again"
    transfers.board.end("engine 0 died")
    transfers.board.end("only the first reason counts")
    broken = [str(error) for each in sent if (error := each.exception(15))]
    broken += [str(answer.broken) for load in loads if (answer := load.result(15)).broken]
    assert broken and all("engine 0 died" in why for why in broken)
    transfers.leave()


def test_a_node_that_relays_and_is_gone_ends_the_transfer_for_all():
    transfers = Transfers(*TOPOLOGIES["two pools, relayed"])
    gone = transfers.receivers.pop("d")
    sent = transfers.send(0, "v")
    load = transfers.read(transfers.engines[0], 0, "v")
    assert not load.done() and not any(each.done() for each in sent), "it has half of each message"
    del gone  # its connections are closed
    transfers.board.end("the engines of node d died")
    answer = load.result(10)
    for why in [answer.broken, *(str(each.exception(10)) for each in sent)]:
        assert "engines of node d died" in str(why) or "a node is gone" in str(why)
    assert transfers.engines[0].resets == 0, "nothing was loaded that would have to be undone"
    transfers.leave()


def test_a_party_that_waits_in_vain_gives_up_and_says_why():
    transfers = Transfers(FOUR, {"a": 2}, deadline_s=0.5)
    sent = transfers.send(0, "v")
    answer = transfers.read(transfers.engines[0], 0, "v").result(30)
    errors = [each.exception(30) for each in sent]
    assert all(isinstance(error, TransferBroken) for error in errors)
    for why in [answer.broken, *map(str, errors)]:
        assert "waited 0 s for" in str(why), why
    assert transfers.engines[0].resets == 1, "the load that broke off is undone"


def test_a_model_that_keeps_views_gets_copies_the_next_time(monkeypatch):
    transfers = Transfers("a", {"a": 1})
    (engine,) = transfers.engines
    views = []

    def keep_views(tensors):
        for name, tensor in tensors:
            views.append((name, tensor[:1]))

    engine.rank._load = keep_views
    sent = transfers.send(0, "v")
    answer = transfers.read(engine, 0, "v").result(30)
    assert "keeps views" in str(answer.broken) and engine.resets == 1
    assert [str(each.exception(30)) for each in sent] == [f"the model {str(answer.broken)[len('the model ') :]}"]
    again = Transfers("a", {"a": 1})
    again.engines[0].rank._load = keep_views
    again.engines[0].rank._readers["s"]._copies = engine.rank._readers["s"]._copies
    views.clear()
    again.send(0, "v")
    assert again.read(again.engines[0], 0, "v").result(30).broken is None
    for name, view in views:
        assert torch.equal(view, again.values[name][:1].to(torch.bfloat16))


def test_an_engine_rank_without_room_for_slots_keeps_nobody_waiting(monkeypatch):
    def no_room(*arguments):
        raise TransferBroken("800 MB of cuda:1 could not be taken")

    monkeypatch.setattr("rlplan.executor.weights.transfer.node_receiver.device_slots", no_room)
    with pytest.raises(TransferBroken, match="800 MB of cuda:1 could not be taken"):
        Transfers("g0", {"g1": 1}, False, "nccl", 60.0)


def test_an_engine_rank_is_told_all_of_a_session_that_it_needs():
    transfers = Transfers(*TOPOLOGIES["nccl, two engine ranks"])
    read = session_of_reader(transfers.session.for_reader("g4"))
    assert read == transfers.session
    assert (read.members, read.place_of("g5")) == (6, 5)
    assert transfers.engines[0].rank.receive("other", 0, "v", None).broken == "an engine is in no session other"
    transfers.leave()


def test_shared_memory_is_gone_with_its_owner_and_then_is_refused():
    memory = NodeMemory(2, 1000, 2)
    path = memory.path
    other = NodeMemory(2, 1000, 2, path)
    for number, rank in ((0, 0), (0, 1), (1, 0)):
        other.write_version(number, rank, f"v{number}{rank}".encode().ljust(256, b"\0"))
    assert [memory.version(*place) for place in ((0, 0), (0, 1), (1, 0), (2, 0))] == ["v00", "v01", "v10", "v00"]
    with pytest.raises(TransferBroken, match="instead of"):
        NodeMemory(2, 100_000, 2, path)
    del memory, other
    with pytest.raises(TransferBroken, match="no shared memory"):
        NodeMemory(2, 1000, 2, path)


def test_memory_that_the_machine_lacks_is_refused_before_any_is_taken(monkeypatch):
    def refuse(file, first, size):
        raise AssertionError("memory was taken")

    monkeypatch.setattr("os.posix_fallocate", refuse)
    available = psutil.virtual_memory().available
    with pytest.raises(TransferBroken, match=r"no shared memory of \d+ MB on this node: \d+ MB are available"):
        NodeMemory(2, available, 1)


def test_a_group_that_does_not_come_about_is_no_group():
    board = MessageBoard(HOST, 0, 0.1, serves=True)
    with pytest.raises(TransferBroken, match="no network group with the trainer"):
        NetworkGroup(board.of("groups"), "alone", 0, 2, HOST, 0.1)

    def refused():
        raise RuntimeError("no NCCL")

    with pytest.raises(TransferBroken, match="no group with the other ranks: no NCCL"):
        connected_group(refused, torch.empty(1), board, 1.0)
    with pytest.raises(TransferBroken, match="a broadcast took more than 0 s"):
        network_group.until(lambda: False, board, 0.05)
    board.end("the driver died")
    with pytest.raises(TransferBroken, match="the driver died"):
        network_group.until(lambda: False, board, 60.0)
