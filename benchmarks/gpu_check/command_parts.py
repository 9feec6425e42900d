"""Parts of the GPU check: commands with a deadline. What each prints as JSON lines is known at once, whatever becomes
of the part afterwards."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MARK = "RLPLAN_GPU_CHECK"
"""Environment variable by which the processes of a part are known, also those that left its process group."""

ROOT = Path(__file__).resolve().parents[2]
RLPLAN = (sys.executable, "-m", "rlplan.cli.main")
END_LINES = 12
"""Lines of a failed command's output that are reported."""
GRACE_S = 10.0
"""Seconds that a part has, after its deadline, to end by itself: `rlplan execute` saves its trace."""
LOOK_S = 0.1

Fragment = dict[str, Any]


def tell(**fragment: Any) -> None:
    """Print a fragment of the check's result, from within a part."""
    print(json.dumps(fragment), flush=True)


@dataclass(frozen=True, slots=True)
class Part:
    """What became of a part: `error` is the end of its output if it failed, `output` what it printed."""

    ok: bool
    seconds: float
    error: str = ""
    output: str = ""


STACK = re.compile(r"\s+@ +\S+ .*|\*\*\* SIGTERM received|PC: @|\[.*\] logging\.cc:\d+:")
"""Lines in which Ray's own library writes its stack when a process of it is asked to end."""


def end_of(text: str, lines: int = END_LINES) -> str:
    """The last lines of a text that are neither empty nor of Ray's own stack, one of them at most 500 characters
    long."""
    kept = [line.rstrip()[-500:] for line in text.splitlines() if line.strip() and not STACK.match(line)]
    return "\n".join(kept[-lines:])


class JsonLines:
    """The JSON objects of a file that still grows, each once, when its line is whole; other lines are no objects."""

    def __init__(self, path: Path) -> None:
        self._path, self._read = path, 0

    def new(self) -> list[Fragment]:
        """The objects that came since this was asked last; none of a file that is not there."""
        if not self._path.is_file():
            return []
        with self._path.open("rb") as file:
            file.seek(self._read)
            whole = file.read().rpartition(b"\n")[0]
        found = []
        for line in whole.splitlines():
            with contextlib.suppress(ValueError):
                if isinstance(value := json.loads(line), dict):
                    found.append(value)
        self._read += len(whole) + 1 if whole else 0
        return found


def run_part(
    command: Sequence[str],
    deadline_s: float,
    log: Path,
    environment: Mapping[str, str],
    cwd: Path,
    look: Callable[[], None] = lambda: None,
) -> Part:
    """Run a command, with its standard error in the file `log` and its standard output in one that ends in `.out`.

    `look` is called again and again while it runs, and once at its end. At the deadline it is asked to end (SIGTERM);
    GRACE_S later whatever is left of it is killed, by the mark in its environment, as it is where `look` raises.
    """
    began = time.monotonic()
    token = uuid.uuid4().hex
    late = False
    answers = log.with_suffix(".out")
    # Into files: a pipe would stay open as long as any process that the command left behind.
    with log.open("wb") as errors, answers.open("wb") as output:
        process = subprocess.Popen(
            [*command],
            env={**environment, MARK: token},
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
        )
        try:
            while process.poll() is None:
                ran_s = time.monotonic() - began
                if ran_s >= max(deadline_s, 1.0) and not late:
                    late = True
                    process.send_signal(signal.SIGTERM)
                if ran_s >= max(deadline_s, 1.0) + GRACE_S:
                    break
                look()
                time.sleep(LOOK_S)
        finally:
            end_marked(token)
            process.wait()
    look()
    seconds, text = time.monotonic() - began, answers.read_text(encoding="utf-8", errors="replace")
    if process.returncode == 0 and not late:
        return Part(True, seconds, output=text)
    why = f"not done within {deadline_s:.0f} s" if late else f"exit code {process.returncode}"
    end = end_of(log.read_text(encoding="utf-8", errors="replace")) or end_of(text)
    return Part(False, seconds, f"{why}\n{end}".rstrip(), text)


@dataclass(slots=True)
class Parts:
    """Runs the commands of one check.

    Attributes:
        device: `cuda` or `cpu`; on a CPU no part sees a GPU.
        folder: for their output; it is there.
        ends_s: `time.monotonic()` at which the check's seconds are over.
        tell: takes each fragment of the result.
        done: what became of each command, by name.
    """

    device: str
    folder: Path
    ends_s: float
    tell: Callable[[Fragment], None]
    done: dict[str, Part] = field(default_factory=dict)

    @property
    def left_s(self) -> float:
        """Seconds that are left."""
        return self.ends_s - time.monotonic()

    def run(
        self,
        name: str,
        *command: Any,
        most_s: float = float("inf"),
        fragments: bool = False,
        look: Callable[[], None] = lambda: None,
        **environment: str,
    ) -> bool:
        """Run a command with these variables in its environment, for `most_s` seconds at most; whether it ended well.

        `fragments`: what it prints as JSON lines are fragments of the result. A failure is told as one, under `failed`.
        """
        hidden = {"CUDA_VISIBLE_DEVICES": ""} if self.device == "cpu" else {}
        log = self.folder / f"{name.replace(' ', '-')}.log"
        lines = JsonLines(log.with_suffix(".out"))

        def watch() -> None:
            for fragment in lines.new() if fragments else ():
                self.tell(fragment)
            look()

        words = [str(word) for word in command]
        deadline_s = min(self.left_s, most_s)
        part = self.done[name] = run_part(words, deadline_s, log, {**os.environ, **hidden, **environment}, ROOT, watch)
        self.tell({"parts": {name: round(part.seconds, 1)}} | ({} if part.ok else {"failed": {name: part.error}}))
        return part.ok


def end_marked(token: str) -> None:
    """Kill the processes that bear this mark in their environment (Linux: it is read from /proc)."""
    wanted = f"{MARK}={token}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            marked = wanted in (folder / "environ").read_bytes().split(b"\0")
        except OSError:  # the process has ended, or is another user's
            continue
        if marked:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(folder.name), signal.SIGKILL)
