"""An engine rank as it reads weights from the memory of its node, bucket by bucket, and hands them to vLLM."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import torch

from ..slots.node_memory import NodeMemory
from .message_board import TransferBroken
from .session import SLOTS, Ring, Session


class OtherVersion(Exception):
    """The bytes of a bucket are of another version than the engine was told; `found` names it."""

    def __init__(self, found: str) -> None:
        super().__init__(found)
        self.found = found


class BucketReader:
    """One engine rank's part in the transfers of one session, on the session's first node. Raises TransferBroken."""

    def __init__(self, session: Session) -> None:
        self._session = session
        node = session.nodes[0]
        self._board = session.board()
        self._ring = Ring(session, node.key, self._board)
        self._memory = NodeMemory(SLOTS, session.plan.largest, len(session.rank_nodes), node.memory)
        self._copies = False

    def await_first(self, turn: int, version: str) -> None:
        """Wait for the first bucket of a transfer. Raises TransferBroken, OtherVersion."""
        self._await(turn * len(self._session.plan.buckets), version)

    def end(self, why: str) -> None:
        """End the transfer for all parties."""
        self._board.end(why)

    def tensors(self, turn: int, version: str) -> Iterator[tuple[str, torch.Tensor]]:
        """Name and values of each tensor, in the memory of the node. Raises TransferBroken, OtherVersion.

        Before a bucket's memory is given back, what the caller still holds of it is copied; vLLM keeps the tensors of a
        layer until it has all of them.
        """
        plan = self._session.plan
        for index, bucket in enumerate(plan.buckets):
            number = turn * len(plan.buckets) + index
            self._await(number, version)
            tensors = self._memory.tensors(number, bucket, plan.dtype)
            for place, placed in enumerate(bucket.tensors):
                if self._copies:
                    tensors[place] = tensors[place].clone()
                yield placed.name, tensors[place]
            if not self._copies:
                self._detach(tensors)
            del tensors
            self._ring.has_read(number)

    def _await(self, number: int, version: str) -> None:
        self._ring.await_written(number)
        for rank in range(len(self._session.rank_nodes)):
            found = self._memory.version(number, rank)
            if found != version:
                raise OtherVersion(found)

    def _detach(self, tensors: list[torch.Tensor]) -> None:
        """Give tensors that others hold memory of their own."""
        while tensors:
            tensor = tensors.pop()
            if _users(tensor) > _USERS_OF_ONE:
                # A view keeps the old memory whatever its tensor gets.
                self._copies = True
                raise TransferBroken("the model keeps views of tensors; they are received again as copies")
            if sys.getrefcount(tensor) > _NOT_HELD:
                tensor.data = tensor.clone()


def _users(tensor: torch.Tensor) -> int:
    """How many tensors use the memory of this one, itself included, as torch counts."""
    return int(torch._C._storage_Use_Count(tensor.untyped_storage()._cdata))


def _references_of_one() -> int:
    """How Python counts the references to a tensor that one variable holds."""
    tensor = torch.empty(1)
    return sys.getrefcount(tensor)


_USERS_OF_ONE = _users(torch.empty(1))
_NOT_HELD = _references_of_one()
