"""The process that runs a row's tests and gives the verdict. It never runs a response's code: it asks for results.

It is process 1 of the sample's process-id namespace, so when it ends, the kernel ends all that the response started.

Tests read as if the response's names stood in the same module, or in a module `solution`: both are looked up in the
response's process, and what is found there is data, or a `Remote`. Built-in functions are the tester's own, whatever
the response calls by their names, unless a test imports one from `solution`.

Inputs and calls with results (`case_runs`) are compared here too, with what came back as data.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import select
import signal
import socket
import sys
import time
import types
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from . import link, response
from .case_runs import cpu_seconds, read_result
from .isolation import Isolation
from .kernel import close_all_but, die_with_parent, killed_by, limit
from .plain_data import Unreadable, is_plain
from .references import BoundNames, Names, SolutionModule, is_shared
from .script_tests import FILE, BadTests, Script, line_of

REHEARSAL = "from solution import same\ndef test_same():\n    assert same([1]) == [1]\n"
"""A test before there is a job: a fork's first use of each page of memory takes longer than its second."""
GRACE_S = 1.0
"""How long a response's process that has closed its connection is given to end before it is killed."""
SHOWN = 80
"""Characters of a value in a verdict."""
RECURSION = 5000
"""Depth of the data that the tester reads, in Python calls; the response's own limit is Python's default."""


def run(wire: int, number: int, isolation: Isolation) -> None:
    """Test sample `number`, the job for which comes on the socket `wire`; never returns."""
    try:
        die_with_parent()
        os.setpgid(0, 0)
        worker = socket.socket(fileno=wire)
        close_all_but(wire, *isolation.keep())
        isolation.new_file_system()
        isolation.close_in()
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            ours.close()
            worker.close()
            _become_response(theirs, isolation)
        theirs.close()
        connection = link.ProcessLink(ours, is_tester=True, ended=os.pidfd_open(pid), allowed=refuse)
        # The response's process is up too, and what testing takes has been used once.
        run_tests({"tests": REHEARSAL}, connection, {"same": connection.ask("rehearse")})
        worker.sendall(b"up\n")
    except BaseException as error:  # noqa: BLE001 - told to the worker; nothing of the response has run
        os.write(wire, json.dumps({"failure": line_of(error)}).encode())
        os._exit(1)
    text = _whole(worker)
    if not text:
        os._exit(0)  # the worker closed: nothing is to be tested
    job = json.loads(text)
    limits = job["cpu_s"], job["memory_bytes"], job["file_bytes"]
    folder = isolation.new_folder(number)
    os.chdir(folder)
    limit(*limits, own_ids=isolation.has("user"))
    verdict: dict[str, Any] = {"passed": 0, "total": 0, "detail": "", "timed_out": False}
    try:
        if job["cases"]:
            verdict |= run_cases(job, connection, folder, isolation.own_bytes)
        else:
            why, defined = loaded(connection.ask("load", job["response"], folder, *limits))
            verdict["detail"] = why[:500]
            if why == "":
                sys.setrecursionlimit(RECURSION)
                verdict |= run_tests(job, connection, defined)
    except link.LinkLost:
        pass
    except BadTests as error:
        verdict["row"] = str(error)
    except BaseException as error:  # noqa: BLE001 - whatever tests raise is their verdict
        verdict["detail"] = line_of(error)
    if connection.lost:
        # A test may have swallowed the loss of the response's process.
        verdict |= {"passed": 0, **_ending(pid, connection.lost)}
    worker.sendall(json.dumps(verdict).encode())
    if not isolation.has("processes"):
        with contextlib.suppress(OSError):
            os.killpg(pid, signal.SIGKILL)
    os._exit(0)


def loaded(answer: Any) -> tuple[str, dict[str, Any]]:
    """What `load` answered: why it failed, "" if it did not, and the response's functions and classes by name."""
    if type(answer) is tuple and len(answer) == 2 and type(answer[0]) is str and type(answer[1]) is dict:
        return answer
    return "its load answered nonsense", {}


