"""The process in which a response's code runs, or that forks one for each case. Nothing that it says is believed but
as the response's own word.

It is forked before the tester has read the tests, so no test is in its memory; it holds one socket, to the tester.
"""

from __future__ import annotations

import builtins
import importlib
import operator
import os
import socket
import sys
import threading
import types
import warnings
from typing import Any

from .case_runs import CaseRunner, last_line
from .isolation import Isolation
from .kernel import limit
from .link import LinkLost, ProcessLink
from .references import FOUND, MISSING, NAMEABLE, PACKAGES, STANDARD, assume_imports

MOST_TOLD = 64
"""Functions and classes that the tester is told of at once; of others it asks when a test names them."""


def run(channel: socket.socket, isolation: Isolation) -> None:
    """Load what the tester sends and answer its requests; never returns."""
    process = os.getpid()
    module = types.ModuleType("solution")
    module.__file__ = "solution.py"
    sys.modules["solution"] = module
    link = ProcessLink(channel, is_tester=False)

    def load(source: str, folder: str, cpu_s: int, memory_bytes: int, file_bytes: int) -> tuple[str, dict[str, Any]]:
        """Run the response's source. Returns why that failed, "" if it did not, and what it has defined, by name."""
        isolation.close_in_response()
        os.chdir(folder)
        limit(cpu_s, memory_bytes, file_bytes, isolation.has("user"))
        assume_imports(vars(builtins))
        try:
            exec(compile(source, "response.py", "exec", dont_inherit=True), module.__dict__)
        except SystemExit as error:
            return f"SystemExit: {error.code} before the tests ended", {}
        except BaseException as error:  # noqa: BLE001 - whatever the response raises is its answer
            return last_line(error), {}
        if os.getpid() != process:
            os._exit(1)  # a copy that the response forked answers nobody
        defined = [(name, value) for name, value in module.__dict__.items() if _is_own(value)]
        return "", dict(defined[:MOST_TOLD])

    def get(name: str) -> tuple[str, Any]:
        """What the response's module calls `name`."""
        namespace = module.__dict__
        if name == "*":
            public = namespace.get("__all__", [each for each in namespace if not each.startswith("_")])
            return FOUND, [str(each) for each in public]
        if name not in namespace:
            return MISSING, None
        named = _standard_name(namespace[name], name)
        return (STANDARD, named) if named else (FOUND, namespace[name])

    bound: list[Any] = []
    version = 0

    def count_bindings() -> int:
        """A number that grows when names of the module are bound anew."""
        nonlocal bound, version
        now = list(module.__dict__.values())
        if len(now) != len(bound) or not all(map(operator.is_, now, bound)):
            bound, version = now, version + 1
        return version

    def rehearse() -> Any:
        """What loading a response does, done once; returns a function that returns its argument."""
        names: dict[str, Any] = {}
        exec(compile("def same(x):\n    return x\n", "rehearsal.py", "exec"), names)
        return names["same"]

    def warn(message: Any, category: Any, *_: Any, **__: Any) -> None:
        """Have a warning seen by tests that expect it."""
        if link.answering and threading.current_thread() is threading.main_thread():
            link.ask("warn", str(message), category)

    warnings.showwarning = warn
    warnings.simplefilter("always")
    link.version = count_bindings
    link.operations |= {
        "load": load,
        "rehearse": rehearse,
        "seed": lambda name, *values: importlib.import_module(name).seed(*values),
        "run case": CaseRunner(isolation, channel.close).run,
        "get": get,
        "set": module.__dict__.__setitem__,
        "unset": module.__dict__.__delitem__,
    }
    try:
        link.serve()
    except LinkLost:
        os._exit(1)


def _is_own(value: Any) -> bool:
    """Whether a function or class was defined by the response."""
    return isinstance(value, (type, types.FunctionType)) and getattr(value, "__module__", None) == "solution"


def _standard_name(value: Any, name: str) -> str:
    """The module of an object that the response imported from elsewhere; empty if it is its own, or data, or what the
    tester would not find by this name (`from math import gcd as f`): that is called as if it were its own."""
    if isinstance(value, types.ModuleType):
        return value.__name__
    if isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType)):
        module = str(getattr(value, "__module__", None))
        known = module.partition(".")[0] in NAMEABLE | PACKAGES
        return module if known and getattr(sys.modules.get(module), name, None) is value else ""
    if type(value).__module__ == "typing":
        module = str(getattr(value, "__module__", ""))
        return module if module not in ("solution", "builtins", "__main__") else ""
    return ""
