"""A trainer rank as it sends its pieces: into the memory of its own node, and to the nodes elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from ...trainer.policy.local_tensors import local
from ..network.arrivals import message_sizes
from ..network.network_group import NetworkGroup
from ..network.packed_message import pack, put
from ..slots.node_memory import NodeMemory
from ..slots.slot_memory import version_field
from .bucket_plan import Piece
from .message_board import TransferBroken
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
        store, deadline_s = self._board.of("groups"), session.deadline_s
        self._routes = [
            (route, NetworkGroup(store, route.name, 0, 1 + len(route.nodes), address, deadline_s))
            for route in session.routes(rank)
        ]
        self._sizes = message_sizes(session, rank)
        self._message = torch.empty(max(self._sizes) if self._routes else 0, dtype=torch.uint8)

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
            parts = held_parts(parameters, pieces)
            if self._ring is not None:
                self._ring.await_free(number)
                tensors = self._memory.tensors(number, bucket, self._session.plan.dtype)
                put(tensors, pieces, parts)
                self._memory.write_version(number, self._rank, version)
                self._ring.wrote(number)
            if self._routes:
                self._broadcast(self._message[: self._sizes[index]], version, pieces, parts)

    def _broadcast(
        self, message: torch.Tensor, version: bytes, pieces: tuple[Piece, ...], parts: list[torch.Tensor]
    ) -> None:
        """Send the pieces of one bucket on all routes at once."""
        pack(message, version, pieces, parts, self._dtype)
        sent = []
        for route, group in self._routes:
            part = message[route.span(len(message))]
            if len(part):
                group.begin(part)
                sent.append(group)
        for group in sent:
            group.wait(self._board)

    def leave(self) -> None:
        """Leave the session."""
        for _, group in self._routes:
            group.leave()


def held_parts(parameters: Mapping[str, torch.Tensor], pieces: Sequence[Piece]) -> list[torch.Tensor]:
    """What this rank holds of some pieces, in their order. Raises TransferBroken if it holds other boxes by now."""
    parts = []
    for piece in pieces:
        parts.append(local(parameters[piece.parameter].detach())[piece.local.slices])
        if parts[-1].shape != piece.local.shape:
            raise TransferBroken(f"{piece.parameter} is not cut over the ranks as it was when the session began")
    return parts
