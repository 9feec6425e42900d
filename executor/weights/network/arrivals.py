"""What the network brings to one node: for each bucket the messages of the trainer ranks elsewhere.

Buckets arrive in order: `begin(index)`, then `messages(index)`, for each bucket of a transfer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch

from ..transfer.message_board import MessageBoard
from ..transfer.session import Session
from .network_group import NetworkGroup
from .packed_message import packed_bytes
from .routes import Route


class Arrivals(Protocol):
    """Messages of some trainer ranks; see the module. All methods raise TransferBroken."""

    def begin(self, index: int) -> None:
        """Begin to receive the messages of bucket `index`, unless that has begun."""

    def messages(self, index: int) -> Iterator[tuple[int, torch.Tensor]]:
        """Rank and message of each rank, whose memory is used again with the next one and the next bucket."""

    def leave(self) -> None:
        """Leave the groups."""


def arrivals(session: Session, key: str, board: MessageBoard, address: str) -> Arrivals | None:
    """What the network brings to the node `key`, whose address is `address`; None: nothing. Made by all parties at
    once. Raises TransferBroken."""
    found: dict[int, tuple[Route, NetworkGroup]] = {}
    for rank in range(len(session.rank_nodes)):
        for route in session.routes(rank):
            if key in route.nodes:
                place, members = 1 + route.nodes.index(key), 1 + len(route.nodes)
                store = board.of("groups")
                found[rank] = route, NetworkGroup(store, route.name, place, members, address, session.deadline_s)
    if not found:
        return None
    if all(route.parts == 1 for route, _ in found.values()):
        return DirectArrivals(session, board, {rank: group for rank, (_, group) in found.items()})
    return RelayedArrivals(session, key, board, address, {rank: group for rank, (_, group) in found.items()})


def message_sizes(session: Session, rank: int) -> list[int]:
    """Bytes of the message of a rank for each bucket."""
    dtype = getattr(torch, session.plan.dtype)
    return [packed_bytes(pieces, dtype) for pieces in session.plan.pieces[rank]]


class DirectArrivals:
    """Messages that each rank of `groups` broadcasts whole."""

    def __init__(self, session: Session, board: MessageBoard, groups: dict[int, NetworkGroup]) -> None:
        self._board, self._groups = board, groups
        self._sizes = {rank: message_sizes(session, rank) for rank in groups}
        self._received = {rank: torch.empty(max(sizes), dtype=torch.uint8) for rank, sizes in self._sizes.items()}

    def begin(self, index: int) -> None:
        """See Arrivals."""
        for rank, group in self._groups.items():
            group.begin(self._message(rank, index))

    def messages(self, index: int) -> Iterator[tuple[int, torch.Tensor]]:
        """See Arrivals."""
        for rank, group in self._groups.items():
            group.wait(self._board)
            yield rank, self._message(rank, index)

    def _message(self, rank: int, index: int) -> torch.Tensor:
        return self._received[rank][: self._sizes[rank][index]]

    def leave(self) -> None:
        """See Arrivals."""
        for group in self._groups.values():
            group.leave()


class RelayedArrivals:
    """Messages of which each node takes one part from the ranks (`groups`) and the others from the nodes like it.

    This node's parts of all ranks' messages of a bucket lie one after another, and are passed on at once. While they
    are, its parts of the next bucket come over the slow link.
    """

    def __init__(
        self, session: Session, key: str, board: MessageBoard, address: str, groups: dict[int, NetworkGroup]
    ) -> None:
        self._board, self._groups = board, groups
        self._routes = session.relays()
        nodes = session.relaying_nodes()
        self._own = nodes.index(key)
        self._relays = []
        for part, route in enumerate(self._routes):
            members = (nodes[part], *route.nodes)
            group = NetworkGroup(
                board.of("groups"), route.name, members.index(key), len(members), address, session.deadline_s
            )
            self._relays.append(group)
        self._sizes = {rank: message_sizes(session, rank) for rank in groups}
        self._buckets = len(session.plan.buckets)
        room = [max(self._total(part, index) for index in range(self._buckets)) for part in range(len(nodes))]
        self._parts = [torch.empty(size, dtype=torch.uint8) for size in room]
        self._next_own = torch.empty(room[self._own], dtype=torch.uint8)
        self._whole = torch.empty(max(map(max, self._sizes.values())), dtype=torch.uint8)
        self._ahead: int | None = None

    def begin(self, index: int) -> None:
        """See Arrivals."""
        if self._ahead != index:
            self._begin_own(index)
        self._ahead = None
        self._parts[self._own], self._next_own = self._next_own, self._parts[self._own]

    def _begin_own(self, index: int) -> None:
        """Begin to receive this node's parts of a bucket into the memory for the next ones."""
        for rank, span in self._spans(self._own, index).items():
            if span.stop > span.start:
                self._groups[rank].begin(self._next_own[span])

    def messages(self, index: int) -> Iterator[tuple[int, torch.Tensor]]:
        """See Arrivals."""
        for rank, span in self._spans(self._own, index).items():
            if span.stop > span.start:
                self._groups[rank].wait(self._board)
        if index + 1 < self._buckets:
            self._begin_own(index + 1)
            self._ahead = index + 1
        # Those of no bytes are no broadcasts; all nodes know them from the plan.
        passed = [part for part in range(len(self._parts)) if self._total(part, index)]
        for part in passed:
            self._relays[part].begin(self._parts[part][: self._total(part, index)])
        for part in passed:
            self._relays[part].wait(self._board)
        spans = [self._spans(part, index) for part in range(len(self._parts))]
        for rank, sizes in self._sizes.items():
            message = self._whole[: sizes[index]]
            for part, route in enumerate(self._routes):
                message[route.span(sizes[index])] = self._parts[part][spans[part][rank]]
            yield rank, message

    def _spans(self, part: int, index: int) -> dict[int, slice]:
        """Where each rank's part number `part` of its message lies among those of all ranks."""
        found, first = {}, 0
        for rank, sizes in self._sizes.items():
            span = self._routes[part].span(sizes[index])
            found[rank] = slice(first, first + span.stop - span.start)
            first = found[rank].stop
        return found

    def _total(self, part: int, index: int) -> int:
        return int(max(span.stop for span in self._spans(part, index).values()))

    def leave(self) -> None:
        """See Arrivals."""
        for group in [*self._groups.values(), *self._relays]:
            group.leave()
