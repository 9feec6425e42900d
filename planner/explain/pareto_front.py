"""The Pareto front of speed against bias: what a bias budget would buy."""

from __future__ import annotations

import dataclasses
import math

from ...plans.schema.predicted import FrontPoint
from ..choose.candidate_search import Search
from ..choose.cycle_cost import Cycle
from .holdout_rounds import Unseen

# Points that differ by less than this in bias are one to a reader; the faster is shown.
_GRAIN = 0.03


def front(search: Search, chosen: Cycle, unseen: Unseen) -> tuple[FrontPoint, ...]:
    """Schedules that keep all limits but the bias budget and that none beats in both cost and bias, least biased first.

    The chosen one is among the points in any case, with what is predicted of it. The others stand to it as on the
    rounds that the choice was made on, which were one luck for all. They may have been simulated for a few rounds only
    (`rounds`), so their figures are about right.
    """
    size = search.limits.group_size
    level = unseen.cycle.seconds_per_sample(size) / chosen.seconds_per_sample(size)
    limits = dataclasses.replace(search.limits, bias_budget=math.inf)

    def bias(cycle: Cycle) -> float:
        return abs(1.0 - cycle.length_ratio(limits))

    best: dict[int, Cycle] = {}
    for cycle in search.cycles():
        if cycle.violations(limits):
            continue
        place = round(bias(cycle) / _GRAIN)
        if place not in best or (cycle.cost(limits), cycle.name) < (best[place].cost(limits), best[place].name):
            best[place] = cycle
    best[round(bias(chosen) / _GRAIN)] = chosen
    points: list[Cycle] = []
    for _, cycle in sorted(best.items()):
        if cycle is chosen or not points or cycle.cost(limits) < min(p.cost(limits) for p in points):
            points.append(cycle)
    return tuple(
        FrontPoint(
            mode=cycle.short.law.mode,
            seconds_per_sample=level * cycle.seconds_per_sample(size),
            usd_per_1k_samples=1000 * level * cycle.usd_per_sample(limits),
            length_ratio=(
                unseen.search.measured_ratio(unseen.cycle)[0] if cycle is chosen else cycle.length_ratio(limits)
            ),
            rounds=cycle.short.rounds,
            chosen=cycle is chosen,
        )
        for cycle in points
    )
