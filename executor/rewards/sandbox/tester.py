"""The process that runs a row's tests and gives the verdict. It never runs a response's code: it asks for results.

It is process 1 of the sample's process-id namespace, so when it ends, the kernel ends all that the response started.

Tests read as if the response's names stood in the same module, or in a module `solution`: both are looked up in the
response's process, and what is found there is data, or a `Remote`. Built-in functions are the tester's own, whatever
the response calls by their names, unless a test imports one from `solution`.

After the tests' module has run, functions in it that pytest would collect (`test…` without parameters, methods of
`Test…` classes, `unittest` cases) are called too, unless the module calls them itself.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import json
import os
import select
import signal
import socket
import sys
import traceback
import types
from collections.abc import Iterator
from typing import Any

from . import link, response
from .isolation import Isolation
from .kernel import die_with_parent, limit
from .plain_data import is_plain
from .references import NAMEABLE, Bound, Names, Solution
from .remote_objects import Untestable

REHEARSAL = "from solution import same\ndef test_same():\n    assert same([1]) == [1]\n"
"""A test before there is a job: a fork's first use of each page of memory takes longer than its second."""
GRACE_S = 1.0
"""How long a response's process that has closed its connection is given to end before it is killed."""
RECURSION = 5000
"""Depth of the data that the tester reads, in Python calls; the response's own limit is Python's default."""


def run(wire: int, number: int, isolation: Isolation) -> None:
    """Test sample `number`, the job for which comes on the socket `wire`; never returns."""
    try:
        die_with_parent()
        os.setpgid(0, 0)
        worker = socket.socket(fileno=wire)
        _close_all_but(wire, *isolation.keep())
        isolation.new_file_system()
        isolation.close_in()
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            ours.close()
            worker.close()
            _become_response(theirs, isolation)
        theirs.close()
        connection = link.Link(ours, is_tester=True, ended=os.pidfd_open(pid), allowed=refuse)
        # The response's process is up too, and what testing takes has been used once.
        run_tests(REHEARSAL, connection, {"same": connection.ask("rehearse")})
        worker.sendall(b"up\n")
    except BaseException as error:  # noqa: BLE001 - told to the worker; nothing of the response has run
        os.write(wire, json.dumps({"failure": _line(error)}).encode())
        os._exit(1)
    text = _whole(worker)
    if not text:
        os._exit(0)  # the worker closed: nothing is to be tested
    job = json.loads(text)
    limits = job["cpu_s"], job["memory_bytes"], job["file_bytes"]
    folder = isolation.new_folder(number)
    os.chdir(folder)
    limit(*limits, own_ids=isolation.has("user"))
    verdict = {"passed": False, "detail": "", "timed_out": False}
    try:
        why, defined = loaded(connection.ask("load", job["response"], folder, *limits))
        verdict["detail"] = why[:500]
        if why == "":
            sys.setrecursionlimit(RECURSION)
            run_tests(job["tests"], connection, defined)
        # A test may have swallowed the loss of the response's process.
        verdict["passed"] = why == "" and not connection.lost
    except link.Lost:
        pass
    except Untestable as error:
        verdict["row" if derives_from_response(job["tests"]) else "detail"] = str(error)
    except SystemExit as error:
        verdict["detail"] = f"SystemExit: {error.code} before the tests ended"
    except BaseException as error:  # noqa: BLE001 - whatever tests raise is their verdict
        verdict["detail"] = _line(error)
    if connection.lost:
        verdict |= {"passed": False, **_ending(pid, connection.lost)}
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


def run_tests(source: str, connection: link.Link, defined: dict[str, Any] | None = None) -> None:
    """Run tests against the response at the other end of `connection`; returns if they all hold.

    `defined`: what its module is known to hold, as long as no name in it is bound anew.
    """
    names = Bound(connection, defined or {})
    module = types.ModuleType("tests")
    namespace = Names(module.__dict__, names)
    sys.modules["tests"] = module
    sys.modules["solution"] = Solution(connection, names, namespace)
    original = _replaceable()
    connection.mirrored = lambda: {name: now for name, now in _replaceable().items() if now is not original[name]}
    tree = ast.parse(source, "tests.py")
    exec(compile(tree, "tests.py", "exec"), namespace)
    for test in _collected(tree, namespace):
        test()


