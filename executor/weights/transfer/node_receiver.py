"""The part of a node's receiving that is done once for all of its engines: its memory, and what the network brings."""

from __future__ import annotations

import torch

from .network_group import NetworkGroup
from .node_memory import FIELD_BYTES, NodeMemory
from .sender import packed_bytes, unpacked
from .session import SLOTS, Ring, Session


class NodeReceiver:
    """Owns the memory of this node. `receive` may run in a thread of its own, as may `join`, after it.

    Raises TransferBroken, as its methods do.
    """

    def __init__(self, bucket_bytes: int, ranks: int) -> None:
        self.memory = NodeMemory(SLOTS, bucket_bytes, ranks)

    def join(self, session: Session, key: str, address: str) -> None:
        """Join the groups of the trainer ranks that run elsewhere; `key` is this node, `address` its own."""
        self._session = session
        self._board = session.board()
        self._ring = Ring(session, key, self._board)
        self._dtype = getattr(torch, session.plan.dtype)
        self._groups: dict[int, NetworkGroup] = {}
        for rank in range(len(session.rank_nodes)):
            remote = session.remote_nodes(rank)
            if key in remote:
                most = max(packed_bytes(pieces, self._dtype) for pieces in session.plan.pieces[rank])
                self._groups[rank] = NetworkGroup(
                    self._board.of("groups"), str(rank), 1 + remote.index(key), 1 + len(remote), address, most,
                    session.deadline_s,
                )  # fmt: skip

    @property
    def is_needed(self) -> bool:
        """Whether anything comes over the network."""
        return bool(self._groups)

    def receive(self, turn: int) -> None:
        """Put one transfer's pieces from elsewhere into the node's slots; `turn` counts the session's transfers."""
        try:
            self._receive(turn)
        except BaseException as error:
            self._board.end(f"receiver of a node: {error}")
            raise

    @torch.no_grad()
    def _receive(self, turn: int) -> None:
        plan = self._session.plan
        for index, bucket in enumerate(plan.buckets):
            number = turn * len(plan.buckets) + index
            sizes = {rank: packed_bytes(plan.pieces[rank][index], self._dtype) for rank in self._groups}
            for rank, group in self._groups.items():
                group.begin(sizes[rank])
            self._ring.await_free(number)
            tensors = self.memory.tensors(number, bucket, plan.dtype)
            for rank, group in self._groups.items():
                group.wait(self._board)
                message, pieces = group.message(sizes[rank]), plan.pieces[rank][index]
                for piece, part in zip(pieces, unpacked(message, pieces, self._dtype), strict=True):
                    tensors[piece.tensor].view(piece.shape)[piece.box.slices].copy_(part)
                self.memory.write_version(number, rank, bytes(message[:FIELD_BYTES].tolist()))
            self._ring.wrote(number)

    def leave(self) -> None:
        """Leave the session."""
        for group in self._groups.values():
            group.leave()
