"""Transfers between parties that are threads here: real memory, store and network groups, no Ray and no vLLM."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import psutil
import pytest

pytest.importorskip("torch")

import torch

from rlplan.executor.weights.slots.node_memory import NodeMemory
from rlplan.executor.weights.transfer.boxes import Box, chunk, whole
from rlplan.executor.weights.transfer.bucket_plan import bucket_plan, whole_source
from rlplan.executor.weights.transfer.bucket_reader import BucketReader, OtherVersion
from rlplan.executor.weights.transfer.message_board import MessageBoard, TransferBroken
from rlplan.executor.weights.transfer.node_receiver import NodeReceiver
from rlplan.executor.weights.transfer.sender import Sender
from rlplan.executor.weights.transfer.session import ReceivingNode, Session, session_of_reader

SHAPES = {"embed": (40, 8), "q": (16, 8), "k": (6, 8), "norm": (8,), "head": (40, 8)}
RANKS = 4  # FSDP 2 x TP 2; FSDP's halves are the nodes where there are two
HOST = "127.0.0.1"


def box_of(name: str, rank: int) -> Box:
    box = whole(SHAPES[name])
    if name != "norm":
        box = chunk(box, 0, 2, rank % 2)
    return chunk(box, 0, 2, rank // 2)


class Transfers:
    """Trainer ranks on `rank_nodes`, and on each of `nodes` readers, as one session."""

    def __init__(
        self,
        rank_nodes: list[str],
        nodes: dict[str, int],
        relay: bool = False,
        bucket_bytes: int = 700,
        deadline_s: float = 20.0,
    ):
        self.values = {name: torch.rand(shape) for name, shape in SHAPES.items()}
        held = [{name: box_of(name, rank) for name in SHAPES} for rank in range(RANKS)]
        sources = [whole_source(name, shape) for name, shape in SHAPES.items()]
        self.plan = bucket_plan(sources, SHAPES, held, "bfloat16", bucket_bytes)
        self.board = MessageBoard(HOST, 0, deadline_s, serves=True)
        self.receivers = {key: NodeReceiver(self.plan.largest, RANKS) for key in nodes}
        receiving = tuple(ReceivingNode(key, self.receivers[key].memory.path, count) for key, count in nodes.items())
        self.session = Session("s", HOST, self.board.port, deadline_s, receiving, tuple(rank_nodes), self.plan, relay)
        self.pool = ThreadPoolExecutor(32)

        def parts(rank: int) -> Callable[[], dict[str, Any]]:
            return lambda: {name: self.values[name][held[rank][name].slices] for name in SHAPES}

        joins = [self.pool.submit(r.join, self.session, key, HOST) for key, r in self.receivers.items()]
        made = [self.pool.submit(Sender, self.session, rank, HOST, parts(rank)) for rank in range(RANKS)]
        self.senders = [each.result(30) for each in made]
        for join in joins:
            join.result(30)
        self.readers = [
            BucketReader(session_of_reader(self.session.for_reader(key)))
            for key, count in nodes.items()
            for _ in range(count)
        ]

    def send(self, turn: int, version: str) -> list[Future[Any]]:
        calls = [self.pool.submit(sender.publish, turn, version) for sender in self.senders]
        return calls + [self.pool.submit(r.receive, turn) for r in self.receivers.values() if r.is_needed]

    def leave(self) -> None:
        """Else the end of a group with a broadcast under way waits for it, and holds up whichever test runs then."""
        for party in [*self.senders, *self.receivers.values()]:
            party.leave()

    def read(self, reader: BucketReader, turn: int, version: str) -> Future[dict[str, Any]]:
        def load() -> dict[str, Any]:
            reader.await_first(turn, version)
            return dict(reader.tensors(turn, version))  # keeps all: what is given back must have been copied

        return self.pool.submit(load)


TOPOLOGIES: dict[str, Any] = {
    "one node": (["a"] * 4, {"a": 4}),
    "engines elsewhere": (["a"] * 4, {"b": 2}),
    "two nodes, engines on both": (["a", "a", "b", "b"], {"a": 2, "b": 2}),
    "trainer on two nodes, engines on those and two more": (["a", "a", "b", "b"], {"a": 1, "b": 1, "c": 2, "d": 1}),
    "two pools, relayed": (["a", "a", "b", "b"], {"c": 2, "d": 1}, True),
    "two nodes of the trainer's with engines, three more, relayed": (
        ["a", "a", "b", "b"],
        {"a": 1, "b": 1, "c": 1, "d": 1, "e": 1},
        True,
    ),
}


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_all_readers_of_all_nodes_get_the_trainers_weights_bit_for_bit_time_after_time(topology: str) -> None:
    transfers = Transfers(*TOPOLOGIES[topology])
    assert len(transfers.plan.buckets) == 3, "more buckets than slots"
    for turn in range(3):
        for name, shape in SHAPES.items():
            transfers.values[name] = torch.randn(shape)
        sent = transfers.send(turn, f"v{turn}")
        loads = [transfers.read(reader, turn, f"v{turn}") for reader in transfers.readers]
        for load in loads:
            got = load.result(30)
            for name, value in transfers.values.items():
                assert torch.equal(got[name], value.to(torch.bfloat16)), name
        for each in sent:
            each.result(30)


def test_a_session_keeps_no_keys_of_transfers_that_are_over() -> None:
    transfers = Transfers(*TOPOLOGIES["one node"])
    counts = []
    for turn in range(4):
        sent = transfers.send(turn, "v")
        for load in [transfers.read(reader, turn, "v") for reader in transfers.readers]:
            load.result(30)
        for each in sent:
            each.result(30)
        counts.append(transfers.board._store.num_keys())
    assert counts[1] == counts[3]


def test_bytes_of_another_version_are_refused_before_a_tensor_is_loaded() -> None:
    transfers = Transfers(["a"] * 4, {"a": 1})
    sent = transfers.send(0, "run:4")
    with pytest.raises(OtherVersion) as other:
        transfers.read(transfers.readers[0], 0, "run:5").result(30)
    assert other.value.found == "run:4"
    transfers.board.end("the engine refused it")
    for each in sent:
        with pytest.raises(TransferBroken, match="the engine refused it"):
            each.result(30)


@pytest.mark.parametrize("topology", ["one node", "two nodes, engines on both", "two pools, relayed"])
def test_a_reader_that_is_gone_holds_up_nobody_once_the_driver_ends_the_transfer(topology: str) -> None:
    transfers = Transfers(*TOPOLOGIES[topology])
    sent = transfers.send(0, "v")
    loads = [transfers.read(reader, 0, "v") for reader in transfers.readers[1:]]
    time.sleep(1.0)
    assert not all(each.done() for each in sent), "the missing reader has slots that cannot be used again"
    transfers.board.end("engine 0 died")
    began = time.monotonic()
    broken = 0
    for each in [*sent, *loads]:
        try:
            each.result(30)
        except TransferBroken as error:
            assert "engine 0 died" in str(error)
            broken += 1
    assert broken and time.monotonic() - began < 5.0
    transfers.leave()


def test_a_node_that_relays_and_is_gone_ends_the_transfer_for_all() -> None:
    transfers = Transfers(*TOPOLOGIES["two pools, relayed"])
    gone = transfers.receivers.pop("d")
    sent = transfers.send(0, "v")
    load = transfers.read(transfers.readers[0], 0, "v")
    time.sleep(1.0)
    assert not load.done() and not any(each.done() for each in sent), "it has half of each message"
    del gone  # its connections are closed
    transfers.board.end("the engines of node d died")
    for each in [*sent, load]:
        with pytest.raises(TransferBroken, match=r"engines of node d died|a node is gone"):
            each.result(10)
    transfers.leave()


def test_a_party_that_waits_in_vain_gives_up_at_the_deadline_and_says_for_what() -> None:
    transfers = Transfers(["a"] * 4, {"a": 2}, deadline_s=1.0)
    sent = transfers.send(0, "v")
    with pytest.raises(
        TransferBroken, match=r"waited 1 s for|trainer rank \d: waited 1 s for engines to load bucket 0"
    ):
        transfers.read(transfers.readers[0], 0, "v").result(30)
    errors = [each.exception(30) for each in sent]
    assert all(isinstance(error, TransferBroken) for error in errors)


def test_a_model_that_keeps_views_gets_copies_the_next_time() -> None:
    transfers = Transfers(["a"] * 4, {"a": 1})
    reader = transfers.readers[0]
    transfers.send(0, "v")
    views = []
    with pytest.raises(TransferBroken, match="keeps views"):
        for _, tensor in reader.tensors(0, "v"):
            views.append(tensor[:1])
    again = Transfers(["a"] * 4, {"a": 1})
    again.readers[0]._copies = reader._copies
    again.send(0, "v")
    views = [(name, tensor[:1]) for name, tensor in again.readers[0].tensors(0, "v")]
    for name, view in views:
        assert torch.equal(view, again.values[name][:1].to(torch.bfloat16))


def test_shared_memory_is_gone_with_its_owner_and_opening_it_then_says_so() -> None:
    memory = NodeMemory(2, 1000, 1)
    path = memory.path
    other = NodeMemory(2, 1000, 1, path)
    other.write_version(0, 0, b"v".ljust(256, b"\0"))
    assert memory.version(0, 0) == "v"
    with pytest.raises(TransferBroken, match="instead of"):
        NodeMemory(2, 100_000, 1, path)
    del memory, other
    with pytest.raises(TransferBroken, match="no shared memory"):
        NodeMemory(2, 1000, 1, path)


def test_memory_that_the_machine_does_not_have_is_refused_in_words_before_any_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(file: int, first: int, size: int) -> None:
        raise AssertionError("memory was taken")

    monkeypatch.setattr("os.posix_fallocate", refuse)
    available = psutil.virtual_memory().available
    with pytest.raises(TransferBroken, match=r"no shared memory of \d+ MB on this node: \d+ MB are available"):
        NodeMemory(2, available, 1)


def test_threads_of_transfers_end_with_them() -> None:
    before = threading.active_count()
    transfers = Transfers(*TOPOLOGIES["two nodes, engines on both"])
    transfers.pool.shutdown()
    assert threading.active_count() <= before
