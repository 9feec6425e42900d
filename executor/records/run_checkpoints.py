"""The checkpoints of one run: when they are due, and how one is written while training goes on.

Invariants:
- training stands still while the trainer's ranks copy their state to host memory, not while they write it;
- at most one checkpoint is written at a time: one that falls due meanwhile waits, and with it training;
- a checkpoint holds the state, of trainer and driver alike, of the step's end at which it was begun.

A trainer that dies takes the run back to its last checkpoint, so a death costs half an interval on average, and each
interval costs one checkpoint. The sum of both is least at the interval sqrt(2 C M), where C are the seconds that a
checkpoint costs training and M the mean seconds between deaths (Young, 1974).
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ...plans.yaml.errors import RunFailed
from ..processes.actors import retrieved
from ..trainer.trainer_group import TrainerGroup
from .checkpoints import CheckpointFailed, Staged, stage_checkpoint, write_checkpoint

WRITE_SLOWS = 0.5
"""Seconds that training loses by each second of a write beside it: the writer copies and hashes on the same cores. On
two cores that trained meanwhile, 0.35 were measured with one rank and 0.6 with two; where GPUs train it is less."""


class Cadence:
    """When the next checkpoint of a run is due. None is due until the first one has shown its cost."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._saved_at_s = math.inf
        self._cost_s = 0.0

    def saved(self, cost_s: float, age_s: float = 0.0) -> None:
        """Note a checkpoint that cost training `cost_s` seconds, of the state of `age_s` seconds ago."""
        self._saved_at_s, self._cost_s = self._clock() - age_s, cost_s

    def due(self, mean_s_between_deaths: float) -> bool:
        """Whether the interval between checkpoints that costs least is over."""
        return self._clock() - self._saved_at_s >= math.sqrt(2.0 * self._cost_s * mean_s_between_deaths)


class RunCheckpoints:
    """Writes a run's checkpoints, one at a time; `event` traces an event of the run and raises RunFailed if it cannot.

    A checkpoint that cannot be written ends nothing: `fault` says why until the next one is begun, and so do `notes`
    and the trace.
    """

    def __init__(self, run_dir: Path, trainer: TrainerGroup, event: Callable[..., None]) -> None:
        self.saved_step = -1
        """Step of the latest checkpoint that is on the disk or was loaded."""
        self.fault: str | None = None
        self.notes: list[str] = []
        """Faults of checkpoints, one line each, until somebody has told them."""
        self.event, self._run_dir, self._trainer = event, run_dir, trainer
        self._cadence = Cadence()
        self._write: asyncio.Future[None] | None = None

    def due(self, step: int, every_steps: int) -> bool:
        """Whether to write a checkpoint of `step`: after `every_steps` steps, or sooner if the next death would cost
        more than a checkpoint does; sooner only once the one before is written."""
        if step % every_steps == 0:
            return True
        writes = self._write is not None and not self._write.done()
        return not writes and self._cadence.due(self._trainer.mean_s_between_failures())

    async def begin(self, step: int, state: dict[str, Any], files: Mapping[str, bytes] | None = None) -> None:
        """Stage a checkpoint of `step`, unless there is one, and begin to write it.

        `state` is the driver's; `files` lie beside it, and what becomes of them does not matter. One that is still
        being written is waited for. Raises TrainerDied if the trainer is gone, RunFailed if the trace of the one before
        could not be written.
        """
        began = time.monotonic()
        await self.written()
        self.fault = None
        if self.saved_step == step:
            return
        try:
            staged = await stage_checkpoint(self._run_dir, step, state, self._trainer, files)
        except CheckpointFailed as failure:
            self.failed(step, failure)
            return
        writing = self._write_down(staged, time.monotonic() - began)
        self._write = retrieved(asyncio.create_task(writing, name=f"checkpoint of step {step}"))

    async def _write_down(self, staged: Staged, stage_s: float) -> None:
        began = time.monotonic()
        try:
            size = await write_checkpoint(self._run_dir, staged, self._trainer)
        except CheckpointFailed as failure:
            self.failed(staged.step, failure)
            return
        write_s = time.monotonic() - began
        self.saved_step = staged.step
        self._cadence.saved(stage_s + WRITE_SLOWS * write_s, age_s=write_s)
        self.event(
            "checkpoint", step=staged.step, stage_s=round(stage_s, 6), write_s=round(write_s, 6), bytes=size
        )  # fmt: skip

    async def written(self) -> None:
        """Wait for the checkpoint that is being written, if any. Raises what `begin` does."""
        write = self._write
        if write is not None:
            await asyncio.wait({write})  # the write goes on if the one who waits is cancelled
            self._write = None
            write.result()

    async def settle(self) -> None:
        """Wait until nothing is being written, however it ends: for those who will look what is on the disk."""
        with contextlib.suppress(RunFailed):
            await self.written()

    def loaded(self, step: int, took_s: float | None = None) -> None:
        """Note that the checkpoint of `step` was loaded; `took_s` stands for its cost until one is written."""
        self.saved_step = step
        if took_s is not None:
            self._cadence.saved(took_s)

    def failed(self, step: int, why: Exception | str, traced: bool = True) -> None:
        """Note why there is no checkpoint of `step`."""
        self.fault = str(why).splitlines()[0]
        self.notes.append(f"no checkpoint of step {step}: {self.fault}")
        if traced:
            with contextlib.suppress(RunFailed):  # the trace may be on the same full disk
                self.event("checkpoint_failed", step=step, reason=self.fault)

    def close(self) -> None:
        """Give up what is being written. What is on the disk stays whole."""
        if self._write is not None:
            self._write.cancel()
