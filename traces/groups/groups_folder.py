"""The folder of groups that are executed: the folders of groups and jobs, and the journal of moves with the plan that
was applied last, alarms, and the re-plan that waits.

If one group was started alone (--group), the folder is its own: it has the group's journal, and a folder for each job.
If all groups of a plan were started, it has such a folder for each group, by the group's id.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ...plans.yaml.errors import InputError
from ...plans.yaml.fault_lines import GROUP_ID_PATTERN
from ..trace import TraceError, read_trace
from .group_journal import GROUP_JOURNAL

MOVES = "moves.jsonl"
"""The journal of plans that were applied and of their moves, in the folder of all groups."""

REQUESTS = ".apply-*.json"
"""Requests of `rlplan apply` to the process that runs the groups, a file for each."""


def requests(out: Path) -> list[Path]:
    """The requests that wait in a folder, the oldest first."""
    return sorted(out.glob(REQUESTS), key=lambda path: (path.stat().st_mtime_ns, path.name))


def request_file(out: Path, request_id: str) -> Path:
    """The file of a request."""
    return out / REQUESTS.replace("*", request_id)


def group_folders(out: Path) -> dict[str, Path]:
    """The folders of the groups that have a journal, by id, in the order of their numbers."""
    if (own := _group_of(out)) is not None:
        return {own: out}
    return {child.name: child for child in _children(out) if _group_of(child) is not None}


def is_one_groups(out: Path) -> bool:
    """Whether the folder is that of one group, started with --group, and not of all groups of a plan."""
    return list(group_folders(out).values()) == [out]


def job_folder(out: Path, job: str) -> Path | None:
    """The folder of a job's run, whichever group it is in; None: it has none yet."""
    return next((child / job for child in _children(out) if (child / job).is_dir()), None)


def _children(out: Path) -> list[Path]:
    """Folders of groups, in the order of their numbers, whether or not they have a journal yet."""
    try:
        return sorted((each for each in out.iterdir() if re.fullmatch(GROUP_ID_PATTERN, each.name)), key=_number)
    except OSError:
        return []


def _number(folder: Path) -> tuple[int, str]:
    return len(folder.name), folder.name


def _group_of(folder: Path) -> str | None:
    """The id of the group whose journal is in a folder; a damaged one is named by its folder."""
    if not (folder / GROUP_JOURNAL).is_file():
        return None
    try:
        first = next(iter(read_trace(folder / GROUP_JOURNAL)), None)
    except TraceError:
        return folder.name
    return folder.name if first is None else str(first.get("group", folder.name))


def moves_of(out: Path) -> dict[str, Any] | None:
    """The plan that was applied last to the groups in a folder; None if none was.

    It has `id`, `plan`, `sha256`, `state` (`under way`, `stopped`, `applied`), once it is applied the `seconds` that it
    took, and its `moves` in order, each with groups, `price_s`, `state` (`to do`, `stopping`, `stopped`, `starting`,
    `lacks nodes`, `made`, `ended`, `failed`) and the seconds that it took: `drain_s`, `start_s`, `outage_s`. Raises
    InputError if the journal is damaged.
    """
    with move_events(out) as events:
        return last_moves(events)


def last_moves(events: Iterable[dict[str, Any]]) -> dict[str, Any] | None:
    """The result of `moves_of`, from the events of the journal."""
    plan: dict[str, Any] | None = None
    for event in events:
        if event["event"] == "wanted":
            moves = [{**move, "state": "to do"} for move in event["moves"]]
            plan = {key: event[key] for key in ("id", "plan", "sha256")} | {"state": "under way", "moves": moves}
        elif plan is None or event.get("id") != plan["id"]:
            continue
        elif event["event"] == "refused":  # its driver ended before the plan was the running one
            plan = None
        else:
            _add(plan, event)
    return plan


SETTLED = ("made", "ended", "failed")
"""States of a move that is finished."""

_STATES = {
    "drain": "stopping", "out": "stopped", "enter": "starting", "short": "lacks nodes", "in": "made", "ended": "ended",
    "failed": "failed",
}  # fmt: skip


def _add(plan: dict[str, Any], event: dict[str, Any]) -> None:
    """Update a plan and its moves by an event."""
    what = event["event"]
    if what in ("applied", "stopped", "resumed"):
        plan["state"] = {"applied": "applied", "stopped": "stopped", "resumed": "under way"}[what]
        if what == "applied":
            plan["seconds"] = event["seconds"]
        return
    for move in plan["moves"]:
        if move["job"] == event["job"]:
            move["state"] = "made" if what == "out" and move["to_group"] is None else _STATES[what]
            move |= {key: event[key] for key in ("drain_s", "start_s", "outage_s", "reason") if key in event}


def bounds_of(out: Path) -> tuple[dict[str, str], dict[str, Any] | None]:
    """By job the last report on its bound (`alarm`, `broken`; absent if it is kept), and the re-plan that was proposed
    since the last plan was applied (`plan`, `moves`, `price_s`, `applies`, `reason`), or None.

    Raises InputError if the journal is damaged.
    """
    bounds: dict[str, str] = {}
    proposed: dict[str, Any] | None = None
    with move_events(out) as events:
        for event in events:
            if event["event"] == "bound":
                bounds[event["job"]] = event["state"]
            elif event["event"] == "proposed":
                proposed = {key: event[key] for key in ("plan", "moves", "price_s", "applies", "reason")}
            elif event["event"] == "applied":
                bounds, proposed = {}, None
    return {job: state for job, state in bounds.items() if state != "cleared"}, proposed


def refusal_of(out: Path, request_id: str) -> str | None:
    """Why the driver refused a request; None: it did not. Raises InputError if the journal is damaged."""
    with move_events(out) as events:
        reasons = [event["reason"] for event in events if event["event"] == "refused" and event["id"] == request_id]
    return reasons[0] if reasons else None


def was_asked_to_change(group: Path) -> bool:
    """Whether another plan was applied to a group since it began; `group`: its folder, alone or below that of all."""
    for out in (group, group.parent):
        with move_events(out) as events:
            if any(event["event"] == "wanted" for event in events):
                return True
    return False


@contextlib.contextmanager
def move_events(out: Path) -> Iterator[list[dict[str, Any]]]:
    """The journal's events. Raises InputError if it is damaged, or if an event turns out to lack a key in the block."""
    path = out / MOVES
    try:
        yield list(read_trace(path)) if path.is_file() else []
    except TraceError as error:
        raise InputError(str(error)) from None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        text = f"an event lacks {error}; the journal is damaged or of another version"
        raise InputError(text, str(path)) from None
