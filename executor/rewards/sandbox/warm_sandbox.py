"""The worker's side: a starter that is kept warm, and it tests one sample after the other.

What always holds:
- a verdict is one that the tester of that sample sent, on a socket that only the tester and this process hold;
- a response's deadline counts from the moment at which its sandbox was up and had its code, so that a busy machine's
  slow start is not the response's;
- what ran for a sample is killed when its verdict is there or its deadline has passed;
- a starter that died, or does not answer, is replaced; that is the machine's fault, never the response's.

The sandboxes of the next two samples are made while this one is tested: one takes some milliseconds, longer than a
short test. With one ahead, a test that follows at once on another would wait for it.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import math
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ....plans.answers import AnswerError
from ....plans.answers.code_tests import CodeTests, code_tests
from ....plans.answers.packages import package_files
from .isolation import FILES, LANDLOCK, USER
from .kernel import hide_memory
from .starter import BOOT
from .verdict import MEMORY_BYTES, InfrastructureError, RowError
from .visible_files import clear

START_S = 10.0
"""A sandbox that is not up by then is the machine's fault; it takes some milliseconds on an idle one."""
AHEAD = 2
"""Sandboxes that wait for a sample."""
CASES_S = 0.5
"""What the tester of cases has beyond a deadline for its verdict."""
FILE_BYTES = 16 << 20
"""Largest file that the response may write."""


class SandboxError(InfrastructureError):
    """The sandbox itself did not come up; not the response's fault."""


@dataclass(frozen=True)
class SandboxRun:
    """How a sandboxed program ended."""

    passed: bool
    """All tests ran to their end without a failure, and there was at least one."""
    timed_out: bool
    """The program was stopped for its time, wall or CPU."""
    detail: str
    """One line: the exception, signal or deadline that ended it; empty if it passed."""
    tests_passed: int = 0
    """Tests or cases that ran to their end and held, as the tester counted them."""
    tests: int = 0
    """Tests or cases in all, or up to the first that failed."""


class _Seat(NamedTuple):
    """A tester that was asked for: its number and the socket to it."""

    number: int
    wire: socket.socket


