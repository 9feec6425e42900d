"""The timelines of a plan of groups as Chrome trace events: a process for each group, a thread for each node's slot.

Format as in planner/simulate/run_timeline.py.
"""

from __future__ import annotations

from typing import Any

from ....plans.schema.groups_plan import GroupsPlan


def chrome_trace(plan: GroupsPlan) -> dict[str, Any]:
    """The file that ui.perfetto.dev opens."""
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
            for held in span.units:
                spans.append(
                    {
                        "ph": "X",
                        "pid": pid,
                        "tid": held,
                        "name": f"{span.job} {span.phase}",
                        "cat": span.phase,
                        "ts": round(1e6 * span.begin_s, 3),
                        "dur": round(1e6 * (span.end_s - span.begin_s), 3),
                    }
                )
    spans.sort(key=lambda event: (event["ts"], event["pid"], event["tid"]))
    return {"traceEvents": named + spans, "displayTimeUnit": "ms"}
