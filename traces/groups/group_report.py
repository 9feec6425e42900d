"""The figures of `rlplan report` on a co-execution group that was executed, beside its plan."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from ...plans.schema.groups_plan import GroupMember, load_groups_plan
from ...plans.yaml.errors import InputError
from ...rounds.permits.slowdown import WARM, IterationTimer, keeps_bound, slowdown_of
from ..run_log import TRACE, read_run
from ..trace import TraceError
from .group_journal import GROUP_JOURNAL, GROUPS_COPY, GroupJournal, PhaseSpan, load_journal
from .groups_folder import was_asked_to_change

PHASES = ("rollout", "train")


def group_report(folder: Path, journal: GroupJournal | None = None) -> dict[str, Any]:
    """Figures of a group's run, in seconds. Raises InputError if it cannot be read.

    Only the time counts in which all jobs of the plan ran and were warm, since the last job joined or left
    (`together_s`). Of each job: `iteration_s`, mean seconds between two ends of training, without the first WARM after
    each start of its process; `slowdown`, these over the planned seconds alone; None without an iteration. `waited_s`:
    mean seconds that it waited for a permit, by phase. `switches`: see that function. Of each unit: its pool, and
    `busy`, the share of that time in which a phase held it; a group that was resumed was idle while it did not run.
    `left`: steps and starts of jobs that are not in the plan any more, and whether they are `still_there`.

    `journal`: the group's, if it is read already.
    """
    journal = journal or load_journal(folder)
    planned = load_groups_plan(folder / GROUPS_COPY).groups.get(journal.group)
    members = {} if planned is None else planned.jobs
    gone = journal.arrivals.keys() - members.keys()
    if not journal.changes and journal.arrivals.keys() != members.keys() and not was_asked_to_change(folder):
        raise InputError(f"{GROUP_JOURNAL} and {GROUPS_COPY} are not of the same group", str(folder))
    begin_s, end_s = _together(journal, members)
    jobs: dict[str, Any] = {}
    for name, member in members.items():
        own = [span for span in journal.spans if span.job == name]
        iterations = _iterations_s(own, begin_s, end_s)
        iteration_s = fmean(iterations) if iterations else None
        slowdown = slowdown_of(iterations, member.slowdown.alone_s)
        jobs[name] = {
            "steps": _steps(journal, name),
            "starts": journal.arrivals.get(name, 0),
            "iteration_s": iteration_s,
            "alone_s": member.slowdown.alone_s,
            "slowdown": slowdown,
            "slowdown_predicted": member.slowdown.mean,
            "slo": member.slowdown.slo,
            "keeps": None if slowdown is None else keeps_bound(slowdown, member.slowdown.slo),
            "waited_s": {
                phase: fmean([span.waited_s for span in own if span.phase == phase and span.first] or [0.0])
                for phase in PHASES
            },
            "switches": switches(folder / name, member, own),
        }
    return {
        "group": journal.group,
        "rule": journal.rule,
        "together_s": [begin_s, end_s],
        "jobs": jobs,
        "units": {
            str(unit): {"pool": pool, "busy": _busy(journal, unit, begin_s, end_s)}
            for unit, pool in _pools(journal, members).items()
        },
        "left": {
            name: {
                "steps": _steps(journal, name),
                "starts": journal.arrivals[name],
                "still_there": name in journal.members,
            }
            for name in sorted(gone)
        },
        "turns": [asdict(span) for span in journal.spans],
    }


def _iterations_s(own: list[PhaseSpan], begin_s: float, end_s: float) -> list[float]:
    """Seconds of a job's iterations between two times, without those across a start and the first after it."""
    timer, iterations = IterationTimer(), []
    for span in own:
        if span.ended and span.phase == "train":
            since_s = timer.open_since_s
            seconds = timer.ended(span.arrival, span.end_s)
            if seconds is not None and since_s is not None and begin_s <= since_s and span.end_s <= end_s:
                iterations.append(seconds)
    return iterations


