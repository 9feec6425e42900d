"""What the parties of transfers between the same trainer and the same engines agree on, as plain data.

A session lasts over many transfers. Parties: all trainer ranks; all ranks of the engines; and where weights lie in host
memory, on each node with engines, one of its engines' actors, which owns the node's memory and takes from the network
what ranks on other nodes send. Where they lie on devices (slots/slot_choice.py), each engine rank has slots of its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NamedTuple

from ..network.routes import Route, rank_routes, relay_routes, relaying_nodes
from ..slots.slot_choice import SlotsName
from .boxes import Box
from .bucket_plan import Bucket, BucketPlan, Piece, Placed
from .message_board import MessageBoard, TransferBroken

SLOTS = 2
"""Buckets that a node holds at a time: while engines load one, the next one arrives."""


class ReceivingNode(NamedTuple):
    """A node with engines: Ray's id of it, the path of its shared memory, and how many engine ranks read there.

    Where slots are on devices: the UUID of an engine rank's device, no path, one.
    """

    key: str
    memory: str
    readers: int


class RankAnswer(NamedTuple):
    """What an engine rank tells of a transfer: the version of the bytes, checksums, why it broke off."""

    version: str
    sums: dict[str, str]
    broken: str | None = None


class Session(NamedTuple):
    """See the module. `host` and `port`: the driver's store; `deadline_s`: longest wait for one bucket, in seconds."""

    name: str
    host: str
    port: int
    deadline_s: float
    nodes: tuple[ReceivingNode, ...]
    rank_nodes: tuple[str, ...]
    """The node of each trainer rank."""
    plan: BucketPlan
    relay: bool = False
    """Whether nodes without trainer ranks pass on to each other what they receive (network/routes.py)."""
    slots: SlotsName = "host"
    rank_devices: tuple[str, ...] = ()
    """UUID of the device of each trainer rank, if slots are on devices."""

    def node(self, key: str) -> ReceivingNode:
        """The receiving node of that id."""
        return next(node for node in self.nodes if node.key == key)

    def why_not_joined(self, error: RuntimeError) -> str:
        """Why a party that met `error` has not joined the session. Raises the error if weights could not go another
        way: one of CUDA or NCCL closes slots on devices, and leaves those in host memory."""
        if isinstance(error, TransferBroken):
            return str(error)
        if self.slots == "host":
            raise error
        return f"slots {self.slots}: {error}"

    def writers(self, key: str) -> int:
        """Parties that fill the slots of a node: its own trainer ranks, and one for all ranks elsewhere; those on a
        device one party fills."""
        if self.slots != "host":
            return 1
        return self.rank_nodes.count(key) + any(node != key for node in self.rank_nodes)

    def routes(self, rank: int) -> tuple[Route, ...]:
        """On which routes a trainer rank sends over the network."""
        return rank_routes(rank, self._keys(), self.rank_nodes, self.relay)

    def relays(self) -> tuple[Route, ...]:
        """On which routes nodes pass on what they receive first, in the order of `relaying_nodes`."""
        return relay_routes(self._keys(), self.rank_nodes, self.relay)

    def relaying_nodes(self) -> tuple[str, ...]:
        """The nodes that pass on to each other what they receive."""
        return relaying_nodes(self._keys(), self.rank_nodes, self.relay)

    @property
    def members(self) -> int:
        """Members of the group of a session on devices: the trainer ranks, and over NCCL the engine ranks."""
        return len(self.rank_nodes) + (len(self.nodes) if self.slots == "nccl" else 0)

    def place_of(self, key: str) -> int:
        """The place of an engine rank in the group of such a session."""
        return len(self.rank_nodes) + self._keys().index(key)

    def _keys(self) -> list[str]:
        return [node.key for node in self.nodes]

    def board(self) -> MessageBoard:
        """A party's connection to the driver's store. Raises TransferBroken."""
        return MessageBoard(self.host, self.port, self.deadline_s)

    def for_reader(self, key: str) -> str:
        """What an engine rank on the node `key` must know, as JSON: vLLM hands on plain text to its ranks."""
        nodes = [self.node(key)] if self.slots == "host" else self.nodes
        pieces = self.plan.pieces if self.slots == "nccl" else ()  # it unpacks messages itself
        return json.dumps({**self._asdict(), "nodes": nodes, "plan": (self.plan.dtype, self.plan.buckets, pieces)})


def session_of_reader(text: str) -> Session:
    """Reads what `Session.for_reader` wrote."""
    fields: dict[str, Any] = json.loads(text)
    dtype, buckets, pieces = fields.pop("plan")
    read = tuple(tuple(tuple(_piece(*each) for each in of_bucket) for of_bucket in of_rank) for of_rank in pieces)
    plan = BucketPlan(dtype, tuple(_bucket(*each) for each in buckets), read)
    nodes = tuple(ReceivingNode(*each) for each in fields.pop("nodes"))
    places = {name: tuple(fields[name]) for name in ("rank_nodes", "rank_devices")}
    return Session(**fields | {"nodes": nodes, "plan": plan} | places)


def _bucket(tensors: Iterable[Any], nbytes: int) -> Bucket:
    return Bucket(tuple(Placed(name, tuple(shape), offset) for name, shape, offset in tensors), nbytes)


def _piece(parameter: str, local: Iterable[Any], tensor: int, shape: Iterable[int], box: Iterable[Any]) -> Piece:
    return Piece(parameter, _box(*local), tensor, tuple(shape), _box(*box))


def _box(offset: Iterable[int], shape: Iterable[int]) -> Box:
    return Box(tuple(offset), tuple(shape))


class Ring:
    """The slots of one node as one party goes through them. Buckets are numbered over all transfers of a session.

    Who writes: `await_free`, write, `wrote`; who reads: `await_written`, read, `has_read`.
    """

    def __init__(self, session: Session, key: str, board: MessageBoard) -> None:
        self._key, self._board = key, board
        self._writers, self._readers = session.writers(key), session.node(key).readers

    def await_free(self, number: int) -> None:
        """Wait until all engines of the node have loaded what is in the slot. Raises TransferBroken."""
        if number >= SLOTS:
            self.await_read(number - SLOTS)

    def await_read(self, number: int) -> None:
        """Wait until all engines of the node have loaded a bucket, which is one of the last. Raises TransferBroken."""
        self._board.wait(self._name(number, "read"), f"engines to load bucket {number}")

    def wrote(self, number: int) -> None:
        """Say that this party's part of the bucket is in the slot."""
        old = self._name(number - SLOTS, "read")
        self._board.arrive(self._name(number, "written"), self._writers, lambda: self._board.forget(old))

    def await_written(self, number: int) -> None:
        """Wait until the bucket is whole. Raises TransferBroken."""
        self._board.wait(self._name(number, "written"), f"bucket {number} of the trainer's weights")

    def has_read(self, number: int) -> None:
        """Say that this party needs the slot no more."""
        written = self._name(number, "written")
        self._board.arrive(self._name(number, "read"), self._readers, lambda: self._board.forget(written))

    def _name(self, number: int, what: str) -> str:
        return f"{self._key}/{number}/{what}"
