"""One party that fills slots: it puts the messages that arrive into the slot of their bucket, and tells the ring."""

from __future__ import annotations

import torch

from ..network.arrivals import Arrivals
from ..network.packed_message import put, unpacked
from ..slots.slot_memory import FIELD_BYTES, SlotMemory
from .session import Ring, Session


class Filling:
    """Fills `memory` from `arriving`. Without `memory` and `ring` messages are let pass: others fill from them."""

    def __init__(self, session: Session, arriving: Arrivals, memory: SlotMemory | None, ring: Ring | None) -> None:
        self._plan, self._arriving, self._memory, self._ring = session.plan, arriving, memory, ring
        self._dtype = getattr(torch, session.plan.dtype)

    @torch.no_grad()
    def fill(self, turn: int, index: int) -> None:
        """Fill the slot of bucket `index` in transfer number `turn` when it is free. Raises TransferBroken."""
        plan, number = self._plan, turn * len(self._plan.buckets) + index
        self._arriving.begin(index)
        tensors: list[torch.Tensor] = []
        if self._memory is not None and self._ring is not None:
            self._ring.await_free(number)
            tensors = self._memory.tensors(number, plan.buckets[index], plan.dtype)
        for rank, message in self._arriving.messages(index):
            if self._memory is not None:
                pieces = plan.pieces[rank][index]
                put(tensors, pieces, unpacked(message, pieces, self._dtype))
                self._memory.write_version(number, rank, bytes(message[:FIELD_BYTES].tolist()))
        if self._memory is not None and self._ring is not None:
            self._memory.settle()
            self._ring.wrote(number)
