"""The minutes that a profile may take: who may measure more, what was left out, and what is left on the progress line.

The least that a plan needs is measured of everything, however long it takes. What refines it is measured only while
time is left: each part of the measuring has its share of what is left when it begins, so that the first part does not
take the time of the last.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple

SLEEP = ("engine_sleeps",)
WAKE = ("engine_wakes_weights", "engine_wakes_kv")
MOVES = ("trainer_loads", "trainer_sends", "trainer_offloads")
"""Turns of a step, by what they are of."""


class EngineTurns(NamedTuple):
    """Seconds that the engines of a layout take to sleep, and to wake, in a step."""

    sleep_s: float
    wake_s: float


class TurnSeconds:
    """Stands in for a run whose turns are taken (executor/memory/device_turns.py); `name` is that of its trainer."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.step_number = 0
        self._seconds: dict[str, list[float]] = defaultdict(list)

    def event(self, event: str, /, **fields: Any) -> None:
        """Keep the seconds of a turn; those of one kind that were taken at once are one."""
        if event == "turn" and fields["whom"]:
            self._seconds[str(fields["turn"])].append(float(fields["seconds"]))

    def of_step(self, kinds: tuple[str, ...]) -> float:
        """Seconds of these kinds of turns in one step: the sum of their medians."""
        return sum(statistics.median(self._seconds[kind]) for kind in kinds if kind in self._seconds)

    @property
    def of_engines(self) -> EngineTurns:
        """Seconds of a step in which engines sleep and wake."""
        return EngineTurns(self.of_step(SLEEP), self.of_step(WAKE))


Notify = Callable[[str], None]


class TimeBudget:
    """A budget that begins when it is made.

    Args:
        minutes: that the whole may take.
        notify: takes the lines of progress.
        now: a clock, in seconds.
    """

    def __init__(self, minutes: float, notify: Notify, now: Callable[[], float] = time.monotonic) -> None:
        self.minutes = minutes
        self._notify, self._now = notify, now
        self._began = now()
        self._until = self._end
        self._left_out: list[str] = []
        self.least_s = 0.0
        """Seconds that the least would have taken, where it was more than there were; 0: it fitted."""

    @property
    def _end(self) -> float:
        return self._began + 60 * self.minutes

    @property
    def elapsed_s(self) -> float:
        """Seconds since the beginning."""
        return self._now() - self._began

    @property
    def left_s(self) -> float:
        """Seconds that are left of the whole; negative when it took longer."""
        return self._end - self._now()

    def tell(self, text: str) -> None:
        """Say what is measured now, and how many minutes are left."""
        minutes = self.left_s / 60
        left = f"{math.ceil(minutes)} min left" if minutes > 0 else "no time left"
        self._notify(f"{text} ({left})")

    def begin(self, parts: float) -> None:
        """Begin one of `parts` parts that are still to come, this one included; a later one may be less than a part."""
        self._until = self._now() + max(0.0, self.left_s) / parts

    def allows(self, seconds: float, what: str) -> bool:
        """Whether `what`, which takes about `seconds`, can be measured in the part's time; if not, it is noted."""
        if self._now() + seconds <= self._until:
            return True
        self.leave_out(what)
        return False

    def leave_out(self, what: str) -> None:
        """Note that `what` is not measured."""
        if what not in self._left_out:
            self._left_out.append(what)

    def lacks(self, seconds: float) -> None:
        """Note that the least takes `seconds` more than are left."""
        self.least_s = max(self.least_s, self.elapsed_s + seconds)

    @property
    def outcome(self) -> str | None:
        """One line on what was left out for lack of time, and on the minutes that the least needs if they were too few;
        None if nothing was left out."""
        if not self._left_out and not self.least_s:
            return None
        text = f"left out, since --minutes {self.minutes:g} were over: {'; '.join(self._left_out) or 'nothing'}"
        if self.least_s:
            text += f"; the least that a plan needs takes about {math.ceil(self.least_s / 60)} minutes here"
        return text
