"""The state of groups that are executed, read from their files: jobs, permits, slowdowns and bounds, moves.

No process is asked, so it works on any host that sees the folder, and for groups that have ended.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from ...plans.yaml.errors import InputError
from ..run_log import driver_runs
from .group_journal import GroupJournal, load_journal
from .group_report import group_report
from .groups_folder import bounds_of, group_folders, moves_of


def groups_status(out: Path, now_s: float | None = None) -> dict[str, Any]:
    """The state of the groups in a folder; `now_s`: seconds since 1970, None: now.

    `running`: whether a driver runs them. Of each group: `held`, the phases that run, each with its job, phase, units
    and `for_s`. Of each job: its group; `state`: `rollout`, `train`, `waits` for a permit, `paused`, `starting`,
    `ended`, `stopped` if no driver runs, or the state of its move (`moves_of`); `waits_for`, jobs for which it waits
    although its nodes are free; `steps`, `starts`, `slowdown`, `slo` and `keeps` as in the report (group_report.py);
    `bound`, the driver's last report on it (`alarm`, `broken`; None: none). `moves`: of the plan that was applied last
    (`moves_of`), or None. `proposed`: the re-plan that waits to be applied, or None.

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
        journal = load_journal(folder)
        report = group_report(folder, journal)
        held = _held(journal, now_s) if running else []
        groups[key] = {"rule": journal.rule, "jobs": list(journal.members), "held": held}
        phases = {phase["job"]: phase["phase"] for phase in held}
        leaving = {name: row for name, row in report["left"].items() if row["still_there"]}
        for name, row in {**leaving, **report["jobs"]}.items():
            if name in jobs and name not in journal.members:
                continue  # it has not yet left its old group
            jobs[name] = {
                "group": key,
                "state": _state(journal, name, phases, running),
                "waits_for": journal.waits_for.get(name, []) if running and name not in phases else [],
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
"""Figures of a job in the report; of a job that leaves, only the first two."""


def _held(journal: GroupJournal, now_s: float) -> list[dict[str, Any]]:
    """The phases that run."""
    since_s = now_s - journal.began_s
    return [
        {
            "job": job,
            "phase": phase["phase"],
            "units": phase["units"],
            "for_s": round(max(0.0, since_s - phase["begun_s"]), 3),
        }
        for job, phase in journal.running.items()
        if phase["units"]
    ]


def _state(journal: GroupJournal, name: str, phases: dict[str, str], running: bool) -> str:
    if name in phases:
        return phases[name]
    if name not in journal.members:
        return "ended"
    if not running:
        return "stopped"
    if name in journal.running:
        return "paused"
    return "starting" if name in journal.absent else "waits"