def _steps(journal: GroupJournal, job: str) -> int:
    return sum(span.ended and span.phase == "train" for span in journal.spans if span.job == job)


def _pools(journal: GroupJournal, members: Mapping[str, GroupMember]) -> dict[int, str | None]:
    """The pool of each unit, by the phases of the plan's jobs that ran on it; None: none did."""
    pools: dict[int, str | None] = dict.fromkeys(journal.units)
    for span in journal.spans:
        if span.job in members:
            phase = members[span.job].rollout if span.phase == "rollout" else members[span.job].train
            pools |= dict.fromkeys(span.units, phase.pool)
    return pools


def _together(journal: GroupJournal, members: Mapping[str, GroupMember]) -> tuple[float, float]:
    """The time in which all jobs of the plan ran and were warm: (begin, end), in seconds since the group began.

    It begins after the last job joined or left, and ends when the first job of the plan is done.
    """
    since_s = max((t_s for t_s, job, came in journal.changes if came or job not in members), default=0.0)
    ends: dict[str, list[float]] = {job: [] for job in members}
    for span in journal.spans:
        if span.job in members and span.phase == "train" and span.ended and span.end_s >= since_s:
            ends[span.job].append(span.end_s)
    known = [each for each in ends.values() if each]
    if not known:
        return 0.0, journal.end_s
    begin_s = max(each[min(WARM, len(each)) - 1] for each in known)
    return begin_s, max(begin_s, min(each[-1] for each in known))


def _busy(journal: GroupJournal, unit: int, begin_s: float, end_s: float) -> float | None:
    if end_s <= begin_s:
        return None
    held = [
        max(0.0, min(span.end_s, end_s) - max(span.begun_s, begin_s)) for span in journal.spans if unit in span.units
    ]
    return sum(held) / (end_s - begin_s)


def switches(run: Path, member: GroupMember, spans: Sequence[PhaseSpan]) -> dict[str, dict[str, Any]]:
    """Figures of a job's switches in its group, by phase, from its trace and its group's journal.

    A job leaves its devices at the end of each phase. `turns`: phases with a measured switch; `in_s`, `out_s`:
    mean seconds in which engines woke or states came to their GPUs, and in which they left; None if none was measured.
    `error_s`: two standard errors of the sum of both; None for fewer than two. `planned_s`: planned seconds of both
    together, expected only after another job: `other_had` counts the phases whose devices another job had last.

    Args:
        run: folder of the job's run.
        member: the job in its plan.
        spans: of the job, in the group's journal.

    Raises InputError if the run's trace cannot be read.
    """
    measured = _permits(run)
    found: dict[str, dict[str, Any]] = {}
    for phase, pinned in zip(PHASES, (member.rollout, member.train), strict=True):
        own = [event for event in measured if event["phase"] == phase]
        found[phase] = {
            "turns": len(own),
            "in_s": fmean(float(event["switch_in_s"]) for event in own) if own else None,
            "out_s": fmean(float(event["switch_out_s"]) for event in own) if own else None,
            "error_s": _error_s(own),
            "planned_s": pinned.switch_s,
            "other_had": sum(span.ended and span.switched and span.phase == phase for span in spans),
        }
    return found


def _error_s(events: list[dict[str, Any]]) -> float | None:
    sums = [float(event["switch_in_s"]) + float(event["switch_out_s"]) for event in events]
    return 2 * stdev(sums) / math.sqrt(len(sums)) if len(sums) > 1 else None


def _permits(run: Path) -> list[dict[str, Any]]:
    """Events of phases with a measured switch; runs of earlier versions have none."""
    try:
        events = read_run(run / TRACE).events
    except FileNotFoundError:  # it has not begun, or is in another group by now
        return []
    except (TraceError, OSError) as error:
        raise InputError(f"its run cannot be read: {error}", str(run)) from None
    return [event for event in events if event["event"] == "permit" and "switch_in_s" in event]
