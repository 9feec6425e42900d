"""How far a predicted step may be off for the prompts that the length trace happens to hold.

The chosen schedule is simulated again with the lengths of other prompts that the trace might as well have held
(`LengthModel.another`: a smoothed bootstrap over prompts, with a draw of the tail's exponent), and nothing else is
changed: decisions, costs, and the names of the luck. What its cost does from one set of prompts to the next is the
trace's error, and what it does from one set of rounds to the next is the simulation's, which a plan states beside it.
So each set is simulated twice, on two independent lots of luck, and the covariance of the two over the sets is the
variance that the sets alone make: the simulation's is in neither, however few its rounds are.

Of few prompts, a set may have next to no group that ends within the plan's cutoff, or none whose rewards differ where
dynamic sampling wants that. The plan's rounds would train nothing, and nobody would run the plan on such prompts; so
the sets are those that give them something to train, and others are drawn anew.
"""

from __future__ import annotations

import math

import numpy as np

from ..choose.candidate_search import Search
from ..choose.cycle_cost import Cycle
from ..lengths.draws import Draws
from ..lengths.length_model import LengthModel
from ..simulate.columns.whole_columns import Setting

TRACES = 32
"""Sets of prompts; a standard deviation of so many is itself off by an eighth."""

FEWEST, MOST, SAMPLES = 3, 24, 4096
"""Of either kind as many rounds are simulated as train SAMPLES, within these bounds; what they leave open cancels."""

REDRAWS = 16
"""So often a set that gives the plan nothing to train is drawn anew; then what the plan is predicted to cost stands."""

LEAST_ACCEPTED = 0.05
"""Share of a set's groups that must end within the cutoff; a cutoff is planned where at least 0.2 of the trace's do."""

_LOTS = (3_000_017, 3_000_029)  # added to the seed: luck that neither the choice nor the prediction has seen


def length_error(search: Search, cycle: Cycle, model: LengthModel, seed: int) -> float:
    """Relative standard deviation of the cycle's cost over what the trace might have held, in [0, inf)."""
    samples = search.setting.simulated_target * search.setting.group_size
    rounds = min(MOST, max(FEWEST, SAMPLES // samples))
    costs = np.array([_costs(search, cycle, model, seed, rounds, place) for place in range(TRACES)])
    variance = float(np.cov(costs.T)[0, 1])
    return math.sqrt(max(0.0, variance)) / float(costs.mean())


def _costs(search: Search, cycle: Cycle, model: LengthModel, seed: int, rounds: int, place: int) -> list[float]:
    """The cycle's cost on each lot of luck, with the set of prompts that is drawn at `place`."""
    rng = np.random.default_rng([seed, 53, place])
    for _ in range(REDRAWS):
        other = model.another(rng)
        if can_train(search.setting, cycle, other):
            costs = _simulate(search, cycle, other, seed, rounds)
            if costs is not None:
                return costs
    return [cycle.cost(search.limits)] * len(_LOTS)


def can_train(setting: Setting, cycle: Cycle, model: LengthModel) -> bool:
    """Whether enough groups are short, and some prompt has rewards that differ where only such groups are trained."""
    law = cycle.short.law
    if law.cutoff_tokens is not None and model.short_groups(law.cutoff_tokens, setting.group_size) < LEAST_ACCEPTED:
        return False
    return not setting.dynamic_sampling or any(len(set(rewards)) > 1 for rewards in model.rewards)


def _simulate(search: Search, cycle: Cycle, model: LengthModel, seed: int, rounds: int) -> list[float] | None:
    """The cycle's cost on each lot of luck; None if it trains nothing on one of them."""
    costs = []
    for more in _LOTS:
        again = search.anew([cycle], Draws(model, seed + more, search.setting.draws.width))
        found = again.simulate(cycle, rounds, rounds)
        if not found.trains:
            return None
        costs.append(found.cost(again.limits))
    return costs
