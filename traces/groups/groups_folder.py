"""The folder of groups that are executed: where each group and each job is kept.

Of one group, started with --group, the folder is the group's own: it has the journal of turns, and a folder for each
job. Of all groups of a plan it has such a folder for each group, by the group's id.
"""

from __future__ import annotations

import re
from pathlib import Path

from ...plans.yaml.fault_lines import GROUP_ID_PATTERN
from ..trace import TraceError, read_trace
from .group_turns import TURNS

MOVES = "moves.jsonl"
"""The journal of plans that were applied and of the moves that they took, in the folder of all groups."""

REQUESTS = ".apply-*.json"
"""What `rlplan apply` asks of the process that runs the groups, a file for each request."""


def requests(out: Path) -> list[Path]:
    """The requests that wait in a folder, the oldest first."""
    return sorted(out.glob(REQUESTS), key=lambda path: (path.stat().st_mtime_ns, path.name))


def request_file(out: Path, request_id: str) -> Path:
    """The file of a request."""
    return out / REQUESTS.replace("*", request_id)


def group_folders(out: Path) -> dict[str, Path]:
    """The folders of the groups that have a journal of turns, by id, in the order of their numbers."""
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
    if not (folder / TURNS).is_file():
        return None
    try:
        first = next(iter(read_trace(folder / TURNS)), None)
    except TraceError:
        return folder.name
    return folder.name if first is None else str(first.get("group", folder.name))
