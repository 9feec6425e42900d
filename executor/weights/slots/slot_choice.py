"""Where weights lie for engines that load them, chosen from what is known of trainer ranks and engine ranks.

host: memory that all processes of a node share; pieces come from ranks of the node and over the network.
ipc:  memory of a GPU that a trainer rank and an engine rank share: the trainer's ranks send their pieces to each other
      over NCCL, and each engine rank loads from the buffer of the trainer rank on its GPU, through a CUDA IPC handle.
nccl: memory of the engine rank's own GPU, in one NCCL group of all trainer ranks and engine ranks.

Host memory serves everything; a GPU is used where it serves all engines of a transfer. NCCL refuses two ranks on one
GPU, so `nccl` needs pools apart, and `ipc` a trainer rank on the GPU of each engine rank.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

from ....plans.yaml.errors import InputError

SlotsName = Literal["host", "ipc", "nccl"]

WANTED = "RLPLAN_WEIGHT_SLOTS"
"""Environment variable that names slots to use where they can be; benchmarks.gpu_check sets it."""


class Choice(NamedTuple):
    """The slots of a transfer; `reason` says why they are not better ones, or those that were wanted, None if they
    are."""

    slots: SlotsName
    reason: str | None = None


def choose(ranks: Sequence[str], engine_ranks: Sequence[str], wanted: SlotsName | None = None) -> Choice:
    """The slots of transfers from trainer ranks to engine ranks.

    Args:
        ranks: UUID of the GPU of each trainer rank; "" on a CPU.
        engine_ranks: UUID of the GPU of each engine rank; "" on a CPU.
        wanted: slots that are asked for; None: the best.
    """
    if wanted == "host":
        return Choice("host")
    best, reason = _best(ranks, engine_ranks)
    if wanted not in (None, best):
        return Choice("host", f"{wanted}: {reason or f'GPUs are laid out for {best}'}")
    return Choice(best, reason)


def _best(ranks: Sequence[str], engine_ranks: Sequence[str]) -> tuple[SlotsName, str | None]:
    if not any(ranks) and not any(engine_ranks):
        return "host", None if ranks and engine_ranks else "no rank is known"
    if "" in ranks or "" in engine_ranks or not engine_ranks:
        return "host", "a trainer rank or engine rank has no GPU"
    if len(set(ranks)) < len(ranks):
        return "host", "trainer ranks share a GPU"
    if len(set(engine_ranks)) < len(engine_ranks):
        return "host", "engine ranks share a GPU"
    shared = set(ranks) & set(engine_ranks)
    if shared == set(engine_ranks):
        return "ipc", None
    if not shared:
        return "nccl", None
    return "host", f"{len(shared)} of {len(engine_ranks)} engine ranks are on GPUs of the trainer"


def wanted_slots() -> SlotsName | None:
    """The slots that the environment asks for. Raises InputError if it names no such."""
    text = os.environ.get(WANTED, "")
    names: tuple[SlotsName, ...] = get_args(SlotsName)
    if text and text not in names:
        raise InputError(f"is {text!r}; write {', '.join(names)}, or unset it", WANTED)
    return next((name for name in names if name == text), None)
