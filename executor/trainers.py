"""The trainer ranks of one run as Ray actors: one `Trainer` each, driven in lockstep."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from pathlib import Path
from typing import Any

import ray

from ..plans.errors import RunFailed
from .fleet import ACTOR_OPTIONS, CALL_DEADLINE_S, START_DEADLINE_S, within
from .samples import TrainSample
from .trainer import Trainer

STEP_DEADLINE_S = 3600.0


class TrainerDied(RunFailed):
    """A rank is gone, and with it the state since the last checkpoint; ends the run only where nobody can recover."""


class TrainerGroup:
    """`dp` ranks with one model. All calls go to every rank; what they return is rank 0's."""

    def __init__(self, name: str, dp: int, threads: int, arguments: dict[str, Any]) -> None:
        self.name = name
        self._dp = dp
        self._threads = threads
        self._arguments = arguments
        self._ranks: list[Any] = []
        self.parameters = 0
        """Parameters of the policy; known once started."""

    async def start(self) -> None:
        """Start the ranks. Raises RunFailed."""
        method = f"tcp://127.0.0.1:{_free_port()}" if self._dp > 1 else None
        # Spinning threads would take the cores from each other and from whoever shares the machine.
        environment = {
            "OMP_NUM_THREADS": str(self._threads),
            "OMP_WAIT_POLICY": "PASSIVE",
            "TOKENIZERS_PARALLELISM": "false",
        }
        options = {**ACTOR_OPTIONS, "runtime_env": {"env_vars": environment}}
        self._ranks = [
            ray.remote(Trainer)
            .options(**options)
            .remote(**self._arguments, threads=self._threads, rank=rank, world_size=self._dp, init_method=method)
            for rank in range(self._dp)
        ]
        try:
            self.parameters = int(await self._all("parameters", START_DEADLINE_S))
        except TrainerDied as error:
            raise RunFailed(f"trainer {self.name} did not start: {error}") from error

    async def _all(self, method: str, deadline_s: float, *arguments: Any) -> Any:
        calls = [getattr(rank, method).remote(*arguments) for rank in self._ranks]
        try:
            results = await within(deadline_s, asyncio.gather(*calls), f"trainer {self.name} ({method})")
        except ray.exceptions.RayActorError as error:
            raise TrainerDied(f"{self.name}: {str(error).splitlines()[0]}") from error
        except ray.exceptions.RayTaskError as error:
            raise RunFailed(f"trainer {self.name} failed in {method}: {error.cause!r}") from error
        return results[0]

    async def step(self, groups: list[list[TrainSample]], micro_batch_tokens: int | None = None) -> dict[str, float]:
        """One optimizer step, by another micro-batch budget if one is given; returns the trainer's metrics."""
        reference = ray.put(groups)
        metrics: dict[str, float] = await self._all("step", STEP_DEADLINE_S, reference, micro_batch_tokens)
        return metrics

    async def export(self, path: Path) -> dict[str, str]:
        """Write the weights as safetensors; returns the checksum of each tensor."""
        sums: dict[str, str] = await self._all("export_weights", CALL_DEADLINE_S, str(path))
        return sums

    async def save(self, folder: Path) -> None:
        """Write model and optimizer state."""
        await self._all("save", STEP_DEADLINE_S, str(folder))

    async def load(self, folder: Path) -> None:
        """Read model and optimizer state."""
        await self._all("load", STEP_DEADLINE_S, str(folder))

    async def restart(self) -> None:
        """Replace all ranks (a group with a dead rank cannot go on); the caller loads a checkpoint next."""
        await self.close()
        await self.start()

    async def pids(self) -> list[int]:
        """Process ids of the ranks."""
        return list(await asyncio.gather(*(rank.pid.remote() for rank in self._ranks)))

    async def close(self) -> None:
        """End the ranks."""
        for rank in self._ranks:
            with contextlib.suppress(ray.exceptions.RayError):
                ray.kill(rank, no_restart=True)
        self._ranks = []


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
