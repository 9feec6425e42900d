"""The parties of transfers as their processes hold them: what breaks is told as text, and nothing is raised."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from rlplan.executor.weights.slots import device_slots
from rlplan.executor.weights.slots.slot_memory import version_field
from rlplan.executor.weights.transfer import node_receiver, rank_transfers
from rlplan.executor.weights.transfer.bucket_plan import Bucket, BucketPlan, Placed
from rlplan.executor.weights.transfer.bucket_reader import ReaderPlace, ReaderRank
from rlplan.executor.weights.transfer.engine_transfers import ActorTransfers, agreed
from rlplan.executor.weights.transfer.message_board import TransferBroken
from rlplan.executor.weights.transfer.rank_transfers import RankTransfers
from rlplan.executor.weights.transfer.session import RankAnswer, ReceivingNode, Session

HOST = Session("s", "h", 1, 1.0, (ReceivingNode("n", "/m", 1),), ("n",), BucketPlan("float32", (), ((),)))
IPC = HOST._replace(slots="ipc", rank_devices=("g0",))


class Sender:
    """Of one rank; `broken` is raised when it is made, or when it sends."""

    made: list[Any] = []  # noqa: RUF012 - each test begins with none
    broken: RuntimeError | None = None

    def __init__(self, *arguments):
        self.arguments, self.calls = arguments, []
        if self.broken is not None:
            raise self.broken
        self.made.append(self)

    def publish(self, *arguments):
        self.calls.append(arguments)
        if arguments[1] == "bad":
            raise TransferBroken("trainer rank 1 broke off")

    def leave(self):
        self.calls.append(("leave",))


def transfers_of_rank(monkeypatch, broken=None):
    for kind in ("Sender", "DeviceSender"):
        monkeypatch.setattr(rank_transfers, kind, type(kind, (Sender,), {"broken": broken}))
    monkeypatch.setattr(rank_transfers, "node_address", lambda: "here")
    monkeypatch.setattr(Sender, "made", [])
    return RankTransfers(torch.nn.Linear(2, 2), 1, "float32")


@pytest.mark.parametrize("session", [HOST, IPC])
def test_a_trainer_rank_sends_in_sessions_that_it_joined(monkeypatch, session):
    transfers = transfers_of_rank(monkeypatch)
    assert transfers.publish("s", 0, "v") == "trainer rank 1 is in no session s"
    assert transfers.open(session) is None
    (sender,) = Sender.made
    assert sender.arguments[:3] == (session, 1, "here") and set(sender.arguments[3]()) == {"weight", "bias"}
    assert type(sender).__name__ == ("Sender" if session is HOST else "DeviceSender")
    assert transfers.publish("s", 3, "v") is None
    assert transfers.publish("s", 4, "bad") == "trainer rank 1 broke off"
    transfers.leave("s")
    transfers.leave("s")
    assert sender.calls == [(3, "v"), (4, "bad"), ("leave",)]
    assert transfers.publish("s", 5, "v") == "trainer rank 1 is in no session s"


@pytest.mark.parametrize(
    ("session", "error", "says"),
    [
        (HOST, TransferBroken("no route"), "no route"),
        (IPC, TransferBroken("no route"), "no route"),
        (IPC, RuntimeError("no handle"), "slots ipc: no handle"),
        (HOST, RuntimeError("a bug"), None),
    ],
)
def test_a_party_that_cannot_join_says_why(monkeypatch, session, error, says):
    def broken(*_):
        raise error

    monkeypatch.setattr("rlplan.executor.weights.transfer.bucket_reader.BucketReader", broken)
    parties = [
        lambda: transfers_of_rank(monkeypatch, error).open(session),
        lambda: ReaderRank(print, print, ReaderPlace("n", torch.device("cpu"))).open(session.for_reader("n")),
    ]
    for join in parties:
        if says is not None:
            assert join() == says
        else:
            with pytest.raises(RuntimeError, match="a bug"):
                join()


class Ranks:
    """Of an engine: `says` has their answers by method."""

    def __init__(self, **says):
        self.says, self.calls = says, []

    async def call(self, method, arguments):
        self.calls.append((method, arguments))
        return self.says.get(method, [None, None])


class Receiver:
    """Of a node."""

    def __init__(self, *arguments):
        if arguments[0] > 100:
            raise TransferBroken("no shared memory")
        self.memory, self.is_needed, self.calls = SimpleNamespace(path="/memory"), True, []

    def join(self, session, key, address):
        self.calls.append(("join", session, key, address))

    def receive(self, turn):
        self.calls.append(("receive", turn))
        if turn == 7:
            raise TransferBroken("a node is gone")

    def leave(self):
        self.calls.append(("leave",))


def test_an_engine_receives_for_its_node_if_it_made_its_memory(monkeypatch):
    monkeypatch.setattr(node_receiver, "NodeReceiver", Receiver)
    for name, place in (("node_key", "n"), ("node_address", "here")):
        monkeypatch.setattr(f"rlplan.executor.weights.transfer.engine_transfers.{name}", lambda place=place: place)
    answers = [RankAnswer("v", {"w": "1"}), RankAnswer("v", {"w": "1"})]
    ranks = Ranks(receive_buckets=[tuple(each) for each in answers])

    async def body():
        actor = ActorTransfers(ranks.call)
        assert actor.make_memory("s", 101, 2) == "no shared memory"
        assert await actor.open(HOST) is None, "another engine has made the memory"
        assert await actor.receive("s", 0, "v", True) == answers
        assert actor.make_memory("s", 10, 2) == "/memory"
        made = actor._made["s"]
        assert await actor.open(HOST) is None
        assert await actor.receive("s", 1, "v", True) == answers
        assert await actor.receive("s", 7, "v", False) == [*answers, RankAnswer("v", {}, "a node is gone")]
        await actor.leave("s")
        await actor.leave("s")
        assert made.calls == [("join", HOST, "n", "here"), ("receive", 1), ("receive", 7), ("leave",)]
        ranks.says["open_transfer"] = [None, "no room"]
        assert await actor.open(HOST) == "no room"

        def broken(*_):
            raise TransferBroken("no route")

        monkeypatch.setattr(Receiver, "join", broken)
        actor.make_memory("s", 10, 2)
        assert await actor.open(HOST) == "no route"

    asyncio.run(body())
    assert ranks.calls[0] == ("open_transfer", (HOST.for_reader("n"),))
    assert ranks.calls[1] == ("receive_buckets", ("s", 0, "v", True)) and ("leave_transfer", ("s",)) in ranks.calls


def test_ranks_of_an_engine_must_have_received_the_same():
    one, same, other = RankAnswer("v", {"w": "1"}), RankAnswer("v", {"w": "1"}), RankAnswer("v", {"w": "2"})
    assert agreed("e", [one, same], "v", "it") == {"w": "1"}
    with pytest.raises(RuntimeError, match="e: it holds weights 'v', not 'u'"):
        agreed("e", [one, same], "u", "it")
    with pytest.raises(RuntimeError, match="e: ranks received different weights from it"):
        agreed("e", [one, other], "v", "it")


MADE = (torch.Tensor, torch.Size([9]), (1,), 0, None, torch.uint8, 3, b"h", 1, 2, False, b"c", 4, b"e", True)
"""Arguments of torch for memory of device 3."""


def test_slots_on_a_device_are_opened_by_their_handle(monkeypatch):
    device, opened = torch.device("cpu", 1), []

    def reduce(memory):
        return None, MADE

    def rebuild(*arguments):
        opened.append(arguments)
        return memory._bytes

    monkeypatch.setattr("torch.multiprocessing.reductions.reduce_tensor", reduce)
    monkeypatch.setattr("torch.multiprocessing.reductions.rebuild_cuda_tensor", rebuild)
    memory = device_slots.CudaMemory(device, 2, 100, 2)
    other = device_slots.CudaMemory(device, 2, 100, 2, device_slots.exported(memory))
    assert opened[0][6:] == (1, *MADE[7:]), "the reader's own number of the device"
    bucket = Bucket((Placed("a", (2, 3), 0), Placed("b", (), 64)), 66)
    for number in (0, 1):
        memory.write_version(number, 1, version_field(f"v{number}"))
        for value, tensor in enumerate(memory.tensors(number, bucket, "bfloat16")):
            tensor.fill_(value + 10 * number)
    assert [other.version(number, 1) for number in range(3)] == ["v0", "v1", "v0"]
    for number, values in ((0, [0, 1]), (1, [10, 11]), (2, [0, 1])):
        tensors = other.tensors(number, bucket, "bfloat16")
        assert [tuple(tensor.shape) for tensor in tensors] == [(2, 3), ()]
        assert [set(tensor.flatten().tolist()) for tensor in tensors] == [{value} for value in values]


def test_devices_that_refuse_memory_or_handles_are_named(monkeypatch):
    memory = device_slots.CudaMemory(torch.device("cpu", 1), 2, 1_000_000, 1)

    def refuse(*_, **__):
        raise RuntimeError("out of memory")

    for name in ("reduce_tensor", "rebuild_cuda_tensor"):
        monkeypatch.setattr(f"torch.multiprocessing.reductions.{name}", refuse)
    with pytest.raises(TransferBroken, match="no CUDA IPC handle on cpu:1: out of memory"):
        memory.handle()
    handle = device_slots.handle_text(MADE)
    with pytest.raises(TransferBroken, match="2 MB of cpu:1 could not be opened: out of memory"):
        device_slots.CudaMemory(torch.device("cpu", 1), 2, 1_000_000, 1, handle)
    monkeypatch.setattr(torch, "empty", refuse)
    with pytest.raises(TransferBroken, match="2 MB of cpu:1 could not be taken: out of memory"):
        device_slots.CudaMemory(torch.device("cpu", 1), 2, 1_000_000, 1)
    with pytest.raises(ValueError, match="has 257 bytes; it may have 256"):
        version_field("v" * 257)
    assert device_slots.device_key(torch.device("cpu")) == ""
