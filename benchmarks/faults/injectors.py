"""The faults. Each takes a run's driver and a random generator, and returns a text on what it did, or None if there was
no process to strike.

Trainer ranks, engines and reward workers are Ray actors, whose processes bear their classes' names; an engine's core is
a process of vLLM's below it.
"""

from __future__ import annotations

import contextlib
import os
import random
import resource
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from .driver import Driver, Process

Injector = Callable[[Driver, random.Random], str | None]

FULL_S = 3.0
"""Seconds for which every write to the disk fails."""
FULL_BYTES = 1024
PAUSED_S = 5.0
START_S = 60.0
"""In which a new process of an engine appears in place of one that was killed."""


def signalled(number: signal.Signals, name: str, belongs: Callable[[Process], bool]) -> Injector:
    """A fault that sends a signal to a random process of a kind; `belongs` tells whether a process is of the kind."""

    def strike(driver: Driver, pid: int) -> bool:
        _signal(number, pid)
        return True

    return on_one(strike, f"{number.name} {name}", belongs)


def ordered(order: str, name: str, belongs: Callable[[Process], bool]) -> Injector:
    """A fault that a random process of a kind carries out itself (inside.py), if it works just now."""
    return on_one(lambda driver, pid: driver.order(pid, order), f"{order} in {name}", belongs)


def on_one(strike: Callable[[Driver, int], bool], what: str, belongs: Callable[[Process], bool]) -> Injector:
    """A fault that strikes a random process of a kind; `strike` tells whether it did."""

    def inject(driver: Driver, rng: random.Random) -> str | None:
        able = [process for process in driver.processes() if belongs(process)]
        chosen = rng.choice(able) if able else None
        return None if chosen is None or not strike(driver, chosen.pid) else f"{what} (process {chosen.pid})"

    return inject


