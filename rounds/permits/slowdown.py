"""Slowdown of a job in a co-execution group: one definition for the bound machine (bound_machine.py) and the report.

An iteration lasts from the end of a training to the end of the next one of the same start of the job's process: a
rollout, a training, and the waits for both permits. The first `WARM` of a start do not count: engines and allocators
warm up in them. Slowdown is the mean of the iterations' seconds over the seconds of an iteration alone, and a bound
holds while the slowdown is not above it.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

WARM = 2
"""Iterations of a job after a start that are not measured."""


class IterationTimer:
    """Measures a job's iterations by the ends of its trainings, in the order of time."""

    def __init__(self) -> None:
        self.start: int | None = None
        self.open_since_s: float | None = None
        """End of the last training; None if the running iteration is not measured."""
        self._ends = 0

    def ended(self, start: int, at_s: float) -> float | None:
        """Take the end of a training; returns the seconds of the iteration that ends with it, None if unmeasured.

        Args:
            start: number of the start of the job's process that trained.
            at_s: when it ended, in seconds.

        Raises ValueError for an end of an earlier start, or before the last end.
        """
        if self.start is not None and start < self.start:
            raise ValueError(f"an end of start {start} after one of start {self.start}")
        if start != self.start:
            self.start, self.open_since_s, self._ends = start, None, 0
        if self.open_since_s is not None and at_s < self.open_since_s:
            raise ValueError(f"time goes back: {at_s} s after {self.open_since_s} s")
        seconds = None if self.open_since_s is None else at_s - self.open_since_s
        self._ends += 1
        self.open_since_s = at_s if self._ends >= WARM else None
        return seconds


def slowdown_of(iterations_s: Sequence[float], alone_s: float) -> float | None:
    """Mean of iterations over the seconds of one alone; None without iterations."""
    return fmean(iterations_s) / alone_s if iterations_s else None


def keeps_bound(slowdown: float, slo: float) -> bool:
    """Whether a slowdown keeps its bound."""
    return slowdown <= slo
