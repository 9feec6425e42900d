"""What became of weights that were sent, and where they lie on the way in pieces for engines to load them.

host: memory that all processes of a node share.
ipc:  memory of a GPU that a trainer rank and an engine rank share, opened through a CUDA IPC handle.
nccl: memory of each engine rank's own, in one group of trainer rank 0 and all engine ranks: of NCCL on GPUs, of gloo on
      CPUs of several nodes.

NCCL refuses two ranks on one GPU, so `nccl` needs pools apart, and `ipc` a trainer rank on the GPU of each engine rank.
Host memory serves everything on one node; what none of them serves goes by file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

SlotsName = Literal["host", "ipc", "nccl"]


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
    """This way cannot take these weights; `lasting`: no others of this trainer either."""

    def __init__(self, reason: str, *, lasting: bool = False) -> None:
        super().__init__(reason)
        self.reason, self.lasting = reason, lasting


def choose(ranks: Sequence[str], engine_ranks: Sequence[str], one_node: bool) -> tuple[SlotsName, str | None]:
    """The slots of transfers between trainer ranks and engine ranks on GPUs of these UUIDs ("" on a CPU), and why there
    are no better ones; None if they are the best."""
    shared, reason = set(ranks) & set(engine_ranks), None
    if not any([*ranks, *engine_ranks]):
        return ("host" if one_node else "nccl"), None
    if "" in ranks or "" in engine_ranks:
        reason = "a trainer rank or engine rank has no GPU"
    elif len(set(ranks)) < len(ranks) or len(set(engine_ranks)) < len(engine_ranks):
        reason = f"{'trainer' if len(set(ranks)) < len(ranks) else 'engine'} ranks share a GPU"
    elif shared and shared != set(engine_ranks):
        reason = f"{len(shared)} of {len(engine_ranks)} engine ranks are on GPUs of the trainer"
    else:
        return ("ipc" if shared else "nccl"), None
    return "host", reason
