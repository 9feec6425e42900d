"""The part of a group's steady state that a plan shows."""

from __future__ import annotations

from ....plans.schema.sections.planned_group import GroupTimeline, Span
from .steady_state import Steady

ROUNDS = 2
"""Iterations of the job that does fewest which are shown at most; a period may be many more."""


def timeline_of(state: Steady) -> GroupTimeline:
    """Turns from the beginning of a period, in order of begin; what lies beyond the part that is shown is cut off."""
    shown_s = state.period_s * min(1.0, ROUNDS / min(state.iterations.values()))
    turns: dict[tuple[float, float, str, str], Span] = {}
    for slot in state.slots:
        if slot.start_s >= shown_s:
            continue
        # A turn on several nodes is one span.
        key = (slot.start_s, slot.end_s, slot.job, slot.phase)
        units = (*(turns[key].units if key in turns else ()), *slot.units)
        turns[key] = Span(
            job=slot.job,
            phase=slot.phase,
            units=tuple(sorted(units)),
            begin_s=slot.start_s,
            end_s=min(slot.end_s, shown_s),
        )
    return GroupTimeline(period_s=state.period_s, repeats=state.repeats, span_s=shown_s, spans=tuple(turns.values()))
