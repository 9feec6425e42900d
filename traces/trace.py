"""The trace: an append-only JSONL file of a run's events, and the only thing that passes back to the planner.

Each line is one JSON object with `event` and `t_s` (seconds since the run's first start, monotonic across resumes).
A crash can tear only the last line, which then has no end of line: `read_trace` skips such a line with a warning, and
a resumed `TraceWriter` cuts it off. Damage in any line that has an end of line is an error.

docs/trace.md lists the events and their keys.
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
    """A trace file is damaged before its last line; `line` is the number of the line, if one line is to blame."""

    def __init__(self, path: Path, line: int | None, message: str) -> None:
        super().__init__(f"{path}:{line}: {message}" if line else f"{path}: {message}")
        self.line = line


class TraceWriter:
    """Appends events; `flush()` writes them to the disk (called at each round's end, not for each line).

    One flush writes all of its events or none. If the disk takes only a part of them, that part is cut off again and
    the events are lost: otherwise the next event would be glued to the torn line.

    `digits`: of `t_s` after the point; None: all, so that who reads the file has the very times that were written.
    """

    def __init__(self, path: Path, digits: int | None = 6) -> None:
        _drop_torn_tail(path)
        self._digits = digits
        self._file = path.open("ab", buffering=0)  # a buffer would repeat a failed write at any later time
        self._pending: list[bytes] = []
        self._sound: int | None = None  # size of the whole lines, while a torn line after them is still to be cut off

    def write(self, event: str, t_s: float, /, **fields: Any) -> None:
        """Append one event."""
        t_s = t_s if self._digits is None else round(t_s, self._digits)
        line = json.dumps({"event": event, "t_s": t_s, **fields}, separators=(",", ":")) + "\n"
        self._pending.append(line.encode())

    def flush(self) -> None:
        """Write all pending events to the disk. Raises OSError if the disk does not take all of them."""
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
            with contextlib.suppress(OSError):  # if this fails, the next flush tries again
                self._cut(file)
            raise

    def _cut(self, file: int) -> None:
        """Cut off the torn line of a failed write, if there is one."""
        if self._sound is not None:
            os.ftruncate(file, self._sound)
            self._sound = None

    def close(self) -> None:
        """Flush, and close the file in any case. Raises OSError if the disk does not take the pending events."""
        if self._file.closed:
            return
        try:
            self.flush()
        finally:
            self._file.close()


_BLOCK_BYTES = 64 * 1024


def _drop_torn_tail(path: Path) -> None:
    """Cut off a torn last line, so that a resumed run does not glue its first event to it. Reads from the end: a trace
    of 1,000 steps of 8,192 samples has 3 GB."""
    if not path.exists():
        return
    # Truncate in place: a crash while the file is rewritten would lose all of it.
    with path.open("r+b") as file:
        size = end = file.seek(0, os.SEEK_END)
        while end:
            begin = max(0, end - _BLOCK_BYTES)
            file.seek(begin)
            line_end = file.read(end - begin).rfind(b"\n")
            if line_end >= 0:
                end = begin + line_end + 1
                break
            end = begin
        if end < size:
            file.truncate(end)


def trace_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a trace with their numbers, from 1; a torn last line is skipped with a warning.

    Raises FileNotFoundError if it is absent.
    """
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.endswith(b"\n"):
                yield number, line
            else:
                warnings.warn(f"{path}:{number}: torn last line skipped; read up to it", stacklevel=3)


def not_an_event(path: Path, number: int, error: Exception) -> TraceError:
    """The error of a line that is no JSON object."""
    return TraceError(path, number, f"not a trace event ({error}); restore the file or cut it here")


def read_trace(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the events of a trace as JSON objects, in order.

    A torn last line is skipped with a warning. Raises TraceError for damage elsewhere, FileNotFoundError if absent.
    """
    for number, line in trace_lines(path):
        try:
            event = json.loads(line.decode("utf-8"))  # decoded here, so that a line that is not UTF-8 has its number
            if not isinstance(event, dict):
                raise ValueError("not an object")
        except (ValueError, RecursionError) as error:
            raise not_an_event(path, number, error) from error
        yield event
