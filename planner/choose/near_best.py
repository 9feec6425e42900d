"""Which simulated candidates are near enough to the best to be worth more rounds."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...plans.schema.levers import EngineLayout
from .candidates.round_kinds import LongKey, ShortKey
from .cycle_cost import SLOW_SHARE, Column, Cycle
from .plan_limits import Limits


@dataclass(frozen=True, slots=True)
class Pass:
    """Rounds of a short and of a long column, and how far from the best a cycle may be to get this pass.

    `margin` is relative and comes on top of a standard error of either.
    """

    short_rounds: int
    long_rounds: int
    margin: float


PASSES = (Pass(8, 4, math.inf), Pass(24, 12, 0.05), Pass(64, 32, 0.02), Pass(160, 64, 0.0))
"""All columns of a pass have the same rounds on the same draws, so those of the last can be compared and predicted
from."""


REWARD_MARGIN = 0.1
"""A reward choice that makes the best plain rounds dearer by more than this share of their cost is tried no further."""

WITHIN_MARGIN = 1.05
"""How many times the seconds allowed the mean step of a schedule may take that is simulated further."""

MOST_REWARDS = 4
"""Reward choices that are tried beside the first."""


def keys_near_best(cycles: Sequence[Cycle], limits: Limits, margin: float) -> set[ShortKey | LongKey]:
    """Kinds of round of the schedules that cost at most `margin` (a share) more than the best, a standard error of
    either aside.

    The best cycle that certainly keeps the limits sets the bar. Cycles that may keep them are let through.
    """
    sure = [c for c in cycles if not c.violations(limits)]
    # The SLO is left out, and the mean step of few rounds may be off by much.
    within_s = None if limits.within_s is None else limits.within_s * (1 + margin) * WITHIN_MARGIN
    lenient = dataclasses.replace(limits, slo=False, within_s=within_s)
    maybe = [c for c in cycles if _may_keep(c, lenient)]
    if not sure and limits.slo:
        # Few rounds tell little about 5 % of the steps: the columns with the fewest slow steps may keep the SLO.
        fewest = min((c.slow_share() for c in maybe), default=0.0)
        maybe = [c for c in maybe if c.slow_share() <= fewest + SLOW_SHARE]
    best = min((c.cost(limits) + c.cost_error(limits) for c in sure or maybe), default=math.inf)
    bar = best * (1 + margin)
    keep: set[ShortKey | LongKey] = set()
    for cycle in maybe:
        if cycle.cost(limits) - cycle.cost_error(limits) <= bar:
            keep.add(cycle.short.key)
            if cycle.long:
                keep.add(cycle.long.key)
    return keep


def first_rewards(
    costs: Mapping[int, float], layouts: Iterable[EngineLayout], limits: Limits
) -> dict[EngineLayout, int]:
    """The reward choice that kinds of round are first simulated with, by layout: of those whose workers have cores
    beside its engines that which costs least by `costs`, as of `rewards_near_best`.

    Kinds of round differ far more in other things than in how fast they are scored, so that few that lose with one
    choice would win with another.
    """
    return {
        layout: min(
            (choice for choice in costs if not limits.lacks_cores(layout, choice)),
            key=lambda choice: (costs[choice], choice),
            default=0,
        )
        for layout in layouts
    }


def rewards_near_best(costs: Mapping[int, float]) -> list[int]:
    """The reward choices that later passes try beside the first, by what the best plain rounds cost with each.

    Of those that are near the best they are spread over all counts of workers; what lies between is tried for the best
    schedule (ties.py).
    """
    best = min(costs, key=lambda choice: (costs[choice], choice))
    near = [c for c in sorted(costs) if c != best and costs[c] <= (1.0 + REWARD_MARGIN) * costs[best]]
    step = max(1.0, len(near) / MOST_REWARDS)
    return [near[int(step * (number + 1)) - 1] for number in range(min(MOST_REWARDS, len(near)))]


def _may_keep(cycle: Cycle, limits: Limits) -> bool:
    """Whether the cycle keeps the limits if the noise of its bias is counted in its favour."""

    def favour(column: Column[Any]) -> Column[Any]:
        return dataclasses.replace(column, excess_error=-column.excess_error) if column.excess_error else column

    short, long = favour(cycle.short), favour(cycle.long) if cycle.long else None
    if short is not cycle.short or long is not cycle.long:
        cycle = dataclasses.replace(cycle, short=short, long=long)
    return not cycle.violations(limits)
