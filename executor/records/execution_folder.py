"""A run's folder: whether it holds a run, its files before the first event, and the lock of its only driver.

Without the lock a requeued job beside a driver that is half dead would mix two runs in one trace.
The lock is `flock` on `.lock` in the run's folder. It holds between processes of a host, and between hosts where the
file system carries locks (NFS since Linux 2.6.12, Lustre mounted with `flock`, GPFS).
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from ...plans.yaml.errors import InputError, RunFailed
from ...plans.yaml.input_files import opened
from ...plans.yaml.output_files import must_take_folder
from ...traces.run_log import LOCK, PLAN_COPY, TRACE


@contextlib.contextmanager
def written(path: Path, then: str = "start again") -> Iterator[None]:
    """Within the block, turn the disk's refusal to write at `path` into RunFailed; `then` says what to do about it."""
    try:
        yield
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise RunFailed(f"{path} cannot be written ({why}); make room, then {then}") from error


def check_folder(run_dir: Path, resume: bool) -> None:
    """Raises InputError unless a run can start in a folder, or, to resume it, unless the folder holds one."""
    must_take_folder(run_dir)
    exists = holds_run(run_dir)
    if exists and not resume:
        raise InputError("holds a run already; continue it with --resume or choose another --out", str(run_dir))
    if resume and not exists:
        raise InputError("holds no run to resume; run without --resume", str(run_dir))


def begin_folder(run_dir: Path, plan: bytes, resume: bool) -> None:
    """Make a run's folder ready for its first events; `plan`: the text of its plan's file. Raises RunFailed if the disk
    does not take them."""
    copy = run_dir / PLAN_COPY
    with written(copy):
        (run_dir / "weights").mkdir(parents=True, exist_ok=True)
        if not resume:
            (run_dir / TRACE).unlink(missing_ok=True)  # of a start that came to no checkpoint
            copy.write_bytes(plan)


def holds_run(run_dir: Path) -> bool:
    """Whether a run in this folder came as far as its first checkpoint or step; one that did not is begun anew."""
    if has_checkpoint(run_dir):
        return True
    trace = run_dir / TRACE
    if not trace.exists():
        return False
    with opened(trace) as file, io.BufferedReader(file) as lines:
        return any(b'"event":"step"' in line for line in lines)


def has_checkpoint(run_dir: Path) -> bool:
    """Whether a run in this folder came to a checkpoint, from which it can go on."""
    return any((run_dir / "checkpoints").glob("*step-*"))


@contextlib.contextmanager
def run_lock(run_dir: Path) -> Iterator[None]:
    """Hold the folder's lock; makes the folder if needed.

    Raises InputError, naming who holds it, if another process does; RunFailed if the disk takes no line.
    """
    with written(run_dir / LOCK):
        run_dir.mkdir(parents=True, exist_ok=True)
        # "a" leaves the holder's line alone until the lock is ours; a buffer would be tried again when it is closed.
        file = (run_dir / LOCK).open("ab", buffering=0)
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(
                f"is in use by {_holder(run_dir / LOCK)}; wait until that process ends, or end it, then start again",
                str(run_dir),
            ) from None
        me = {"host": socket.gethostname(), "pid": os.getpid(), "since": time.strftime("%FT%TZ", time.gmtime())}
        with written(run_dir / LOCK):
            file.truncate(0)
            file.write(json.dumps(me).encode())
        yield


def _holder(path: Path) -> str:
    try:
        holder = json.loads(path.read_text(encoding="utf-8"))
        return f"process {holder['pid']} on {holder['host']} since {holder['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
