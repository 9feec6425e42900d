"""The trace: an append-only JSONL file of what really happened, and the only thing that passes back to the planner.

One JSON object a line, each with `event` and `t_s` (seconds since the run's first start, monotonic across resumes).
A crash can tear the last line only, and then leaves it without an end of line: `read_trace` skips such a line with a
warning, a resumed `TraceWriter` cuts it off, and damage in any line that was ended is an error.

Events: `run` (mode, path of the plan), `round` (kind, number, prompts issued), `sample` (one per decoded sample:
prompt, draw, sample, tokens, fate, reward, seconds, versions), `step` (phase seconds, training metrics, conservation),
`restart`, `checkpoint`, `checkpoint_failed` (it could not be written), `checkpoint_damaged` (it was set aside, and the
one before it was taken), `note`, `end` (step, whether it came as far as it should, and the reason if it failed; a run
that is killed writes none).
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class TraceError(ValueError):
    """A trace file is damaged before its last line; `line` says where, if one line can be named."""

    def __init__(self, path: Path, line: int | None, what: str) -> None:
        super().__init__(f"{path}:{line}: {what}" if line else f"{path}: {what}")
        self.line = line


class TraceWriter:
    """Appends events; `flush()` makes them durable (called at each round's end, not for each line)."""

    def __init__(self, path: Path) -> None:
        _drop_torn_tail(path)
        self._file = path.open("a", encoding="utf-8")

    def write(self, event: str, t_s: float, /, **fields: Any) -> None:
        """Append one event."""
        self._file.write(json.dumps({"event": event, "t_s": round(t_s, 6), **fields}, separators=(",", ":")) + "\n")

    def flush(self) -> None:
        """Push what was written through to the disk."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Flush and close."""
        self.flush()
        self._file.close()


def _drop_torn_tail(path: Path) -> None:
    """A run that resumes must not glue its first event to a torn line."""
    if not path.exists():
        return
    data = path.read_bytes()
    if data and not data.endswith(b"\n"):
        # Cut in place: rewriting the file would lose all of it to a second crash.
        with path.open("r+b") as file:
            file.truncate(data.rfind(b"\n") + 1)


def read_trace(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the events of a trace, in order.

    A torn last line is skipped with a warning. Raises TraceError for damage elsewhere, FileNotFoundError if absent.
    """
    # Bytes, so that damage that is not UTF-8 is told with its line like any other.
    lines = path.read_bytes().split(b"\n")
    torn = lines.pop()
    for number, line in enumerate(lines, start=1):
        try:
            event = json.loads(line.decode("utf-8"))
            if not isinstance(event, dict):
                raise ValueError("not an object")
        except ValueError as error:
            raise TraceError(path, number, f"not a trace event ({error}); restore the file or cut it here") from error
        yield event
    if torn:
        warnings.warn(f"{path}:{len(lines) + 1}: torn last line skipped; read up to it", stacklevel=2)
