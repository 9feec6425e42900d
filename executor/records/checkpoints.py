"""The checkpoints of a run: the trainer's state and the schedule's, together on the disk or not at all; when they are
due, and how one is written while training goes on.

Invariants:
- training stands still while the trainer's ranks copy their state to host memory, not while they write it;
- at most one checkpoint is written at a time: one that falls due meanwhile waits, and with it training;
- a checkpoint holds the state, of trainer and driver alike, of the step's end at which it was begun;
- a folder `checkpoints/step-NNNNNN` exists only if it was written whole: it is written under another name, its files
  and folders are synced, and only then it gets its name; a crash at any instant leaves the checkpoints before it;
- a checkpoint is loaded only if every file is as its manifest says; the one before a damaged one is taken, and once it
  is loaded the damaged one is set aside, where it is not taken for the newest again;
- an older checkpoint is deleted only after a newer one has its name, but where the disk has no room for a third copy:
  there the older of two is deleted first, if the newer one is whole;
- none is deleted that was marked to be kept when it was written, or that somebody reads (`held`).

A trainer that dies takes the run back to its last checkpoint, so a death costs half an interval on average, and each
interval costs one checkpoint. The sum of both is least at the interval sqrt(2 C M), where C are the seconds that a
checkpoint costs training and M the mean seconds between deaths (Young, 1974).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import json
import math
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ...plans.yaml.errors import InputError, RunFailed
from ...traces.run_log import TRACE
from ..processes.actors import retrieved
from ..trainer.manifest import damage, sync_folder, write_manifest
from ..trainer.trainer_group import TrainerDied, TrainerGroup
from .execution_folder import written

if TYPE_CHECKING:
    from .model_export import ExportedModel

KEEP = 2  # the latest, and the one before it in case the disk lied
MANIFEST = "manifest.json"
KEPT = "kept"
"""The file in a checkpoint's folder that marks it as one to be kept."""

# Weights and both moments of AdamW in float32: what a trainer writes, before any checkpoint shows its real size.
STATE_BYTES_PER_PARAMETER = 12
SPARE_BYTES = 32 * 1024**2  # for the trace and what else is written meanwhile


class CheckpointFailed(RunFailed):
    """A checkpoint could not be written; those before it are untouched, and training may go on."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A checkpoint that was loaded: the driver's state, the faults of newer ones by folder name, and its folder."""

    state: dict[str, Any]
    damaged: dict[str, str]
    folder: Path


@dataclass(frozen=True, slots=True)
class Staged:
    """A checkpoint of which the trainer's ranks hold the state in host memory; `state` is the driver's, as JSON, and
    `files` lie beside it, by name: a checkpoint is sound without them."""

    step: int
    state: str
    files: Mapping[str, bytes]


async def stage_checkpoint(
    run_dir: Path,
    step: int,
    state: dict[str, Any],
    trainer: TrainerGroup,
    files: Mapping[str, bytes] | None = None,
) -> Staged:
    """Take the state of `step`, for `write_checkpoint`; training goes on only after it.

    Raises CheckpointFailed if the disk has no room or the state cannot be staged, TrainerDied if the trainer is gone.
    """
    folder = run_dir / "checkpoints"
    try:
        await asyncio.to_thread(_clear, folder)
        await asyncio.to_thread(check_room, folder, trainer.parameters * STATE_BYTES_PER_PARAMETER)
        await trainer.stage()
    except TrainerDied:
        raise
    except (OSError, RunFailed) as error:
        raise _failed(step, error) from error
    return Staged(step, json.dumps(state), files or {})


async def write_checkpoint(run_dir: Path, staged: Staged, trainer: TrainerGroup) -> int:
    """Write what was staged and drop all checkpoints but the last `KEEP` and those to be kept; training may go on.

    Returns its bytes.

    Raises CheckpointFailed if it cannot be written (no space, say), TrainerDied if the trainer is gone. Then nothing of
    it is left; if it is cancelled, its part stays until the next is staged, for a thread may still write to it.
    """
    folder = run_dir / "checkpoints"
    partial = folder / f".partial-{staged.step:06d}-{os.getpid()}"
    try:
        await asyncio.to_thread(make_room, folder, trainer.parameters * STATE_BYTES_PER_PARAMETER)
        partial.mkdir()
        await trainer.write(partial / "trainer")
        size = await asyncio.to_thread(_finish, partial, folder / f"step-{staged.step:06d}", staged)
    except (OSError, RunFailed) as error:
        await asyncio.to_thread(shutil.rmtree, partial, ignore_errors=True)
        if isinstance(error, TrainerDied):
            raise
        raise _failed(staged.step, error) from error
    for old in checkpoints(run_dir)[:-KEEP]:
        await asyncio.to_thread(_drop, old)
    return size


