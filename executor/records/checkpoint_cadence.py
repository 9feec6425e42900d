"""When to write a checkpoint: often enough that a death costs little, seldom enough that writing costs little.

A trainer that dies takes the run back to its last checkpoint, so a death costs half an interval on average, and each
interval costs one checkpoint. The sum of both is least at the interval sqrt(2 C M), where C are the seconds that a
checkpoint takes and M the mean seconds between deaths (Young, 1974).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable


class Cadence:
    """Of one run. Nothing is due before a first checkpoint has shown what one costs."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._saved_at = math.inf
        self._cost_s = 0.0

    def saved(self, cost_s: float) -> None:
        """A checkpoint was written just now, and took `cost_s` seconds."""
        self._saved_at, self._cost_s = self._clock(), cost_s

    def due(self, mean_s_between_deaths: float) -> bool:
        """Whether the interval that costs least is over."""
        return self._clock() - self._saved_at >= math.sqrt(2.0 * self._cost_s * mean_s_between_deaths)
