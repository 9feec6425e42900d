"""The figures of `rlplan report` on a co-execution group that was executed, beside its plan."""

from __future__ import annotations

import itertools
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

from ...plans.schema.groups_plan import load_groups_plan
from ...plans.yaml.errors import InputError
from ..trace import TraceError
from .group_turns import GROUPS_COPY, TURNS, GroupTurns, TurnTaken, read_turns

WARM = 2
"""Iterations of a job after a start that are not measured: engines and allocators warm up in them."""


def is_group_run(folder: Path) -> bool:
    """Whether a folder is the --out of `rlplan execute` on a plan of groups."""
    return (folder / TURNS).is_file()


def group_report(folder: Path) -> dict[str, Any]:
    """Figures of a group's run, in seconds. Raises InputError if it cannot be read.

    Of each job: `iteration_s`, mean seconds between two ends of training, but for the first WARM after each start of
    its process and for the time before the first or after the last iteration of another job; `slowdown`, these over
    the seconds that the plan has for it alone; None where there are none. `waited_s`: mean seconds that a turn was
    waited for, by phase. Of each unit: its pool, and `busy`, the share of that time in which a turn held it; the time
    in which a group that was resumed stood still counts as idle.
    """
    try:
        turns = read_turns(folder / TURNS)
    except (TraceError, OSError) as error:
        raise InputError(f"its turns cannot be read: {error}", str(folder)) from None
    planned = load_groups_plan(folder / GROUPS_COPY).groups.get(turns.group)
    if planned is None or set(planned.jobs) != set(turns.arrivals):
        raise InputError(f"{TURNS} and {GROUPS_COPY} are not of the same group", str(folder))
    begin_s, end_s = _together(turns)
    jobs: dict[str, Any] = {}
    for name, member in planned.jobs.items():
        own = [turn for turn in turns.turns if turn.job == name]
        ends = [turn.end_s for turn in own if turn.ended and turn.phase == "train"]
        iterations = _iterations_s(own, begin_s, end_s)
        iteration_s = fmean(iterations) if iterations else None
        slowdown = None if iteration_s is None else iteration_s / member.slowdown.alone_s
        jobs[name] = {
            "steps": len(ends),
            "starts": turns.arrivals.get(name, 0),
            "iteration_s": iteration_s,
            "alone_s": member.slowdown.alone_s,
            "slowdown": slowdown,
            "slowdown_predicted": member.slowdown.mean,
            "slo": member.slowdown.slo,
            "keeps": None if slowdown is None else slowdown <= member.slowdown.slo,
            "waited_s": {
                phase: fmean([turn.waited_s for turn in own if turn.phase == phase] or [0.0])
                for phase in ("rollout", "train")
            },
        }
    return {
        "group": turns.group,
        "rule": turns.rule,
        "together_s": [begin_s, end_s],
        "jobs": jobs,
        "units": {
            str(unit): {
                "pool": planned.nodes[planned.node_of_unit(unit)].pool,
                "busy": _busy(turns, unit, begin_s, end_s),
            }
            for unit in turns.units
        },
        "turns": [asdict(turn) for turn in turns.turns],
    }


def _iterations_s(own: list[TurnTaken], begin_s: float, end_s: float) -> list[float]:
    """Seconds of a job's iterations between two times, without those across a start and the first after it."""
    ends: dict[int, list[float]] = {}
    for turn in own:
        if turn.ended and turn.phase == "train":
            ends.setdefault(turn.arrival, []).append(turn.end_s)
    kept = [[each for each in of_start[WARM - 1 :] if begin_s <= each <= end_s] for of_start in ends.values()]
    return [later - earlier for each in kept for earlier, later in itertools.pairwise(each)]


def _together(turns: GroupTurns) -> tuple[float, float]:
    """The time in which all jobs ran and were warm: (begin, end), in seconds since the group began."""
    ends: dict[str, list[float]] = {job: [] for job in turns.arrivals}
    for turn in turns.turns:
        if turn.phase == "train" and turn.ended:
            ends[turn.job].append(turn.end_s)
    known = [each for each in ends.values() if each]
    if not known:
        return 0.0, turns.end_s
    begin_s = max(each[min(WARM, len(each)) - 1] for each in known)
    return begin_s, max(begin_s, min(each[-1] for each in known))


def _busy(turns: GroupTurns, unit: int, begin_s: float, end_s: float) -> float | None:
    if end_s <= begin_s:
        return None
    held = [max(0.0, min(turn.end_s, end_s) - max(turn.begun_s, begin_s)) for turn in turns.turns if unit in turn.units]
    return sum(held) / (end_s - begin_s)
