"""The part of a node's receiving that is done once for all of its engines: its memory, and what the network brings."""

from __future__ import annotations

import torch

from ..network.arrivals import Arrivals, arrivals
from ..network.packed_message import put, unpacked
from ..slots.node_memory import FIELD_BYTES, NodeMemory
from .session import SLOTS, Ring, Session


class NodeReceiver:
    """Owns the memory of this node. `receive` may run in a thread of its own, as may `join`, after it.

    Raises TransferBroken, as its methods do.
    """

    def __init__(self, bucket_bytes: int, ranks: int) -> None:
        self.memory = NodeMemory(SLOTS, bucket_bytes, ranks)
        self._arrivals: Arrivals | None = None

    def join(self, session: Session, key: str, address: str) -> None:
        """Join the groups of the trainer ranks that run elsewhere, and of the nodes that relay what those send; `key`
        is this node, `address` its own."""
        self._session = session
        self._board = session.board()
        self._ring = Ring(session, key, self._board)
        self._dtype = getattr(torch, session.plan.dtype)
        self._arrivals = arrivals(session, key, self._board, address)

    @property
    def is_needed(self) -> bool:
        """Whether anything comes over the network."""
        return self._arrivals is not None

    def receive(self, turn: int) -> None:
        """Put one transfer's pieces from elsewhere into the node's slots; `turn` counts the session's transfers."""
        assert self._arrivals is not None, "nothing comes over the network"
        try:
            self._receive(self._arrivals, turn)
        except BaseException as error:
            self._board.end(f"receiver of a node: {error}")
            raise

    @torch.no_grad()
    def _receive(self, arriving: Arrivals, turn: int) -> None:
        plan = self._session.plan
        for index, bucket in enumerate(plan.buckets):
            number = turn * len(plan.buckets) + index
            arriving.begin(index)
            self._ring.await_free(number)
            tensors = self.memory.tensors(number, bucket, plan.dtype)
            for rank, message in arriving.messages(index):
                pieces = plan.pieces[rank][index]
                put(tensors, pieces, unpacked(message, pieces, self._dtype))
                self.memory.write_version(number, rank, bytes(message[:FIELD_BYTES].tolist()))
            self._ring.wrote(number)

    def leave(self) -> None:
        """Leave the session."""
        if self._arrivals is not None:
            self._arrivals.leave()
