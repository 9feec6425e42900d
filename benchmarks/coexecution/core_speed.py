"""How fast and how busy each core was over time: on a shared machine neighbours slow cores by a third, for seconds.

A core of a virtual machine may be one of two threads of a real core, whose other thread is another machine's. So one
process for each core does a fixed piece of work five times a second (less than 1 % of the core) and notes the CPU
seconds that the piece took. CPU seconds, not wall seconds: what else runs on the core does not count. If another
process had the core within the piece, the piece is done again: it found the caches with the other's data.

    python -m benchmarks.coexecution.core_speed CORE

prints a line for each piece until standard input ends: Unix second, pieces per CPU second, and CPU seconds that the
core has computed since the machine started.
"""

from __future__ import annotations

import bisect
import os
import resource
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from types import TracebackType

import psutil

PAUSE_S = 0.2
LOOPS = 5000
"""Of a piece, after a product of matrices, as kernels do: loops of Python, as frameworks do. Together they take less
than a scheduler's slice (about 3 ms)."""
TRIES = 5
"""Pieces that one measurement does at most; the first that nothing interrupts is noted."""


class CoreSpeeds:
    """Measures the speed of each of `cores` within the block; files go to `folder`."""

    def __init__(self, cores: Sequence[int], folder: Path) -> None:
        self._files = [folder / f"speed-{core}.txt" for core in cores]
        self._cores = cores
        self._processes: list[subprocess.Popen[str]] = []

    def __enter__(self) -> CoreSpeeds:
        for core, path in zip(self._cores, self._files, strict=True):
            command = [sys.executable, "-m", f"{__package__}.core_speed", str(core)]
            environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
            with path.open("w") as file:
                self._processes.append(
                    subprocess.Popen(command, stdin=subprocess.PIPE, stdout=file, text=True, env=environment)
                )
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.close()
            process.wait()

    def read(self) -> list[CoreSpeed]:
        """The speeds so far, in the order of the cores."""
        return [CoreSpeed.read(path) for path in self._files]


class CoreSpeed:
    """What one core did at Unix seconds in order: its speed in pieces per CPU second, and CPU seconds computed."""

    def __init__(self, times_s: Sequence[float], speeds: Sequence[float], computed_s: Sequence[float]) -> None:
        self._times_s, self._speeds, self._computed_s = times_s, speeds, computed_s

    @classmethod
    def read(cls, path: Path) -> CoreSpeed:
        """Read the file of a measuring process, which may be writing its last line: an incomplete line is left out."""
        rows = [[float(part) for part in line.split()] for line in path.read_text().rpartition("\n")[0].splitlines()]
        return cls(*([row[column] for row in rows] for column in range(3)))

    def speed(self, begin_s: float, end_s: float) -> float:
        """Mean speed between two Unix seconds. If fewer than two speeds were measured between them, those measured just
        before and just after count too. Raises ValueError if these are fewer than two as well."""
        return mean(self._speeds[self._within(begin_s, end_s)])

    def computed_s(self, begin_s: float, end_s: float) -> float:
        """CPU seconds computed between two Unix seconds. Takes measurements and raises ValueError as `speed` does."""
        within = self._within(begin_s, end_s)
        times_s, computed_s = self._times_s[within], self._computed_s[within]
        return (computed_s[-1] - computed_s[0]) / (times_s[-1] - times_s[0]) * (end_s - begin_s)

    def _within(self, begin_s: float, end_s: float) -> slice:
        first, last = bisect.bisect_left(self._times_s, begin_s), bisect.bisect_right(self._times_s, end_s)
        if last - first < 2:
            first, last = max(0, first - 1), last + 1
        if len(self._times_s[first:last]) < 2:
            raise ValueError(f"no speeds were measured in the {end_s - begin_s:.1f} s after {begin_s:.1f}")
        return slice(first, last)


def computed_s(core: int) -> float:
    """CPU seconds that a core has computed since the machine started."""
    times = psutil.cpu_times(percpu=True)[core]
    return float(times.user + times.nice + times.system + times.irq + times.softirq)


def main(core: str) -> None:
    """Measure a core until standard input ends."""
    os.sched_setaffinity(0, {int(core)})
    import numpy as np

    left, right = (np.ones(shape, np.float32) for shape in ((64, 256), (256, 256)))

    def piece() -> None:
        left @ right
        for _ in range(LOOPS):
            pass

    while not select.select([sys.stdin], [], [], PAUSE_S)[0]:
        for _ in range(TRIES):
            piece()  # caches hold it then, whatever ran before
            began_s, switches = time.thread_time(), resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
            piece()
            ended_s = time.thread_time()
            if resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw == switches:
                print(time.time(), 1.0 / (ended_s - began_s), computed_s(int(core)), flush=True)
                break


if __name__ == "__main__":
    main(*sys.argv[1:])
