"""How far a predicted step may be off for the prompts that the length trace happens to hold.

The chosen schedule is simulated again with the lengths of other prompts that the trace might as well have held
(`LengthModel.another`: a smoothed bootstrap over prompts, with a draw of the tail's exponent), and nothing else is
changed: decisions, costs, and the names of the luck. What its cost does from one set of prompts to the next is the
trace's error, and what it does from one set of rounds to the next is the simulation's, which a plan states beside it.
So each set is simulated twice, on two independent lots of luck, and the covariance of the two over the sets is the
variance that the sets alone make: the simulation's is in neither, however few its rounds are.
"""

from __future__ import annotations

import math

import numpy as np

from .cycle import Cycle
from .draws import Draws
from .length_model import LengthModel
from .search import Search

TRACES = 32
"""Sets of prompts; a standard deviation of so many is itself off by an eighth."""

FEWEST, MOST, SAMPLES = 3, 24, 4096
"""Of either kind as many rounds are simulated as train SAMPLES, within these bounds; what they leave open cancels."""

_LOTS = (3_000_017, 3_000_029)  # added to the seed: luck that neither the choice nor the prediction has seen


def length_error(search: Search, cycle: Cycle, model: LengthModel, seed: int) -> float:
    """Relative standard deviation of the cycle's cost over what the trace might have held, in [0, inf)."""
    samples = search.setting.target * search.setting.group_size
    rounds = min(MOST, max(FEWEST, SAMPLES // samples))
    costs = np.empty((TRACES, len(_LOTS)))
    for place, row in enumerate(costs):
        other = model.another(np.random.default_rng([seed, 53, place]))
        for lot, more in enumerate(_LOTS):
            again = search.anew([cycle], Draws(other, seed + more, search.setting.draws.width))
            row[lot] = again.simulate(cycle, rounds, rounds).cost(again.limits)
    variance = float(np.cov(costs.T)[0, 1])
    return math.sqrt(max(0.0, variance)) / float(costs.mean())
