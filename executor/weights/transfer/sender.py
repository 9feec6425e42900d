"""A trainer rank as it sends its pieces: into the memory of its own node, and to the nodes elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from ...trainer.local_tensors import local
from .bucket_plan import Piece
from .message_board import TransferBroken
from .network_group import NetworkGroup
from .node_memory import FIELD_BYTES, NodeMemory, version_field
from .session import SLOTS, Ring, Session

Parameters = Callable[[], Mapping[str, torch.Tensor]]


class Sender:
    """One trainer rank's part in the transfers of one session. Raises TransferBroken, as its methods do.

    No call waits for another trainer rank but through the engines, and no default process group is used: a transfer
    that breaks leaves training as it was.
    """

    def __init__(self, session: Session, rank: int, address: str, parameters: Parameters) -> None:
        self._session, self._rank, self._parameters = session, rank, parameters
        self._dtype = getattr(torch, session.plan.dtype)
        self._pieces = session.plan.pieces[rank]
        self._board = session.board()
        node = session.rank_nodes[rank]
        self._ring: Ring | None = None
        if node in {receiving.key for receiving in session.nodes}:
            self._ring = Ring(session, node, self._board)
            path = session.node(node).memory
            self._memory = NodeMemory(SLOTS, session.plan.largest, len(session.rank_nodes), path)
        remote = session.remote_nodes(rank)
        self._network: NetworkGroup | None = None
        if remote:
            self._network = NetworkGroup(
                self._board.of("groups"), str(rank), 0, 1 + len(remote), address,
                max(packed_bytes(pieces, self._dtype) for pieces in self._pieces), session.deadline_s,
            )  # fmt: skip

    def publish(self, turn: int, version: str) -> None:
        """Send all pieces as the weights `version`; `turn` counts the session's transfers."""
        try:
            self._publish(turn, version_field(version))
        except BaseException as error:
            self._board.end(f"trainer rank {self._rank}: {error}")
            raise

    @torch.no_grad()
    def _publish(self, turn: int, version: bytes) -> None:
        parameters = self._parameters()
        buckets = self._session.plan.buckets
        for index, (bucket, pieces) in enumerate(zip(buckets, self._pieces, strict=True)):
            number = turn * len(buckets) + index
            parts = [self._part(parameters, piece) for piece in pieces]
            if self._ring is not None:
                self._ring.await_free(number)
                tensors = self._memory.tensors(number, bucket, self._session.plan.dtype)
                for piece, part in zip(pieces, parts, strict=True):
                    tensors[piece.tensor].view(piece.shape)[piece.box.slices].copy_(part)
                self._memory.write_version(number, self._rank, version)
                self._ring.wrote(number)
            if self._network is not None:
                size = packed_bytes(pieces, self._dtype)
                message = self._network.message(size)
                message[:FIELD_BYTES] = torch.frombuffer(bytearray(version), dtype=torch.uint8)
                for place, part in zip(unpacked(message, pieces, self._dtype), parts, strict=True):
                    place.copy_(part)
                self._network.begin(size)
                self._network.wait(self._board)

    def leave(self) -> None:
        """Leave the session."""
        if self._network is not None:
            self._network.leave()

    def _part(self, parameters: Mapping[str, torch.Tensor], piece: Piece) -> torch.Tensor:
        held = local(parameters[piece.parameter].detach())
        part = held[piece.local.slices]
        if part.shape != piece.local.shape:
            raise TransferBroken(f"{piece.parameter} is not cut over the ranks as it was when the session began")
        return part


def packed_bytes(pieces: tuple[Piece, ...], dtype: torch.dtype) -> int:
    """Bytes of the message with which a rank sends its pieces of one bucket: the version, and the elements."""
    return FIELD_BYTES + sum(piece.box.numel for piece in pieces) * dtype.itemsize


def unpacked(message: torch.Tensor, pieces: tuple[Piece, ...], dtype: torch.dtype) -> list[torch.Tensor]:
    """The pieces in a message, in its memory, each of the shape of its box."""
    made, first = [], FIELD_BYTES
    for piece in pieces:
        last = first + piece.box.numel * dtype.itemsize
        made.append(message[first:last].view(dtype).view(piece.box.shape))
        first = last
    return made