def derives_from_response(source: str) -> bool:
    """Whether tests, by their own text, derive a class from one that only the response can define.

    A response must not be able to have its row called untestable, by which it would be drawn again.
    """
    theirs: set[str] = set()
    known = {*dir(builtins), *sys.stdlib_module_names}
    for module in (sys.modules[name] for name in NAMEABLE if name in sys.modules):
        known |= {name for name, value in vars(module).items() if isinstance(value, type)}
    bases: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                origin = node.module if isinstance(node, ast.ImportFrom) else alias.name
                (theirs if origin == "solution" else known).add(alias.asname or alias.name.partition(".")[0])
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)):
            known.add(node.name)
        if isinstance(node, ast.ClassDef):
            bases |= {name.id for base in node.bases for name in ast.walk(base) if isinstance(name, ast.Name)}
    return bool(bases & theirs or bases - known)


def refuse(operation: str, target: Any, rest: tuple[Any, ...]) -> None:
    """Raise if the response may not do this to an object of the tests': it could read the tests, or rewrite them.

    Open to it are only objects that a test handed it: functions to call, objects to use by their public names.
    """
    if type(target) in _NOT_OPEN or is_plain(target):
        raise TypeError(f"a {type(target).__name__} of the tests' is not open to a response")
    if operation in ("getattr", "setattr", "delattr"):
        name = rest[0]
        if not isinstance(name, str) or name.startswith(("_", "gi_", "cr_", "ag_", "tb_")) or name == "mro":
            raise AttributeError(f"{name!r} of the tests' object is not open to a response")
        if operation != "getattr" and isinstance(target, (type, types.FunctionType)):
            raise AttributeError(f"{name!r} of the tests' object cannot be changed by a response")


_NOT_OPEN = (types.ModuleType, types.FrameType, types.CodeType, types.TracebackType, Solution, Names, link.Link)


def _collected(tree: ast.Module, namespace: dict[str, Any]) -> Iterator[Any]:
    """The tests that pytest would find in the module and that its own statements do not mention."""
    called = {
        name.id
        for statement in tree.body
        if not isinstance(statement, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef, ast.Import, ast.ImportFrom))
        for name in ast.walk(statement)
        if isinstance(name, ast.Name)
    }
    for statement in tree.body:
        name = getattr(statement, "name", "")
        if isinstance(statement, ast.FunctionDef) and name.startswith("test") and name not in called:
            if not _required(statement.args):
                yield namespace[name]
        elif isinstance(statement, ast.ClassDef) and name not in called:
            kind = namespace[name]
            if "unittest" in sys.modules and issubclass(kind, sys.modules["unittest"].TestCase):
                yield lambda kind=kind: _run_case(kind)
            elif name.startswith("Test") and type(kind) is type and "__init__" not in vars(kind):
                yield from (_method(kind, each) for each in vars(kind) if each.startswith("test"))


def _required(arguments: ast.arguments, given: int = 0) -> bool:
    """Whether a function cannot be called with `given` arguments."""
    positional = len(arguments.posonlyargs) + len(arguments.args) - len(arguments.defaults)
    return positional > given or any(default is None for default in arguments.kw_defaults)


def _method(kind: type, name: str) -> Any:
    def call() -> None:
        tested = kind()
        for step in ("setup_method", name, "teardown_method"):
            if hasattr(tested, step):
                getattr(tested, step)()

    return call


def _run_case(kind: Any) -> None:
    unittest = sys.modules["unittest"]
    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(kind).run(result)
    failed = [*result.errors, *result.failures]
    if failed or result.unexpectedSuccesses:
        raise AssertionError(failed[0][1].strip().splitlines()[-1] if failed else "an expected failure passed")


def _replaceable() -> dict[str, Any]:
    return {name: getattr(sys if name in link.MIRRORED[:3] else builtins, name) for name in link.MIRRORED}


def _become_response(channel: socket.socket, isolation: Isolation) -> None:
    """Never returns."""
    try:
        os.setpgid(0, 0)  # a signal to its own process group reaches nobody else
        die_with_parent()
        isolation.close_in_response()
        _close_all_but(channel.fileno())
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
    if code < 0 and -code in signal.valid_signals():
        return {"detail": f"killed by {signal.Signals(-code).name}", "timed_out": False}
    return {"detail": f"ended with code {code} before the tests did", "timed_out": False}


def _line(error: BaseException) -> str:
    """`Type: message`, and the line of the tests at which it was raised."""
    text = traceback.format_exception_only(error)[-1].strip()[:400]
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == "tests.py"]
    return f"{text} (line {lines[-1]} of the tests)" if lines else text


def _whole(channel: socket.socket) -> bytes:
    """What comes until the other end stops writing."""
    parts = []
    while part := channel.recv(1 << 20):
        parts.append(part)
    return b"".join(parts)


def _close_all_but(*kept: int) -> None:
    first = 3
    for each in sorted(kept):
        os.closerange(first, each)
        first = max(first, each + 1)
    os.closerange(first, 4096)
