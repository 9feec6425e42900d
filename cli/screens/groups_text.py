"""Co-execution groups that run or have run, as text: each job's turn, its slowdown beside its bound, whom it waited
for, busy units, and moves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...plans.facts.group_cells import (
    GROUP_COLUMNS,
    MOVE_COLUMNS,
    SWITCH_COLUMNS,
    SWITCH_TEXT,
    group_cells,
    move_cells,
    switch_rows,
)
from ...plans.phrases.numbers import NONE, count, percent, seconds, times
from ...plans.phrases.sentences import listed, one_line
from ...plans.phrases.tables import text_lines

_JOB_COLUMNS = ("job", "group", "now", "steps", "starts", "slowdown", "predicted", "at most")


def status_text(status: Mapping[str, Any]) -> str:
    """The lines of `traces.groups.groups_status`."""
    what = "running" if status["running"] else "stopped; continue with rlplan execute --resume"
    lines = [f"{one_line(status['out'])}: {', '.join(status['groups'])} {what}"]
    held = {turn["job"]: turn for group in status["groups"].values() for turn in group["held"]}
    lines += text_lines(_JOB_COLUMNS, [_job_cells(name, row, held.get(name)) for name, row in status["jobs"].items()])
    if (proposed := status["proposed"]) is not None:
        lines += ["", _replan_line(proposed)]
    if (moves := status["moves"]) is not None:
        lines += ["", *moves_lines(moves)]
    return "\n".join(lines)


def _replan_line(proposed: Mapping[str, Any]) -> str:
    if not proposed["moves"]:
        return f"re-planned with the measured seconds: no move would help ({one_line(proposed['plan'])})"
    why = "the driver applies it" if proposed["applies"] else f"not applied: {one_line(proposed['reason'])}"
    cost = f"{count(proposed['moves'], 'move')} of {seconds(proposed['price_s'])}"
    return f"re-plan proposed: {one_line(proposed['plan'])}, {cost}; {why}"


def moves_lines(moves: Mapping[str, Any]) -> list[str]:
    """The moves of a plan, a line each, below a line of the plan itself."""
    took = f" in {seconds(moves['seconds'])}" if "seconds" in moves else ""
    return [
        f"plan {one_line(moves['plan'])}: {moves['state']}{took}",
        *text_lines(("move", *MOVE_COLUMNS), [[one_line(move["job"]), *move_cells(move)] for move in moves["moves"]]),
    ]


def _job_cells(name: str, row: Mapping[str, Any], turn: Mapping[str, Any] | None) -> list[str]:
    now = row["state"]
    if turn is not None:
        now = f"{turn['phase']} for {seconds(turn['for_s'])}"
    elif row["waits_for"]:
        now = f"waits for {listed([one_line(other) for other in row['waits_for']])}"
    broken = " (broken)" if row["keeps"] is False else " (alarm)" if row["bound"] == "alarm" else ""
    return [
        one_line(name),
        row["group"],
        now,
        f"{row['steps']}",
        f"{row['starts']}",
        NONE if row["slowdown"] is None else times(row["slowdown"]) + broken,
        *(NONE if row[key] is None else times(row[key]) for key in ("slowdown_predicted", "slo")),
    ]


def group_text(name: str, report: dict[str, Any]) -> str:
    """The figures of `traces.groups.group_report`, a line each."""
    begin_s, end_s = report["together_s"]
    lines = [
        f"{one_line(name)}: group {report['group']} of {count(len(report['jobs']), 'job')}, "
        f"permit rule {report['rule']}; measured while all ran, {seconds(end_s - begin_s)}"
    ]
    wide = max((len(one_line(job)) for job in report["jobs"]), default=0) + 2
    head = ("steps", "starts", *GROUP_COLUMNS)
    lines.append(f"{'':{wide}}" + _cells(head, head))
    for job, row in report["jobs"].items():
        cells = (f"{row['steps']}", f"{row['starts']}", *group_cells(row))
        broken = "  breaks its bound" if row["keeps"] is False else ""
        lines.append(f"{one_line(job):{wide}}" + _cells(cells, head) + broken)
    for job, row in report["left"].items():
        how = "is to leave" if row["still_there"] else "left"
        lines.append(f"{one_line(job)} {how} after {count(row['steps'], 'step')}")
    if rows := switch_rows(report["jobs"]):
        lines += [SWITCH_TEXT, f"{'':{wide}}" + _cells(SWITCH_COLUMNS, SWITCH_COLUMNS)]
        lines += [f"{one_line(job):{wide}}" + _cells(cells, SWITCH_COLUMNS) for job, cells in rows.items()]
    busy = ", ".join(
        f"{figures['pool'] or 'unit'} {unit} {NONE if figures['busy'] is None else percent(figures['busy'])}"
        for unit, figures in report["units"].items()
    )
    return "\n".join([*lines, f"busy share of each unit: {busy}"])


def _cells(cells: Sequence[str], titles: Sequence[str]) -> str:
    """Cells below their titles."""
    return "".join(f"{cell:>{len(title) + 3}}" for cell, title in zip(cells, titles, strict=True))
