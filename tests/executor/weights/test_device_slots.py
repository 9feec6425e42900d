"""Transfers into slots on devices, with CPUs as devices: the same parties and control flow, gloo in place of NCCL."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from rlplan.executor.weights.slots.slot_choice import SlotsName
from rlplan.executor.weights.transfer.boxes import whole
from rlplan.executor.weights.transfer.bucket_plan import bucket_plan, whole_source
from rlplan.executor.weights.transfer.bucket_reader import BucketReader, OtherVersion, ReaderPlace
from rlplan.executor.weights.transfer.device_sender import DeviceSender
from rlplan.executor.weights.transfer.message_board import MessageBoard, TransferBroken
from rlplan.executor.weights.transfer.session import ReceivingNode, Session, session_of_reader

from .test_transfer import HOST, RANKS, SHAPES, box_of

CPU = torch.device("cpu")


class OnDevices:
    """Trainer ranks on devices g0, g1, …, and an engine rank on each of `engine_devices`."""

    def __init__(self, slots: SlotsName, engine_devices: list[str], ranks: int = RANKS, deadline_s: float = 20.0):
        self.values = {name: torch.rand(shape) for name, shape in SHAPES.items()}
        held = [{name: box_of(name, rank) for name in SHAPES} for rank in range(RANKS)]
        if ranks == 1:
            held = [{name: whole(shape) for name, shape in SHAPES.items()}]
        sources = [whole_source(name, shape) for name, shape in SHAPES.items()]
        self.plan = bucket_plan(sources, SHAPES, held, "bfloat16", 700)
        self.board = MessageBoard(HOST, 0, deadline_s, serves=True)
        nodes = tuple(ReceivingNode(device, "", 1) for device in engine_devices)
        self.session = Session(
            "s", HOST, self.board.port, deadline_s, nodes, ("a",) * ranks, self.plan, False, slots,
            tuple(f"g{rank}" for rank in range(ranks)),
        )  # fmt: skip
        self.pool = ThreadPoolExecutor(32)

        def sender(rank: int) -> DeviceSender:
            def parts() -> dict[str, Any]:
                return {name: self.values[name][held[rank][name].slices] for name in SHAPES}

            return DeviceSender(self.session, rank, HOST, parts, CPU)

        def reader(device: str) -> BucketReader:
            text = self.session.for_reader(device)
            return BucketReader(session_of_reader(text), ReaderPlace(device, CPU, HOST))

        made = [self.pool.submit(sender, rank) for rank in range(ranks)]
        readers = [self.pool.submit(reader, device) for device in engine_devices]
        self.senders = [each.result(30) for each in made]  # the board's word reaches those who wait for a reader
        self.readers = [each.result(30) for each in readers]

    def send(self, turn: int, version: str) -> list[Future[Any]]:
        return [self.pool.submit(sender.publish, turn, version) for sender in self.senders]

    def leave(self) -> None:
        for party in [*self.senders, *self.readers]:
            party.leave()

    def read(self, reader: BucketReader, turn: int, version: str) -> Future[dict[str, Any]]:
        def load() -> dict[str, Any]:
            reader.await_first(turn, version)
            return dict(reader.tensors(turn, version))

        return self.pool.submit(load)


LAYOUTS: dict[str, tuple[Any, ...]] = {
    "ipc, an engine rank with each trainer rank": ("ipc", ["g0", "g1", "g2", "g3"]),
    "ipc, engine ranks with two of four trainer ranks": ("ipc", ["g3", "g1"]),
    "ipc, one of each": ("ipc", ["g0"], 1),
    "nccl, two engine ranks": ("nccl", ["g4", "g5"]),
    "nccl, one of each": ("nccl", ["g1"], 1),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_engine_ranks_get_the_trainers_weights_bit_for_bit_time_after_time(layout: str) -> None:
    transfers = OnDevices(*LAYOUTS[layout])
    assert len(transfers.plan.buckets) == 3, "more buckets than slots"
    for turn in range(3):
        for name, shape in SHAPES.items():
            transfers.values[name] = torch.randn(shape)
        sent = transfers.send(turn, f"v{turn}")
        for load in [transfers.read(reader, turn, f"v{turn}") for reader in transfers.readers]:
            got = load.result(30)
            for name, value in transfers.values.items():
                assert torch.equal(got[name], value.to(torch.bfloat16)), name
        for each in sent:
            each.result(30)


@pytest.mark.parametrize("layout", ["ipc, engine ranks with two of four trainer ranks", "nccl, two engine ranks"])
def test_bytes_of_another_version_are_refused_on_devices_too(layout: str) -> None:
    transfers = OnDevices(*LAYOUTS[layout])
    transfers.send(0, "run:4")
    for load in [transfers.read(reader, 0, "run:5") for reader in transfers.readers]:
        with pytest.raises(OtherVersion) as other:
            load.result(30)
        assert other.value.found == "run:4"
    transfers.board.end("the engine refused it")
    transfers.leave()


@pytest.mark.parametrize("layout", ["ipc, engine ranks with two of four trainer ranks", "nccl, two engine ranks"])
def test_an_engine_rank_that_is_gone_holds_up_nobody_once_the_driver_ends_the_transfer(layout: str) -> None:
    transfers = OnDevices(*LAYOUTS[layout])
    sent = transfers.send(0, "v")
    load = transfers.read(transfers.readers[1], 0, "v")
    time.sleep(1.0)
    assert not all(each.done() for each in sent), "the missing reader has slots that cannot be used again"
    transfers.board.end("engine 0 died")
    for each in [*sent, load]:
        error = each.exception(15)
        assert error is None or (isinstance(error, TransferBroken) and "engine 0 died" in str(error))
    assert any(each.exception() for each in sent)
    transfers.leave()


def test_what_an_engine_rank_is_told_of_a_session_is_all_that_it_needs() -> None:
    transfers = OnDevices("nccl", ["g4", "g5"])
    read = session_of_reader(transfers.session.for_reader("g4"))
    assert read == transfers.session
    assert (read.members, read.place_of("g5")) == (6, 5)


def test_an_engine_rank_without_room_for_slots_keeps_nobody_waiting_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(*arguments: Any) -> Any:
        raise TransferBroken("800 MB of cuda:1 could not be taken")

    monkeypatch.setattr("rlplan.executor.weights.transfer.node_receiver.device_slots", no_room)
    began = time.monotonic()
    with pytest.raises(TransferBroken, match="800 MB of cuda:1 could not be taken"):
        OnDevices("nccl", ["g1"], 1, 60.0)
    assert time.monotonic() - began < 15.0
