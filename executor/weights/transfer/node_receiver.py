"""Parties that receive weights and fill slots: one for all engines of a node, or one in each engine rank on a GPU."""

from __future__ import annotations

import torch

from ..network.arrivals import Arrivals, arrivals
from ..network.group_arrivals import GroupArrivals
from ..slots.device_slots import device_slots
from ..slots.node_memory import NodeMemory
from ..slots.slot_memory import SlotMemory
from .filling import Filling
from .message_board import MessageBoard, TransferBroken
from .session import SLOTS, Ring, Session


class Receiver:
    """Fills slots with what arrives; `receive` may run in a thread of its own. Raises TransferBroken."""

    def __init__(self, session: Session, board: MessageBoard, arriving: Arrivals, memory: SlotMemory, key: str) -> None:
        self._buckets, self._board, self._arriving = len(session.plan.buckets), board, arriving
        self._filling = Filling(session, arriving, memory, Ring(session, key, board))

    def receive(self, turn: int) -> None:
        """Put one transfer's pieces from elsewhere into the slots; `turn` counts the session's transfers."""
        try:
            for index in range(self._buckets):
                self._filling.fill(turn, index)
        except BaseException as error:
            self._board.end(f"receiver of a node: {error}")
            if isinstance(error, RuntimeError) and not isinstance(error, TransferBroken):
                raise TransferBroken(f"receiver of a node: {error}") from error
            raise

    def leave(self) -> None:
        """Leave the session."""
        self._arriving.leave()


class NodeReceiver:
    """Owns the memory of this node. `receive` may run in a thread of its own, as may `join`, after it.

    Raises TransferBroken, as its methods do.
    """

    def __init__(self, bucket_bytes: int, ranks: int) -> None:
        self.memory = NodeMemory(SLOTS, bucket_bytes, ranks)
        self._receiver: Receiver | None = None

    def join(self, session: Session, key: str, address: str) -> None:
        """Join the groups of the trainer ranks that run elsewhere, and of the nodes that relay what those send; `key`
        is this node, `address` its own."""
        board = session.board()
        arriving = arrivals(session, key, board, address)
        if arriving is not None:
            self._receiver = Receiver(session, board, arriving, self.memory, key)

    @property
    def is_needed(self) -> bool:
        """Whether anything comes over the network."""
        return self._receiver is not None

    def receive(self, turn: int) -> None:
        """Put one transfer's pieces from elsewhere into the node's slots; `turn` counts the session's transfers."""
        assert self._receiver is not None, "nothing comes over the network"
        self._receiver.receive(turn)

    def leave(self) -> None:
        """Leave the session."""
        if self._receiver is not None:
            self._receiver.leave()


class DeviceReceiver:
    """Owns slots on the device of one engine rank, which receives for itself. Raises TransferBroken, as `receive`."""

    def __init__(self, session: Session, key: str, address: str, device: torch.device) -> None:
        self._device = device
        board = session.board()
        try:
            self.memory = device_slots(device, SLOTS, session.plan.largest, len(session.rank_nodes))
        except TransferBroken as broken:
            board.end(str(broken))  # the others wait for this one to join
            raise
        arriving = GroupArrivals(session, session.place_of(key), board, address, device)
        self._receiver = Receiver(session, board, arriving, self.memory, key)

    def receive(self, turn: int) -> None:
        """Fill the slots of one transfer; runs in a thread of its own."""
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)  # of this thread
        self._receiver.receive(turn)

    def leave(self) -> None:
        """Leave the session."""
        self._receiver.leave()
