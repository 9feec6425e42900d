"""What groups that are executed do now, read from their files: jobs, permits, slowdowns beside bounds, moves.

Nothing is asked of a process, so that it can be read from any host that sees the folder, and of groups that ended.
"""

from __future__ import annotations

import fcntl
import time
from pathlib import Path
from typing import Any

from ...plans.yaml.errors import InputError
from ..run_log import LOCK
from .group_report import group_report
from .group_turns import GroupTurns, turns_of
from .groups_folder import bounds_of, group_folders, moves_of


def groups_status(out: Path, now_s: float | None = None) -> dict[str, Any]:
    """The state of the groups in a folder; `now_s`: seconds since 1970, None: now.

    `running`: whether a driver runs them. Of each group: `held`, the turns that run, each with its job, phase, units
    and `for_s`. Of each job: its group; `state`, what it does (`rollout`, `train`, `waits` for its turn, `paused`,
    `starting`, `ended`, `stopped` where no driver runs, or that of its move, see `moves_of`); `waits_for`, jobs that it
    lets go first although its nodes are free; `steps`, `starts`, `slowdown`, `slo` and `keeps` as in the report
    (group_report.py); `bound`, what the driver told of it last (`alarm`, `broken`; None: nothing). `moves`: of the plan
    that was applied last (`moves_of`), None if none was. `proposed`: the re-plan that waits to be applied, None if none
    does.

    Raises InputError if the folder holds no groups, or is damaged.
    """
    folders = group_folders(out)
    if not folders:
        raise InputError("holds no groups that were executed; name the --out of rlplan execute groups.yaml", str(out))
    running = driver_runs(out)
    now_s = time.time() if now_s is None else now_s
    groups: dict[str, Any] = {}
    jobs: dict[str, Any] = {}
    for key, folder in folders.items():
        turns = turns_of(folder)
        report = group_report(folder, turns)
        held = _held(turns, now_s) if running else []
        groups[key] = {"rule": turns.rule, "jobs": list(turns.seated), "held": held}
        phases = {turn["job"]: turn["phase"] for turn in held}
        leaving = {name: row for name, row in report["left"].items() if row["still_there"]}
        for name, row in {**leaving, **report["jobs"]}.items():
            if name in jobs and name not in turns.seated:
                continue  # it is still in the group that it is to leave
            jobs[name] = {
                "group": key,
                "state": _state(turns, name, phases, running),
                "waits_for": turns.waits_for.get(name, []) if running and name not in phases else [],
                **{what: row.get(what) for what in _FIGURES},
            }
    bounds, proposed = bounds_of(out)
    moves = moves_of(out)
    moving = {} if moves is None or moves["state"] == "applied" else {m["job"]: m["state"] for m in moves["moves"]}
    for name, row in jobs.items():
        row["bound"] = bounds.get(name)
        if moving.get(name, "made") not in ("made", "stopping", "failed"):
            row["state"] = moving[name]
    return {
        "out": str(out),
        "running": running,
        "groups": groups,
        "jobs": jobs,
        "moves": moves,
        "proposed": proposed,
    }


_FIGURES = ("steps", "starts", "slowdown", "slowdown_predicted", "slo", "keeps")
"""What the report says of a job; of one that is to leave, only the first two."""


def _held(turns: GroupTurns, now_s: float) -> list[dict[str, Any]]:
    """The turns that run."""
    since_s = now_s - turns.began_s
    return [
        {
            "job": job,
            "phase": turn["phase"],
            "units": turn["units"],
            "for_s": round(max(0.0, since_s - turn["begun_s"]), 3),
        }
        for job, turn in turns.running.items()
        if turn["units"]
    ]


def _state(turns: GroupTurns, name: str, phases: dict[str, str], running: bool) -> str:
    if name in phases:
        return phases[name]
    if name not in turns.seated:
        return "ended"
    if not running:
        return "stopped"
    if name in turns.running:
        return "paused"
    return "starting" if name in turns.absent else "waits"


def driver_runs(out: Path) -> bool:
    """Whether a driver holds the folder's lock."""
    try:
        with (out / LOCK).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
