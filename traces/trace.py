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

import contextlib
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
    """Appends events; `flush()` brings them to the disk (called at each round's end, not for each line).

    What one flush writes is there whole or not at all: where the disk takes a part of it, that is cut off again, and
    the events are lost. Otherwise the next event would end the torn line and make it damage for good.
    """

    def __init__(self, path: Path) -> None:
        _drop_torn_tail(path)
        self._file = path.open("ab", buffering=0)  # a buffer would try again what has failed, when nobody expects it
        self._pending: list[bytes] = []
        self._sound: int | None = None  # bytes that are whole lines, where what follows them could not be cut off

    def write(self, event: str, t_s: float, /, **fields: Any) -> None:
        """Append one event."""
        line = json.dumps({"event": event, "t_s": round(t_s, 6), **fields}, separators=(",", ":")) + "\n"
        self._pending.append(line.encode())

    def flush(self) -> None:
        """Push what was written through to the disk. Raises OSError if it does not take all of it."""
        data, self._pending = memoryview(b"".join(self._pending)), []
        file = self._file.fileno()
        self._cut(file)
        sound = os.fstat(file).st_size
        try:
            while data:
                data = data[os.write(file, data) :]
            os.fsync(file)
        except OSError:
            self._sound = sound
            with contextlib.suppress(OSError):  # then it is tried again before the next event
                self._cut(file)
            raise

    def _cut(self, file: int) -> None:
        """Cut off what a failed write has left."""
        if self._sound is not None:
            os.ftruncate(file, self._sound)
            self._sound = None

    def close(self) -> None:
        """Flush and close. Raises OSError if the disk does not take the rest; it is closed all the same."""
        if self._file.closed:
            return
        try:
            self.flush()
        finally:
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
        except (ValueError, RecursionError) as error:
            raise TraceError(path, number, f"not a trace event ({error}); restore the file or cut it here") from error
        yield event
    if torn:
        warnings.warn(f"{path}:{len(lines) + 1}: torn last line skipped; read up to it", stacklevel=2)
