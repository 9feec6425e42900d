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
    """The most sequences that run at once; of levels at one moment only the last counts."""
    return max((level for _, level in _lasting(levels)), default=0)


def tail_begins_s(levels: Levels, end_s: float) -> float:
    """When the tail of a rollout that ends at `end_s` begins; `end_s` if it has none."""
    most = most_running(levels)
    begin = end_s
    for time_s, level in reversed(levels):
        if level >= TAIL_SHARE * most:
            break
        begin = min(begin, time_s)
    return begin


def shape(levels: Levels, end_s: float) -> list[float]:
    """Running sequences as a share of the most at each twentieth of a rollout that ends at `end_s`: 21 values.

    Each is what runs just before its moment. The first is what runs at first and the last what runs last, also where a
    round begins or ends with seconds in which nothing is decoded.
    """
    most = most_running(levels)
    if most == 0:
        return [0.0] * (TWENTIETHS + 1)
    run = [(time_s, level) for time_s, level in _lasting(levels) if level]
    times = [time_s for time_s, _ in levels]
    values = [run[0][1]]
    for k in range(1, TWENTIETHS):
        place = bisect_left(times, end_s * k / TWENTIETHS) - 1
        values.append(levels[place][1] if place >= 0 else run[0][1])
    values.append(max((pair for pair in run if pair[0] < end_s), default=run[0])[1])
    return [level / most for level in values]


def _lasting(levels: Levels) -> list[tuple[float, int]]:
    """The levels that hold for some time: of several at one moment the last."""
    kept = [pair for pair, (then, _) in pairwise(levels) if then > pair[0]]
    return [*kept, *levels[-1:]]
