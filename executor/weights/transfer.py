"""A transfer of weights: where they lie for engines to load them, what its parties are told, and how engines get it.

host: memory that all processes of a node share.
ipc:  memory of a GPU that a trainer rank and an engine rank share, opened through a CUDA IPC handle.
nccl: memory of each engine rank's own, in one group of trainer rank 0 and all engine ranks: of NCCL on GPUs, of gloo on
      CPUs of several nodes.

NCCL refuses two ranks on one GPU. Host memory serves everything on one node; what none of them serves goes by file.
"""

from __future__ import annotations

import functools
import os
import pickle
import threading
import zlib
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any, Literal, NamedTuple

import torch
from torch._C._distributed_c10d import BroadcastOptions, PrefixStore, ProcessGroupGloo, TCPStore

from .bucket_memory import HOST, BucketMemory, TransferBroken, device_key, shared_memory, tensors_in
from .bucket_plan import Bucket, TensorSource

SlotsName = Literal["host", "ipc", "nccl"]

Received = tuple[str, dict[str, str]]
"""What an engine rank tells of weights that it received: their version, and checksums if asked for."""

VERSION_KEY = "rlplan_version"
"""Key of a weights file's metadata that names its version."""


def tensor_checksum(tensor: torch.Tensor) -> str:
    """CRC-32 of a tensor's dtype, shape and bytes (row-major, in the machine's byte order), as 8 hexadecimal digits."""
    data = tensor.detach().cpu().contiguous()
    head = f"{data.dtype}{tuple(data.shape)}".encode()
    # bytes of any dtype, bfloat16 included, which numpy does not have; reshape because a scalar has no view as bytes
    return f"{zlib.crc32(data.reshape(-1).view(torch.uint8).numpy().data, zlib.crc32(head)):08x}"


DOWN_SUFFIX, UP_SUFFIX = ".lora_A.weight", ".lora_B.weight"
"""What names of adapters' tensors end with, in place of `.weight`, as peft has them."""


def adapter_delta(down: torch.Tensor, up: torch.Tensor, scale: float) -> torch.Tensor:
    """What an adapter adds to its matrix, scale B A, in float32: of `down`, A, [rank, inputs], and `up`, B, [outputs,
    rank]."""
    return up.float() @ down.float() * scale


class Sent(NamedTuple):
    """What became of weights that were sent.

    Attributes:
        way: on which they went.
        nbytes: of the weights.
        expected: the trainer's checksum of each tensor; {} if none were asked for.
        received: for each engine that has the weights now, by name, the checksums of what it received.
        slots: where they lay for engines to load them; "" if they came by file.
        reason: why they went by file, or slots are not better ones; None if they are the best.
    """

    way: Literal["broadcast", "file"]
    nbytes: int
    expected: dict[str, str]
    received: dict[str, dict[str, str]]
    slots: SlotsName | Literal[""] = ""
    reason: str | None = None

    @property
    def engines(self) -> int:
        """How many engines have them."""
        return len(self.received)

    @property
    def mismatches(self) -> int:
        """How many of these received other bytes than the trainer sent, if checksums were asked for."""
        return sum(sums != self.expected for sums in self.received.values()) if self.expected else 0


class WayClosed(Exception):
    """This way cannot take these weights; the error's text says why."""


def choose(ranks: Sequence[str], engine_ranks: Sequence[str], one_node: bool) -> tuple[SlotsName, str | None]:
    """The slots of transfers between trainer ranks and engine ranks on GPUs of these UUIDs ("" on a CPU), and why there
    are no better ones; None if they are the best."""
    shared = set(ranks) & set(engine_ranks)
    if not any([*ranks, *engine_ranks]):
        return ("host" if one_node else "nccl"), None
    if "" in ranks or "" in engine_ranks:
        return "host", "a trainer rank or engine rank has no GPU"
    if len(set(ranks)) < len(ranks) or len(set(engine_ranks)) < len(engine_ranks):
        return "host", "trainer ranks or engine ranks share a GPU"
    if shared and shared != set(engine_ranks):
        return "host", f"{len(shared)} of {len(engine_ranks)} engine ranks are on GPUs of the trainer"
    return ("ipc" if shared else "nccl"), None


class Holdings(NamedTuple):
    """What one trainer rank says of itself before weights travel.

    Attributes:
        node: Ray's id of the node that it runs on.
        device: UUID of its GPU; "" on a CPU.
        dtype: the job's, in which weights travel.
        sources: the checkpoint's tensors (of rank 0 only).
        elements: how many it is the first rank to hold; all ranks together have all.
        obstacle: why its weights cannot travel in pieces; None if they can.
        adapter_scale: what engines multiply B A by, where adapters alone travel; None: all weights do.
    """

    node: str
    device: str
    dtype: str
    sources: tuple[TensorSource, ...]
    elements: int = 0
    obstacle: str | None = None
    adapter_scale: float | None = None


class Answer(NamedTuple):
    """What a party answers in a transfer; `broken`: why it could not do its part, which is no fault of the party."""

    value: Any = None
    broken: str | None = None

    def taken(self) -> Any:
        """The value. Raises TransferBroken."""
        if self.broken is not None:
            raise TransferBroken(self.broken)
        return self.value


