"""A group of processes that broadcast to each other: of one trainer rank and the nodes that receive from it, of nodes
that relay, or of the trainer's ranks and engine ranks on GPUs.

It is a process group of its own, of processes that share no default group. Messages in host memory go over gloo: along
a binomial tree, so that a sender sends ceil(log2(N + 1)) copies to N receivers (measured: 2 to 3, 4 to 8), receivers
pass theirs on, and each node receives each byte once. Messages on GPUs go over NCCL, along a chain of the nodes. The
NCCL part has never been run: no GPU was at hand when it was written.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import BroadcastOptions, PrefixStore, ProcessGroupGloo, Store, Work
from torch.distributed import DistError

from ..transfer.message_board import MessageBoard, TransferBroken

POLL_S = 0.0005
CHECK_S = 0.5  # how often who waits looks whether the transfer was ended

HOST = torch.device("cpu")

CALM = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "TORCH_NCCL_ENABLE_MONITORING": "0"}
"""Without these, torch ends the process of every member when one of a group's members dies; it reads them when a group
is made. Here whoever waits looks whether the transfer was ended, and leaves it."""

_given_up: list[NetworkGroup] = []
"""Groups that were left with a broadcast under way: to destroy one is to wait for it, and its memory is written to."""


class NetworkGroup:
    """Member number `place` of a group of `members`. Made by all members together. Raises TransferBroken.

    Args:
        store: where the members meet.
        name: of the group; unique in the store.
        address: of this node, through which the others reach it.
        deadline_s: longest time of one broadcast.
        device: on which messages are.
    """

    def __init__(
        self,
        store: Store,
        name: str,
        place: int,
        members: int,
        address: str,
        deadline_s: float,
        device: torch.device = HOST,
    ) -> None:
        _given_up[:] = [group for group in _given_up if group.is_busy]
        self._message: torch.Tensor | None = None
        self._work: Work | None = None
        self._deadline_s = deadline_s
        own = PrefixStore(name, store)
        try:
            if device.type == "cuda":
                self._group: Any = _nccl(own, place, members, deadline_s)
            else:
                options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
                options._devices = [ProcessGroupGloo.create_device(hostname=address)]
                options._timeout = timedelta(seconds=deadline_s)
                self._group = ProcessGroupGloo(own, place, members, options)
        except (DistError, RuntimeError) as error:
            raise TransferBroken(f"no network group with the trainer: {error}") from error

    def begin(self, message: torch.Tensor, root: int = 0) -> None:
        """Begin to send the bytes of `message` from member `root` to all others, who receive into theirs."""
        options = BroadcastOptions()
        options.rootRank, options.rootTensor, options.asyncOp = root, 0, True
        self._message = message
        try:
            self._work = self._group.broadcast([message], options)
        except RuntimeError as error:
            raise TransferBroken(f"a node is gone: {error}") from error

    def wait(self, board: MessageBoard) -> None:
        """Wait for the broadcast's end. Raises TransferBroken, also if the transfer is ended meanwhile."""
        assert self._work is not None, "wait() before begin()"
        until(self._work.is_completed, board, self._deadline_s)
        try:
            self._work.wait()
        except RuntimeError as error:
            raise TransferBroken(f"a node is gone: {error}") from error
        self._message = None

    @property
    def is_busy(self) -> bool:
        """Whether a broadcast is under way."""
        return self._work is not None and not self._work.is_completed()

    def leave(self) -> None:
        """Keep what a broadcast that is under way needs, until it has ended."""
        if self.is_busy:
            _given_up.append(self)
        abort = getattr(self._group, "abort", None)
        if not isinstance(self._group, ProcessGroupGloo) and abort is not None:
            # Ends a kernel that waits for a member that is gone; it may take its time.
            threading.Thread(target=abort, daemon=True, name="abort a group").start()


def until(done: Callable[[], bool], board: MessageBoard, deadline_s: float) -> None:
    """Wait until `done`. Raises TransferBroken after the deadline, and if the transfer is ended meanwhile."""
    began = looked = time.monotonic()
    while not done():
        time.sleep(POLL_S)
        now = time.monotonic()
        if now - looked >= CHECK_S:
            looked = now
            board.check()
        if now - began > deadline_s + CHECK_S:  # gloo gives up by itself, and says for what
            raise TransferBroken(f"a broadcast took more than {deadline_s:.0f} s")


def connected_group(
    connect: Callable[[], NetworkGroup], message: torch.Tensor, board: MessageBoard, deadline_s: float
) -> NetworkGroup:
    """The group that `connect` makes, over which member 0 has sent a first message. Raises TransferBroken.

    Members meet in it, NCCL's with the first broadcast, and each waits for all others, so it is done in a thread, which
    is left alone if the transfer is ended. `connect` must not use `board`: a store's client serves one at a time.
    """
    made: list[NetworkGroup] = []
    faults: list[Exception] = []

    def join() -> None:
        try:
            if message.device.type == "cuda":
                torch.cuda.set_device(message.device)
            made.append(connect())
            made[0].begin(message)
        except Exception as error:  # noqa: BLE001 - raised below
            faults.append(error)

    thread = threading.Thread(target=join, daemon=True, name="join a group")
    thread.start()
    until(lambda: not thread.is_alive(), board, deadline_s)
    if faults:
        raise TransferBroken(f"no group with the other ranks: {faults[0]}") from faults[0]
    made[0].wait(board)
    return made[0]


def _nccl(store: Store, place: int, members: int, deadline_s: float) -> Any:
    try:
        from torch._C._distributed_c10d import ProcessGroupNCCL
    except ImportError as error:
        raise RuntimeError("this torch has no NCCL") from error
    options = ProcessGroupNCCL.Options()
    options._timeout = timedelta(seconds=deadline_s)
    before = {name: os.environ.get(name) for name in CALM}
    os.environ.update(CALM)
    try:
        return ProcessGroupNCCL(store, place, members, options)
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name)
            else:
                os.environ[name] = value
