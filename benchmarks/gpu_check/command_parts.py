"""Parts of the GPU check, which are commands with a deadline, and its result as it grows: fragments, each told as one
JSON line at once, which together are all of it.

Invariants:
- whenever the check is cut, the lines that were told hold all that was measured: merged in their order they are the
  result;
- what a part prints as JSON lines is known at once, whatever becomes of the part afterwards;
- a part begins only while as many seconds are left as it takes at least.
"""

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
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MARK = "RLPLAN_GPU_CHECK"
"""Environment variable by which the processes of a part are known, also those that left its process group."""

ROOT = Path(__file__).resolve().parents[2]
RLPLAN = (sys.executable, "-m", "rlplan.cli.main")
GRACE_S = 10.0
"""Seconds that a part has, after its deadline, to end by itself: `rlplan execute` saves its trace."""
LOOK_S = 0.1

Fragment = dict[str, Any]

STACK = re.compile(r"\s+@ +\S+ .*|\*\*\* SIGTERM received|PC: @|\[.*\] logging\.cc:\d+:")
"""Lines in which Ray's own library writes its stack when a process of it is asked to end."""


def tell(**fragment: Any) -> None:
    """Print a fragment of the check's result, from within a part."""
    print(json.dumps(fragment), flush=True)


def end_of(text: str, lines: int = 12) -> str:
    """The last lines of a text that are neither empty nor of Ray's own stack, each of at most 500 characters."""
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


@dataclass(slots=True)
class Parts:
    """Runs the commands of one check.

    Attributes:
        device: `cuda` or `cpu`; on a CPU no part sees a GPU.
        folder: for their output; it is there.
        ends_s: `time.monotonic()` at which the check's seconds are over.
        tell: takes each fragment of the result.
        outputs: what each command that has ended printed, by name.
    """

    device: str
    folder: Path
    ends_s: float
    tell: Callable[[Fragment], None]
    outputs: dict[str, str] = field(default_factory=dict)

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
        """Run a command with these variables in its environment; whether it ended well. A failure is told, under
        `failed`, with the end of what it said.

        `fragments`: what it prints as JSON lines are fragments of the result. `look` is called again and again while
        it runs. After `most_s` seconds, or at the end of the check, it is asked to end (SIGTERM), and GRACE_S later
        whatever is left of it is killed, by the mark in its environment.
        """
        token, log = uuid.uuid4().hex, self.folder / f"{name.replace(' ', '-')}.log"
        began, answers = time.monotonic(), log.with_suffix(".out")
        lines, late_s = JsonLines(answers), 0.0
        environ = {**os.environ, **({"CUDA_VISIBLE_DEVICES": ""} if self.device == "cpu" else {}), **environment}
        # Into files: a pipe would stay open as long as any process that the command left behind.
        with log.open("wb") as errors, answers.open("wb") as output:
            process = subprocess.Popen(
                [str(word) for word in command], env={**environ, MARK: token}, cwd=ROOT, stdin=subprocess.DEVNULL,
                stdout=output, stderr=errors,
            )  # fmt: skip
            try:
                ended = False
                while not ended:
                    ended = process.poll() is not None
                    for fragment in lines.new() if fragments else ():
                        self.tell(fragment)
                    look()
                    ran_s = time.monotonic() - began
                    if (ran_s >= most_s or self.left_s <= 0.0) and not (late_s or ended):
                        late_s = ran_s
                        process.send_signal(signal.SIGTERM)
                    if late_s and ran_s >= late_s + GRACE_S:
                        break
                    time.sleep(0.0 if ended else LOOK_S)
            finally:
                end_marked(token)
                process.wait()
        self.outputs[name] = answers.read_text(encoding="utf-8", errors="replace")
        told: Fragment = {"parts": {name: round(time.monotonic() - began, 1)}}
        ok = process.returncode == 0 and not late_s
        if not ok:
            why = f"not done within {late_s:.0f} s" if late_s else f"exit code {process.returncode}"
            end = end_of(log.read_text(encoding="utf-8", errors="replace")) or end_of(self.outputs[name])
            told["failed"] = {name: f"{why}\n{end}".rstrip()}
        self.tell(told)
        return ok


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


def merged(result: Mapping[str, Any], fragment: Mapping[str, Any]) -> Fragment:
    """A result with a fragment: mappings are merged key by key, of anything else the fragment's value counts."""
    found = dict(result)
    for key, value in fragment.items():
        both = isinstance(value, Mapping) and isinstance(found.get(key), Mapping)
        found[key] = merged(found[key], value) if both else value
    return found


class Told:
    """Tells fragments, each as a line of `print_line` and of a file, with the seconds since the start under `at_s`."""

    def __init__(self, path: Path, print_line: Callable[[str], None], began_s: float) -> None:
        self._path, self._print, self._began_s = path, print_line, began_s
        self.result: Fragment = {}

    def tell(self, fragment: Fragment) -> None:
        """Add a fragment to the result."""
        self.result = merged(self.result, fragment)
        line = json.dumps(fragment | {"at_s": round(time.monotonic() - self._began_s, 1)})
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
        self._print(line)


def run_parts(
    parts: Mapping[str, Callable[[], object]],
    least_s: Mapping[str, float],
    left_s: Callable[[], float],
    tell: Callable[[Fragment], None],
) -> None:
    """Run the parts, in order; what is skipped or fails is told with the reason, and the next one goes on.

    `least_s`: by part, the seconds without which it is not begun; `left_s` says how many are left.
    """
    for name, work in parts.items():
        if (left := left_s()) < least_s[name]:
            why = f"takes at least {least_s[name]:.0f} s, and {max(left, 0.0):.0f} of --seconds are left"
            tell({"skipped": {name: why}})
            continue
        try:
            work()
        except Exception as error:  # noqa: BLE001 - whatever it is, the other parts are worth having
            tell({"failed": {name: f"{type(error).__name__}: {error}"}})
