"""The length error of a plan: how far its step may be off for the prompts that the length trace happens to hold.

The chosen schedule is simulated again with other prompts that the trace might as well have held (`LengthModel.another`:
a smoothed bootstrap over prompts, with a draw of the tail's exponent); decisions, costs and seeds of the draws stay.
The cost varies between sets of prompts, which is the trace's error, and between sets of rounds, which is the
simulation's error, stated beside it. So each set of prompts is simulated twice, on two independent sets of draws: the
mean product of the two deviations from the predicted cost is the variance of the prompts alone, however few rounds are
simulated.

A set of few prompts may have next to no group that ends within the plan's cutoff, or none whose rewards differ where
dynamic sampling wants that. The plan would train nothing on such prompts, and no run would use them, so such a
set is drawn anew.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from ...plans.schema.predicted_evidence import LengthBasis
from ...profiles.length_trace import LengthTrace
from ..choose.candidate_search import Search
from ..choose.candidates.candidate_rounds import accepted_share
from ..choose.cycle_cost import Cycle
from ..choose.holdout_rounds import Holdout
from ..lengths.draws import Draws
from ..lengths.length_model import LengthModel
from ..simulate.columns.whole_columns import Setting

TRACES = 32
"""Sets of prompts; a standard deviation of so many is itself off by an eighth."""

FEWEST, MOST, SAMPLES = 3, 24, 4096
"""As many rounds of either kind as train SAMPLES samples, within these bounds; the noise of few rounds cancels."""

REDRAWS = 16
"""So often a set of prompts that gives the plan nothing to train is drawn anew; then the predicted cost is taken."""

LEAST_ACCEPTED = 0.05
"""Share of a set's groups that must end within the cutoff; a cutoff is planned where at least 0.2 of the trace's do."""

PROMPT_DECIMALS = 4
"""Decimals of the logarithms that a plan keeps."""

_SETS_SEED = 1_000_003
"""Of the sets of prompts, which all plans of a trace have in common."""

_SEED_OFFSETS = (3_000_017, 3_000_029)  # draws that neither the choice nor the prediction has seen


def length_error(
    search: Search, cycle: Cycle, model: LengthModel, seed: int
) -> tuple[float, tuple[tuple[float, ...], ...]]:
    """(relative error of the cycle's cost for what the trace might have held, one standard deviation, in [0, inf); the
    logarithm of the cost over the predicted one, for each set of draws and each set of prompts).

    Logarithms, since the costs differ by factors where little is known. The sets of prompts are the same for all plans
    of a trace, whatever the seed, so that costs of two plans can be compared set by set.
    """
    samples = search.setting.simulated_target * search.setting.group_size
    rounds = min(MOST, max(FEWEST, SAMPLES // samples))
    predicted = _simulate(search, cycle, model, seed, rounds)
    if predicted is None:
        predicted = [cycle.cost(search.limits)] * len(_SEED_OFFSETS)
    costs = np.array([_costs(search, cycle, model, seed, rounds, number, predicted) for number in range(TRACES)])
    logs = np.log(costs / predicted)
    products = logs.prod(axis=1)
    # A variance that so few sets do not tell from 0 is as large as they leave it open to be.
    error = math.expm1(math.sqrt(max(products.mean(), products.std() / math.sqrt(TRACES))))
    rounded = np.round(logs.T, PROMPT_DECIMALS) + 0.0  # a -0.0 would be read back as 0.0
    return error, tuple(tuple(column) for column in rounded.tolist())


def _costs(
    search: Search, cycle: Cycle, model: LengthModel, seed: int, rounds: int, number: int, predicted: list[float]
) -> list[float]:
    """The schedule's cost with set `number` of prompts, on each of the two sets of draws; `predicted` of the trace's
    own where no such set trains anything."""
    rng = np.random.default_rng([_SETS_SEED, 53, number])
    for _ in range(REDRAWS):
        other_model = model.another(rng)
        if can_train(search.setting, cycle, other_model):
            costs = _simulate(search, cycle, other_model, seed, rounds)
            if costs is not None:
                return costs
    return predicted


def can_train(setting: Setting, cycle: Cycle, model: LengthModel) -> bool:
    """Whether the schedule has something to train on these lengths: enough groups end within its cutoff, and, under
    dynamic sampling, some prompt has rewards that differ."""
    cutoff_tokens = cycle.short.key.cutoff_tokens
    if accepted_share(model, cutoff_tokens, setting.group_size, dynamic_sampling=False) < LEAST_ACCEPTED:
        return False
    return not setting.dynamic_sampling or any(len(set(rewards)) > 1 for rewards in model.rewards)


def _simulate(search: Search, cycle: Cycle, model: LengthModel, seed: int, rounds: int) -> list[float] | None:
    """The schedule's cost on each of the two sets of draws; None if it trains nothing on one of them."""
    costs = []
    for offset in _SEED_OFFSETS:
        again = search.anew([cycle], Draws(model, seed + offset, search.setting.draws.width))
        simulated = again.simulate(cycle, rounds, rounds)
        if not simulated.trains:
            return None
        costs.append(simulated.cost(again.limits))
    return costs


# The length basis of a plan: how much of it rests on responses longer than any in its length trace.
#
# The length model goes on beyond the longest response that was seen, up to the job's cap (length_fit.py). How often
# it does is a guess, so the plan and its baseline are simulated once more with such responses cut to the longest
# seen, on the same draws. The share of the step that this saves is extrapolated, and enters the plan's error whole:
# there may be no longer responses at all, or about twice as many.

SHORT_ROUNDS, LONG_ROUNDS = 48, 24
"""Rounds of either kind, at most; both sides are simulated on the same draws, so few rounds tell much."""


def length_basis(holdout: Holdout, trace: LengthTrace) -> LengthBasis:
    """How far the length trace shows the lengths that the holdout rounds of a plan were simulated with."""
    draws, size = holdout.search.setting.draws, holdout.search.limits.group_size
    tables, cap = draws.model.tables, draws.model.cap_tokens
    seen = min(max(row.tokens for row in trace.rows), cap)
    plan_s, plain_s = (cycle.seconds_per_sample(size) for cycle in (holdout.cycle, holdout.baseline))
    share, within = 0.0, plain_s / plan_s
    if tables.max() > seen:
        model = dataclasses.replace(draws.model, tables=np.minimum(tables, seen))
        cut = holdout.search.anew([holdout.cycle, holdout.baseline], Draws(model, draws.seed, draws.width))
        plan_without, plan_with = _seconds(holdout.search, cut, holdout.cycle)
        plain_without, plain_with = _seconds(holdout.search, cut, holdout.baseline)
        share = min(1.0, max(0.0, 1.0 - plan_without / plan_with))
        within = (plain_without / plain_with) / (plan_without / plan_with) * plain_s / plan_s
    return LengthBasis(
        prompts=len(trace.prompts),
        samples=len(trace.rows),
        longest_seen_tokens=seen,
        longest_simulated_tokens=int(tables.max()),
        beyond_share=float((tables > seen).mean()),
        step_share=share,
        speedup_within=within,
    )


def _seconds(whole: Search, cut: Search, cycle: Cycle) -> tuple[float, float]:
    """Seconds per sample of a schedule (without, with) responses beyond the longest seen, on first rounds of both."""
    key = cycle.short.key
    short = min(SHORT_ROUNDS, len(whole.short[key].log))
    long = min(LONG_ROUNDS, cycle.long.rounds) if cycle.long else 0
    without = cut.simulate(cycle, short, long)
    return (
        sum(cut.phase_seconds(without, short, long).values()),
        sum(whole.phase_seconds(cycle, short, long).values()),
    )
