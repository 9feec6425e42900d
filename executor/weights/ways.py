"""What became of weights that were sent, and where they lie on the way in pieces for engines to load them.

host: memory that all processes of a node share.
ipc:  memory of a GPU that a trainer rank and an engine rank share, opened through a CUDA IPC handle.
nccl: memory of the engine rank's own GPU, in one NCCL group of trainer rank 0 and all engine ranks.

Host memory serves everything; a GPU is used where it serves all engines of a transfer. NCCL refuses two ranks on one
GPU, so `nccl` needs pools apart, and `ipc` a trainer rank on the GPU of each engine rank.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

from ...plans.yaml.errors import InputError

WayName = Literal["broadcast", "file"]
SlotsName = Literal["host", "ipc", "nccl"]

DEFAULT_WAY: WayName = "broadcast"
"""What is used unless a configuration says otherwise; where it cannot be, `file` is."""

WANTED = "RLPLAN_WEIGHT_SLOTS"
"""Environment variable that names slots to use where they can be; benchmarks.gpu_check sets it."""


class Sent(NamedTuple):
    """What became of weights that were sent.

    Attributes:
        way: on which they went.
        nbytes: of the weights; each node with engines received them once by broadcast, each engine by file.
        expected: the trainer's checksum of each tensor; {} if none were asked for.
        received: for each engine that has the weights now, by name, the checksums of what it received.
        slots: where they lay for engines to load them; "" if they came by file.
        reason: why the way is not the one that was wanted, or slots are not better ones; None if they are the best.
    """

    way: WayName
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

    def __init__(self, reason: str, *, lasting: bool) -> None:
        super().__init__(reason)
        self.reason, self.lasting = reason, lasting


def choose(
    ranks: Sequence[str], engine_ranks: Sequence[str], wanted: SlotsName | None = None
) -> tuple[SlotsName, str | None]:
    """The slots of transfers between trainer ranks and engine ranks on GPUs of these UUIDs ("" on a CPU), and why they
    are not those that are `wanted` (None: the best), or better ones; None if they are."""
    shared, reason = set(ranks) & set(engine_ranks), None
    best: SlotsName = "host"
    if wanted == "host" or not any([*ranks, *engine_ranks]):
        pass
    elif "" in ranks or "" in engine_ranks or not engine_ranks:
        reason = "a trainer rank or engine rank has no GPU"
    elif len(set(ranks)) < len(ranks) or len(set(engine_ranks)) < len(engine_ranks):
        reason = f"{'trainer' if len(set(ranks)) < len(ranks) else 'engine'} ranks share a GPU"
    elif shared and shared != set(engine_ranks):
        reason = f"{len(shared)} of {len(engine_ranks)} engine ranks are on GPUs of the trainer"
    else:
        best = "ipc" if shared else "nccl"
    if wanted in (None, best):
        return best, reason
    return "host", f"{wanted}: {reason or f'GPUs are laid out for {best}'}"


def wanted_slots() -> SlotsName | None:
    """The slots that the environment asks for. Raises InputError if it names no such."""
    text = os.environ.get(WANTED, "")
    names: tuple[SlotsName, ...] = get_args(SlotsName)
    if text and text not in names:
        raise InputError(f"is {text!r}; write {', '.join(names)}, or unset it", WANTED)
    return next((name for name in names if name == text), None)