class WarmSandbox:
    """Runs responses and their tests, one pair after the other; from one thread only.

    Args:
        memory_bytes: address space that a response's process may take, and memory of all that it starts together.
        without: parts of the isolation to leave out, as if the host lacked them (`isolation.TOLD` has their names).
        packages: distributions that responses and tests may import, beside the standard library.

    Raises `InputError` for a package that is not installed here.
    """

    def __init__(
        self,
        memory_bytes: int = MEMORY_BYTES,
        without: frozenset[str] = frozenset(),
        packages: tuple[str, ...] = (),
    ) -> None:
        self._memory_bytes, self._without = memory_bytes, without
        self._files = package_files(packages)
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._folder = ""
        self._spares: list[_Seat] = []
        self._number = 0
        self._ended: dict[int, str] = {}
        self.notes: tuple[str, ...] = ()
        """What this host does not permit; known once it has started."""
        self.lacks: dict[str, str] = {}
        """The same, by part of the isolation (`isolation.TOLD`) with its reason."""

    def start(self) -> None:
        """Start it unless it is up. Raises `SandboxError` if sandboxes do not work here at all."""
        if self._process is not None and self._process.poll() is None:
            return
        self.close()
        began = time.monotonic()
        self._folder = tempfile.mkdtemp(prefix="rlplan-sandbox-")
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, tempfile.TemporaryFile() as errors:
            arguments = [str(Path(__file__).parent), str(theirs.fileno()), self._folder, ",".join(self._without)]
            arguments += [json.dumps(self._files), str(self._memory_bytes)]
            self._process = subprocess.Popen(
                [os.path.realpath(sys.executable), "-I", "-S", "-B", "-c", BOOT, *arguments],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors, env={}, cwd="/",
                pass_fds=(theirs.fileno(),),
                process_group=0,  # and no session: see worker
            )  # fmt: skip
            theirs.close()
            told = self._next(began + START_S)
            tail = _tail(errors)
        if told is None or "failure" in told:
            self.close()
            raise SandboxError(f"sandbox did not start: {told['failure'] if told else tail or 'no message'}")
        self.notes, self.lacks = tuple(told["notes"]), told["lacks"]
        if FILES not in told["lacks"]:
            # The starter's root directory was made there, and is no longer found there by anybody.
            clear(self._folder)
        atexit.register(self.close)
        if {USER, LANDLOCK} <= set(told["lacks"]):
            # Else a response could trace this process, or read and write its memory.
            hide_memory()

    def run(self, source: str, tests: CodeTests | str, deadline_s: float, go_on: bool = False) -> SandboxRun:
        """Run `source`, then `tests` against it; `go_on`: all of them, also if one fails.

        Raises `SandboxError` if the sandbox fails, `RowError` if these tests cannot be run, whatever the response.
        """
        try:
            tests = code_tests(tests) if isinstance(tests, str) else tests
        except AnswerError as error:
            raise RowError(str(error)) from None
        self.start()
        self._note_ends()
        self._ended.clear()
        seat = self._spares.pop(0) if self._spares else self._ask_for_one()
        with seat.wire as wire:
            try:
                if (first := _read(wire, time.monotonic() + START_S, line=True)) != b"up\n":
                    told = (first or b"").decode() or "no message"
                    raise SandboxError(f"sandbox did not start within {START_S:g} s: {told}")
                limits = {"cpu_s": math.ceil(deadline_s) + 1, "memory_bytes": self._memory_bytes}
                job = {"response": source, **_as_job(tests), "go_on": go_on, "deadline_s": deadline_s, **limits,
                       "file_bytes": FILE_BYTES}  # fmt: skip
                wire.settimeout(START_S)
                wire.sendall(json.dumps(job).encode())
                wire.shutdown(socket.SHUT_WR)
                # The tester ends a case at the deadline, and tells which have passed by then.
                until = time.monotonic() + deadline_s + (CASES_S if tests.cases else 0.0)
                while len(self._spares) < AHEAD:
                    self._spares.append(self._ask_for_one(seat.number))
                verdict = _verdict(wire, until)
                late = verdict is None and time.monotonic() >= until
                if verdict is None:
                    verdict = self._without_verdict(seat.number, deadline_s, late)
            except OSError as error:
                self.close()
                raise SandboxError(f"the sandbox's processes are gone: {error}") from error
        if "row" in verdict:
            raise RowError(f"the row's tests cannot be run here: {verdict['row']}")
        count, total, detail = int(verdict["passed"]), int(verdict["total"]), str(verdict["detail"])
        passed = detail == "" and 0 < total == count
        return SandboxRun(
            passed=passed,
            timed_out=bool(verdict["timed_out"]),
            detail="" if passed else detail or "no test ran",
            tests_passed=count,
            tests=total,
        )

    def _without_verdict(self, number: int, deadline_s: float, late: bool) -> dict[str, Any]:
        """End sample `number`, whose tester said nothing; what its verdict is instead."""
        assert self._control is not None
        self._control.sendall(json.dumps({"kill": number}).encode())
        until = time.monotonic() + START_S
        while number not in self._ended:
            if (told := self._next(until)) is None:
                self.close()
                raise SandboxError(f"the sandbox's starter does not answer within {START_S:g} s")
            self._ended[told["ended"]] = told["why"]
        why = self._ended.pop(number)
        otherwise = f"still running after its {deadline_s:g} s" if late else "its tests ended without a verdict"
        return {"passed": 0, "total": 0, "timed_out": late and not why, "detail": why or otherwise}

    def close(self) -> None:
        """End the starter and all below it; may be called twice."""
        atexit.unregister(self.close)
        for seat in self._spares:
            seat.wire.close()
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        if self._control is not None:
            self._control.close()
        if self._folder:
            clear(self._folder)
        self._process = self._control = None
        self._spares = []
        self._folder = ""
        self._ended = {}

    def _ask_for_one(self, runs: int = 0) -> _Seat:
        """Ask for a tester; `runs`: the number of the sample that is being tested."""
        assert self._control is not None
        self._number += 1
        wire, theirs = socket.socketpair()
        with theirs:
            request = json.dumps({"start": self._number, "runs": runs or self._number}).encode()
            socket.send_fds(self._control, [request], [theirs.fileno()])
        return _Seat(self._number, wire)

    def _next(self, until: float) -> dict[str, Any] | None:
        """The starter's next message; None if it ends, or sends none before the time `until`."""
        assert self._control is not None
        if not select.select([self._control], [], [], max(0.0, until - time.monotonic()))[0]:
            return None
        text = self._control.recv(1 << 16)
        if not text:
            return None
        told: dict[str, Any] = json.loads(text)
        return told

    def _note_ends(self) -> None:
        """Read, without waiting, which testers have ended."""
        while told := self._next(0.0):
            self._ended[told["ended"]] = told["why"]


def _as_job(tests: CodeTests) -> dict[str, Any]:
    """What a tester needs to know of a row's tests."""
    cases = [[each.given, each.wanted, each.time_s, each.memory_bytes] for each in tests.cases]
    job: dict[str, Any] = {"cases": cases, "entry": tests.entry, "tolerance": tests.tolerance, "tests": tests.source}
    if tests.script is not None:
        facts = tests.script
        job |= {"collected": facts.tests, "candidates": facts.candidates, "as_main": facts.as_main,
                "uses_pytest": facts.uses_pytest, "overrides": sorted(facts.overrides)}  # fmt: skip
    return job


def _read(wire: socket.socket, until: float, line: bool = False) -> bytes | None:
    """What a tester writes until it ends, or its first `line`; None if that does not come before the time `until`."""
    text = b""
    while not (line and text.endswith(b"\n")):
        if not select.select([wire], [], [], max(0.0, until - time.monotonic()))[0]:
            return None
        part = wire.recv(1 << 16)
        if not part:
            break
        text += part
    return text


def _verdict(wire: socket.socket, until: float) -> dict[str, Any] | None:
    """What the tester says before the time `until`; None if nothing, or if it was killed while it wrote."""
    try:
        verdict: dict[str, Any] = json.loads(_read(wire, until) or b"")
    except ValueError:
        return None
    return verdict


def _tail(errors: Any) -> str:
    """The last line that is not empty, of at most the last 2,000 bytes."""
    size = errors.seek(0, os.SEEK_END)
    errors.seek(max(0, size - 2000))
    lines = errors.read().decode(errors="replace").strip().splitlines()
    return lines[-1][:500] if lines else ""
