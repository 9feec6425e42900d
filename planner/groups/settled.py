"""What happens in a group when it has settled: one round of its longest job, with mean seconds, turn by turn.

The permit machine itself is driven (reference.py), so this is what the executor's would decide if every phase took its
mean. A group whose jobs have no common period shows one round of many; the slowdowns are of all of them (rates.py).
"""

from __future__ import annotations

from collections.abc import Mapping

from ...plans.groups_plan import GroupTimeline
from ...plans.groups_plan import Span as PlannedSpan
from .model import Group, GroupJob, Rules
from .reference import Span, drive_group

WARM_UP = 8
"""Rounds of the longest job before the one that is shown."""


def settled_timeline(group: Group, jobs: Mapping[str, GroupJob], rules: Rules) -> GroupTimeline:
    """Spans in order of their begin, from the start of a rollout of the job that is longest alone to its next."""
    longest = max((pin.job for pin in group.pins), key=lambda name: (jobs[name].solo_s, name))
    spans: list[Span] = []
    begins: list[float] = []  # of rollouts of the longest job
    between = True  # its rollout has not begun
    for span in drive_group(group, jobs, rules):
        spans.append(span)
        if span.job != longest:
            continue
        if span.phase == "rollout" and between:
            begins.append(span.start_s)
        between = span.phase == "train" and span.ends_phase
        if len(begins) == WARM_UP + 2:
            break
    begin, end = begins[-2], begins[-1]
    # Spans come in the order of their ends: whoever still runs at the window's end has not ended yet.
    shown = []
    for span in spans:
        first, last = max(span.start_s, begin), min(span.end_s, end)
        if last > first:
            shown.append((first - begin, last - begin, span))
    shown.sort(key=lambda item: (item[0], item[2].job))
    return GroupTimeline(
        span_s=end - begin,
        spans=tuple(
            PlannedSpan(job=span.job, phase=span.phase, units=span.units, begin_s=first, end_s=last)
            for first, last, span in shown
        ),
    )
