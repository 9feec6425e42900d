"""When checkpoints of a run are due, and how they, and the models that are exported from them, are written while
training goes on.

Invariants:
- training stands still while the trainer's ranks copy their state to host memory, not while they write it;
- at most one checkpoint is written at a time: one that falls due meanwhile waits, and with it training;
- a checkpoint holds the state, of trainer and driver alike, of the step's end at which it was begun;
- at most one model is written at a time: the checkpoint of another that is due is done only once it is written.

A trainer that dies takes the run back to its last checkpoint, so a death costs half an interval on average, and each
interval costs one checkpoint. The sum of both is least at the interval sqrt(2 C M), where C are the seconds that a
checkpoint costs training and M the mean seconds between deaths (Young, 1974).
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ...plans.yaml.errors import RunFailed
from ..processes.actors import retrieved
from ..trainer.trainer_group import TrainerGroup
from .checkpoints import KEPT, CheckpointFailed, Staged, keep_best, stage_checkpoint, write_checkpoint

if TYPE_CHECKING:
    from .model_export import ExportedModel

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


class Saving(NamedTuple):
    """What is kept of a run beside its latest checkpoints; None: nothing.

    Attributes:
        keep_every: checkpoints of each multiple of so many steps are written and never deleted.
        model_every: of each multiple of so many steps, and of the last one, the model is written as a Hugging Face
            folder, `models/step-NNNNNN`.
    """

    keep_every: int | None = None
    model_every: int | None = None

    def keeps(self, step: int) -> bool:
        """Whether the checkpoint of a step is kept; that of step 0 holds nothing that was trained."""
        return step > 0 and self.keep_every is not None and step % self.keep_every == 0

    def models(self, step: int) -> bool:
        """Whether the model of a step is written."""
        return step > 0 and self.model_every is not None and step % self.model_every == 0


class _ClosedError(Exception):
    """The run ends, and with it what is still being exported."""


class RunCheckpoints:
    """Writes a run's checkpoints, one at a time; `event` traces an event of the run and raises RunFailed if it cannot.

    A checkpoint that cannot be written ends nothing: `fault` says why until the next one is begun, and so do `notes`
    and the trace. A model is written from its checkpoint, beside training, one at a time as well; of one that cannot be
    written `notes` and the trace tell.
    """

    def __init__(
        self, run_dir: Path, trainer: TrainerGroup, event: Callable[..., None], saving: Saving | None = None
    ) -> None:
        self.saved_step = -1
        """Step of the latest checkpoint that is on the disk or was loaded."""
        self.fault: str | None = None
        self.notes: list[str] = []
        """Faults of checkpoints, one line each, until somebody has told them."""
        self.event, self._run_dir, self._trainer = event, run_dir, trainer
        self._saving = saving or Saving()
        self._cadence = Cadence()
        self._write: asyncio.Future[None] | None = None
        self._model: asyncio.Future[None] | None = None
        self._closed = False
        self._evaluated: tuple[int, float] | None = None

    async def evaluated(self, step: int, reward: float) -> None:
        """Note the mean reward of an evaluation of the weights of `step`: their checkpoint, also if it is still being
        written, is kept until another step's is better."""
        self._evaluated = step, reward
        if self.saved_step == step:
            await self._keep_best()

    async def _keep_best(self) -> None:
        if self._evaluated is not None:
            with contextlib.suppress(OSError):  # of a full disk: the mark is lost, not the checkpoint
                await asyncio.to_thread(keep_best, self._run_dir, *self._evaluated)

    def due(self, step: int, every_steps: int) -> bool:
        """Whether to write a checkpoint of `step`: after `every_steps` steps, or sooner if the next death would cost
        more than a checkpoint does; sooner only once the one before is written."""
        if step % every_steps == 0 or self._saving.keeps(step) or self._saving.models(step):
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
            beside = {**(files or {}), **({KEPT: b""} if self._saving.keeps(step) else {})}
            staged = await stage_checkpoint(self._run_dir, step, state, self._trainer, beside)
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
        await self._keep_best()
        self._cadence.saved(stage_s + WRITE_SLOWS * write_s, age_s=write_s)
        self.event(
            "checkpoint", step=staged.step, stage_s=round(stage_s, 6), write_s=round(write_s, 6), bytes=size
        )  # fmt: skip
        if self._saving.models(staged.step):
            await self._begin_model(staged.step)

    async def _begin_model(self, step: int) -> None:
        """Begin to write the model of the checkpoint of `step`, once the one before is written."""
        await self.model_written()
        self._start_model(step)

    def _start_model(self, step: int) -> None:
        self._model = retrieved(asyncio.create_task(self._write_model(step), name=f"model of step {step}"))

    async def _write_model(self, step: int) -> None:
        out = self._model_folder(step)
        try:
            written = await asyncio.to_thread(self._export, step, out)
        except _ClosedError:
            return
        except Exception as failure:  # noqa: BLE001 - whatever it is, training goes on
            why = (str(failure) or type(failure).__name__).splitlines()[0]
            self.notes.append(f"no model of step {step}: {why}")
            with contextlib.suppress(RunFailed):
                self.event("model_failed", step=step, reason=why)
        else:
            if self._closed:
                return  # and so is the trace
            with contextlib.suppress(RunFailed):
                self.event("model", step=step, export_s=round(written.seconds, 6), bytes=written.bytes)

    def _export(self, step: int, out: Path) -> ExportedModel:
        from .model_export import export_model  # it imports torch

        def progress(*_: object) -> None:
            if self._closed:
                raise _ClosedError

        # The model of the step before it was done again, and what a driver that was killed left.
        for old in (out, *out.parent.glob(".*.partial-*")):
            shutil.rmtree(old, ignore_errors=True)
        return export_model(self._run_dir, out, step, verify=False, progress=progress)

    def _model_folder(self, step: int) -> Path:
        return self._run_dir / "models" / f"step-{step:06d}"

    async def model_written(self) -> None:
        """Wait for the model that is being written, if any."""
        if self._model is not None:
            await asyncio.wait({self._model})
            self._model = None

    async def last_model(self) -> None:
        """Wait for the model of the latest checkpoint, if models are written; begins it if that was not due before."""
        await self.model_written()
        step = self.saved_step
        if self._saving.model_every is not None and step > 0 and not self._model_folder(step).exists():
            await self._begin_model(step)
            await self.model_written()

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
        if self._saving.keeps(step):  # it may be of a driver that was not told to
            (self._run_dir / "checkpoints" / f"step-{step:06d}" / KEPT).touch()
        if self._saving.models(step) and self._model is None and not self._model_folder(step).exists():
            self._start_model(step)  # the run was killed while this one was written

    def failed(self, step: int, why: Exception | str, traced: bool = True) -> None:
        """Note why there is no checkpoint of `step`."""
        self.fault = str(why).splitlines()[0]
        self.notes.append(f"no checkpoint of step {step}: {self.fault}")
        if traced:
            with contextlib.suppress(RunFailed):  # the trace may be on the same full disk
                self.event("checkpoint_failed", step=step, reason=self.fault)

    def close(self) -> None:
        """Give up what is being written, models as well. What is on the disk stays whole."""
        self._closed = True
        if self._write is not None:
            self._write.cancel()