def _signal(number: signal.Signals, *pids: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _later(seconds: float, action: Callable[[], None]) -> None:
    timer = threading.Timer(seconds, action)
    timer.daemon = True
    timer.start()


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
    pause(driver.pid)
    return f"SIGSTOP driver for {PAUSED_S:g} s"


def pause(*pids: int) -> None:
    """SIGSTOP, and SIGCONT after some seconds."""
    _signal(signal.SIGSTOP, *pids)
    _later(PAUSED_S, lambda: _signal(signal.SIGCONT, *pids))


def tear_trace(driver: Driver, rng: random.Random) -> str | None:
    """Kill the driver, and leave a torn line at the trace's end, as if it had died while it wrote."""
    driver.kill()
    with (driver.out / "trace.jsonl").open("ab") as trace:
        trace.write(b'{"event":"step","t_s":1.5,"st')
    return "SIGKILL driver and a torn line at the trace's end"


def flip_byte(driver: Driver, rng: random.Random) -> str | None:
    """Kill the driver, and flip a bit of a file of the newest checkpoint, which the next start reads."""
    if len(list((driver.out / "checkpoints").glob("step-*"))) < 2:
        return None  # there is no earlier checkpoint to resume from yet
    driver.kill()
    checkpoints = sorted((driver.out / "checkpoints").glob("step-*"))
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

    _later(FULL_S, empty)
    return f"no space on the disk for {FULL_S:g} s, for the {victims}"


def _limit(pid: int, limits: tuple[int, int] | None) -> tuple[int, int] | None:
    """Get, or set and get, the largest file that a process may write; None if the process has gone."""
    try:
        return resource.prlimit(pid, resource.RLIMIT_FSIZE, *([] if limits is None else [limits]))
    except ProcessLookupError:
        return None


def of_driver(order: str) -> Injector:
    """A fault that the driver carries out itself."""
    return lambda driver, rng: f"{order} in the driver" if driver.order(driver.pid, order) else None


def stop_head(driver: Driver, rng: random.Random) -> str | None:
    """SIGSTOP of Ray's head, its control store and its raylet, for some seconds."""
    names = "gcs_server", "raylet"
    head = [each.pid for each in driver.processes() if each.command.split(" ")[0].rpartition("/")[2] in names]
    if not head:
        return None
    pause(*head)
    return f"SIGSTOP Ray's head for {PAUSED_S:g} s (processes {', '.join(map(str, head))})"


def fail_starts(driver: Driver, rng: random.Random) -> str | None:
    """SIGKILL of an engine, and of the first that is started in its place, before it is up."""
    engines = {process.pid for process in driver.processes() if _actor("RolloutEngine")(process)}
    if not engines:
        return None
    _signal(signal.SIGKILL, chosen := rng.choice(sorted(engines)))
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        for process in driver.processes():
            if _actor("RolloutEngine")(process) and process.pid not in engines:
                _signal(signal.SIGKILL, process.pid)
                return f"SIGKILL engine (process {chosen}) and its start in place (process {process.pid})"
        time.sleep(0.1)
    return f"SIGKILL engine (process {chosen})"


def garbage_on_ports(driver: Driver, rng: random.Random) -> str | None:
    """Random bytes to every port at which a process of the run listens."""
    ports = set()
    for process in driver.processes():
        with contextlib.suppress(psutil.Error):
            found = psutil.Process(process.pid).net_connections("tcp")
            ports |= {each.laddr for each in found if each.status == psutil.CONN_LISTEN}
    for host, port in sorted(ports):
        with (
            contextlib.suppress(OSError),
            socket.create_connection((host.replace("0.0.0.0", "127.0.0.1"), port), 0.5) as to,
        ):
            to.sendall(rng.randbytes(256))
    return f"random bytes to {len(ports)} ports" if ports else None


def garbage_of_rewards(driver: Driver, rng: random.Random) -> str | None:
    """Random bytes in place of an answer, in the pipe through which a process that scores responses answers."""
    workers = {each.pid for each in driver.processes() if _actor("RewardWorker")(each)}
    for child in (each for each in driver.processes() if each.parent in workers):
        with contextlib.suppress(OSError, psutil.Error):
            for number in sorted(Path(f"/proc/{child.pid}/fd").iterdir()):
                writes = int((Path(f"/proc/{child.pid}/fdinfo") / number.name).read_text().split()[3], 8) & os.O_WRONLY
                if writes and int(number.name) > 2 and str(number.readlink()).startswith("pipe:"):
                    with number.open("wb", buffering=0) as pipe:
                        pipe.write(rng.randbytes(64))
                    return f"random bytes as an answer of process {child.pid}"
    return None


def second_driver(driver: Driver, rng: random.Random) -> str | None:
    """A second driver on the folder of the run, which must be refused."""
    if not driver.running():
        return None
    code = driver.second()
    if driver.running() and code != -1:
        assert code == 2, f"a second driver on one folder ended with exit code {code}"
    return f"a second driver on the folder: exit code {code}"


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
    "slow the driver's disk": (1, of_driver("slow-disk 5")),
    "let the clock jump ahead": (1, of_driver("jump 7200")),
    "let the clock jump back": (1, of_driver("jump -7200")),
    "fill the object store": (1, of_driver("fill-store 3")),
    "a GPU error in a rank": (3, ordered("ecc", "trainer rank", _actor("Trainer"))),
    "a cuBLAS error in a rank": (1, ordered("cublas", "trainer rank", _actor("Trainer"))),
    "an NCCL error in a rank": (2, ordered("nccl", "trainer rank", _actor("Trainer"))),
    "no memory in a rank": (1, ordered("oom", "trainer rank", _actor("Trainer"))),
    "a GPU error in an engine's core": (3, ordered("ecc", "engine core", _core)),
    "no memory in an engine's core": (1, ordered("oom", "engine core", _core)),
    "stop Ray's head": (2, stop_head),
    "fail an engine's starts": (1, fail_starts),
    "garbage on ports": (2, garbage_on_ports),
    "garbage of rewards": (2, garbage_of_rewards),
    "a second driver": (1, second_driver),
    "tear the trace": (1, tear_trace),
    "flip a byte of the newest checkpoint": (2, flip_byte),
}
"""Each fault with its weight in a campaign."""
