"""A group of processes that broadcast to each other: of one trainer rank and the nodes that receive from it, of nodes
that relay, or of all who share a device group.

It is a process group of its own, of processes that share no default group. On a CPU it is gloo's: a broadcast goes
along a tree of the receivers, so that a sender sends few copies, and each node receives each byte once.
"""

from __future__ import annotations

import time
from datetime import timedelta

import torch
from torch._C._distributed_c10d import BroadcastOptions, PrefixStore, ProcessGroupGloo, Store, Work
from torch.distributed import DistError

from ..transfer.message_board import MessageBoard, TransferBroken

POLL_S = 0.0005
CHECK_S = 0.5  # how often who waits looks whether the transfer was ended

_given_up: list[NetworkGroup] = []
"""Groups that were left with a broadcast under way: to destroy one is to wait for it, and its memory is written to."""


class NetworkGroup:
    """Member number `place` of a group of `members`. Made by all members together. Raises TransferBroken.

    Args:
        store: where the members meet.
        name: of the group; unique in the store.
        address: of this node, through which the others reach it.
        deadline_s: longest time of one broadcast.
    """

    def __init__(self, store: Store, name: str, place: int, members: int, address: str, deadline_s: float) -> None:
        _given_up[:] = [group for group in _given_up if group.is_busy]
        options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._devices = [ProcessGroupGloo.create_device(hostname=address)]
        options._timeout = timedelta(seconds=deadline_s)
        self._message: torch.Tensor | None = None
        self._work: Work | None = None
        try:
            self._group = ProcessGroupGloo(PrefixStore(name, store), place, members, options)
        except (DistError, RuntimeError) as error:
            raise TransferBroken(f"no network group with the trainer: {error}") from error

    def begin(self, message: torch.Tensor, root: int = 0) -> None:
        """Begin to send the bytes of `message` from member `root` to all others, who receive into theirs."""
        options = BroadcastOptions()
        options.rootRank, options.rootTensor = root, 0
        self._message = message
        try:
            self._work = self._group.broadcast([message], options)  # type: ignore[attr-defined]
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
