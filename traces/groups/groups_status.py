"""What groups that are executed do now, read from their files: jobs, permits, slowdowns beside bounds, moves.

Nothing is asked of a process, so that it can be read from any host that sees the folder, and of groups that ended.
"""

from __future__ import annotations

import fcntl
import time
from pathlib import Path
from typing import Any

from ...plans.yaml.errors import InputError
from ..trace import TraceError, read_trace
from .group_report import group_report
from .group_turns import TURNS, GroupTurns, read_turns
from .groups_folder import MOVES, group_folders

LOCK = ".lock"
"""Held by the driver while it runs (executor/records/execution_folder.py)."""


def groups_status(out: Path, now_s: float | None = None) -> dict[str, Any]:
    """The state of the groups in a folder; `now_s`: seconds since 1970, None: now.

    `running`: whether a driver runs them. Of each group: `held`, the turns that run, each with its job, phase, units
    and `for_s`. Of each job: its group; `state`, what it does (`rollout`, `train`, `waits` for its turn, `starts`,
    `ended`, `still` where no driver runs, or that of its move, see `moves_of`); `waits_for`, jobs that it lets go first
    although its nodes are free; `steps`, `starts`, `slowdown`, `slo` and `keeps` as in the report (group_report.py);
    `bound`, what the driver told of it last (`alarm`, `broken`; None: nothing). `moves`: of the plan that was applied
    last (`moves_of`), None if none was. `proposed`: the re-plan that waits to be applied, None if none does.

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
        report = group_report(folder)
        try:
            turns = read_turns(folder / TURNS)
        except (TraceError, OSError) as error:
            raise InputError(f"its turns cannot be read: {error}", str(folder)) from None
        held = _held(turns, now_s) if running else []
        groups[key] = {"rule": turns.rule, "jobs": list(turns.seated), "held": held}
        phases = {turn["job"]: turn["phase"] for turn in held}
        for name, row in report["jobs"].items():
            jobs[name] = {
                "group": key,
                "state": _state(turns, name, phases, running),
                "waits_for": turns.waits_for.get(name, []) if running and name not in phases else [],
                **{what: row[what] for what in ("steps", "starts", "slowdown", "slowdown_predicted", "slo", "keeps")},
            }
    bounds, proposed = bounds_of(out)
    moves = moves_of(out)
    moving = {} if moves is None or moves["state"] == "applied" else {m["job"]: m["state"] for m in moves["moves"]}
    for name, row in jobs.items():
        row["bound"] = bounds.get(name)
        if moving.get(name, "made") not in ("made", "stops", "failed"):
            row["state"] = moving[name]
    return {
        "out": str(out),
        "running": running,
        "groups": groups,
        "jobs": jobs,
        "moves": moves,
        "proposed": proposed,
    }


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
    ]


def _state(turns: GroupTurns, name: str, phases: dict[str, str], running: bool) -> str:
    if name in phases:
        return phases[name]
    if name not in turns.seated:
        return "ended"
    if not running:
        return "still"
    return "starts" if name in turns.absent else "waits"


def moves_of(out: Path) -> dict[str, Any] | None:
    """The plan that was applied last: its `id`, `plan`, `sha256` and `state` (`under way`, `stopped`, `applied`), and
    its moves in order, each with groups, `price_s`, `state` (`to do`, `stops`, `still`, `starts`, `lacks nodes`,
    `made`, `failed`), and the seconds that it took: `drain_s`, `start_s`, `outage_s`. None: no plan was
    applied. Raises InputError if the journal is damaged."""
    told: dict[str, Any] | None = None
    for event in _move_events(out):
        if event["event"] == "wanted":
            moves = [{**move, "state": "to do"} for move in event["moves"]]
            told = {
                "id": event["id"],
                "plan": event["plan"],
                "sha256": event["sha256"],
                "state": "under way",
                "moves": moves,
            }
        elif told is not None and event.get("id") == told["id"]:
            _add(told, event)
    return told


def bounds_of(out: Path) -> tuple[dict[str, str], dict[str, Any] | None]:
    """By job what was told of its bound last (`alarm`, `broken`; absent if it is kept), and the re-plan that
    was proposed last (`plan`, `moves`, `price_s`, `applies`, `reason`), None if none was since a plan was applied.

    Raises InputError if the journal is damaged."""
    bounds: dict[str, str] = {}
    proposed: dict[str, Any] | None = None
    for event in _move_events(out):
        if event["event"] == "bound":
            bounds[event["job"]] = event["state"]
        elif event["event"] == "proposed":
            proposed = {key: event[key] for key in ("plan", "moves", "price_s", "applies", "reason")}
        elif event["event"] == "applied":
            bounds, proposed = {}, None
    return {job: state for job, state in bounds.items() if state != "cleared"}, proposed


def _move_events(out: Path) -> list[dict[str, Any]]:
    try:
        return list(read_trace(out / MOVES)) if (out / MOVES).is_file() else []
    except TraceError as error:
        raise InputError(str(error)) from None


def refusal_of(out: Path, request_id: str) -> str | None:
    """Why the driver refused a request; None: it did not. Raises InputError if the journal is damaged."""
    refused = (
        event["reason"] for event in _move_events(out) if event["event"] == "refused" and event["id"] == request_id
    )
    return next(refused, None)


_STATES = {
    "drain": "stops",
    "out": "still",
    "enter": "starts",
    "short": "lacks nodes",
    "in": "made",
    "failed": "failed",
}


def _add(told: dict[str, Any], event: dict[str, Any]) -> None:
    """Take an event of a plan's moves."""
    what = event["event"]
    if what in ("applied", "stopped", "resumed"):
        told["state"] = {"applied": "applied", "stopped": "stopped", "resumed": "under way"}[what]
        if what == "applied":
            told["seconds"] = event["seconds"]
        return
    for move in told["moves"]:
        if move["job"] == event["job"]:
            move["state"] = "made" if what == "out" and move["to_group"] is None else _STATES[what]
            move |= {key: event[key] for key in ("drain_s", "start_s", "outage_s", "reason") if key in event}


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
