"""What the parties of transfers between the same trainer and the same engines agree on, as plain data.

A session lasts over many transfers. Parties: all trainer ranks; all ranks of the engines; on each node with engines,
one of its engines' actors, which owns the node's memory and takes from the network what ranks on other nodes send.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NamedTuple

from ..network.routes import Route, rank_routes, relay_routes, relaying_nodes
from .bucket_plan import Bucket, BucketPlan, Placed
from .message_board import MessageBoard

SLOTS = 2
"""Buckets that a node holds at a time: while engines load one, the next one arrives."""


class ReceivingNode(NamedTuple):
    """A node with engines: Ray's id of it, the path of its shared memory, and how many engine ranks read there."""

    key: str
    memory: str
    readers: int


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

    def node(self, key: str) -> ReceivingNode:
        """The receiving node of that id."""
        return next(node for node in self.nodes if node.key == key)

    def writers(self, key: str) -> int:
        """Parties that fill the slots of a node: its own trainer ranks, and one for all ranks elsewhere."""
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

    def _keys(self) -> list[str]:
        return [node.key for node in self.nodes]

    def board(self) -> MessageBoard:
        """A party's connection to the driver's store. Raises TransferBroken."""
        return MessageBoard(self.host, self.port, self.deadline_s)

    def for_reader(self, key: str) -> str:
        """What an engine rank on that node must know, as JSON: vLLM hands on plain text to its ranks."""
        node = self.node(key)
        of_reader = {**self._asdict(), "nodes": [node], "plan": (self.plan.dtype, self.plan.buckets, ())}
        return json.dumps(of_reader)


def session_of_reader(text: str) -> Session:
    """Reads what `Session.for_reader` wrote; such a session has no pieces."""
    fields: dict[str, Any] = json.loads(text)
    dtype, buckets, _ = fields.pop("plan")
    plan = BucketPlan(dtype, tuple(_bucket(*each) for each in buckets), ())
    nodes = tuple(ReceivingNode(*each) for each in fields.pop("nodes"))
    return Session(**fields | {"nodes": nodes, "rank_nodes": tuple(fields["rank_nodes"]), "plan": plan})


def _bucket(tensors: Iterable[Any], nbytes: int) -> Bucket:
    return Bucket(tuple(Placed(name, tuple(shape), offset) for name, shape, offset in tensors), nbytes)


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
            self._board.wait(self._name(number - SLOTS, "read"), f"engines to load bucket {number - SLOTS}")

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