def answered(part: Callable[..., Any]) -> Callable[..., Answer]:
    """`part` of a party, whose value or what breaks the transfer is returned: the driver decides what to do."""

    @functools.wraps(part)
    def answer(*arguments: Any) -> Answer:
        try:
            return Answer(part(*arguments))
        except (TransferBroken, torch.OutOfMemoryError) as error:
            return Answer(broken=str(error))

    return answer


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
        adapter_scale: as of `Holdings`.
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
    adapter_scale: float | None = None

    @property
    def largest(self) -> int:
        """Bytes of the largest bucket."""
        return max(bucket.nbytes for bucket in self.buckets)

    def text(self) -> str:
        """All of it pickled, as text, which is what vLLM hands on to its ranks."""
        return pickle.dumps(self).hex()

    def broadcast(self, message: torch.Tensor, place: int, device: torch.device, store: TCPStore | None = None) -> None:
        """Have the bytes of member 0's `message` in that of all others, over NCCL on GPUs, gloo on CPUs; called by all
        members, who meet the first time. `store`: the trainer's own. NCCL's part has never been run. Raises
        TransferBroken."""
        groups, faults = list[Any](), list[Exception]()

        def work() -> None:
            try:
                if device.type == "cuda":
                    torch.cuda.set_device(device)  # of this thread
                groups.append(_group(self.meeting, place, 1 + len(self.members), self.deadline_s, device, store))
                options = BroadcastOptions()
                options.rootRank, options.rootTensor = 0, 0
                groups[0].broadcast([message], options).wait()
                if device.type == "cuda":
                    torch.cuda.synchronize(device)
            except Exception as error:  # noqa: BLE001 - raised below
                faults.append(error)

        # Meeting, NCCL and a kernel may each wait for a member that is gone, so a thread does it that may be left.
        thread = threading.Thread(target=work, daemon=True, name="broadcast of weights")
        thread.start()
        thread.join(self.deadline_s)
        if thread.is_alive():
            for group in groups:
                if (abort := getattr(group, "abort", None)) is not None:  # ends a kernel that waits
                    threading.Thread(target=abort, daemon=True, name="abort a group").start()
            raise TransferBroken(f"a broadcast took more than {self.deadline_s:.0f} s")
        if faults:
            raise TransferBroken(f"no broadcast from the trainer: {faults[0]}") from faults[0]


@functools.lru_cache(maxsize=1)  # the next transfer to the same engines has the same group
def _group(
    meeting: str, place: int, members: int, deadline_s: float, device: torch.device, store: TCPStore | None
) -> Any:
    limit = timedelta(seconds=deadline_s)
    address, _, name = meeting.partition("/")
    host, _, port = address.rpartition(":")
    own = PrefixStore(name, store or TCPStore(host, int(port), None, False, limit, False))
    if device.type == "cpu":
        return ProcessGroupGloo(own, place, members, limit)
    from torch._C._distributed_c10d import ProcessGroupNCCL

    # Else torch ends the process of every member when one of them dies; here who has waited for the deadline leaves.
    os.environ.update(TORCH_NCCL_ASYNC_ERROR_HANDLING="0", TORCH_NCCL_ENABLE_MONITORING="0")
    options = ProcessGroupNCCL.Options()
    options._timeout = limit
    return ProcessGroupNCCL(own, place, members, options)


def agreed(engine: str, answers: Sequence[Received], version: str, source: str) -> dict[str, str]:
    """The checksums of what all ranks of an engine received from `source`. Raises RuntimeError if a rank received
    another version, or ranks received different weights."""
    for found, sums in answers:
        if found != version:
            raise RuntimeError(f"{engine}: {source} holds weights {found!r}, not {version!r}")
        if sums != answers[0][1]:
            raise RuntimeError(f"{engine}: ranks received different weights from {source}")
    return answers[0][1]


class BucketReader:
    """The part of rank `rank` of an engine in transfers, on `device`: it receives buckets and hands them to vLLM."""

    def __init__(self, rank: int = 0, device: torch.device = HOST) -> None:
        self._rank, self._device = rank, device
        self._transfer: Transfer | None = None
        self._memory: BucketMemory | None = None
        self._place = 0
        self._sums: dict[str, str] = {}

    @answered
    def begin(self, text: str, engine: str) -> None:
        """Begin to receive a transfer (`Transfer.text`) in this engine."""
        transfer: Transfer = pickle.loads(bytes.fromhex(text))
        self._transfer, self._sums = transfer, {}
        if transfer.slots == "host":
            self._memory = shared_memory(transfer.largest, transfer.meeting)
        else:
            handle = transfer.handles[device_key(self._device)] if transfer.slots == "ipc" else None
            self._memory = BucketMemory(transfer.largest, self._device, handle)
        if transfer.slots == "nccl":
            self._place = 1 + transfer.members.index(engine) + self._rank

    @answered
    def load(self, index: int, load: Callable[[Iterable[tuple[str, torch.Tensor]], BucketMemory], None]) -> None:
        """Have `load` take the tensors of bucket `index`; of its memory nothing is used any more afterwards."""
        assert self._transfer and self._memory, "begin() comes first"
        bucket, dtype = self._transfer.buckets[index], getattr(torch, self._transfer.dtype)
        room = self._memory.bucket(index, bucket.nbytes)
        if self._transfer.slots == "nccl":
            self._transfer.broadcast(room, self._place, self._device)
        tensors = tensors_in(room, bucket, dtype)
        if self._transfer.checked:
            self._sums |= {name: tensor_checksum(tensor) for name, tensor in tensors.items()}
        load(tensors.items(), self._memory)
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    @property
    def adapter_scale(self) -> float | None:
        """That of the transfer (`Transfer.adapter_scale`)."""
        return None if self._transfer is None else self._transfer.adapter_scale

    def finish(self) -> Received:
        """End the transfer: all of it is loaded."""
        assert self._transfer is not None, "begin() comes first"
        received = self._transfer.version, self._sums
        self._transfer = self._memory = None
        return received
