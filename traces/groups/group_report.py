"""The figures of `rlplan report` on a co-execution group that was executed, beside its plan."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from ...plans.schema.groups_plan import GroupMember, load_groups_plan
from ...plans.yaml.errors import InputError
from ...rounds.permits.slowdown import WARM, IterationTimer, keeps_bound, slowdown_of
from ..run_log import TRACE, read_run
from ..trace import TraceError
from .group_turns import GROUPS_COPY, TURNS, GroupTurns, TurnTaken, turns_of
from .groups_folder import was_asked_to_change

PHASES = ("rollout", "train")


def group_report(folder: Path, turns: GroupTurns | None = None) -> dict[str, Any]:
    """Figures of a group's run, in seconds. Raises InputError if it cannot be read.

    `turns`: its journal, if it is read already.

    Of each job: `iteration_s`, mean seconds between two ends of training, but for the first WARM after each start of
    its process and for the time before the first or after the last iteration of another job; `slowdown`, these over
    the seconds that the plan has for it alone; None where there are none. Where jobs came or went while others ran, the
    time since the last of them counts. `waited_s`: mean seconds that a turn was waited for, by phase. `switches`:
    as `switches` has them. Of each unit: its pool, and `busy`, the share of that time in which a turn held it;
    the time in which a group that was resumed stood still counts as idle. `left`: steps and starts of jobs that were in
    the group, and are in its plan no more, and whether they are `still_there`, on their way out.
    """
    turns = turns_of(folder) if turns is None else turns
    planned = load_groups_plan(folder / GROUPS_COPY).groups.get(turns.group)
    members = {} if planned is None else planned.jobs
    gone = turns.arrivals.keys() - members.keys()
    if not turns.changes and turns.arrivals.keys() != members.keys() and not was_asked_to_change(folder):
        raise InputError(f"{TURNS} and {GROUPS_COPY} are not of the same group", str(folder))
    begin_s, end_s = _together(turns, members)
    jobs: dict[str, Any] = {}
    for name, member in members.items():
        own = [turn for turn in turns.turns if turn.job == name]
        iterations = _iterations_s(own, begin_s, end_s)
        iteration_s = fmean(iterations) if iterations else None
        slowdown = slowdown_of(iterations, member.slowdown.alone_s)
        jobs[name] = {
            "steps": _steps(turns, name),
            "starts": turns.arrivals.get(name, 0),
            "iteration_s": iteration_s,
            "alone_s": member.slowdown.alone_s,
            "slowdown": slowdown,
            "slowdown_predicted": member.slowdown.mean,
            "slo": member.slowdown.slo,
            "keeps": None if slowdown is None else keeps_bound(slowdown, member.slowdown.slo),
            "waited_s": {
                phase: fmean([turn.waited_s for turn in own if turn.phase == phase and turn.first] or [0.0])
                for phase in PHASES
            },
            "switches": switches(folder / name, member, own),
        }
    return {
        "group": turns.group,
        "rule": turns.rule,
        "together_s": [begin_s, end_s],
        "jobs": jobs,
        "units": {
            str(unit): {"pool": pool, "busy": _busy(turns, unit, begin_s, end_s)}
            for unit, pool in _pools(turns, members).items()
        },
        "left": {
            name: {"steps": _steps(turns, name), "starts": turns.arrivals[name], "still_there": name in turns.seated}
            for name in sorted(gone)
        },
        "turns": [asdict(turn) for turn in turns.turns],
    }


def _iterations_s(own: list[TurnTaken], begin_s: float, end_s: float) -> list[float]:
    """Seconds of a job's iterations between two times, without those across a start and the first after it."""
    timer, iterations = IterationTimer(), []
    for turn in own:
        if turn.ended and turn.phase == "train":
            since_s = timer.open_since_s
            seconds = timer.ended(turn.arrival, turn.end_s)
            if seconds is not None and since_s is not None and begin_s <= since_s and turn.end_s <= end_s:
                iterations.append(seconds)
    return iterations


def _steps(turns: GroupTurns, job: str) -> int:
    return sum(turn.ended and turn.phase == "train" for turn in turns.turns if turn.job == job)


def _pools(turns: GroupTurns, members: Mapping[str, GroupMember]) -> dict[int, str | None]:
    """The pool of each unit, by the phases that the plan's jobs ran on it; None: only jobs that left had it."""
    pools: dict[int, str | None] = dict.fromkeys(turns.units)
    for turn in turns.turns:
        if turn.job in members:
            phase = members[turn.job].rollout if turn.phase == "rollout" else members[turn.job].train
            pools |= dict.fromkeys(turn.units, phase.pool)
    return pools


def _together(turns: GroupTurns, members: Mapping[str, GroupMember]) -> tuple[float, float]:
    """The time in which all of the plan's jobs ran and were warm: (begin, end), in seconds since the group began.

    It begins after the last job came, or left for good; one that is done gives its seat up too, and ends the time.
    """
    since_s = max((t_s for t_s, job, came in turns.changes if came or job not in members), default=0.0)
    ends: dict[str, list[float]] = {job: [] for job in members}
    for turn in turns.turns:
        if turn.job in members and turn.phase == "train" and turn.ended and turn.end_s >= since_s:
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


def switches(run: Path, member: GroupMember, turns: Iterable[TurnTaken]) -> dict[str, dict[str, Any]]:
    """Figures of a job's switches in its group, as its trace has them, by phase.

    A job leaves its devices at the end of each turn. The plan expects a switch only in turns whose devices another job
    had last; how many of them there were, the group's journal knows.

    `turns`: measured turns; `in_s` and `out_s`: mean seconds in which engines woke, or states came to their GPUs, and
    in which they left; None without a measured turn. `error_s`: two standard errors of their sum; None for fewer than
    two turns. `planned_s`: of the plan, for both together. `other_had`: turns
    whose devices another job had last, for which alone the plan expects these seconds.

    Args:
        run: folder of the job's run.
        member: the job in its plan.
        turns: of the job, in the group's journal.

    Raises InputError if the run's trace cannot be read.
    """
    taken = list(turns)
    told = _told(run)
    found: dict[str, dict[str, Any]] = {}
    for phase, pinned in zip(PHASES, (member.rollout, member.train), strict=True):
        own = [event for event in told if event["phase"] == phase]
        found[phase] = {
            "turns": len(own),
            "in_s": fmean(float(event["switch_in_s"]) for event in own) if own else None,
            "out_s": fmean(float(event["switch_out_s"]) for event in own) if own else None,
            "error_s": _error_s(own),
            "planned_s": pinned.switch_s,
            "other_had": sum(turn.ended and turn.switched and turn.phase == phase for turn in taken),
        }
    return found


def _error_s(told: list[dict[str, Any]]) -> float | None:
    sums = [float(event["switch_in_s"]) + float(event["switch_out_s"]) for event in told]
    return 2 * stdev(sums) / math.sqrt(len(sums)) if len(sums) > 1 else None


def _told(run: Path) -> list[dict[str, Any]]:
    """Events of turns that measured their switch; runs of earlier versions have none."""
    try:
        events = read_run(run / TRACE).events
    except FileNotFoundError:  # it has not begun, or is in another group by now
        return []
    except (TraceError, OSError) as error:
        raise InputError(f"its run cannot be read: {error}", str(run)) from None
    return [event for event in events if event["event"] == "permit" and "switch_in_s" in event]
