"""Messages of all trainer ranks in one group: of these ranks alone, or of them and engine ranks."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ..slots.slot_memory import FIELD_BYTES
from ..transfer.message_board import MessageBoard
from ..transfer.session import Session
from .arrivals import message_sizes
from .network_group import NetworkGroup, connected_group


class GroupArrivals:
    """Arrivals (see there) at member `place` of the group of a session on devices; trainer ranks come first.

    Each rank broadcasts to all members, one rank after another: NCCL has one group for all, and a chain of broadcasts
    takes each byte to each node once. A member that is a rank has its own message too, which it packs into `own`.
    Made by all members at once. Raises TransferBroken.
    """

    def __init__(self, session: Session, place: int, board: MessageBoard, address: str, device: torch.device) -> None:
        self._board, self._place = board, place
        self._sizes = [message_sizes(session, rank) for rank in range(len(session.rank_nodes))]
        members = session.members
        self._group: NetworkGroup | None = None
        self._device = device
        self._own = torch.empty(0, dtype=torch.uint8, device=device)
        if members > 1:
            own, deadline_s = session.board(), session.deadline_s

            def connect() -> NetworkGroup:
                return NetworkGroup(own.of("groups"), "all", place, members, address, deadline_s, device)

            try:
                self._group = connected_group(connect, self._message(FIELD_BYTES), board, deadline_s)
            except BaseException as error:
                board.end(f"member {place} of the group: {error}")  # else the others wait for it to the deadline
                raise

    def own(self, index: int) -> torch.Tensor:
        """This rank's message for bucket `index`, to be packed before `messages`."""
        self._own = self._message(self._sizes[self._place][index])
        return self._own

    def _message(self, nbytes: int) -> torch.Tensor:
        """Memory for a message, which is given back with it: torch keeps it at hand on devices."""
        return torch.empty(nbytes, dtype=torch.uint8, device=self._device)

    def begin(self, index: int) -> None:
        """See Arrivals: nothing begins before its turn."""

    def messages(self, index: int) -> Iterator[tuple[int, torch.Tensor]]:
        """See Arrivals."""
        received = self._message(max(sizes[index] for sizes in self._sizes))
        for rank, sizes in enumerate(self._sizes):
            message = self._own if rank == self._place else received[: sizes[index]]
            if self._group is not None:
                self._group.begin(message, rank)
                self._group.wait(self._board)
            yield rank, message
        self._own = self._own[:0].clone()

    def leave(self) -> None:
        """See Arrivals."""
        if self._group is not None:
            self._group.leave()
