"""The group of one trainer rank and the nodes elsewhere that receive its pieces: it broadcasts, they receive.

It is a process group of its own, of processes that share no default group. A broadcast goes along a tree of the
receivers, so that a rank sends few copies, and each node receives each byte once.
"""

from __future__ import annotations

import time
from datetime import timedelta

import torch
from torch._C._distributed_c10d import BroadcastOptions, PrefixStore, ProcessGroupGloo, Store, Work
from torch.distributed import DistError

from .message_board import MessageBoard, TransferBroken

POLL_S = 0.0005
CHECK_S = 0.5  # how often who waits looks whether the transfer was ended

_given_up: list[NetworkGroup] = []
"""Groups that were left with a broadcast under way: to destroy one is to wait for it, and its memory is written to."""


class NetworkGroup:
    """One member of a group. `place` 0 is the trainer rank. Made by all members together. Raises TransferBroken.

    Args:
        store: where the members meet.
        address: of this node, through which the others reach it.
        message_bytes: longest message.
        deadline_s: longest time of one broadcast.
    """

    def __init__(
        self, store: Store, name: str, place: int, members: int, address: str, message_bytes: int, deadline_s: float
    ) -> None:
        _given_up[:] = [group for group in _given_up if group.is_busy]
        options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._devices = [ProcessGroupGloo.create_device(hostname=address)]
        options._timeout = timedelta(seconds=deadline_s)
        self._staged = torch.empty(message_bytes, dtype=torch.uint8)
        self._work: Work | None = None
        try:
            self._group = ProcessGroupGloo(PrefixStore(name, store), place, members, options)
        except (DistError, RuntimeError) as error:
            raise TransferBroken(f"no network group with the trainer: {error}") from error

    def message(self, nbytes: int) -> torch.Tensor:
        """The bytes that the next broadcast sends, or the last one has brought."""
        return self._staged[:nbytes]

    def begin(self, nbytes: int) -> None:
        """Begin to send the message from the trainer rank to all others, who receive into theirs."""
        options = BroadcastOptions()
        options.rootRank, options.rootTensor = 0, 0
        try:
            self._work = self._group.broadcast([self.message(nbytes)], options)  # type: ignore[attr-defined]
        except RuntimeError as error:
            raise TransferBroken(f"a node is gone: {error}") from error

    def wait(self, board: MessageBoard) -> None:
        """Wait for the broadcast's end. Raises TransferBroken, also if the transfer is ended meanwhile."""
        assert self._work is not None, "wait() before begin()"
        looked_s = time.monotonic()
        while not self._work.is_completed():
            time.sleep(POLL_S)
            if time.monotonic() - looked_s >= CHECK_S:
                looked_s = time.monotonic()
                board.check()
        try:
            self._work.wait()
        except RuntimeError as error:
            raise TransferBroken(f"a node is gone: {error}") from error

    @property
    def is_busy(self) -> bool:
        """Whether a broadcast is under way."""
        return self._work is not None and not self._work.is_completed()

    def leave(self) -> None:
        """Keep what a broadcast that is under way needs, until it has ended."""
        if self.is_busy:
            _given_up.append(self)
