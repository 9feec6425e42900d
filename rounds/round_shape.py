"""How many sequences run while a rollout goes on: its shape, and where its tail begins."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise

TAIL_SHARE = 0.25
"""A rollout's tail begins when its running sequences fall below this share of their most, for good."""

TWENTIETHS = 20

Levels = Sequence[tuple[float, int]]
"""(seconds, sequences that run from then on), ascending; of equal seconds the last one counts."""


def most_running(levels: Levels) -> int:
    """The most sequences at once. Where engines begin at one moment, the sum of some of them was never there."""
    return max((level for _, level in _lasting(levels)), default=0)


def tail_begins_s(levels: Levels, end_s: float) -> float:
    """When the tail of a rollout that ends at `end_s` begins; `end_s` if it has none."""
    most = most_running(levels)
    begin = end_s
    for at, level in reversed(levels):
        if level >= TAIL_SHARE * most:
            break
        begin = min(begin, at)
    return begin


def shape(levels: Levels, end_s: float) -> list[float]:
    """Running sequences as a share of the most at each twentieth of a rollout that ends at `end_s`: 21 values.

    Each is what runs just before its moment. The first is what runs at first and the last what runs last, also where a
    round begins or ends with seconds in which nothing is decoded.
    """
    most = most_running(levels)
    if most == 0:
        return [0.0] * (TWENTIETHS + 1)
    run = [(at, level) for at, level in _lasting(levels) if level]
    times = [at for at, _ in levels]
    found = [run[0][1]]
    for k in range(1, TWENTIETHS):
        place = bisect_left(times, end_s * k / TWENTIETHS) - 1
        found.append(levels[place][1] if place >= 0 else run[0][1])
    found.append(max((pair for pair in run if pair[0] < end_s), default=run[0])[1])
    return [level / most for level in found]


def _lasting(levels: Levels) -> list[tuple[float, int]]:
    """Those levels that last."""
    kept = [pair for pair, (then, _) in pairwise(levels) if then > pair[0]]
    return [*kept, *levels[-1:]]
