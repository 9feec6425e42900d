"""The process that forks a tester for each sample. It runs nothing of responses or tests, and reads neither.

`python -I -S -B -c BOOT PACKAGE SOCKET FOLDER WITHOUT FILES BYTES`: SOCKET is the descriptor of a
socket to the worker that keeps messages apart, FOLDER a new folder, WITHOUT the parts of the isolation to leave out,
separated by commas, FILES the files of the stated packages by name, as JSON, BYTES the memory that a tester and all
below it may take. It writes one JSON message at once:
`{"notes": […], "lacks": {part: why}}`, or `{"failure": why}`.
Then it takes requests: `{"start": n, "runs": m}` with one more socket, on which the tester of
sample n and the worker talk, while sample m is tested; `{"kill": n}`. It writes `{"ended": n, "why": text}` when a
tester has ended: why it was ended here, if it was.

It imports once what responses import most; each fork finds that done.
"""

from __future__ import annotations

import builtins
import gc
import json
import os
import select
import signal
import socket
import sys
import time

from . import plain_data, references, script_tests, tester
from .isolation import Isolation
from .kernel import die_with_parent
from .visible_files import PackageFinder

WARM = (
    "abc", "array", "ast", "base64", "bisect", "collections.abc", "contextlib", "copy", "dataclasses", "datetime",
    "decimal", "enum", "fractions", "functools", "hashlib", "heapq", "inspect", "io", "itertools", "json", "math",
    "operator", "queue", "random", "re", "statistics", "string", "textwrap", "threading", "time", "typing", "unittest",
    "uuid",
)  # fmt: skip
"""Modules that are imported before any sample comes."""
WATCH_S = 0.05
"""How often memory and number of the processes that run are looked at."""
MOST_PROCESSES = 64
"""That a response may have at once; the kernel counts them too, where it can."""
ORPHANS_S = 1.0
COUNTED = ("RssAnon:", "RssShmem:", "VmSwap:", "VmPTE:")
"""Of /proc's `status`: a process's own memory, shared memory, what of it is swapped out, tables of its pages."""
BUFFER_BYTES = 212_992
"""What one socket may hold where the kernel does not tell; that is no process's memory."""


def main(control: int, folder: str, without: str, files: str, memory_bytes: str) -> None:
    """Serve the worker until it closes its end."""
    worker = socket.socket(fileno=control)
    try:
        for name in WARM:
            __import__(name)
        # Programs use them; `site`, which does not run here, would have set them.
        vars(builtins).update(exit=sys.exit, quit=sys.exit)
        packages = json.loads(files)
        _warm_packages(packages, folder)
        isolation = Isolation(folder, frozenset(filter(None, without.split(","))), packages)
        isolation.enter()
    except Exception as error:  # noqa: BLE001 - told to the worker, which ends the start with it
        worker.sendall(json.dumps({"failure": f"{type(error).__name__}: {error}"}).encode())
        return
    # Forks then share the pages of what was imported: the collector does not write to them.
    gc.collect()
    gc.freeze()
    worker.sendall(json.dumps({"notes": isolation.notes(), "lacks": isolation.lacks}).encode())
    Starter(worker, isolation, int(memory_bytes)).serve()


def _warm_packages(files: dict[str, str], folder: str) -> None:
    """Make packages importable; import numpy and pytest, which take long. `folder`: for what pytest writes."""
    if not files:
        return
    # Threads that numpy starts would not be there in a fork, and each takes address space.
    os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    sys.meta_path.append(PackageFinder(files))
    references.PACKAGES |= {name for name in files if name.isidentifier()}
    if "numpy" in files:
        import numpy
        import numpy.random
        import numpy.testing

        plain_data.use_numpy(numpy)
    if "pytest" in files:
        script_tests.warm_pytest(folder)


