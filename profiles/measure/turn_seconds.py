"""Seconds of the turns that engines and trainers take on the devices that they share, by kind of turn."""

from __future__ import annotations

import statistics
from collections import defaultdict
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