def run_tests(
    job: dict[str, Any], connection: link.ProcessLink, defined: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Run a script of tests against the response at the other end of `connection`; what the verdict says of them.

    `defined`: what its module is known to hold, as long as no name in it is bound anew.
    """
    names = BoundNames(connection, defined or {})
    script = Script(job["tests"], job.get("uses_pytest", False), job.get("collected"), job.get("go_on", False))
    module = types.ModuleType("__main__" if job.get("as_main") else "tests")
    module.__file__ = FILE
    namespace = Names(module.__dict__, names, job.get("overrides", ()))
    sys.modules["tests"] = sys.modules[module.__name__] = module
    sys.modules["solution"] = SolutionModule(connection, names, namespace)
    sys.argv = ["tests.py"]
    connection.mirrored = _mirrored(job["tests"], connection)
    script.run(module, namespace, job.get("candidates", ()), job.get("entry", ""), lambda: names.used)
    return {"passed": script.passed, "total": script.total, "detail": (script.failures or [""])[0]}


def run_cases(job: dict[str, Any], connection: link.ProcessLink, folder: str, own_bytes: int) -> dict[str, Any]:
    """Run cases one after the other until one fails, or all; what the verdict says of them."""
    until = time.monotonic() + job["deadline_s"]
    entry, cases = job["entry"], job["cases"]
    passed, told = 0, {"detail": "", "timed_out": False}
    for place, (given, wanted, time_s, memory_bytes) in enumerate(cases, 1):
        left = until - time.monotonic()
        most_s = min(left, left if time_s is None else time_s)
        most_bytes = job["memory_bytes"] if memory_bytes is None else min(job["memory_bytes"], own_bytes + memory_bytes)
        limits = (cpu_seconds(most_s), most_bytes, job["file_bytes"])
        why, output = "late", b""
        if left > 0:
            why, output = connection.ask("run case", job["response"], entry, given, most_s, folder, limits)
        late = why == "late"
        if late:
            why = (
                f"took more than its {most_s:.3g} s"
                if left > 0
                else f"did not begin within the {job['deadline_s']:g} s"
            )
        elif not why:
            why = _difference(output, wanted, entry, job["tolerance"])
        if not why:
            passed += 1
        elif not told["detail"]:
            shown = f"{entry}({_arguments(given)})" if entry else f"input {_short(given)}"
            told = {"detail": f"case {place} of {len(cases)}, {shown}: {why}", "timed_out": late}
        if why and not job["go_on"]:
            break
    return {"passed": passed, "total": len(cases), **told}


def _difference(output: bytes, wanted: Any, entry: str, tolerance: Any) -> str:
    """In what an output or a result is not what the row wants; "" if it is."""
    tolerance = tolerance and tuple(tolerance)
    if not entry:
        text = output.decode(errors="replace")
        return "" if same_text(text, wanted, tolerance) else f"printed {_short(text)}, not {_short(wanted)}"
    try:
        found = read_result(output)
    except Unreadable as error:
        return str(error)
    return "" if same_result(found, wanted, tolerance) else f"returned {_short(found)}, not {_short(wanted)}"


def _arguments(given: Any) -> str:
    if isinstance(given, dict):
        return ", ".join(f"{name}={_short(value)}" for name, value in given.items())
    return ", ".join(map(_short, given))


def _short(value: Any) -> str:
    try:
        text = repr(value[:200] if isinstance(value, str) else value)
    except ValueError:  # an integer of more digits than Python writes
        return "a very large number"
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"


def refuse(operation: str, target: Any, rest: tuple[Any, ...]) -> None:
    """Raise if the response may not do this to an object of the tests': it could read the tests, or rewrite them.

    Open to it are only objects that a test handed it: functions to call, objects to use by their public names.
    """
    if type(target) in _NOT_OPEN or is_plain(target):
        raise TypeError(f"a {type(target).__name__} of the tests' is not open to a response")
    if operation in ("getattr", "setattr", "delattr"):
        name = rest[0]
        if name == "__enter__":
            return  # of a `with`
        if not isinstance(name, str) or name.startswith(("_", "gi_", "cr_", "ag_", "tb_")) or name == "mro":
            raise AttributeError(f"{name!r} of the tests' object is not open to a response")
        if operation != "getattr" and isinstance(target, (type, types.FunctionType)):
            raise AttributeError(f"{name!r} of the tests' object cannot be changed by a response")
        if operation != "getattr" and callable(getattr(type(target), name, None)):
            raise AttributeError(f"the method {name!r} of the tests' object cannot be replaced by a response")
        mock = sys.modules.get("unittest.mock")
        if mock is not None and issubclass(type(target), mock.NonCallableMock) and hasattr(mock.NonCallableMock, name):
            raise AttributeError(f"{name!r} is for the tests to ask of their mock")


_NOT_OPEN = (
    types.ModuleType,
    types.FrameType,
    types.CodeType,
    types.TracebackType,
    SolutionModule,
    Names,
    link.ProcessLink,
)


def _mirrored(tests: str, connection: link.ProcessLink) -> Callable[[], dict[str, Any]]:
    """What tells what the tests have replaced in this process by then, and the response is to find so in its own: the
    standard streams and a few functions; where their text may replace more, anything of the library, the environment
    and the working folder. A seed is told at once."""
    if "seed" in tests:
        _tell_seeds(connection)
    watched: list[Any] = [(module, {name: vars(sys.modules[module])[name] for name in names}, vars(sys.modules[module]))
               for module, names in link.MIRRORED.items()]  # fmt: skip
    widely = bool(_REPLACES.search(tests)) or not sys.stdlib_module_names.isdisjoint(_ASSIGNED.findall(tests))
    for dotted in _DOTTED.findall(tests) if widely else ():
        if is_shared(dotted):
            with contextlib.suppress(Exception):  # it may be any text
                owner = link.owner_of(dotted)  # a module is watched below
                watched += [(dotted, dict(vars(owner)), vars(owner))] if isinstance(owner, type) else []
    for name, module in list(sys.modules.items()) if widely else ():
        if is_shared(name) and name.partition(".")[0] not in _NOT_WATCHED:
            public = {key: value for key, value in vars(module).items() if not key.startswith("_")}
            watched.append((name, public, vars(module)))
    folder_now, environment = os.getcwd, dict(os.environ)
    folder = folder_now()

    def replaced() -> dict[str, Any]:
        found = {
            f"{module}:{name}": now[name]
            for module, names, now in watched
            for name, was in names.items()
            if now.get(name, was) is not was
        }
        if widely and dict(os.environ) != environment:
            found[link.ENVIRONMENT] = dict(os.environ)
        if widely and folder_now() != folder:
            found[link.FOLDER] = folder_now()
        return found

    return replaced


_REPLACES = re.compile(r"patch|setattr|environ|env\(|chdir")
_ASSIGNED = re.compile(r"^\s*(\w+)(?:\.\w+)+ *=(?!=)", re.MULTILINE)
"""What tests have in their text that replace what they do not define."""
_DOTTED = re.compile(r"""["'](\w+(?:\.\w+)*)\.\w+["']""")
_NOT_WATCHED = ("sys", "builtins", "unittest", "pytest", "_pytest", "pluggy", "warnings")


def _tell_seeds(connection: link.ProcessLink) -> None:
    """Have `random.seed` and numpy's seed the response's process too."""
    for name in {"random", "numpy.random"} & sys.modules.keys():
        module = sys.modules[name]
        vars(module)["seed"] = partial(_seed, connection, name, vars(module)["seed"])


def _seed(connection: link.ProcessLink, name: str, seed: Any, *values: Any) -> None:
    seed(*values)
    with contextlib.suppress(Exception):  # of the response's
        connection.ask("seed", name, *values)


def _become_response(channel: socket.socket, isolation: Isolation) -> None:
    """Never returns."""
    try:
        os.setpgid(0, 0)  # a signal to its own process group reaches nobody else
        die_with_parent()
        close_all_but(channel.fileno(), *isolation.keep())
        null = os.open(os.devnull, os.O_RDWR)
        for standard in range(3):
            os.dup2(null, standard)
        os.close(null)
    except BaseException:  # noqa: BLE001 - the tester sees the end of this process; nothing of the response has run
        os._exit(70)
    response.run(channel, isolation)


def _ending(pid: int, lost: str) -> dict[str, Any]:
    """How the response's process ended, or why it was ended."""
    select.select([os.pidfd_open(pid)], [], [], GRACE_S)
    done, status = os.waitpid(pid, os.WNOHANG)
    if not done:
        os.kill(pid, signal.SIGKILL)
        return {"detail": f"the response's process {lost}", "timed_out": False}
    code = os.waitstatus_to_exitcode(status)
    if code == -signal.SIGXCPU:
        return {"detail": "used up its CPU seconds", "timed_out": True}
    return {"detail": killed_by(code) or f"ended with code {code} before the tests did", "timed_out": False}


def _whole(channel: socket.socket) -> bytes:
    """What comes until the other end stops writing."""
    parts = []
    while part := channel.recv(1 << 20):
        parts.append(part)
    return b"".join(parts)


# ---- whether what a response printed or returned is what the row wants ----

Tolerance = tuple[float, float] | None
"""(absolute, relative) difference of numbers that counts as none."""


def same_text(printed: str, wanted: str, tolerance: Tolerance = None) -> bool:
    """Line by line, without whitespace at the ends of lines and empty lines at the end; with a tolerance word by word,
    numbers by their value."""
    ours, theirs = _lines(printed), _lines(wanted)
    if len(ours) != len(theirs):
        return False
    if tolerance is None:
        return ours == theirs
    return all(_same_words(a.split(), b.split(), tolerance) for a, b in zip(ours, theirs, strict=True))


def _lines(text: str) -> list[str]:
    lines = [line.rstrip() for line in text.replace("\r\n", "\n").split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def _same_words(ours: list[str], theirs: list[str], tolerance: tuple[float, float]) -> bool:
    return len(ours) == len(theirs) and all(
        a == b or _close(_number(a), _number(b), tolerance) for a, b in zip(ours, theirs, strict=True)
    )


def _number(word: str) -> float | None:
    try:
        return float(word) if "_" not in word and len(word) < 400 else None
    except ValueError:
        return None


def _close(found: Any, wanted: Any, tolerance: tuple[float, float]) -> bool:
    if found is None or wanted is None:
        return False
    try:
        return bool(found == wanted) or math.isclose(found, wanted, abs_tol=tolerance[0], rel_tol=tolerance[1])
    except (TypeError, ValueError, OverflowError):
        return False


def same_result(found: Any, wanted: Any, tolerance: Tolerance = None) -> bool:
    """Whether a call returned what the row wants, a JSON value; a list of one may stand for its item, as in APPS."""
    return _same(found, wanted, tolerance) or (
        isinstance(wanted, list) and len(wanted) == 1 and _same(found, wanted[0], tolerance)
    )


def _same(found: Any, wanted: Any, tolerance: Tolerance) -> bool:
    """Numbers by value (3 is 3.0), tuples and arrays as lists, keys of objects as text."""
    if hasattr(found, "tolist"):
        found = found.tolist()
    if isinstance(wanted, list):
        if not isinstance(found, (list, tuple)) or len(found) != len(wanted):
            return False
        return all(_same(a, b, tolerance) for a, b in zip(found, wanted, strict=True))
    if isinstance(wanted, dict):
        if not isinstance(found, Mapping) or len(found) != len(wanted):
            return False
        named = {key if isinstance(key, str) else _key(key): value for key, value in found.items()}
        return named.keys() == wanted.keys() and all(_same(named[key], wanted[key], tolerance) for key in wanted)
    if isinstance(wanted, str) or wanted is None or isinstance(wanted, bool) or tolerance is None:
        return type(found) in _SCALARS and bool(found == wanted)
    return type(found) in _SCALARS and not isinstance(found, str) and _close(found, wanted, tolerance)


def _key(key: Any) -> str:
    """A key as JSON writes it."""
    return json.dumps(key) if isinstance(key, (bool, type(None))) else str(key)


_SCALARS = (type(None), bool, int, float, str)
