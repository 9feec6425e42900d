"""A campaign of faults: bursts of ten faults, each fault at a random moment of a running step."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

# `rlplan execute` as a process that is started again when it ends early, and the processes that belong to it.

MARK = "RLPLAN_FAULTS"
"""Environment variable that all processes of a run inherit: it identifies them, orphans included."""

# A step of the demo takes 2 s and reward deadlines are 2 s: a process that is silent for so long hangs.
STALL_S = 20
RESTARTS_PER_HOUR = 100  # so many faults are no crash loop here
START_DEADLINE_S = 300.0


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
        self._process: subprocess.Popen[bytes] | None = None
        out.parent.mkdir(parents=True, exist_ok=True)
        self._log = (out.parent / f"{out.name}.log").open("ab")

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
            env={**os.environ, MARK: self._token},
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
        )

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
        return [process for process in marked_processes(self._token) if process.pid != own]

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


def marked_processes(token: str) -> list[Process]:
    """All processes that inherited MARK with this value, by id, without zombies."""
    processes = []
    wanted = f"{MARK}={token}".encode()
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            if wanted not in (folder / "environ").read_bytes().split(b"\0"):
                continue
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:  # the process has ended, or is a zombie
            continue
        processes.append(Process(int(folder.name), command, parent))
    return sorted(processes)


def run_without_faults(plan: Path, out: Path, steps: int) -> float:
    """Run without faults. Returns seconds. Raises RuntimeError if that fails."""
    began = time.monotonic()
    with Driver(plan, out, steps) as driver:
        if not driver.wait_until_done(START_DEADLINE_S) or driver.starts > 1:
            raise RuntimeError(f"the run without faults failed; the end of its log:\n{driver.end_of_log()}")
    return time.monotonic() - began


# The faults. Each takes a run's driver and a random generator, and returns a text on what it did, or None if there
# was no process to strike.
#
# Trainer ranks, engines and reward workers are Ray actors, whose processes bear their classes' names; an engine's
# core is a process of vLLM's below it.

Injector = Callable[[Driver, random.Random], str | None]

FULL_S = 3.0
"""Seconds for which every write to the disk fails."""
FULL_BYTES = 1024
PAUSED_S = 5.0


def signalled(number: signal.Signals, name: str, belongs: Callable[[Process], bool]) -> Injector:
    """A fault that sends a signal to a random process of a kind; `belongs` tells whether a process is of the kind."""

    def inject(driver: Driver, rng: random.Random) -> str | None:
        able = [process for process in driver.processes() if belongs(process)]
        if not able:
            return None
        chosen = rng.choice(able)
        with contextlib.suppress(ProcessLookupError):
            os.kill(chosen.pid, number)
        return f"{number.name} {name} (process {chosen.pid})"

    return inject


def _actor(name: str) -> Callable[[Process], bool]:
    return lambda process: process.command.startswith(f"ray::{name}")


def _core(process: Process) -> bool:
    return process.command.startswith("VLLM::EngineCor")


def kill_driver(driver: Driver, rng: random.Random) -> str | None:
    """SIGKILL of the driver; it is started again with `--resume`."""
    driver.kill()
    return "SIGKILL driver"


def pause_driver(driver: Driver, rng: random.Random) -> str | None:
    """SIGSTOP of the driver for some seconds, as on a host that freezes: no other process may be restarted for it."""
    pid = driver.pid
    os.kill(pid, signal.SIGSTOP)

    def go_on() -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

    timer = threading.Timer(PAUSED_S, go_on)
    timer.daemon = True
    timer.start()
    return f"SIGSTOP driver for {PAUSED_S:g} s"


def tear_trace(driver: Driver, rng: random.Random) -> str | None:
    """Kill the driver, and leave a torn line at the trace's end, as if it had died while it wrote."""
    driver.kill()
    with (driver.out / "trace.jsonl").open("ab") as trace:
        trace.write(b'{"event":"step","t_s":1.5,"st')
    return "SIGKILL driver and a torn line at the trace's end"


def flip_byte(driver: Driver, rng: random.Random) -> str | None:
    """Kill the driver, and flip a bit of a file of the newest checkpoint, which the next start reads."""
    driver.kill()
    checkpoints = sorted((driver.out / "checkpoints").glob("step-*"))
    if len(checkpoints) < 2:
        return None  # there is no earlier checkpoint to resume from yet
    files = sorted(path for path in checkpoints[-1].rglob("*") if path.is_file() and path.stat().st_size)
    chosen = rng.choice(files)
    with chosen.open("r+b") as file:
        place = rng.randrange(chosen.stat().st_size)
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ (1 << rng.randrange(8))]))
    return f"SIGKILL driver and a flipped bit in {chosen.relative_to(driver.out)}"


def fill_disk(driver: Driver, rng: random.Random) -> str | None:
    """Let writes of the driver, or of all trainer ranks, fail for some seconds."""
    ranks = [process.pid for process in driver.processes() if process.command.startswith("ray::Trainer")]
    victims, pids = rng.choice([("driver", [driver.pid]), ("trainer ranks", ranks)])
    before = [(pid, limits) for pid in pids if (limits := _limit(pid, None)) is not None and limits[0] != FULL_BYTES]
    if not before:  # they have ended, or their disk is full already
        return None
    for pid, (_, hard) in before:
        _limit(pid, (FULL_BYTES, hard))

    def empty() -> None:
        for pid, limits in before:
            _limit(pid, limits)

    timer = threading.Timer(FULL_S, empty)
    timer.daemon = True
    timer.start()
    return f"no space on the disk for {FULL_S:g} s, for the {victims}"


