"""The length basis of a plan: how much of it rests on responses longer than any in its length trace.

The length model goes on beyond the longest response that was seen, up to the job's cap (length_fit.py). How often it
does is a guess, so the plan and its baseline are simulated once more with such responses cut to the longest seen, on
the same draws. The share of the step that this saves is extrapolated, and enters the plan's error whole: there may be
no longer responses at all, or about twice as many.
"""

from __future__ import annotations

import dataclasses
from typing import cast

import numpy as np

from ...plans.schema.length_evidence import LengthBasis
from ...profiles.length_trace import LengthTrace
from ..choose.candidate_search import Search
from ..choose.candidates.round_kinds import ShortKey
from ..choose.cycle_cost import Cycle
from ..lengths.draws import Draws
from .holdout_rounds import Holdout

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
    key = cast(ShortKey, cycle.short.key)
    short = min(SHORT_ROUNDS, len(whole.short[key].log))
    long = min(LONG_ROUNDS, cycle.long.rounds) if cycle.long else 0
    without = cut.simulate(cycle, short, long)
    return (
        sum(cut.phase_seconds(without, short, long).values()),
        sum(whole.phase_seconds(cycle, short, long).values()),
    )
