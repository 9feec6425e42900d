"""What the parties of a transfer of weights are told, and the group that broadcasts it to engine ranks."""

from __future__ import annotations

import os
import pickle
import threading
from datetime import timedelta
from typing import Any, NamedTuple

import torch
from torch._C._distributed_c10d import BroadcastOptions, PrefixStore, ProcessGroupGloo, TCPStore

from .bucket_memory import TransferBroken
from .bucket_plan import Bucket, Source
from .ways import SlotsName

CALM = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "TORCH_NCCL_ENABLE_MONITORING": "0"}
"""Without these, torch ends the process of every member when one of a group's members dies; it reads them when a group
is made. Here who has waited for `deadline_s` leaves the group."""


class Holdings(NamedTuple):
    """What one trainer rank says of itself before weights travel.

    Attributes:
        node: Ray's id of the node that it runs on.
        device: UUID of its GPU; "" on a CPU.
        dtype: the job's, in which weights travel.
        sources: the checkpoint's tensors (of rank 0 only).
        elements: how many it is the first rank to hold; all ranks together have all.
        obstacle: why its weights cannot travel in pieces; None if they can.
    """

    node: str
    device: str
    dtype: str
    sources: tuple[Source, ...]
    elements: int = 0
    obstacle: str | None = None


class Answer(NamedTuple):
    """What a party answers in a transfer; `broken`: why it could not do its part, which is no fault of the party."""

    value: Any = None
    broken: str | None = None


class Transfer(NamedTuple):
    """One transfer, as each party is told of it.

    Attributes:
        version: of the weights.
        slots: where they lie for engines to load them.
        dtype: of all tensors.
        buckets: in the order in which they come.
        checked: whether engines sum up what they receive.
        handles: of slots `ipc`: by UUID of each engine rank's GPU, of its memory ("" for the trainer, which makes it).
        meeting: of slots `host` the handle of the node's memory; of `nccl` where the group meets, HOST:PORT/NAME, of
            which the name is its own.
        members: of slots `nccl`: the engine of each engine rank, in the order of their places from 1 on.
        deadline_s: longest time of one broadcast in the group.
    """

    version: str
    slots: SlotsName
    dtype: str
    buckets: tuple[Bucket, ...]
    checked: bool
    handles: dict[str, str] = {}  # noqa: RUF012 - nobody changes it
    meeting: str = ""
    members: tuple[str, ...] = ()
    deadline_s: float = 60.0

    @property
    def largest(self) -> int:
        """Bytes of the largest bucket."""
        return max(bucket.nbytes for bucket in self.buckets)

    def text(self) -> str:
        """All of it as text, which is what vLLM hands on to its ranks; `Transfer.of` reads it."""
        return pickle.dumps(self).hex()

    @staticmethod
    def of(text: str) -> Transfer:
        """Reads what `text` wrote."""
        read: Transfer = pickle.loads(bytes.fromhex(text))
        return read


class BroadcastGroup:
    """Member `place` of the group of a transfer: trainer rank 0 and engine ranks, over NCCL on GPUs, gloo on CPUs.

    The members meet in their first broadcast; `store` is the trainer's own. NCCL's part has never been run.
    """

    def __init__(self, transfer: Transfer, place: int, device: torch.device, store: TCPStore | None = None) -> None:
        self.meeting, self._place, self._members = transfer.meeting, place, 1 + len(transfer.members)
        self._deadline_s, self._device, self._store = transfer.deadline_s, device, store
        self._group: Any = None

    def broadcast(self, message: torch.Tensor) -> None:
        """Send the bytes of `message` from member 0 to all others, who receive into theirs. Raises TransferBroken."""
        faults: list[Exception] = []

        def work() -> None:
            try:
                self._broadcast(message)
            except Exception as error:  # noqa: BLE001 - raised below
                faults.append(error)

        # Meeting, NCCL and a kernel may each wait for a member that is gone, so a thread does it that may be left.
        thread = threading.Thread(target=work, daemon=True, name="broadcast of weights")
        thread.start()
        thread.join(self._deadline_s)
        if thread.is_alive():
            if (abort := getattr(self._group, "abort", None)) is not None:  # ends a kernel that waits
                threading.Thread(target=abort, daemon=True, name="abort a group").start()
            raise TransferBroken(f"a broadcast took more than {self._deadline_s:.0f} s")
        if faults:
            raise TransferBroken(f"no broadcast from the trainer: {faults[0]}") from faults[0]

    def _broadcast(self, message: torch.Tensor) -> None:
        on_gpu, limit = self._device.type == "cuda", timedelta(seconds=self._deadline_s)
        if on_gpu:
            torch.cuda.set_device(self._device)  # of this thread
        if self._group is None:
            address, _, name = self.meeting.partition("/")
            host, _, port = address.rpartition(":")
            store = PrefixStore(name, self._store or TCPStore(host, int(port), None, False, limit, False))
            make: Any = _nccl if on_gpu else ProcessGroupGloo
            self._group = make(store, self._place, self._members, limit)
        options = BroadcastOptions()
        options.rootRank, options.rootTensor = 0, 0
        self._group.broadcast([message], options).wait()
        if on_gpu:
            torch.cuda.synchronize(self._device)


def _nccl(store: PrefixStore, place: int, members: int, limit: timedelta) -> Any:
    from torch._C._distributed_c10d import ProcessGroupNCCL

    os.environ.update(CALM)
    options = ProcessGroupNCCL.Options()
    options._timeout = limit
    return ProcessGroupNCCL(store, place, members, options)
