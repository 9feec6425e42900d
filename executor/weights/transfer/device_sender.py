"""A trainer rank as it sends its pieces to others on GPUs, and fills the slots of an engine rank on its own GPU."""

from __future__ import annotations

import torch

from ..network.group_arrivals import GroupArrivals
from ..network.packed_message import pack
from ..slots.device_slots import device_slots, exported
from ..slots.slot_memory import SlotMemory, version_field
from .filling import Filling
from .message_board import TransferBroken
from .sender import Parameters, held_parts
from .session import SLOTS, Ring, Session


class DeviceSender:
    """One trainer rank's part in the transfers of one session on devices. Raises TransferBroken, as its methods do.

    As in `Sender`, no default process group is used: a transfer that breaks leaves training as it was. With slots `ipc`
    a rank whose device has an engine rank makes the slots there, and leaves their handle at the board. Between two
    transfers it holds nothing on the device: training needs the room.
    """

    def __init__(self, session: Session, rank: int, address: str, parameters: Parameters, device: torch.device) -> None:
        self._session, self._rank, self._parameters, self._device = session, rank, parameters, device
        self._dtype = getattr(torch, session.plan.dtype)
        self._board = session.board()
        self._key = session.rank_devices[rank]
        self._ring: Ring | None = None
        if session.slots == "ipc" and self._key in {node.key for node in session.nodes}:
            self._ring = Ring(session, self._key, self._board)
        self._arriving = GroupArrivals(session, rank, self._board, address, device)

    def publish(self, turn: int, version: str) -> None:
        """Send all pieces as the weights `version`; `turn` counts the session's transfers."""
        try:
            self._publish(turn, version_field(version))
        except BaseException as error:
            self._board.end(f"trainer rank {self._rank}: {error}")
            if isinstance(error, RuntimeError) and not isinstance(error, TransferBroken):
                raise TransferBroken(f"trainer rank {self._rank}: {error}") from error
            raise

    @torch.no_grad()
    def _publish(self, turn: int, version: bytes) -> None:
        parameters, plan = self._parameters(), self._session.plan
        memory: SlotMemory | None = None
        if self._ring is not None:
            memory = device_slots(self._device, SLOTS, plan.largest, len(self._session.rank_nodes))
            self._board.tell(handle_key(self._key, turn), exported(memory))
        filling = Filling(self._session, self._arriving, memory, self._ring)
        for index, pieces in enumerate(plan.pieces[self._rank]):
            own = self._arriving.own(index)
            pack(own, version, pieces, held_parts(parameters, pieces), self._dtype)
            filling.fill(turn, index)
        if self._ring is not None:
            self._ring.await_read((turn + 1) * len(plan.buckets) - 1)  # then the memory goes

    def leave(self) -> None:
        """Leave the session."""
        self._arriving.leave()


def handle_key(device: str, turn: int) -> str:
    """Under what the handle of a transfer's slots on a device stands at the board."""
    return f"handle/{device}/{turn}"
