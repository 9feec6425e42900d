"""Seconds of a job's switches in its co-execution group, as its trace has them, beside those that the plan has.

A job leaves its devices at the end of each turn. The plan expects a switch only in turns whose devices another job had
last; how many of them there were, the group's journal knows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from ...plans.schema.groups_plan import GroupMember
from ...plans.yaml.errors import InputError
from ..run_log import TRACE, read_run
from ..trace import TraceError
from .group_turns import TurnTaken

PHASES = ("rollout", "train")


def switches(run: Path, member: GroupMember, turns: Iterable[TurnTaken]) -> dict[str, dict[str, Any]]:
    """Figures of a job's switches, by phase.

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
