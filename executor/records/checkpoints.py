"""The checkpoints of a run on its disk: the trainer's state and the schedule's, together or not at all.

Invariants:
- a folder `checkpoints/step-NNNNNN` exists only if it was written whole: it is written under another name, its files
  and folders are synced, and only then it gets its name; a crash at any instant leaves the checkpoints before it;
- a checkpoint is loaded only if every file is as its manifest says; the one before a damaged one is taken, and once it
  is loaded the damaged one is set aside, where it is not taken for the newest again;
- an older checkpoint is deleted only after a newer one has its name, but where the disk has no room for a third copy:
  there the older of two is deleted first, if the newer one is whole;
- none is deleted that was marked to be kept when it was written, or that somebody reads (`held`).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...plans.yaml.errors import InputError, RunFailed
from ...traces.run_log import TRACE
from ..processes.faults import InfrastructureFailed
from ..processes.supervision import again_while_it_passes
from ..trainer.manifest import damage, sync_folder, write_manifest
from ..trainer.trainer_group import TrainerDied, TrainerGroup
from .execution_folder import written

KEEP = 2  # the latest, and the one before it in case the disk lied
MANIFEST = "manifest.json"
KEPT = "kept"
"""The file in a checkpoint's folder that marks it as one to be kept."""
BEST = "best"
"""The same of the one whose evaluation had the highest mean reward so far; the file has that reward."""

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
        await asyncio.to_thread(check_room, folder, trainer.trained_parameters * STATE_BYTES_PER_PARAMETER)
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
        await asyncio.to_thread(make_room, folder, trainer.trained_parameters * STATE_BYTES_PER_PARAMETER)
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


def is_kept(folder: Path) -> bool:
    """Whether a checkpoint is kept, however old it is."""
    return (folder / KEPT).exists() or (folder / BEST).exists()


def best_checkpoint(run_dir: Path) -> tuple[Path, float] | None:
    """The checkpoint of a run whose evaluation had the highest mean reward, and that reward; None without one."""
    for folder in checkpoints(run_dir):
        with contextlib.suppress(OSError, ValueError):  # there is no such file, or it was torn
            return folder, float((folder / BEST).read_text(encoding="utf-8"))
    return None


def keep_best(run_dir: Path, step: int, reward: float) -> bool:
    """Keep the checkpoint of `step`, which must be on the disk, if its evaluation had a higher mean reward than that of
    the one kept for this so far, which is then kept no longer for it. Whether it was. Raises OSError."""
    best, folder = best_checkpoint(run_dir), run_dir / "checkpoints" / f"step-{step:06d}"
    if not folder.is_dir() or (best is not None and best[1] >= reward):
        return False
    (folder / BEST).write_text(repr(reward), encoding="utf-8")
    if best is not None:
        (best[0] / BEST).unlink(missing_ok=True)
    return True


def _drop(folder: Path) -> None:
    """Delete a checkpoint, unless it is to be kept or somebody reads it: then it is tried again after the next one."""
    if is_kept(folder):
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
    older = (folder_bytes(old) for old in present[:-1] if not is_kept(old))
    if free < needed and free + sum(older) < needed:
        raise _no_room(needed, free)


def make_room(folder: Path, least_bytes: int) -> None:
    """See that one more checkpoint fits, as `check_room` does.

    Drops the older of two checkpoints if that is what it takes and the newer one is whole. Raises CheckpointFailed.
    """
    present = sorted(folder.glob("step-*"))
    needed = _needed(present, least_bytes)
    if (
        shutil.disk_usage(folder).free < needed
        and len(present) > 1
        and damage(present[-1] / MANIFEST, nested=False) is None
    ):
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

    A checkpoint is sound if its files are as its manifest says, which the trainer's ranks find out for theirs, and the
    trace reaches as far as it did when the checkpoint was written. Raises InputError if there is none: all stay where
    they are then, for what they lack (the trace, say) may be put back. Raises RunFailed if one cannot be loaded or
    renamed.
    """
    faults: dict[Path, str] = {}
    trace_lost = False
    for folder in reversed(checkpoints(run_dir)):
        fault = await asyncio.to_thread(damage, folder / MANIFEST, nested=False)
        if fault is None:
            state: dict[str, Any] = json.loads((folder / "state.json").read_text(encoding="utf-8"))
            fault = _trace_fault(run_dir, state)
            trace_lost = trace_lost or fault is not None
        if fault is None:
            fault = await _damage_of_ranks(folder / "trainer", trainer)
        if fault is None:
            await trainer.load(folder / "trainer")
            for newer in faults:  # what the trace has lost is written anew, and would fit them by its length alone
                _set_aside(newer)
            return Loaded(state, {newer.name: fault for newer, fault in faults.items()}, folder)
        faults[folder] = fault
    raise InputError(_no_checkpoint(run_dir, faults, trace_lost), str(run_dir))


async def _damage_of_ranks(folder: Path, trainer: TrainerGroup) -> str | None:
    try:
        return await again_while_it_passes(lambda: trainer.damage(folder))
    except InfrastructureFailed as error:  # it does not pass
        return str(error)


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