def _drop(folder: Path) -> None:
    """Delete a checkpoint, unless it is to be kept or somebody reads it: then it is tried again after the next one."""
    if (folder / KEPT).exists():
        return
    with contextlib.ExitStack() as lock:
        try:
            fcntl.flock(lock.enter_context((folder / MANIFEST).open("r+b")), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        except OSError as error:  # no manifest, or a disk without locks
            if error.errno not in (errno.ENOENT, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
                return
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Keep a checkpoint from being deleted while it is read, by whatever process; a disk without locks does not.

    Raises FileNotFoundError if it is gone.
    """
    with (folder / MANIFEST).open("rb") as file:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_SH)
        (folder / MANIFEST).stat()  # it may have been deleted before the lock was ours
        yield


def _failed(step: int, error: Exception) -> CheckpointFailed:
    return CheckpointFailed(f"the checkpoint of step {step} could not be written: {error}")


def _clear(folder: Path) -> None:
    """Make the folder of checkpoints, or remove what unfinished ones have left in it."""
    folder.mkdir(parents=True, exist_ok=True)
    for leftover in folder.glob(".partial-*"):
        shutil.rmtree(leftover)


def _finish(partial: Path, final: Path, staged: Staged) -> int:
    """Add the driver's state and the manifest, and give the folder its name, so that all of it survives a crash.

    Returns the bytes of its files.
    """
    with (partial / "state.json").open("w", encoding="utf-8") as file:
        file.write(staged.state)
        file.flush()
        os.fsync(file.fileno())
    for name, data in staged.files.items():
        (partial / name).write_bytes(data)
    # The trainer's ranks have listed their own files.
    write_manifest(partial / MANIFEST, [partial / "state.json", *sorted((partial / "trainer").glob("manifest-*.json"))])
    sync_folder(partial)
    size = folder_bytes(partial)
    if final.exists():
        shutil.rmtree(final)
    partial.rename(final)
    sync_folder(final.parent)
    return size


def check_room(folder: Path, least_bytes: int) -> None:
    """See, at once and without a change, that one more checkpoint fits, if need be without all but the latest.

    One is as large as the latest, or `least_bytes` if there is none. Raises CheckpointFailed.
    """
    present = sorted(folder.glob("step-*"))
    needed = _needed(present, least_bytes)
    free = shutil.disk_usage(folder).free
    older = (folder_bytes(old) for old in present[:-1] if not (old / KEPT).exists())
    if free < needed and free + sum(older) < needed:
        raise _no_room(needed, free)


def make_room(folder: Path, least_bytes: int) -> None:
    """See that one more checkpoint fits, as `check_room` does.

    Drops the older of two checkpoints if that is what it takes and the newer one is whole. Raises CheckpointFailed.
    """
    present = sorted(folder.glob("step-*"))
    needed = _needed(present, least_bytes)
    if shutil.disk_usage(folder).free < needed and len(present) > 1 and damage(present[-1] / MANIFEST) is None:
        for old in present[:-1]:
            _drop(old)
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise _no_room(needed, free)


def _needed(present: list[Path], least_bytes: int) -> int:
    return (folder_bytes(present[-1]) if present else least_bytes) + SPARE_BYTES


def _no_room(needed: int, free: int) -> CheckpointFailed:
    return CheckpointFailed(
        f"it needs {needed / 1e9:.2f} GB and the disk has {free / 1e9:.2f} GB free; free some space"
    )


def folder_bytes(folder: Path) -> int:
    """Bytes of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def checkpoints(run_dir: Path) -> list[Path]:
    """Checkpoints of a run that were written whole, oldest first."""
    return sorted((run_dir / "checkpoints").glob("step-*"))


async def load_checkpoint(run_dir: Path, trainer: TrainerGroup) -> Loaded:
    """Load the latest sound checkpoint into `trainer`; newer ones are then renamed to `damaged-step-NNNNNN`.

    A checkpoint is sound if its files are as its manifest says and the trace reaches as far as it did when the
    checkpoint was written. Raises InputError if there is none: all stay where they are then, for what they lack (the
    trace, say) may be put back. Raises RunFailed if one cannot be loaded or renamed.
    """
    faults: dict[Path, str] = {}
    trace_lost = False
    for folder in reversed(checkpoints(run_dir)):
        fault = await asyncio.to_thread(damage, folder / MANIFEST)
        if fault is None:
            state: dict[str, Any] = json.loads((folder / "state.json").read_text(encoding="utf-8"))
            fault = _trace_fault(run_dir, state)
            trace_lost = trace_lost or fault is not None
        if fault is None:
            await trainer.load(folder / "trainer")
            for newer in faults:  # what the trace has lost is written anew, and would fit them by its length alone
                _set_aside(newer)
            return Loaded(state, {newer.name: fault for newer, fault in faults.items()}, folder)
        faults[folder] = fault
    raise InputError(_no_checkpoint(run_dir, faults, trace_lost), str(run_dir))


def _set_aside(folder: Path) -> None:
    aside = folder.with_name(f"damaged-{folder.name}")
    with written(folder, "go on with --resume"):
        shutil.rmtree(aside, ignore_errors=True)
        folder.rename(aside)


def _no_checkpoint(run_dir: Path, faults: dict[Path, str], trace_lost: bool) -> str:
    """Why a run cannot be taken up, and what helps. It is never begun anew in its folder: that would lose its trace."""
    listed = "; ".join(f"{folder.name}: {fault}" for folder, fault in faults.items())
    text = f"no checkpoint is sound ({listed})" if faults else "there is no checkpoint to resume from"
    aside = ", ".join(path.name for path in sorted((run_dir / "checkpoints").glob("damaged-step-*")))
    if aside:
        text += f"; set aside before: {aside} (rename one that is whole after all to step-NNNNNN)"
    advice = "put trace.jsonl back" if trace_lost else "restore one from a backup"
    return f"{text}; {advice} and continue with --resume, or start a new run with another --out"


def _trace_fault(run_dir: Path, state: dict[str, Any]) -> str | None:
    """Why the trace does not fit a checkpoint: steps that it has lost would be missing in every report."""
    trace = run_dir / TRACE
    needed, size = int(state.get("trace_bytes", 0)), trace.stat().st_size if trace.exists() else 0
    return None if size >= needed else f"the trace has lost what came before it ({size} of {needed} bytes are left)"


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
        self._cadence.saved(stage_s + WRITE_SLOWS * write_s, age_s=write_s)
        self.event(
            "checkpoint", step=staged.step, stage_s=round(stage_s, 6), write_s=round(write_s, 6), bytes=size
        )  # fmt: skip
        if self._saving.models(staged.step):
            await self._begin_model(staged.step)

    async def _begin_model(self, step: int) -> None:
        """Begin to write the model of the checkpoint of `step`, once the one before is written."""
        await self._model_written()
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
            with contextlib.suppress(RunFailed):
                self.event("model", step=step, export_s=round(written.seconds, 6), bytes=written.bytes)

    def _export(self, step: int, out: Path) -> ExportedModel:
        from .model_export import export_model  # it imports torch

        def progress(*_: object) -> None:
            if self._closed:
                raise _ClosedError

        for old in (out, *out.parent.glob(f".{out.name}.partial-*")):  # of the step before it was done again, or killed
            shutil.rmtree(old, ignore_errors=True)
        return export_model(self._run_dir, out, step, verify=False, progress=progress)

    def _model_folder(self, step: int) -> Path:
        return self._run_dir / "models" / f"step-{step:06d}"

    async def _model_written(self) -> None:
        if self._model is not None:
            await asyncio.wait({self._model})
            self._model = None

    async def last_model(self) -> None:
        """Wait for the model of the latest checkpoint, if models are written; begins it if that was not due before."""
        await self._model_written()
        step = self.saved_step
        if self._saving.model_every is not None and step > 0 and not self._model_folder(step).exists():
            await self._begin_model(step)
            await self._model_written()

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
        """Give up what is being written, models as well. What is on the disk stays whole."""
        self._closed = True
        if self._write is not None:
            self._write.cancel()
