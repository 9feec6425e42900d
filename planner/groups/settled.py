"""What happens in a group when it has settled: one round of its longest job, with mean seconds, turn by turn.

The permit machine itself is driven (reference.py), so this is what the executor's would decide if every phase took its
mean. A group whose jobs have no common period shows one round of many; the slowdowns are of all of them (rates.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...plans.groups_plan import GroupTimeline
from ...plans.groups_plan import Span as PlannedSpan
from ...rounds.permit import PermitMachine
from .model import Group, GroupJob, Rules
from .reference import Span, Truth, drive
from .seats import machine_seats

WARM_UP = 8
"""Rounds of the longest job before the one that is shown."""


@dataclass(frozen=True)
class Settled:
    """Turns of a group from its beginning, and the round of its longest job that is shown."""

    spans: tuple[Span, ...]
    begin_s: float
    end_s: float


def settle(group: Group, jobs: Mapping[str, GroupJob], rules: Rules) -> Settled:
    """Drive the group until its longest job has gone round often enough; a round goes from rollout to rollout."""
    longest = max((pin.job for pin in group.pins), key=lambda name: (jobs[name].solo_s, name))
    spans: list[Span] = []
    begins: list[float] = []  # of rollouts of the longest job
    between = True  # its rollout has not begun
    seats, _ = machine_seats(group, jobs, rules)
    truths = [Truth((seat.expected_s,), jobs[seat.job].tail_share) for seat in seats]
    for span in drive(PermitMachine(rules.policy), seats, truths, rules.interference):
        spans.append(span)
        if span.job != longest:
            continue
        if span.phase == "rollout" and between:
            begins.append(span.start_s)
        between = span.phase == "train" and span.ends_phase
        if len(begins) == WARM_UP + 3:
            break
    # Spans come in the order of their ends: who runs across the end of the round has not ended, but does in the next.
    return Settled(tuple(spans), begins[-3], begins[-2])


def timeline_of(settled: Settled) -> GroupTimeline:
    """What is shown, in order of begin, from zero; turns that reach beyond the round are cut."""
    shown = []
    for span in settled.spans:
        first, last = max(span.start_s, settled.begin_s), min(span.end_s, settled.end_s)
        if last > first:
            shown.append((first - settled.begin_s, last - settled.begin_s, span))
    shown.sort(key=lambda item: (item[0], item[2].job))
    return GroupTimeline(
        span_s=settled.end_s - settled.begin_s,
        spans=tuple(
            PlannedSpan(job=span.job, phase=span.phase, units=span.units, begin_s=first, end_s=last)
            for first, last, span in shown
        ),
    )
