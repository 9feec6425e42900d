"""Parts of the GPU check: commands with a deadline, of which each ends well, or fails with the end of its output."""

from __future__ import annotations

import contextlib
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

LEAST_S = 240.0
"""Seconds that a part has even if the minutes are over: the first start of an engine has taken 190 s on an H100."""

END_LINES = 12
"""Lines of a failed command's output that are reported."""

GRACE_S = 20.0
"""Seconds that a part has, after its deadline, to end by itself."""


@dataclass(frozen=True, slots=True)
class Part:
    """What became of a part: `error` is the end of its output if it failed, `output` what it printed."""

    ok: bool
    seconds: float
    error: str = ""
    output: str = ""

    def data(self) -> dict[str, Any]:
        """As it is reported."""
        return {"ok": self.ok, "seconds": round(self.seconds, 2)} | ({} if self.ok else {"error": self.error})


STACK = re.compile(r"\s+@ +\S+ .*|\*\*\* SIGTERM received|PC: @|\[.*\] logging\.cc:\d+:")
"""Lines in which Ray's own library writes its stack when a process of it is asked to end."""


def end_of(text: str, lines: int = END_LINES) -> str:
    """The last lines of a text that are neither empty nor of Ray's own stack, one of them at most 500 characters
    long."""
    kept = [line.rstrip()[-500:] for line in text.splitlines() if line.strip() and not STACK.match(line)]
    return "\n".join(kept[-lines:])


def run_part(command: Sequence[str], deadline_s: float, log: Path, environment: Mapping[str, str], cwd: Path) -> Part:
    """Run a command, with its standard error in the file `log` and its standard output in one that ends in `.out`.

    At the deadline it is asked to end (SIGTERM), which lets `rlplan execute` save its trace; GRACE_S later whatever is
    left of it is killed, by the mark in its environment.
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
            process.wait(max(deadline_s, 1.0))
        except subprocess.TimeoutExpired:
            late = True
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_S)
        finally:
            end_marked(token)
            process.wait()
    seconds, text = time.monotonic() - began, answers.read_text(encoding="utf-8", errors="replace")
    if process.returncode == 0 and not late:
        return Part(True, seconds, output=text)
    why = f"not done within {deadline_s:.0f} s" if late else f"exit code {process.returncode}"
    end = end_of(log.read_text(encoding="utf-8", errors="replace")) or end_of(text)
    return Part(False, seconds, f"{why}\n{end}".rstrip(), text)


@dataclass(slots=True)
class Parts:
    """The parts of one check, one after the other.

    Attributes:
        check: its name, for who waits.
        device: `cuda` or `cpu`; on a CPU no part sees a GPU.
        folder: for the parts' output; made if it is not there.
        ends_s: `time.monotonic()` at which the minutes are over.
        notify: takes a line for each part that begins or fails.
        done: what became of each part, by name, in the order in which they ran.
    """

    check: str
    device: str
    folder: Path
    ends_s: float
    notify: Callable[[str], None]
    done: dict[str, Part] = field(default_factory=dict)

    def run(self, name: str, *command: Any, **environment: str) -> bool:
        """Run a part with these variables in its environment; whether it ended well."""
        self.notify(f"{self.check}: {name}")
        self.folder.mkdir(parents=True, exist_ok=True)
        hidden = {"CUDA_VISIBLE_DEVICES": ""} if self.device == "cpu" else {}
        left_s = max(self.ends_s - time.monotonic(), LEAST_S)
        log = self.folder / f"{name.replace(' ', '-')}.log"
        words = [str(word) for word in command]
        part = self.done[name] = run_part(words, left_s, log, {**os.environ, **hidden, **environment}, ROOT)
        if not part.ok:
            self.notify(f"{self.check}: {name} failed: {part.error}")
        return part.ok

    def data(self) -> dict[str, dict[str, Any]]:
        """As they are reported."""
        return {name: part.data() for name, part in self.done.items()}


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