def _limit(pid: int, limits: tuple[int, int] | None) -> tuple[int, int] | None:
    """Get, or set and get, the largest file that a process may write; None if the process has gone."""
    try:
        return resource.prlimit(pid, resource.RLIMIT_FSIZE, *([] if limits is None else [limits]))
    except ProcessLookupError:
        return None


INJECTORS: dict[str, tuple[int, Injector]] = {
    "kill an engine": (4, signalled(signal.SIGKILL, "engine", _actor("RolloutEngine"))),
    "stop an engine": (3, signalled(signal.SIGSTOP, "engine", _actor("RolloutEngine"))),
    "kill an engine's core": (4, signalled(signal.SIGKILL, "engine core", _core)),
    "stop an engine's core": (3, signalled(signal.SIGSTOP, "engine core", _core)),
    "kill a trainer rank": (5, signalled(signal.SIGKILL, "trainer rank", _actor("Trainer"))),
    "stop a trainer rank": (2, signalled(signal.SIGSTOP, "trainer rank", _actor("Trainer"))),
    "kill a reward worker": (6, signalled(signal.SIGKILL, "reward worker", _actor("RewardWorker"))),
    "stop a reward worker": (3, signalled(signal.SIGSTOP, "reward worker", _actor("RewardWorker"))),
    "pause the driver": (2, pause_driver),
    "kill the driver": (2, kill_driver),
    "fill the disk": (3, fill_disk),
    "tear the trace": (1, tear_trace),
    "flip a byte of the newest checkpoint": (2, flip_byte),
}
"""Each fault with its weight in a campaign."""

BURST = 10
"""Faults of a burst come within seconds of each other; the next burst waits until the run has made a step."""
SPREAD_S = 3.0
RECOVERY_DEADLINE_S = 240.0


@dataclass
class Campaign:
    """The faults that struck the run, and how the run took them.

    Attributes:
        faults: how often each kind of fault struck.
        unrecovered: faults of bursts after which the run made no step in time, plus 1 if the run did not end.
        left_processes: processes of the run that were still there when it had ended.
        seconds: from the driver's first start to its end.
        driver_starts: how often the driver was started.
    """

    faults: Counter[str] = field(default_factory=Counter)
    unrecovered: int = 0
    left_processes: int = 0
    seconds: float = 0.0
    driver_starts: int = 0


def draw(count: int, rng: random.Random) -> list[str]:
    """Names of `count` faults in random order, in proportion to their weights, each at least once if `count` allows."""
    total = sum(weight for weight, _ in INJECTORS.values())
    names = [name for name, (weight, _) in INJECTORS.items() for _ in range(max(1, round(weight * count / total)))]
    rng.shuffle(names)
    while len(names) < count:
        names.append(rng.choice(list(INJECTORS)))
    return names[:count]


def campaign(driver: Driver, count: int, seed: int, tell: Callable[[str], None]) -> Campaign:
    """Let `count` faults strike the run and wait for its end."""
    rng = random.Random(seed)
    done, began = Campaign(), time.monotonic()
    waiting = draw(count, rng)
    bursts = -(-count // BURST)
    driver.wait_for_step(1, START_DEADLINE_S)
    for number in range(bursts):
        # Spread over the run, so that neither all faults meet its first steps nor the run ends before the last one.
        driver.wait_for_step(1 + number * (driver.steps - 3) // bursts, START_DEADLINE_S)
        struck = 0
        for name in waiting[number * BURST : (number + 1) * BURST]:
            time.sleep(rng.uniform(0.0, SPREAD_S))
            if _strike(driver, name, rng, tell, began):
                done.faults[name] += 1
                struck += 1
        if not driver.wait_for_step(driver.step() + 1, RECOVERY_DEADLINE_S):
            tell(f"{time.monotonic() - began:6.1f} s: no step within {RECOVERY_DEADLINE_S:g} s, driver is killed")
            done.unrecovered += struck
            driver.kill()
    if not driver.wait_until_done(START_DEADLINE_S):
        done.unrecovered += 1
    done.seconds, done.driver_starts = time.monotonic() - began, driver.starts
    time.sleep(2.0)  # Ray ends its processes a moment after the driver
    done.left_processes = len(driver.processes())
    return done


def _strike(driver: Driver, name: str, rng: random.Random, tell: Callable[[str], None], began: float) -> bool:
    """Strike once; returns whether it did. Waits for a process of the kind: an earlier fault may have ended it."""
    end = time.monotonic() + RECOVERY_DEADLINE_S
    while time.monotonic() < end and not driver.done():
        driver.ensure()
        effect = INJECTORS[name][1](driver, rng)
        driver.ensure()
        if effect is not None:
            tell(f"{time.monotonic() - began:6.1f} s, after step {driver.step()}: {effect}")
            return True
        time.sleep(0.25)
    return False
