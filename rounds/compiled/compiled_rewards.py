"""The compiled reward workers: `RewardQueue` of planner/simulate/reference_engine.py, and its heaps."""

from __future__ import annotations

from typing import Any

from .numba_options import compiled


@compiled
def _sooner(a: Any, b: Any) -> bool:
    if a.due_s != b.due_s:
        return bool(a.due_s < b.due_s)
    return bool(a.count < b.count)


@compiled
def _free_at(free: Any, until: float) -> None:
    """The worker that is free first is busy until then."""
    size, spot = len(free), 0
    while True:
        child = 2 * spot + 1
        if child >= size:
            break
        if child + 1 < size and free[child + 1] < free[child]:
            child += 1
        if free[child] >= until:
            break
        free[spot] = free[child]
        spot = child
    free[spot] = until


@compiled
def submit(R: Any, Q: Any, free: Any, i: int, now: float, seconds: float) -> None:
    """Queue the reward of sample `i`, which takes a worker `seconds`."""
    done = max(now, free[0]) + seconds
    _free_at(free, done)
    R.rewards_count += 1
    spot = R.rewards_due
    R.rewards_due += 1
    due_s, count = done + R.delay_s, R.rewards_count
    while spot > 0:
        parent = (spot - 1) >> 1
        if Q[parent].due_s < due_s or (Q[parent].due_s == due_s and Q[parent].count < count):
            break
        Q[spot].due_s, Q[spot].count, Q[spot].sample = Q[parent].due_s, Q[parent].count, Q[parent].sample
        spot = parent
    Q[spot].due_s, Q[spot].count, Q[spot].sample = due_s, count, i


@compiled
def take_due(R: Any, Q: Any) -> int:
    """Take the reward that is due first off the queue; its sample."""
    taken = Q[0].sample
    R.rewards_due -= 1
    size = R.rewards_due
    due_s, count, sample = Q[size].due_s, Q[size].count, Q[size].sample
    spot = 0
    while True:
        child = 2 * spot + 1
        if child >= size:
            break
        if child + 1 < size and _sooner(Q[child + 1], Q[child]):
            child += 1
        if due_s < Q[child].due_s or (due_s == Q[child].due_s and count < Q[child].count):
            break
        Q[spot].due_s, Q[spot].count, Q[spot].sample = Q[child].due_s, Q[child].count, Q[child].sample
        spot = child
    Q[spot].due_s, Q[spot].count, Q[spot].sample = due_s, count, sample
    return int(taken)
