"""The Pareto front of speed against bias: the speed-up that a bias budget would buy."""

from __future__ import annotations

import dataclasses
import math

from ...plans.schema.predicted import FrontPoint
from ..choose.candidate_search import Search
from ..choose.cycle_cost import Cycle
from .holdout_rounds import Holdout

# Points that differ by less than this in bias are one to a reader; the faster is shown.
_GRAIN = 0.03


def pareto_front(search: Search, chosen: Cycle, holdout: Holdout) -> tuple[FrontPoint, ...]:
    """Schedules that keep all limits but the bias budget and that none beats in both cost and bias, least biased first.

    The chosen schedule is always among them, with its predicted figures. Those of the others are scaled by the chosen
    schedule's prediction over its cost on the rounds that the choice was made on, which had the same draws for all.
    They may be of a few rounds only (`rounds`), so they are about right.
    """
    size = search.limits.group_size
    level = holdout.cycle.seconds_per_sample(size) / chosen.seconds_per_sample(size)
    limits = dataclasses.replace(search.limits, bias_budget=math.inf)

    def bias(cycle: Cycle) -> float:
        return abs(1.0 - cycle.length_ratio(limits))

    best: dict[int, Cycle] = {}
    for cycle in search.cycles():
        if cycle.violations(limits):
            continue
        bin_number = round(bias(cycle) / _GRAIN)
        rival = best.get(bin_number)
        if rival is None or (cycle.cost(limits), cycle.name) < (rival.cost(limits), rival.name):
            best[bin_number] = cycle
    best[round(bias(chosen) / _GRAIN)] = chosen
    points: list[Cycle] = []
    for _, cycle in sorted(best.items()):
        if cycle is chosen or not points or cycle.cost(limits) < min(p.cost(limits) for p in points):
            points.append(cycle)
    return tuple(
        FrontPoint(
            mode=cycle.short.deferral.mode,
            seconds_per_sample=level * cycle.seconds_per_sample(size),
            usd_per_1k_samples=1000 * level * cycle.usd_per_sample(limits),
            length_ratio=(
                holdout.search.measured_ratio(holdout.cycle)[0] if cycle is chosen else cycle.length_ratio(limits)
            ),
            rounds=cycle.short.rounds,
            chosen=cycle is chosen,
        )
        for cycle in points
    )
