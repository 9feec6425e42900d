"""A clock that goes many times as fast as the wall's and that all processes of this machine read from one file.

A word that a job says to an actor is under way for some milliseconds, which at a hundred times the wall's pace is a
second, and longer while the actor is started again. So that no word comes late, the clock stands while one is under
way: it never passes the second in which somebody is due to speak, and stands there until that one has spoken and all
whom it concerns know what was decided.

The file holds doubles: the time, then for each name when it is due to speak, and as of when it knows its turn. A double
is written at once, so that no reader sees a part of it.
"""

from __future__ import annotations

import math
import mmap
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TICK_S = 0.001
STALL_S = 0.05
"""Seconds of the wall for which the clock goes on at most at once, if its thread was kept from running."""

ALARM = "the alarm"
"""Name, besides the jobs', of whoever wakes the actor; at the same second all jobs speak before it."""


class VirtualTime:
    """The clock as each process has it: call it for its seconds.

    Args:
        path: its file; `create` writes it.
        names: of the jobs, in the order in which they speak if they are due in the same second.
    """

    def __init__(self, path: Path, names: Sequence[str]) -> None:
        self._path, self._names = path, [*names, ALARM]
        self._doubles: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_path": self._path, "_names": self._names, "_doubles": None}

    def create(self) -> None:
        """Write the file: second 0, at which all jobs are due, so that the clock stands until they have spoken."""
        self._path.write_bytes(bytes(8 * (1 + 2 * len(self._names))))
        for name in self._names:
            self.knows(name, -1.0)
        self.is_due(ALARM, math.inf)

    def __call__(self) -> float:
        return self._read(0)

    def is_due(self, name: str, at_s: float) -> None:
        """Somebody is due to speak in this second, and no sooner: the clock may go on until then."""
        self._write(1 + self._names.index(name), at_s)

    def knows(self, name: str, since_s: float) -> None:
        """A job knows the turn and the units that it has since this second."""
        self._write(1 + len(self._names) + self._names.index(name), since_s)

    def known_s(self, name: str) -> float:
        """Since when a job has the turn and the units that it knows of."""
        return self._read(1 + len(self._names) + self._names.index(name))

    def may_speak(self, name: str) -> bool:
        """Whether the second is there in which this one is due, and nobody is due before it."""
        dues = self._dues_s()
        own = self._names.index(name)
        return dues[own] <= self._read(0) and min(range(len(dues)), key=lambda number: (dues[number], number)) == own

    def _dues_s(self) -> list[float]:
        return [self._read(1 + number) for number in range(len(self._names))]

    def _open(self) -> Any:
        if self._doubles is None:
            with self._path.open("r+b") as file:
                self._doubles = memoryview(mmap.mmap(file.fileno(), 0)).cast("d")
        return self._doubles

    def _read(self, index: int) -> float:
        return float(self._open()[index])

    def _write(self, index: int, value: float) -> None:
        self._open()[index] = value

    def advance(self, seconds: float, until_s: float) -> bool:
        """Go on by so many seconds, or to the first second in which somebody is due; returns whether it stands."""
        now_s, stop_s = self._read(0), min([until_s, *self._dues_s()])
        self._write(0, max(now_s, min(now_s + seconds, stop_s)))
        return stop_s <= now_s


class Ticking:
    """A thread that lets the clock go; a context. `stood_s`: of each time that it stood, seconds of the wall."""

    def __init__(self, clock: VirtualTime, speed: float, until_s: float) -> None:
        self._clock, self._speed, self._until_s = clock, speed, until_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.stood_s: list[float] = []

    def __enter__(self) -> Ticking:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        last_s, stands_since_s = time.monotonic(), 0.0
        while not self._ended.wait(TICK_S):
            now_s = time.monotonic()
            stands = self._clock.advance(min(now_s - last_s, STALL_S) * self._speed, self._until_s)
            last_s = now_s
            if stands and not stands_since_s:
                stands_since_s = now_s
            elif stands_since_s and not stands:
                self.stood_s.append(now_s - stands_since_s)
                stands_since_s = 0.0
