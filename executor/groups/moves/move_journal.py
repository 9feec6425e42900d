"""The journal of plans that were applied to running groups, and of what each job's move took.

The driver of the groups writes it (`moves.jsonl`, seconds since its first line); `rlplan apply` and `rlplan status`
read it. docs/trace.md lists its events.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ....plans.yaml.errors import InputError, RunFailed
from ....plans.yaml.yaml_io import atomic_write
from ....traces.groups.groups_folder import MOVES, last_moves, move_events, request_file, requests
from ....traces.trace import TraceWriter


@dataclass(frozen=True)
class Request:
    """What `rlplan apply` asks for: the plan at this path, which had this digest; `id` names the request."""

    id: str
    plan: str
    sha256: str


def write_request(out: Path, request: Request) -> None:
    """Ask the driver of the groups in a folder. Raises RunFailed if the disk does not take it."""
    path = request_file(out, request.id)
    try:
        atomic_write(path, json.dumps(vars(request)))
    except InputError as error:
        raise RunFailed(f"the plan is not applied: {error}") from None


def take_request(out: Path) -> Request | None:
    """The oldest request that waits in a folder, which waits no more; None: there is none that can be read."""
    for path in requests(out):
        try:
            text = path.read_text(encoding="utf-8")
            path.unlink()
            return Request(**json.loads(text))
        except (OSError, ValueError, TypeError):
            continue
    return None


class MoveJournal:
    """Writes the journal; goes on with one that is there. `unfinished`: the plan whose moves are left, as `moves_of`
    tells it; None: none are.

    Raises InputError if it is damaged, RunFailed if the disk does not take an event.
    """

    def __init__(self, out: Path) -> None:
        with move_events(out) as events:
            last = last_moves(events)
            self.unfinished = None if last is None or last["state"] == "applied" else last
            self._began_s = float(events[0]["began_s"]) if events else time.time()
            replans = [event for event in events if event["event"] == "proposed"]
            self._applied_s = max((event["t_s"] for event in replans if event["applies"]), default=None)
        self.proposals = len(replans)
        """Re-plans that were proposed so far."""
        self._writer = TraceWriter(out / MOVES)
        if not events:
            self.write("groups", began_s=self._began_s)

    def write(self, event: str, /, **fields: Any) -> None:
        """Append an event, and have it on the disk."""
        now_s = max(0.0, time.time() - self._began_s)
        if event == "proposed":
            self.proposals += 1
            self._applied_s = now_s if fields["applies"] else self._applied_s
        try:
            self._writer.write(event, now_s, **fields)
            self._writer.flush()
        except OSError as error:
            raise RunFailed(f"the journal of moves cannot be written ({error.strerror}); make room") from error

    def hours_since_applied(self) -> float | None:
        """Hours since a re-plan was applied without asking a person; None: none was."""
        return None if self._applied_s is None else max(0.0, time.time() - self._began_s - self._applied_s) / 3600.0

    def close(self) -> None:
        """Close it."""
        self._writer.close()
