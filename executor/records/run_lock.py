"""One driver per run folder: a lock that the kernel drops with the process that holds it.

Without it a requeued job beside a driver that is half dead would mix two runs in one trace and one set of checkpoints.
The lock is `flock` on `.lock` in the run's folder. It holds between processes of a host, and between hosts where the
file system carries locks (NFS since Linux 2.6.12, Lustre mounted with `flock`, GPFS).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from ...plans.yaml.errors import InputError
from .disk import written

LOCK = ".lock"


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
