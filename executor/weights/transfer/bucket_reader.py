"""An engine rank as it reads weights from the memory of its node, bucket by bucket, and hands them to vLLM."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from ..slots.device_slots import opened_slots
from ..slots.node_memory import NodeMemory
from ..slots.slot_memory import SlotMemory
from .device_sender import handle_key
from .message_board import TransferBroken
from .node_receiver import DeviceReceiver
from .session import SLOTS, RankAnswer, Ring, Session, session_of_reader


class OtherVersion(Exception):
    """The bytes of a bucket are of another version than the engine was told; `found` names it."""

    def __init__(self, found: str) -> None:
        super().__init__(found)
        self.found = found


class ReaderPlace(NamedTuple):
    """Where an engine rank is: UUID of its device, that device, and the address of its node, which gloo needs."""

    key: str
    device: torch.device
    address: str = "127.0.0.1"


class BucketReader:
    """One engine rank's part in the transfers of one session. Raises TransferBroken.

    Args:
        session: as `Session.for_reader` tells of it.
        at: where this rank is, if slots are on devices; None: slots are those of the session's first node.
    """

    def __init__(self, session: Session, at: ReaderPlace | None = None) -> None:
        self._session = session
        self._board = session.board()
        key = session.nodes[0].key if session.slots == "host" or at is None else at.key
        self._ring = Ring(session, key, self._board)
        self._receiver: DeviceReceiver | None = None
        self._receiving: threading.Thread | None = None
        if session.slots == "nccl":
            assert at is not None, "slots on devices have a place"
            self._receiver = DeviceReceiver(session, key, at.address, at.device)
        self._at = at
        self._memory = self._slots()
        self._copies = False

    def _slots(self) -> SlotMemory | None:
        """The slots of all transfers; None: each transfer has its own."""
        session = self._session
        if self._receiver is not None:
            return self._receiver.memory
        return None if session.slots == "ipc" else NodeMemory(*self._room(), session.nodes[0].memory)

    def _room(self) -> tuple[int, int, int]:
        return SLOTS, self._session.plan.largest, len(self._session.rank_nodes)

    def await_first(self, turn: int, version: str) -> None:
        """Wait for the first bucket of a transfer. Raises TransferBroken, OtherVersion."""
        if self._receiver is not None:
            # What breaks it it tells all by the board. It ends with the transfer, so the one before has ended.
            self._receiving = threading.Thread(target=_quietly, args=(self._receiver, turn), daemon=True)
            self._receiving.start()
        if self._session.slots == "ipc":
            assert self._at is not None, "slots on devices have a place"
            handle = self._board.hear(handle_key(self._at.key, turn), "the handle of the trainer's buffer")
            self._memory = opened_slots(self._at.device, *self._room(), handle)
        self._await(turn * len(self._session.plan.buckets), version)

    def leave(self) -> None:
        """Leave the session."""
        if self._receiver is not None:
            self._receiver.leave()

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
            memory = self._await(number, version)
            copies = self._copies or memory.copies
            tensors = memory.tensors(number, bucket, plan.dtype)
            for place, placed in enumerate(bucket.tensors):
                if copies:
                    tensors[place] = tensors[place].clone()
                yield placed.name, tensors[place]
            if not copies:
                self._detach(tensors)
            del tensors
            memory.settle()
            self._ring.has_read(number)
        if self._session.slots == "ipc":
            self._memory = None  # the trainer needs the room

    def _await(self, number: int, version: str) -> SlotMemory:
        assert self._memory is not None, "await_first() comes first"
        self._ring.await_written(number)
        for rank in range(len(self._session.rank_nodes)):
            found = self._memory.version(number, rank)
            if found != version:
                raise OtherVersion(found)
        return self._memory

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


class ReaderRank:
    """The part of an engine rank in transfers. `load` gives tensors to vLLM, `reset` undoes a load that broke off;
    `at` says where the rank is."""

    def __init__(self, load: Callable[[Any], None], reset: Callable[[], None], at: ReaderPlace) -> None:
        self._load, self._reset, self._at = load, reset, at
        self._readers: dict[str, BucketReader] = {}

    def open(self, text: str) -> str | None:
        """Join a session; returns why it could not."""
        session = session_of_reader(text)
        try:
            self._readers[session.name] = BucketReader(session, self._at)
        except RuntimeError as error:
            return session.why_not_joined(error)
        return None

    def receive(self, name: str, turn: int, version: str, checksum: Callable[[Any], str] | None) -> RankAnswer:
        """Load the weights of transfer number `turn`, unless they are of another version than `version`."""
        reader, sums = self._readers.get(name), dict[str, str]()
        if reader is None:
            return RankAnswer(version, sums, f"an engine is in no session {name}")

        def tensors() -> Any:
            for tensor_name, tensor in reader.tensors(turn, version):
                if checksum is not None:
                    sums[tensor_name] = checksum(tensor)
                yield tensor_name, tensor
                del tensor  # who holds it is counted

        try:
            reader.await_first(turn, version)
            try:
                self._load(tensors())
            except BaseException:
                self._reset()
                raise
        except OtherVersion as other:
            return RankAnswer(other.found, {})
        except TransferBroken as broken:
            reader.end(str(broken))
            return RankAnswer(version, {}, str(broken))
        return RankAnswer(version, sums)

    def leave(self, name: str) -> None:
        """Leave a session, if this rank is in it."""
        reader = self._readers.pop(name, None)
        if reader is not None:
            reader.leave()


def _quietly(receiver: DeviceReceiver, turn: int) -> None:
    with contextlib.suppress(TransferBroken):
        receiver.receive(turn)


def _users(tensor: torch.Tensor) -> int:
    """How many tensors use the memory of this one, itself included, as torch counts."""
    return int(torch._C._storage_Use_Count(tensor.untyped_storage()._cdata))


def _references_of_one() -> int:
    """How Python counts the references to a tensor that one variable holds."""
    tensor = torch.empty(1)
    return sys.getrefcount(tensor)


_USERS_OF_ONE = _users(torch.empty(1))
_NOT_HELD = _references_of_one()
