"""The journal of plans that were applied to running groups, and of what each job's move took.

The driver of the groups writes it (`moves.jsonl`, seconds since its first line); `rlplan apply` and `rlplan status`
read it. docs/trace.md lists its events.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ....plans.yaml.errors import InputError, RunFailed
from ....plans.yaml.yaml_io import atomic_write
from ....traces.groups.groups_folder import MOVES, request_file, requests
from ....traces.trace import TraceError, TraceWriter, read_trace


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


@dataclass
class Unfinished:
    """A plan that was accepted, and whose moves are not all made.

    Attributes:
        id: of the request.
        sha256: digest of the plan.
        moves: (from group, to group) by job, as accepted.
        price_s: predicted seconds of each job's outage; None where the plan has none.
        made: jobs that are where they should be.
    """

    id: str
    sha256: str
    moves: dict[str, tuple[str | None, str | None]]
    price_s: dict[str, float | None]
    made: set[str] = field(default_factory=set)


class MoveJournal:
    """Writes the journal; goes on with one that is there. `unfinished`: the plan whose moves are left; None: none are.

    Raises InputError if it is damaged, RunFailed if the disk does not take an event.
    """

    def __init__(self, out: Path) -> None:
        path = out / MOVES
        events = list(_events(path))
        try:
            self.unfinished = _unfinished(events)
            self._began_s = float(events[0]["began_s"]) if events else time.time()
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(f"an event lacks {error}; the journal is damaged", str(path)) from None
        self.proposals = sum(event["event"] == "proposed" for event in events)
        """Re-plans that were proposed so far."""
        self._applied_s = max((e["t_s"] for e in events if e["event"] == "proposed" and e["applies"]), default=None)
        self._writer = TraceWriter(path)
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


def _events(path: Path) -> Iterator[dict[str, Any]]:
    if not path.is_file():
        return
    try:
        yield from read_trace(path)
    except TraceError as error:
        raise InputError(f"{error}; choose another --out") from None


def _unfinished(events: list[dict[str, Any]]) -> Unfinished | None:
    last: Unfinished | None = None
    for event in events:
        match event["event"]:
            case "wanted":
                moves = {move["job"]: (move["from_group"], move["to_group"]) for move in event["moves"]}
                price_s = {move["job"]: move["price_s"] for move in event["moves"]}
                last = Unfinished(event["id"], event["sha256"], moves, price_s)
            case "in" | "failed" | "ended" if last is not None and event["id"] == last.id:
                last.made.add(event["job"])
            case "out" if last is not None and last.moves[event["job"]][1] is None:
                last.made.add(event["job"])
            case "applied" | "refused" if last is not None and event["id"] == last.id:
                last = None
    return last