class Starter:
    """The testers that run now."""

    def __init__(self, worker: socket.socket, isolation: Isolation, most_bytes: int) -> None:
        self._worker, self._isolation, self._most_bytes = worker, isolation, most_bytes
        self._pids: dict[int, int] = {}
        self._ends: dict[int, int] = {}
        self._why: dict[int, str] = {}
        self._cleaners: set[int] = set()
        self._runs = 0
        self._buffer_bytes = int(self._read("sys/net/core/wmem_default") or BUFFER_BYTES)

    def serve(self) -> None:
        """Take requests, reap testers, watch their memory."""
        control = self._worker.fileno()
        while True:
            # Later ones wait for their samples, and are idle.
            running = [number for number in self._pids if number <= self._runs]
            ready = select.select([control, *self._ends], [], [], WATCH_S if running else None)[0]
            for end in [each for each in ready if each in self._ends]:
                self._reap(end)
            if control in ready and not self._take():
                return
            for number in running if not ready else ():
                below = [*self._below(self._pids[number]), *self._strays()]
                if len(below) > MOST_PROCESSES:
                    self._too_many(number, f"started more than {MOST_PROCESSES} processes")
                elif self._bytes_of([self._pids[number], *below]) > self._most_bytes:
                    self._too_many(number, f"its processes took more than {self._most_bytes} bytes together")

    def _take(self) -> bool:
        """Carry out one request; False if the worker is gone."""
        text, sockets, _, _ = socket.recv_fds(self._worker, 4096, 1)
        if not text:
            return False
        request = json.loads(text)
        if "start" in request:
            self._runs = int(request["runs"])
            self._start(int(request["start"]), sockets[0])
        elif int(request["kill"]) in self._pids:
            self._kill(int(request["kill"]))
        return True

    def _start(self, number: int, wire: int) -> None:
        try:
            pid = self._isolation.new_process()
        except OSError as error:
            os.write(wire, json.dumps({"failure": f"{error}"}).encode())
            os.close(wire)
            self._tell(number)
            return
        if pid == 0:
            tester.run(wire, number, self._isolation)
        os.close(wire)
        self._pids[number] = pid
        self._ends[os.pidfd_open(pid)] = number

    def _too_many(self, number: int, why: str) -> None:
        self._why[number] = why
        self._kill(number)

    def _kill(self, number: int) -> None:
        os.kill(self._pids[number], signal.SIGKILL)

    def _reap(self, end: int) -> None:
        number = self._ends.pop(end)
        os.close(end)
        os.waitpid(self._pids.pop(number), 0)
        if not self._isolation.has("processes"):
            self._kill_orphans()
        self._tell(number, self._why.pop(number, ""))
        self._remove_folder(number)

    def _remove_folder(self, number: int) -> None:
        """Remove what a sample left on the host's disk, in a process of its own: that may take seconds."""
        self._cleaners -= {pid for pid in self._cleaners if os.waitpid(pid, os.WNOHANG)[0]}
        if not self._isolation.has("files"):
            pid = os.fork()
            if pid == 0:
                die_with_parent()
                self._isolation.remove_folder(number)
                os._exit(0)
            self._cleaners.add(pid)

    def _kill_orphans(self) -> None:
        """End what a response left behind: its parents are dead, so it is a child of this process now."""
        until = time.monotonic() + ORPHANS_S
        while (orphans := set(self._children(os.getpid())) - self._known()) and time.monotonic() < until:
            for pid in orphans:
                os.kill(pid, signal.SIGKILL)
            for pid in orphans:
                os.waitpid(pid, 0)

    def _known(self) -> set[int]:
        return {*self._pids.values(), *self._cleaners}

    def _tell(self, number: int, why: str = "") -> None:
        self._worker.sendall(json.dumps({"ended": number, "why": why}).encode())

    def _bytes_of(self, pids: list[int]) -> int:
        """Memory that a tester and all below it have taken, beyond what they found when they were forked.

        A page that a process shares with its parent since a fork counts for both; each open descriptor counts as a
        socket whose buffer is full.
        """
        found = self._taken(os.getpid())
        return sum(max(0, self._taken(pid) - found) + self._descriptors(pid) * self._buffer_bytes for pid in pids)

    def _taken(self, pid: int) -> int:
        lines = (line.split() for line in self._read(f"{pid}/status").splitlines())
        return sum(int(fields[1]) << 10 for fields in lines if fields and fields[0] in COUNTED)

    def _descriptors(self, pid: int) -> int:
        """How many descriptors a process has open; 0 before Linux 6.2, which does not tell."""
        try:
            return os.stat(f"{pid}/fd", dir_fd=self._isolation.processes).st_size
        except OSError:
            return 0

    def _below(self, pid: int) -> list[int]:
        found: list[int] = []
        waiting = [pid]
        while waiting:
            children = self._children(waiting.pop())
            found += children
            waiting += children
        return found

    def _strays(self) -> list[int]:
        """Where process ids are not isolated, this process is the parent of what lost its own."""
        if self._isolation.has("processes"):
            return []
        strays = [pid for pid in self._children(os.getpid()) if pid not in self._known()]
        return strays + [below for pid in strays for below in self._below(pid)]

    def _children(self, pid: int) -> list[int]:
        """What any thread of a process has forked."""
        try:
            task = os.open(f"{pid}/task", os.O_RDONLY, dir_fd=self._isolation.processes)
        except OSError:
            return []
        try:
            threads = os.listdir(task)  # noqa: PTH208 - see the package: few imports
        except OSError:
            threads = []
        os.close(task)
        told = (self._read(f"{pid}/task/{thread}/children") for thread in threads)
        return [int(child) for text in told for child in text.split()]

    def _read(self, path: str) -> str:
        """A file of /proc; empty if its process is gone, or the kernel does not let this one look."""
        try:
            with os.fdopen(os.open(path, os.O_RDONLY, dir_fd=self._isolation.processes)) as file:
                return file.read()
        except OSError:
            return ""


BOOT = (
    "import sys, types; package = types.ModuleType('sandbox'); package.__path__ = [sys.argv[1]]; "
    "sys.modules['sandbox'] = package; from sandbox.starter import main; main(int(sys.argv[2]), *sys.argv[3:])"
)
