"""The reward workers of the reference simulator; rounds/compiled/compiled_rewards.py repeats them."""

from __future__ import annotations

import heapq

from ...rounds.machines.events import SampleKey
from ..costs.phase_costs import RewardCost


class RewardQueue:
    """First come, first served over the workers."""

    def __init__(self, cost: RewardCost) -> None:
        self._cost = cost
        self._free: list[float] = [0] * cost.workers
        self.due: list[tuple[float, int, SampleKey]] = []
        self.held: dict[SampleKey, float] = {}  # until the rollout is over, with their seconds
        self._count = 0

    def ask(self, key: SampleKey, now: float, seconds: float) -> None:
        """A sample is to be scored, which takes a worker `seconds`."""
        if self._cost.after_rollout:
            self.held[key] = seconds
        else:
            self._submit(key, now, seconds)

    def release(self, now: float) -> None:
        """The rollout is over."""
        for key, seconds in self.held.items():
            self._submit(key, now, seconds)
        self.held = {}

    def _submit(self, key: SampleKey, now: float, seconds: float) -> None:
        free = heapq.heappop(self._free)
        done = max(now, free) + seconds
        heapq.heappush(self._free, done)
        self._count += 1
        heapq.heappush(self.due, (done + self._cost.delay_s, self._count, key))
