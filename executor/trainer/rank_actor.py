"""The Ray actor of one trainer rank: where it runs, what it sees of its node, and how it is constructed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray

from ..actors import ACTOR_OPTIONS, visible_gpus
from ..host import without_collection
from ..placement.guard import guard_group
from ..placement.live_nodes import free_address, on_node
from ..placement.seat_keeper import LiveSeat
from .trainer_config import TrainerConfig

# Threads of their own in each rank: a rank that trains can answer, and write what it has staged.
PULSE_GROUP, WRITER_GROUP = "pulse", "writer"


class TrainerRank:
    """The actor of a rank. Its `Trainer`, which imports all of torch, is made by a call: the actor gives signs of life
    meanwhile, and the driver, which only names this class, does without those imports.

    Methods of the trainer that the driver calls (TRAINER_METHODS) are methods of the actor.
    """

    def __init__(self, config: TrainerConfig, rank: int) -> None:
        self._arguments = (config, rank)
        self._trainer: Any = None

    def meeting_point(self) -> str:
        """Where ranks may meet on the node of this one."""
        return free_address()

    def construct(self, init_method: str | None) -> tuple[int, float]:
        """Construct the trainer; `init_method` says where ranks meet. Returns the number of its parameters, and what a
        pair of tokens costs, by which the driver shares out samples."""
        with without_collection():
            from .trainer_rank import Trainer

        self._trainer = Trainer(*self._arguments, init_method)
        return int(self._trainer.parameters()), float(self._trainer.pairs)

    def pid(self) -> int:
        """Process id of this rank; told while it is constructed, too."""
        return os.getpid()


TRAINER_METHODS = (
    "step", "stream", "time_update", "export_weights", "transfer", "place", "peak_bytes", "stage", "write_staged",
    "load",
)  # fmt: skip


def _of_trainer(name: str) -> Callable[..., Any]:
    def method(self: TrainerRank, *arguments: Any) -> Any:
        assert self._trainer is not None, f"{name} before construct"
        return getattr(self._trainer, name)(*arguments)

    method.__name__ = name
    return method


for _name in TRAINER_METHODS:  # Ray calls methods that the class has
    setattr(TrainerRank, _name, _of_trainer(_name))


def spawn_ranks(config: TrainerConfig, seats: Sequence[LiveSeat]) -> list[Any]:
    """New actors of all ranks, on their seats; on any node if there are none."""
    # Ray's stubs do not know this option.
    threads = {PULSE_GROUP: 1, WRITER_GROUP: 1}
    remote: Any = ray.remote(concurrency_groups=threads)(TrainerRank)  # type: ignore[call-overload]
    ranks = []
    for rank in range(config.ranks):
        own, options = config, dict[str, Any](ACTOR_OPTIONS)
        seat = seats[rank] if seats else None
        if seat is not None:
            beside = sum(other.node_id == seat.node_id for other in seats)
            own = replace(config, threads=max(seat.node_cores // beside, 1))
            options |= on_node(seat.node_id)
        options["runtime_env"] = {"env_vars": _environment(own, seat)}
        ranks.append(remote.options(**options).remote(own, rank))
    for rank, actor in enumerate(ranks):
        actor.__ray_call__.remote(_guard, seats[rank].stays_on if seats else ())
    return ranks


def _guard(rank: TrainerRank, stays_on: tuple[int, ...]) -> None:
    """Start the guard process of a rank; runs in the rank, which from now on keeps to these cores, if any."""
    guard_group()
    if stays_on:
        for thread in Path("/proc/self/task").iterdir():
            with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
                os.sched_setaffinity(int(thread.name), stays_on)


def _environment(config: TrainerConfig, seat: LiveSeat | None) -> dict[str, str]:
    """Environment of a rank."""
    environment = {
        "OMP_NUM_THREADS": str(config.threads),
        # Spinning threads would take the cores from each other and from whoever shares the machine.
        "OMP_WAIT_POLICY": "PASSIVE",
        "TOKENIZERS_PARALLELISM": "false",
    }
    if config.device == "cpu":
        environment["CUDA_VISIBLE_DEVICES"] = ""  # torch would choose a GPU that is there for the ranks' mesh
    elif seat is not None and seat.gpus:
        environment |= visible_gpus(seat.gpus)
    return environment
