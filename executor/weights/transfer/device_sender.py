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
    a rank whose device has an engine rank makes the slots there, and leaves their handle at the board.
    """

    def __init__(self, session: Session, rank: int, address: str, parameters: Parameters, device: torch.device) -> None:
        self._session, self._rank, self._parameters = session, rank, parameters
        self._dtype = getattr(torch, session.plan.dtype)
        self._board = session.board()
        key = session.rank_devices[rank]
        memory: SlotMemory | None = None
        ring: Ring | None = None
        if session.slots == "ipc" and key in {node.key for node in session.nodes}:
            memory = device_slots(device, SLOTS, session.plan.largest, len(session.rank_nodes))
            ring = Ring(session, key, self._board)
            self._board.tell(handle_key(key), exported(memory))
        self._arriving = GroupArrivals(session, rank, self._board, address, device)
        self._filling = Filling(session, self._arriving, memory, ring)

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
        parameters = self._parameters()
        for index, pieces in enumerate(self._session.plan.pieces[self._rank]):
            pack(self._arriving.own(index), version, pieces, held_parts(parameters, pieces), self._dtype)
            self._filling.fill(turn, index)

    def leave(self) -> None:
        """Leave the session."""
        self._arriving.leave()


def handle_key(device: str) -> str:
    """Under what the handle of the slots on a device stands at the board."""
    return f"handle/{device}"
