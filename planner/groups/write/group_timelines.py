"""Timelines of a plan of groups: the part of a steady state that the plan shows, and its export as Chrome trace
events."""

from __future__ import annotations

from typing import Any

from ....plans.schema.groups_plan import GroupsPlan, GroupTimeline, Span
from ..simulate.steady_state import SteadyState

ITERATIONS = 2
"""Iterations of the job that does fewest which are shown at most; a period may be many more."""


def timeline_of(state: SteadyState) -> GroupTimeline:
    """Turns from the beginning of a period, in order of begin, cut off at the end of the part that is shown."""
    shown_s = state.period_s * min(1.0, ITERATIONS / min(state.iterations.values()))
    turns: dict[tuple[float, float, str, str], Span] = {}
    for held in state.held:
        if held.start_s >= shown_s:
            continue
        # A turn on several nodes is one span.
        key = (held.start_s, held.end_s, held.job, held.phase)
        units = (*(turns[key].units if key in turns else ()), *held.units)
        turns[key] = Span(
            job=held.job,
            phase=held.phase,
            units=tuple(sorted(units)),
            begin_s=held.start_s,
            end_s=min(held.end_s, shown_s),
        )
    return GroupTimeline(period_s=state.period_s, repeats=state.repeats, span_s=shown_s, spans=tuple(turns.values()))


def chrome_trace(plan: GroupsPlan) -> dict[str, Any]:
    """The trace that ui.perfetto.dev opens: a process for each group, a thread for each slot of its nodes.

    Format as in planner/simulate/run_timeline.py.
    """
    named: list[dict[str, Any]] = []
    spans: list[dict[str, Any]] = []
    for pid, (key, group) in enumerate(plan.groups.items(), 1):
        named.append({"ph": "M", "pid": pid, "tid": 0, "name": "process_name", "args": {"name": f"group {key}"}})
        unit = 0
        for index, node in enumerate(group.nodes):
            for slot in range(node.slots):
                name = f"{node.pool} {index}" + (f" slot {slot}" if node.slots > 1 else "")
                named.append({"ph": "M", "pid": pid, "tid": unit, "name": "thread_name", "args": {"name": name}})
                unit += 1
        for span in group.timeline.spans:
            spans += [
                {
                    "ph": "X",
                    "pid": pid,
                    "tid": unit,
                    "name": f"{span.job} {span.phase}",
                    "cat": span.phase,
                    "ts": round(1e6 * span.begin_s, 3),
                    "dur": round(1e6 * (span.end_s - span.begin_s), 3),
                }
                for unit in span.units
            ]
    spans.sort(key=lambda event: (event["ts"], event["pid"], event["tid"]))
    return {"traceEvents": named + spans, "displayTimeUnit": "ms"}
