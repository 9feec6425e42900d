"""What the parties of a transfer of weights are told, and the group in which engine ranks on GPUs of their own get it.

The driver calls the parties bucket by bucket (by_broadcast.py); no party waits for another one but in a collective, so
there is nothing that a party that dies could leave locked.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Literal, NamedTuple

import torch
from torch._C._distributed_c10d import BroadcastOptions, PrefixStore, ProcessGroupGloo, TCPStore

from .bucket_memory import TransferBroken
from .bucket_plan import Box, Bucket, Source

SlotsName = Literal["host", "ipc", "nccl"]
"""Where weights lie for engines to load them; see ways.py."""

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
        places: with slots `host` the handle of each node's memory, `ipc` that of each engine rank's GPU ("" for the
            trainer, which makes it), `nccl` the place of each engine rank in the group; by node or UUID of a GPU.
        checked: whether engines sum up what they receive.
        group: name of the group, unique in the store at `meeting`, HOST:PORT; "" but with slots `nccl`.
        deadline_s: longest time of one broadcast in the group.
    """

    version: str
    slots: SlotsName
    dtype: str
    buckets: tuple[Bucket, ...]
    places: dict[str, str]
    checked: bool
    group: str = ""
    meeting: str = ""
    deadline_s: float = 60.0

    @property
    def largest(self) -> int:
        """Bytes of the largest bucket."""
        return max(bucket.nbytes for bucket in self.buckets)

    def text(self) -> str:
        """All of it as JSON: vLLM hands on plain text to its ranks."""
        return json.dumps(self)


def transfer_of(text: str) -> Transfer:
    """Reads what `Transfer.text` wrote."""
    version, slots, dtype, buckets, *rest = json.loads(text)

    def source(name: str, shape: list[int], parameter: str, box: list[list[int]]) -> Source:
        return Source(name, tuple(shape), parameter, Box(tuple(box[0]), tuple(box[1])))

    read = (Bucket(tuple(source(*each) for each in of), tuple(offsets), nbytes) for of, offsets, nbytes in buckets)
    return Transfer(version, slots, dtype, tuple(read), *rest)


class BroadcastGroup:
    """Trainer rank 0 and engine ranks, over NCCL on GPUs (gloo stands in on CPUs). NCCL's part has never been run.

    The members meet in their first broadcast. `store`: the trainer's own, which the others reach at `meeting`.
    """

    def __init__(self, transfer: Transfer, place: int, device: torch.device, store: TCPStore | None = None) -> None:
        self.name, self._place, self._members = transfer.group, place, 1 + len(transfer.places)
        self._meeting, self._deadline_s, self._device = transfer.meeting, transfer.deadline_s, device
        self._store = store
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
            self.leave()
            raise TransferBroken(f"a broadcast took more than {self._deadline_s:.0f} s")
        if faults:
            raise TransferBroken(f"no broadcast from the trainer: {faults[0]}") from faults[0]

    def _broadcast(self, message: torch.Tensor) -> None:
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)  # of this thread
        if self._group is None:
            host, _, port = self._meeting.rpartition(":")
            limit = timedelta(seconds=self._deadline_s)
            store = self._store or TCPStore(host, int(port), None, False, limit, False)
            self._group = _joined(PrefixStore(self.name, store), self._place, self._members, self._device, limit)
        options = BroadcastOptions()
        options.rootRank, options.rootTensor = 0, 0
        self._group.broadcast([message], options).wait()
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def leave(self) -> None:
        """Leave the group; ends a kernel that waits for a member that is gone, which may take its time."""
        abort: Callable[[], None] | None = getattr(self._group, "abort", None)
        if abort is not None:
            threading.Thread(target=abort, daemon=True, name="abort a group").start()


def _joined(store: PrefixStore, place: int, members: int, device: torch.device, limit: timedelta) -> Any:
    if device.type == "cpu":
        of_gloo: Any = ProcessGroupGloo
        return of_gloo(store, place, members, limit)
    from torch._C._distributed_c10d import ProcessGroupNCCL

    os.environ.update(CALM)
    options = ProcessGroupNCCL.Options()
    options._timeout = limit
    return ProcessGroupNCCL(store, place, members, options)
