"""`rlplan execute` as a process that is started again when it ends early, and the processes that belong to it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import psutil

from . import inside

MARK = "RLPLAN_FAULTS"
"""Environment variable that all processes of a run inherit: it identifies them, orphans included."""

# A step of the demo takes 2 s and reward deadlines are 2 s: a process that is silent for so long hangs.
STALL_S = 20
RESTARTS_PER_HOUR = 100  # so many faults are no crash loop here
START_DEADLINE_S = 300.0
SECOND_S = 60.0
ORDER_S = 10.0
"""In which a process carries out an order, or is taken to be gone."""


class Process(NamedTuple):
    """A process of the run: its id, its command line, and its parent's id."""

    pid: int
    command: str
    parent: int


class Driver:
    """The run's driver. `ensure()` starts it again if it ended before its steps were done."""

    def __init__(self, plan: Path, out: Path, steps: int) -> None:
        self.plan, self.out, self.steps = plan, out, steps
        self.starts = 0
        self._token = uuid.uuid4().hex
        self._seen: dict[int, float | None] = {}
        self._process: subprocess.Popen[bytes] | None = None
        out.parent.mkdir(parents=True, exist_ok=True)
        self._log = (out.parent / f"{out.name}.log").open("ab")
        self._orders = out.parent / f"{out.name}.orders"
        self._orders.mkdir()
        shutil.copy(inside.__file__, self._orders / "sitecustomize.py")

    def __enter__(self) -> Driver:
        self.ensure()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        for process in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        self._log.close()

    @property
    def pid(self) -> int:
        """Process id of the driver."""
        assert self._process is not None
        return self._process.pid

    def running(self) -> bool:
        """Whether the driver's process runs."""
        return self._process is not None and self._process.poll() is None

    def done(self) -> bool:
        """Whether the driver ended with exit code 0."""
        return self._process is not None and self._process.poll() == 0

    def ensure(self) -> None:
        """Start the driver, from its last checkpoint if it has one, unless it runs or is done."""
        if self.running() or self.done():
            return
        self.starts += 1
        arguments = ["execute", self.plan, "--out", self.out, "--steps", self.steps, "--checkpoint-every", 1]
        arguments += ["--stall-timeout", STALL_S, "--restarts-per-hour", RESTARTS_PER_HOUR]
        if any((self.out / "checkpoints").glob("step-*")):
            arguments.append("--resume")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "rlplan.cli.main", *map(str, arguments)],
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
        )

    def _environment(self) -> dict[str, str]:
        path = [str(self._orders), *filter(None, [os.environ.get("PYTHONPATH")])]
        folder = {inside.FOLDER: str(self._orders)}
        return {**os.environ, **folder, MARK: self._token, "PYTHONPATH": os.pathsep.join(path)}

    def second(self) -> int:
        """The exit code of a second driver, started beside the first on the same folder; -1 if the first one died
        meanwhile and the second one took over, which is ended then."""
        command = ["execute", self.plan, "--out", self.out, "--steps", self.steps, "--resume"]
        arguments = [sys.executable, "-m", "rlplan.cli.main", *map(str, command)]
        try:
            return subprocess.run(arguments, capture_output=True, timeout=SECOND_S, check=False).returncode
        except subprocess.TimeoutExpired:
            return -1

    def order(self, pid: int, order: str) -> bool:
        """Give an order to a process of the run (inside.py); whether it carried it out."""
        told, done = self._orders / str(pid), self._orders / f"{pid}.done"
        done.unlink(missing_ok=True)
        told.write_text(order)
        end = time.monotonic() + ORDER_S
        while time.monotonic() < end and not done.exists():
            time.sleep(inside.LOOK_S)
        told.unlink(missing_ok=True)
        return done.exists() and done.read_text() == "1"

    def kill(self) -> None:
        """SIGKILL the driver and wait until it is gone."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def end_of_log(self) -> str:
        """The last lines that the driver printed."""
        return "\n".join(Path(self._log.name).read_text(errors="replace").splitlines()[-20:])

    def step(self) -> int:
        """The number of the last step in the trace; 0 before the first."""
        trace = self.out / "trace.jsonl"
        if not trace.exists():
            return 0
        last = 0
        for line in trace.read_bytes().split(b"\n"):
            if b'"event":"step"' in line and (start := line.find(b'"step":')) >= 0:
                last = int(line[start + 7 :].split(b",", 1)[0])
            elif b'"event":"resume"' in line and (start := line.find(b'"step":')) >= 0:
                last = int(line[start + 7 :].replace(b"}", b",").split(b",", 1)[0])
        return last

    def processes(self) -> list[Process]:
        """All processes of the run but the driver, by id, without zombies."""
        own = self._process.pid if self._process else 0
        found = [process for process in marked_processes(self._token) if process.pid != own]
        for process in found:
            self._seen.setdefault(process.pid, _born(process.pid))
        return found

    def left(self) -> list[Process]:
        """Processes of the run, orphans included that nothing but their id tells: those that were seen before, and
        still are there."""
        now = {process.pid: process for process in self.processes()}
        for pid, born in self._seen.items():
            if pid not in now and born is not None and _born(pid) == born:
                now[pid] = Process(pid, "seen in the run before", 0)
        return sorted(now.values())

    def wait_for_step(self, step: int, deadline_s: float) -> bool:
        """Wait until the trace has step `step` or the run is done; the driver is started again whenever it ends.

        Returns False after `deadline_s`.
        """
        end = time.monotonic() + deadline_s
        while not self.done() and self.step() < step:
            if time.monotonic() > end:
                return False
            self.ensure()
            time.sleep(0.1)
        return True

    def wait_until_done(self, deadline_s: float) -> bool:
        """Wait until the driver ends with exit code 0; it is started again whenever it ends otherwise.

        Returns False if a step takes longer than `deadline_s`.
        """
        while self.wait_for_step(self.step() + 1, deadline_s):
            if self.done():
                return True
            time.sleep(0.1)
        return False


def _born(pid: int) -> float | None:
    """When a process began; None if it has ended, or is a zombie."""
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else process.create_time()
    except psutil.Error:
        return None


def marked_processes(token: str) -> list[Process]:
    """All processes that inherited MARK with this value, and what they started, by id, without zombies. What scores
    inherits no such variable, and the environment of its worker is hidden from other users than root."""
    marked, others = dict[int, Process](), dict[int, Process]()
    wanted = f"{MARK}={token}".encode()
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            process = Process(int(folder.name), command, parent)
            others[process.pid] = process
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                marked[process.pid] = process
        except OSError:  # the process has ended, is a zombie, or hides its environment
            continue
    while children := [each for each in others.values() if each.command and each.parent in marked
                       and each.pid not in marked]:  # fmt: skip
        marked |= {each.pid: each for each in children}
    return sorted(marked.values())


def run_without_faults(plan: Path, out: Path, steps: int) -> float:
    """Run without faults. Returns seconds. Raises RuntimeError if that fails."""
    began = time.monotonic()
    with Driver(plan, out, steps) as driver:
        if not driver.wait_until_done(START_DEADLINE_S) or driver.starts > 1:
            raise RuntimeError(f"the run without faults failed; the end of its log:\n{driver.end_of_log()}")
    return time.monotonic() - began
