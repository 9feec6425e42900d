"""Whether a chosen schedule's rounds start their longest expected samples first (rounds/balancing/).

It is decided after the program, on its choice: balanced rounds are simulated by the machines themselves, some forty
times slower than others, and what they save hardly depends on what else is decided. So the choice's kinds of round are
simulated balanced on the draws that it was chosen on: the short one, the long one, both. What has more of them is taken
if the schedule saves `LEAST_SAVED` of its cost at least. A tie goes to samples that start in order, which is simpler.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from ...rounds.round_spec import UNBIASED
from .candidate_search import Search
from .candidates.solve_options import Pass
from .cycle_cost import Column, Cycle
from .holdout_rounds import simulate_holdout
from .schedule_choice import Decided

LEAST_SAVED = 0.01
"""Share of the cost of a sample that balance must save: less is within what its own calls between processes take."""

ROUNDS = Pass(24, 12, 0.0)
"""Rounds by which it is decided, or as many as were simulated if that is fewer."""

HOLDOUT_ROUNDS = Pass(48, 24, 0.0)
"""Holdout rounds of a balanced schedule."""


def balanced(search: Search, decided: Decided) -> Decided:
    """The choice with balanced rounds where they save time and the limits are kept; else as it is."""
    if decided.cycle.short.deferral.mode not in UNBIASED:
        return decided
    last = search.passes[-1]
    rounds = min(ROUNDS.short_rounds, last.short_rounds), min(ROUNDS.long_rounds, last.long_rounds)
    best, best_cost = decided.cycle, _cost(search, decided.cycle, rounds)
    balanced_short = dataclasses.replace(best, short=_balanced(best.short))
    tries = [balanced_short] if best.short.key.layout.engines > 1 else []
    if best.long is not None and best.long.key.layout.engines > 1:
        tries += [dataclasses.replace(each, long=_balanced(best.long)) for each in (best, balanced_short)]
    for tried in tries:
        cost = _cost(search, tried, rounds)
        if cost < (1.0 - LEAST_SAVED) * best_cost:
            best, best_cost = tried, cost
    if best is decided.cycle:
        return decided
    cycle = search.simulate(best, *rounds)
    most = min(HOLDOUT_ROUNDS.short_rounds, last.short_rounds), min(HOLDOUT_ROUNDS.long_rounds, last.long_rounds)
    holdout = simulate_holdout(search, cycle, decided.baseline, most)
    loses = search.chooses_plain and holdout.loses_to_plain
    if loses or cycle.violations(search.limits) or not holdout.keeps_the_limits:
        return decided
    # What was proven is of rounds by count: the same schedule with balance costs less than its bound says.
    solution = decided.solution
    if solution.cycle.name == decided.cycle.name:
        solution = dataclasses.replace(solution, cycle=cycle)
    return dataclasses.replace(decided, solution=solution, cycle=cycle, holdout=holdout)


def _balanced(column: Column[Any]) -> Column[Any]:
    return dataclasses.replace(column, key=column.key._replace(balanced=True))


def _cost(search: Search, cycle: Cycle, rounds: tuple[int, int]) -> float:
    """Seconds of a sample on the first so many rounds of either kind."""
    return sum(search.phase_seconds(search.simulate(cycle, *rounds), *rounds).values())
