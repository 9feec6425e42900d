"""One process of a transfer: it does what it is told on standard input, and answers on standard output, in pickles.

python -m benchmarks.weight_parties.party board|rank|node|reader
"""

from __future__ import annotations

import os
import pickle
import sys
from typing import Any

import torch

from rlplan.executor.weights.slots.device_slots import device_key
from rlplan.executor.weights.transfer.boxes import chunk, whole
from rlplan.executor.weights.transfer.bucket_plan import BucketPlan, bucket_plan, whole_source
from rlplan.executor.weights.transfer.bucket_reader import BucketReader, ReaderPlace
from rlplan.executor.weights.transfer.device_sender import DeviceSender
from rlplan.executor.weights.transfer.message_board import MessageBoard
from rlplan.executor.weights.transfer.node_receiver import NodeReceiver
from rlplan.executor.weights.transfer.sender import Sender
from rlplan.executor.weights.transfer.session import Session, session_of_reader

SIDE = 1024
"""Rows and columns of each tensor of the model."""

DTYPE = "bfloat16"


def tensor_names(tensors: int) -> list[str]:
    """Names of the model's tensors."""
    return [f"layers.{number}" for number in range(tensors)]


def values(name: str, turn: int) -> torch.Tensor:
    """What the trainer holds of a tensor in transfer number `turn`."""
    generator = torch.Generator().manual_seed(hash((int(name.split(".")[1]), turn)) % 2**31)
    return torch.randn((SIDE, SIDE), generator=generator).to(getattr(torch, DTYPE))


def plan_of(tensors: int, ranks: int, bucket_bytes: int) -> BucketPlan:
    """The buckets of the model, of which each rank holds rows."""
    names = tensor_names(tensors)
    box = whole((SIDE, SIDE))
    held = [{name: chunk(box, 0, ranks, rank) for name in names} for rank in range(ranks)]
    sources = [whole_source(name, box.shape) for name in names]
    return bucket_plan(sources, dict.fromkeys(names, box.shape), held, DTYPE, bucket_bytes)


def on(name: str) -> torch.device:
    """The device of this process."""
    device = torch.device(name)
    if device.type == "cuda":
        torch.cuda.set_device(device)
        return device
    return torch.device("cpu")


class Board:
    """The driver's store."""

    def serve(self, host: str, deadline_s: float) -> int:
        """Serve a store; returns its port."""
        self._board = MessageBoard(host, 0, deadline_s, serves=True)
        return self._board.port


class Rank:
    """A trainer rank."""

    def uuid(self, device: str) -> str:
        """UUID of a device; "" of a CPU."""
        return device_key(torch.device(device))

    def open(self, session: Session, rank: int, address: str, device: str = "cpu") -> None:
        """Join a session."""
        self._rank, self._ranks, self._held = rank, len(session.rank_nodes), dict[str, torch.Tensor]()
        self._device = on(device)

        def held() -> dict[str, torch.Tensor]:
            return self._held

        self._sender: Sender | DeviceSender = (
            Sender(session, rank, address, held)
            if session.slots == "host"
            else DeviceSender(session, rank, address, held, self._device)
        )

    def hold(self, tensors: int, turn: int) -> None:
        """Have the weights of a transfer in hand."""
        part = chunk(whole((SIDE, SIDE)), 0, self._ranks, self._rank).slices
        self._held = {name: values(name, turn)[part].to(self._device, copy=True) for name in tensor_names(tensors)}

    def publish(self, turn: int) -> None:
        """Send them."""
        self._sender.publish(turn, f"v{turn}")


class Node:
    """What receives for a node."""

    def make(self, bucket_bytes: int, ranks: int) -> str:
        """Make the node's memory; returns its path."""
        self._receiver = NodeReceiver(bucket_bytes, ranks)
        return self._receiver.memory.path

    def join(self, session: Session, key: str, address: str) -> None:
        """Join a session."""
        self._receiver.join(session, key, address)

    def receive(self, turn: int) -> None:
        """Take a transfer's bytes."""
        self._receiver.receive(turn)


class Reader:
    """An engine rank; in place of vLLM it copies what it is given."""

    def uuid(self, device: str) -> str:
        """UUID of a device; "" of a CPU."""
        return device_key(torch.device(device))

    def open(self, text: str, key: str = "", device: str = "cpu") -> None:
        """Join a session; `key` is this rank's device in it."""
        session = session_of_reader(text)
        self._device = on(device)
        self._reader = BucketReader(session, ReaderPlace(key, self._device, session.host))

    def read(self, turn: int) -> int:
        """Read a transfer's weights; returns how many tensors came."""
        self._reader.await_first(turn, f"v{turn}")
        self._loaded = {
            name: tensor.to(self._device, copy=True) for name, tensor in self._reader.tensors(turn, f"v{turn}")
        }
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return len(self._loaded)

    def mismatches(self, turn: int) -> int:
        """How many of the tensors read last are not bit for bit those of a transfer."""
        return sum(not torch.equal(tensor.cpu(), values(name, turn)) for name, tensor in self._loaded.items())


ROLES: dict[str, type[Any]] = {"board": Board, "rank": Rank, "node": Node, "reader": Reader}


def main() -> None:
    """Serve calls until standard input ends."""
    torch.set_num_threads(1)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print is no answer
    party = ROLES[sys.argv[1]]()
    while True:
        try:
            method, arguments = pickle.load(sys.stdin.buffer)
        except EOFError:
            break
        try:
            answer = (True, getattr(party, method)(*arguments))
        except Exception as error:  # noqa: BLE001 - told to the driver, who raises it
            answer = (False, f"{type(error).__name__}: {error}")
        pickle.dump(answer, answers)
        answers.flush()
    os._exit(0)  # groups that wait for others would hold it up


if __name__ == "__main__":
    main()
