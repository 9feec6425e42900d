"""Reward 1 if the response's last Python block passes the row's tests in a sandbox, else 0.

The sandbox is a process of its own per sample (`sandbox_child`): limits on CPU time, address space, file size and open
files; an empty environment; no site-packages, so standard library only; a temporary folder as the only place to write
to, which excludes shared memory; no network; a process-id namespace and a process group of its own, killed
as a whole at the deadline. What the kernel does not permit is left out and said in `probe`'s notes.
"""

from __future__ import annotations

import json
import math
import os
import re
import secrets
import select
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..scoring_errors import MEMORY_BYTES, InfrastructureError, PolicyError, PolicyTimeout, RowError

START_S = 10.0
"""A sandbox that is not up by then is the machine's fault; it takes 0.05 s on an idle one."""
FILE_BYTES = 16 << 20
"""Largest file that the response may write, its stderr included."""

_BLOCK = re.compile(r"^```(?:python3?|py)[ \t]*\r?\n(.*?)^```", re.DOTALL | re.MULTILINE | re.IGNORECASE)
_CHILD = Path(__file__).with_name("sandbox_child.py")


class SandboxError(InfrastructureError):
    """The sandbox itself did not come up; not the response's fault."""


@dataclass(frozen=True)
class SandboxRun:
    """How a sandboxed program ended."""

    passed: bool
    """The tests ran to their end without an exception."""
    timed_out: bool
    """The program was stopped for its time, wall or CPU."""
    detail: str
    """One line: the exception, signal or deadline that ended it; empty if it passed."""
    notes: tuple[str, ...]
    """What the kernel did not permit the sandbox to do."""
    seconds: float
    """Wall time, the sandbox's start included."""


def last_block(response: str) -> str | None:
    """The text of the response's last closed ```python block, or None if it has none."""
    blocks = _BLOCK.findall(response)
    return blocks[-1] if blocks else None


def run_sandboxed(source: str, tests: str, deadline_s: float, memory_bytes: int = MEMORY_BYTES) -> SandboxRun:
    """Run `source`, then `tests`, as one Python module in a fresh sandbox.

    The deadline (wall time) counts from the moment the sandbox is up, so that a busy machine's slow start is not the
    response's. Raises `SandboxError` if the sandbox does not come up within `START_S`.
    """
    token = secrets.token_hex(16)
    job = {
        "response": source,
        "tests": tests,
        "token": token,
        "cpu_s": math.ceil(deadline_s) + 1,
        "memory_bytes": memory_bytes,
        "file_bytes": FILE_BYTES,
    }
    began = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="rlplan-sandbox-", ignore_cleanup_errors=True) as folder,
        tempfile.TemporaryFile() as stdin,
        tempfile.TemporaryFile() as stderr,
    ):
        stdin.write(json.dumps(job).encode())
        stdin.seek(0)
        reader, writer = os.pipe()
        try:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-B", str(_CHILD), str(writer)],
                stdin=stdin,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                cwd=folder,
                env={},
                pass_fds=(writer,),
                process_group=0,  # and no session: see scoring_process
            )
            os.close(writer)
            writer = -1
            try:
                first = _first_line(reader, began + START_S)
                try:
                    code: int | None = process.wait(timeout=deadline_s if first else 1.0)
                except subprocess.TimeoutExpired:
                    code = None
            finally:
                _kill_group(process)
            written = _rest(reader)
        finally:
            os.close(reader)
            if writer >= 0:
                os.close(writer)
        tail = _tail(stderr)
    if not first:
        raise SandboxError(f"sandbox did not start within {START_S:g} s (exit code {code}): {tail or 'no message'}")
    passed = code == 0 and written == token.encode()
    timed_out = code is None or code == 128 + signal.SIGXCPU
    return SandboxRun(
        passed=passed,
        timed_out=timed_out,
        detail="" if passed else _reason(code, tail, deadline_s),
        notes=tuple(json.loads(first)["notes"]),
        seconds=time.monotonic() - began,
    )


def probe() -> tuple[str, ...]:
    """Start one sandbox around nothing; return its notes on what this machine does not permit.

    Raises `SandboxError` if sandboxes do not work here at all.
    """
    result = run_sandboxed("", "", START_S)
    if not result.passed:
        raise SandboxError(f"an empty program fails in the sandbox: {result.detail}")
    return result.notes


class CodeReward:
    """The reward function of kind `code`, with its deadline."""

    def __init__(self, deadline_s: float, memory_bytes: int = MEMORY_BYTES) -> None:
        self.deadline_s, self.memory_bytes = deadline_s, memory_bytes

    def __call__(self, prompt: str, response: str, answer: Any) -> float:
        """1.0 if the response's last Python block passes the tests in `answer` (Python source, or a list of it).

        Raises `PolicyError` if it does not and `PolicyTimeout` if it takes too long. Not the policy's fault are
        `RowError` (the row holds no tests) and `SandboxError` (the sandbox fails).
        """
        if isinstance(answer, list) and answer and all(isinstance(part, str) for part in answer):
            answer = "\n".join(answer)
        if not isinstance(answer, str) or not answer.strip():
            raise RowError("the row's answer must be its tests: Python source or a list of it")
        source = last_block(response)
        if source is None:
            raise PolicyError("the response has no closed ```python block")
        result = run_sandboxed(source, answer, self.deadline_s, self.memory_bytes)
        if result.passed:
            return 1.0
        raise (PolicyTimeout if result.timed_out else PolicyError)(result.detail)


def _first_line(reader: int, until: float) -> bytes:
    """The line that the sandbox writes when it is up; empty if it ends, or writes none before the time `until`."""
    line = b""
    while not line.endswith(b"\n"):
        if not select.select([reader], [], [], max(0.0, until - time.monotonic()))[0]:
            return b""
        # Byte by byte: what follows the newline is the token, and `_rest` reads that.
        byte = os.read(reader, 1)
        if not byte:
            return b""
        line += byte
    return line


def _rest(reader: int) -> bytes:
    """The rest of the pipe's data, without waiting: a process that escaped may hold the pipe open for ever."""
    os.set_blocking(reader, False)
    try:
        return os.read(reader, 4096)
    except BlockingIOError:
        return b""


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return  # reaped, and nothing left behind
    finally:
        process.wait()


def _tail(stderr: Any) -> str:
    """The last line that is not empty, of at most the last 2,000 bytes."""
    size = stderr.seek(0, os.SEEK_END)
    stderr.seek(max(0, size - 2000))
    lines = stderr.read().decode(errors="replace").strip().splitlines()
    return lines[-1][:500] if lines else ""


def _reason(code: int | None, tail: str, deadline_s: float) -> str:
    if code is None:
        return f"still running after its {deadline_s:g} s"
    if code == 128 + signal.SIGXCPU:
        return "used up its CPU seconds"
    if code > 128 and code - 128 in signal.valid_signals():
        return f"killed by {signal.Signals(code - 128).name}"
    return tail or f"ended with code {code} before the tests did"
