"""What the programs may harm, and whether they did."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from rlplan.executor.rewards.sandbox.verdict import MEMORY_BYTES

DISK_BYTES = 256 << 20
"""Less free space than before by so much, on the disk of temporary files, counts as harm."""


MEMORY_MORE_BYTES = 512 << 20
"""What a program may take beyond its limit before it is seen, and other programs meanwhile."""
LOOK_S = 0.02


class Host:
    """Files, servers and a process of this user, as a context."""

    def __enter__(self) -> Host:
        self.folder = Path(tempfile.mkdtemp(prefix="rlplan-host-"))
        self.folder.chmod(0o755)
        self.secret, self.kept = self.folder / "secret", self.folder / "kept"
        self.secret.write_text("a secret\n")
        self.kept.write_text("kept\n")
        self.secret.chmod(0o644)
        self.kept.chmod(0o666)
        self.abstract = f"rlplan-{secrets.token_hex(8)}"
        self._contacts = 0
        self._servers = [socket.create_server(("127.0.0.1", 0)), socket.socket(socket.AF_UNIX)]
        self._servers[1].bind(f"\0{self.abstract}")
        self._servers[1].listen()
        for server in self._servers:
            threading.Thread(target=self._accept, args=(server,), daemon=True).start()
        self.sleep = f"{90000 + os.getpid() % 1000}.{secrets.randbelow(10**6):06d}"
        self._start_victim()
        self.watch_memory()
        self._watching = True
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._watching = False
        self._watcher.join()
        for server in self._servers:
            server.close()
        self.victim.kill()
        self.victim.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def filled(self, source: str) -> str:
        """A program's source with this host's names in it."""
        for name, value in {
            "SECRET": self.secret, "KEPT": self.kept, "FOLDER": self.folder, "PORT": self._servers[0].getsockname()[1],
            "ABSTRACT": self.abstract, "VICTIM": self.victim.pid, "WORKER": os.getpid(), "SLEEP": self.sleep,
        }.items():  # fmt: skip
            source = source.replace(f"@{name}@", str(value))
        return source

    def state(self) -> dict[str, Any]:
        """What a program must not change."""
        return {
            "secret": self.secret.read_text(),
            "file": self.kept.read_text() if self.kept.exists() else "gone",
            "folder": sorted(path.name for path in self.folder.iterdir()),
            "shared memory": Path("/dev/shm/rlplan-left").exists(),
            "contacts": self._contacts,
            "victim": _letter(self.victim.pid) in "RSD",
            "memory beyond its limit": self._before_bytes - self._least_bytes > MEMORY_BYTES + MEMORY_MORE_BYTES,
            "disk full": shutil.disk_usage(tempfile.gettempdir()).free // DISK_BYTES == 0,
        }

    def watch_memory(self) -> None:
        """From now on, note how much of this host's memory is taken at once."""
        self._before_bytes = self._least_bytes = _free_bytes()

    def _watch(self) -> None:
        while self._watching:
            self._least_bytes = min(self._least_bytes, _free_bytes())
            time.sleep(LOOK_S)

    def left_behind(self, patience_s: float = 5.0) -> bool:
        """Whether a process that a program started is still there after a moment."""
        until = time.monotonic() + patience_s
        while _runs(self.sleep):
            if time.monotonic() > until:
                return True
            time.sleep(0.02)
        return False

    def repair(self) -> None:
        """Make all as it was, after a program that harmed it."""
        self.kept.write_text("kept\n")
        Path("/dev/shm/rlplan-left").unlink(missing_ok=True)
        if self.victim.poll() is not None or _letter(self.victim.pid) not in "RSD":
            self.victim.kill()
            self.victim.wait()
            self._start_victim()
        for pid in _running(self.sleep):
            os.kill(pid, signal.SIGKILL)

    def _start_victim(self) -> None:
        self.victim = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(3600)"])

    def _accept(self, server: socket.socket) -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            self._contacts += 1
            connection.close()


def _free_bytes() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))


def _letter(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "gone"


def _running(argument: str) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if argument in path.read_bytes().decode(errors="replace").split("\0"):
                found.append(int(path.parent.name))
        except OSError:
            continue  # it ended while we looked
    return found


def _runs(argument: str) -> bool:
    return bool(_running(argument))
