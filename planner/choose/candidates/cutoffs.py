"""Candidate cutoffs of mode exact: lengths that some groups of samples end within and others do not."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Sequence

from ....plans.schema.levers import SearchCutoff
from ...lengths.length_model import LengthModel
from .job_limits import Unplannable

# Quantiles of the longest sample of a group to cut at.
CUTOFF_LEVELS = (0.4, 0.5, 0.6, 0.7, 0.8, 0.87, 0.93, 0.97)

# Cutoffs are rounded to this many tokens: a plan should not change with the last token of a trace.
CUTOFF_GRAIN_TOKENS = 8

LEAST_SHORT = 0.2
"""Least share of the groups that end within a cutoff, for its short rounds to train enough of what they issue."""


def cutoffs(
    model: LengthModel, group_size: int, cap_tokens: int, bounds: SearchCutoff | None = None
) -> tuple[int, ...]:
    """Cutoffs to try: rounded quantiles of a group's longest sample, below the cap, with short groups to train.

    `bounds`: of the job; only quantiles within them are tried, and the bounds themselves. Raises Unplannable if no
    cutoff within them can be planned.
    """
    raw = model.group_max_quantiles(group_size, CUTOFF_LEVELS)
    grain = CUTOFF_GRAIN_TOKENS
    tried = {max(1, min(round(c / grain) * grain, cap_tokens - 1)) for c in raw if c < cap_tokens}
    if bounds is not None:
        tried = {c for c in tried | {bounds.min, bounds.max or cap_tokens - 1} if bounds.holds(c) and c < cap_tokens}
    plannable = tuple(c for c in sorted(tried) if LEAST_SHORT <= model.short_groups(c, group_size) < 1.0)
    if bounds is not None and not plannable:
        raise Unplannable("job", ("search", "cutoff_tokens"), _out_of_reach(model, group_size, cap_tokens, bounds))
    return plannable


def cutoffs_between(tried: Sequence[int], parts: int) -> list[int]:
    """Rounded cutoffs that divide the tokens between each two neighbours of `tried` into `parts`; none of `tried`."""
    grain, between = CUTOFF_GRAIN_TOKENS, set()
    for low, high in itertools.pairwise(tried):
        between |= {round((low + (high - low) * part / parts) / grain) * grain for part in range(1, parts)}
    return sorted(cutoff for cutoff in between if tried[0] < cutoff < tried[-1] and cutoff not in tried)


def _out_of_reach(model: LengthModel, group_size: int, cap_tokens: int, bounds: SearchCutoff) -> str:
    """Text on why no cutoff within the job's bounds can be planned, and which cutoffs can."""
    lengths = range(1, cap_tokens)
    least = bisect_left(lengths, LEAST_SHORT, key=lambda c: model.short_groups(c, group_size))
    most = bisect_left(lengths, 1.0, key=lambda c: model.short_groups(c, group_size))
    stated = f"{bounds.min} to {cap_tokens - 1 if bounds.max is None else bounds.max}"
    if bounds.min == bounds.max:
        stated = str(bounds.min)
    if least >= most:
        return f"is {stated}, and {no_cutoff(model, group_size, cap_tokens)}"
    return (
        f"is {stated}, and by the length trace at least {LEAST_SHORT:.0%} of the groups, but not all, end within a "
        f"cutoff of {lengths[least]} to {lengths[most - 1]} tokens; write bounds that hold some of these"
    )


def no_cutoff(model: LengthModel, group_size: int, cap_tokens: int) -> str:
    """Text on why mode exact has no cutoff to try."""
    ended = model.short_groups(cap_tokens - 1, group_size)
    if ended < LEAST_SHORT:
        why = f"{f'only {ended:.0%}' if ended else 'none'} of the groups end below the cap of {cap_tokens} tokens"
        remedy = "raise rollout.max_response_tokens"
    else:
        why = "the groups of the length trace are all about equally long"
        remedy = "give a length trace of more prompts"
    return (
        f"mode exact finds no cutoff that some groups end within and others do not: {why}; {remedy}, or plan mode sync"
    )
