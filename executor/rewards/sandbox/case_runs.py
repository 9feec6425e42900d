"""Runs cases of a row, each in a process of its own: a program with its input, or a call with its arguments.

All this happens in a process that the tester forked before it read the row's tests, so what a case should give is in
no memory that a response's code can reach. That process runs no code of the response itself: it forks one that does,
takes what that writes from pipes that are new for each case, and kills what it left behind.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import io
import json
import math
import os
import select
import signal
import sys
import threading
import time
import traceback
import types
from typing import Any

from .isolation import Isolation
from .kernel import adopt_orphans, close_all_but, killed_by, limit
from .plain_data import Reader, Unreadable, Writer
from .references import assume_imports

MOST_BYTES = 8 << 20
"""Of what a case may write."""
ERROR_BYTES = 4096
"""Of standard error, whose last line tells what went wrong."""
PART = 1 << 16
_open = open
STACKS = 4
"""A thread's stack takes at most this part of the memory."""


class CaseRunner:
    """Runs one case after the other; in the response's process, before anything of the response has run there."""

    def __init__(self, isolation: Isolation, close_channel: Any) -> None:
        self._isolation, self._close_channel = isolation, close_channel
        self._compiled: dict[str, Any] = {}
        self._ready = False

    def run(
        self, source: str, entry: str, given: Any, time_s: float, folder: str, limits: tuple[int, int, int]
    ) -> tuple[str, bytes]:
        """Run `source` with `given`: as a program that reads it, or if there is an `entry`, a call of that with these
        arguments. `limits`: CPU seconds, bytes of memory, bytes of a file.

        Returns why it failed, "" if it did not, "late" if it took more than `time_s`; and what it printed, or its
        result as `plain_data` writes it.
        """
        if not self._ready:
            adopt_orphans()
            os.chdir(folder)
            self._ready = True
        if source not in self._compiled:
            try:
                self._compiled = {source: compile(source, "solution.py", "exec", dont_inherit=True)}
            except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
                return last_line(error), b""
        feed = os.open(os.devnull, os.O_RDONLY) if entry else _file_of(given)
        (output, writes), (errors, tells) = os.pipe(), os.pipe()
        pid = os.fork()
        if pid == 0:
            self._become_case((feed, writes, tells), entry, given, limits)  # never returns
        for end in (feed, writes, tells):
            os.close(end)
        try:
            why, printed, told = _watched(pid, output, errors, time.monotonic() + time_s)
        finally:
            self._clear(pid)
        if why:
            return why, printed
        code = os.waitstatus_to_exitcode(self._status)
        return _ending(code, told), printed

    def _clear(self, pid: int) -> None:
        """Kill the case's process and all that it left, and wait for them."""
        self._status = 0
        for kill in (os.kill, os.killpg):
            with contextlib.suppress(OSError):
                kill(pid, signal.SIGKILL)
        # Its parent, the tester, is process 1 of a namespace of its own; elsewhere -1 would mean all of the user's.
        alone = self._isolation.has("processes") and os.getppid() == 1
        if alone:
            with contextlib.suppress(OSError):
                os.kill(-1, signal.SIGKILL)
        while True:
            try:
                ended, status = os.waitpid(-1 if alone else pid, 0)
            except ChildProcessError:
                return
            if ended == pid:
                self._status = status
                if not alone:
                    return

    # ---- in the case's process ----

    def _become_case(self, ends: tuple[int, int, int], entry: str, given: Any, limits: tuple[int, int, int]) -> None:
        """Never returns."""
        code = 70
        try:
            os.setpgid(0, 0)
            self._close_channel()
            feed, writes, tells = ends
            null = os.open(os.devnull, os.O_WRONLY)
            result = os.dup(writes) if entry else -1
            for target, end in enumerate((feed, null if entry else writes, tells)):
                os.dup2(end, target)
            close_all_but(result, *self._isolation.keep())
            self._isolation.close_in_response()
            limit(*limits, self._isolation.has("user"))
            # Programs ask for more than they use of it, as judges do not count it: it would be most of the memory.
            sized, most = threading.stack_size, limits[1] // STACKS
            threading.stack_size = lambda size=0: sized(min(size, most))
            code = self._run_case(entry, given, result)
        except BaseException:  # noqa: BLE001 - the process ends here, whatever happens
            _tell(traceback.format_exc())
        finally:
            os._exit(code)

    def _run_case(self, entry: str, given: Any, result: int) -> int:
        name = "solution" if entry else "__main__"
        for owner in (builtins, io):  # there is no /dev/stdin, which would need /proc
            owner.open = _opened  # type: ignore[attr-defined]
        module = types.ModuleType(name)
        module.__file__ = "solution.py"
        module.__dict__["__builtins__"] = builtins
        sys.modules[name] = module
        sys.argv = ["solution.py"]
        for number, (stream, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
            file = open(number, mode, encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
            setattr(sys, stream, file)
            setattr(sys, f"__{stream}__", file)
        if entry:
            assume_imports(vars(builtins))
        (code,) = self._compiled.values()
        status = 0
        try:
            exec(code, module.__dict__)
            if entry:
                _answer(module, entry, given, result)
        except SystemExit as error:
            status = _exit_code(error)
            if entry:
                raise
        except BaseException as error:  # noqa: BLE001 - as Python does: told on standard error
            status = 1
            _tell(last_line(error))
        try:
            if not entry:
                threading._shutdown()  # type: ignore[attr-defined]
                atexit._run_exitfuncs()
            for held in (sys.stdout, sys.__stdout__, *module.__dict__.values()):  # as an interpreter does at its end
                if held is sys.stdout or isinstance(held, io.IOBase):
                    with contextlib.suppress(ValueError):  # it is closed
                        held.flush()
        except BaseException as error:  # noqa: BLE001
            status = status or 120
            _tell(last_line(error))
        return status


def _answer(module: types.ModuleType, entry: str, given: Any, result: int) -> None:
    """Call what the row names, and write the result."""
    names = module.__dict__
    if entry.isidentifier() and entry not in names and "Solution" in names:
        function = getattr(names["Solution"](), entry)
    else:
        first, _, method = entry.replace("()", "").partition(".")
        if first not in names:
            raise NameError(f"name {first!r} is not defined")
        function = names[first]
        if method:
            function = getattr(function() if isinstance(function, type) else function, method)
    value = function(**given) if isinstance(given, dict) else function(*given)
    text = json.dumps(Writer(_as_data).write(value), separators=(",", ":")).encode()
    while text:
        text = text[os.write(result, text) :]


def _as_data(value: Any) -> list[Any]:
    """An object whose class derives from a data type as that data; of any other, the name of its class."""
    from .remote_objects import view

    try:
        return Writer(lambda other: ["?", type(other).__name__]).write(view(value))  # type: ignore[no-any-return]
    except TypeError:
        return ["?", type(value).__name__]


def read_result(text: bytes) -> Any:
    """The value of a call. Raises `Unreadable` if it is no data."""

    def no_data(written: list[Any]) -> Any:
        raise Unreadable(f"returned an object of class {str(written[-1])[:60]}, which is no data")

    try:
        return Reader(no_data).read(json.loads(text))
    except (ValueError, RecursionError, MemoryError, TypeError, LookupError):
        raise Unreadable("ended without a result") from None


def _opened(file: Any, *args: Any, **kwargs: Any) -> Any:
    """`open`, also of /dev/stdin."""
    return _open(0 if str(file) == "/dev/stdin" else file, *args, **kwargs)


def _exit_code(error: SystemExit) -> int:
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code & 0xFF
    _tell(error.code)
    return 1


def _tell(text: object) -> None:
    """Write a line to standard error, whatever the response made of it."""
    with contextlib.suppress(BaseException):
        os.write(2, f"{text}\n".encode(errors="replace"))


def last_line(error: BaseException) -> str:
    """`Type: message`, as a traceback ends."""
    try:
        return traceback.format_exception_only(error)[-1].strip()[:500]
    except BaseException:  # noqa: BLE001 - the response's own class may raise here too
        return type(error).__name__


# ---- around it ----


def _file_of(text: str) -> int:
    """A descriptor of a file without a name that holds an input, as judges give it: its size can be asked for."""
    name = f".{os.urandom(8).hex()}"
    file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        data = memoryview(text.encode("utf-8", "surrogateescape"))
        while data:
            data = data[os.write(file, data) :]
        return os.open(name, os.O_RDONLY)
    finally:
        os.close(file)
        os.unlink(name)  # noqa: PTH108 - see the package: few imports


def _watched(pid: int, output: int, errors: int, until: float) -> tuple[str, bytes, bytes]:
    """Take what a process writes until it ends: why it did not come to its end, its output and errors."""
    taken: dict[int, bytearray] = {output: bytearray(), errors: bytearray()}
    end = os.pidfd_open(pid)
    reads = [end, output, errors]
    for each in (output, errors):
        os.set_blocking(each, False)
    why = ""
    try:
        while True:
            left = until - time.monotonic()
            if left <= 0:
                why = "late"
                break
            ready = select.select(reads, [], [], left)[0]
            for each in ready:
                if each != end and not _take(each, taken[each]):
                    reads.remove(each)
            del taken[errors][:-ERROR_BYTES]
            if len(taken[output]) > MOST_BYTES:
                why = f"wrote more than {MOST_BYTES} bytes"
                break
            if end in ready and not any(_take(each, taken[each]) for each in reads if each != end):
                break
    finally:
        for each in (end, output, errors):
            os.close(each)
    return why, bytes(taken[output]), bytes(taken[errors])


def _take(end: int, into: bytearray) -> bool:
    """Take what is there; False if nothing is, or nothing will come."""
    try:
        part = os.read(end, PART)
    except BlockingIOError:
        return False
    into += part
    return bool(part)


def _ending(code: int, told: bytes) -> str:
    if code == 0:
        return ""
    if code == -signal.SIGXCPU:
        return "late"
    if killed := killed_by(code):
        return killed
    lines = told.decode(errors="replace").strip().splitlines()
    return f"ended with code {code}" + (f": {lines[-1][:300]}" if lines else "")


def cpu_seconds(time_s: float) -> int:
    """The limit on CPU seconds of what may take so much wall time."""
    return math.ceil(time_s) + 1
