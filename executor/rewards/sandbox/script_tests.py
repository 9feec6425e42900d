"""Runs a row's script of tests in the tester, and counts what it ran: a test that did not end is no test passed.

The module runs first. Then come the tests that pytest would collect and that have not run to their end by then, and
functions that test a candidate. Classes of any name count as pytest's `Test…` do, so that no test is left out. Tests
that only pytest can run (fixtures, `parametrize`) are run by pytest itself, on the module that has run.

The text is changed before it runs, so that what happens is known: each assertion that held is counted; one that failed
is noted, so that an `except` around it does not hide it; each test function that ends says so.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import os
import re
import sys
import traceback
import types
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from .counted_text import CAUGHT, ENDED, FAILED, HELD, PASSED, Changer, as_test
from .link import LinkLost
from .remote_objects import is_remote
from .visible_files import clear

FILE = "tests.py"
_EXPECTS_FAILURE = re.compile(r"[rR]aises\w*\(\s*AssertionError|xfail|expectedFailure")
PYTEST_OPTIONS = (
    "-c", "/dev/null", "--noconftest", "--assert=plain", "--capture=no", "-o", "python_classes=*", "--rootdir=.",
    "--basetemp=./pytest",
    *(part for name in ("cacheprovider", "terminal", "logging", "faulthandler", "junitxml", "pastebin", "stepwise",
                        "doctest", "unraisableexception", "threadexception", "warnings")
      for part in ("-p", f"no:{name}")),
)  # fmt: skip


class BadTests(Exception):
    """The tests cannot be run, whatever the response."""


class Script:
    """A script of tests and what has come of it.

    Args:
        source: Python.
        uses_pytest: whether pytest runs what it collects.
        tests: names of its functions that are tests; others that are called so are helpers. None: all are tests.
        go_on: whether the others run when a test fails.
    """

    def __init__(
        self, source: str, uses_pytest: bool = False, tests: list[str] | None = None, go_on: bool = False
    ) -> None:
        self._tests, self._uses_pytest, self._go_on = tests, uses_pytest, go_on
        self._tree = ast.parse(source, FILE)
        for node in ast.walk(self._tree) if re.search(r"from\s+\.", source) else ():
            if isinstance(node, ast.ImportFrom) and node.level:  # `from .solution import f`
                node.level, node.module = 0, "solution"
        self._notes_failures = not _EXPECTS_FAILURE.search(source)
        self.passed, self.failures = 0, list[str]()
        self._held, self._ended, self._hidden = 0, set[str](), list[int]()
        self._left_out, self._taken = 0, set[str]()
        self._lost: BaseException | None = None
        self._counted = False
        """Whether the script has assertions of the kinds that are counted."""
        self._import()

    @property
    def total(self) -> int:
        """Tests that have passed or failed."""
        return self.passed + len(self.failures)

    def run(
        self,
        module: types.ModuleType,
        namespace: dict[str, Any],
        candidates: Iterable[str] = (),
        entry: str = "",
        used: Callable[[], bool] = lambda: True,
    ) -> None:
        """Run it all; what fails is in `failures`. `used`: whether it has used anything of the response so far.

        Raises `BadTests` and `LinkLost`.
        """
        # Whatever the tests' last lines ask for: all that is collected runs.
        for name in {"unittest", "pytest"} & sys.modules.keys():
            vars(sys.modules[name])["main"] = lambda *_, **__: None
        changer = Changer(self._notes_failures)
        own = sum(isinstance(each, ast.Assert) for each in self._tree.body)
        tree = changer.visit(self._tree)
        self._counted = changer.counts
        tree.body = [as_test(each, self._go_on) if hasattr(each, "was_assert") else each for each in tree.body]
        namespace.update(
            {
                HELD: self._hold,
                FAILED: self._hidden.append,
                ENDED: self._end,
                CAUGHT: self._catch,
                PASSED: self._pass,
            }
        )
        try:
            exec(compile(ast.fix_missing_locations(tree), FILE, "exec", dont_inherit=True), namespace)
        except BaseException as error:  # noqa: BLE001 - whatever tests raise is their verdict
            if not _is_own_exit(error):
                if not isinstance(error, LinkLost) and not used():
                    raise BadTests(line_of(error)) from None
                self._catch(error)
        missing = own - self.passed - len(self.failures)
        self.failures += ["the tests ended before it"] * max(0, missing)
        if self._go_on or not self.failures:
            self._collect(module, namespace, candidates, entry)
        for name in self._tests or () if self._go_on or not self.failures else ():
            reached = any(each == name or each.startswith(f"{name}.") for each in self._taken | self._ended)
            if name in namespace and not reached:
                self.failures.append(f"{name} was not run")
        if not self.total and self._left_out:
            raise BadTests("all of its tests are skipped, or expected to fail")
        if not self.total:
            self.passed = 1  # the module is one test
        if not self.failures and self._hidden:
            self.passed, self.failures = 0, [f"AssertionError (line {self._hidden[0]} of the tests)"]
        if not self.failures and self._counted and not self._held:
            self.passed, self.failures = 0, ["no assertion of the tests was reached"]

    def _collect(
        self, module: types.ModuleType, namespace: dict[str, Any], candidates: Iterable[str], entry: str
    ) -> None:
        ended = set(self._ended)
        # Not the response's objects: pytest looks closely at all that it finds.
        vars(module).update({name: value for name, value in namespace.items() if not is_remote(value)})
        for name in candidates:
            self._try(partial(_run_candidate, namespace, name, entry))
        if self._uses_pytest:
            self._run_pytest(module, ended)
            return
        tests = [(name, test) for name, test in self._found(namespace) if name not in ended]
        self._taken |= {name for name, _ in tests}
        for step, few in (("setup_module", tests[:1]), ("", tests), ("teardown_module", tests[:1])):
            for _, test in few:
                self._try(test if not step else partial(_run_step, module, step, module), counts=not step)
                if self.failures and not self._go_on:
                    return

    def _try(self, test: Callable[[], Any], counts: bool = True) -> None:
        before = len(self._hidden)
        try:
            test()
            if len(self._hidden) > before:
                raise AssertionError("an assertion failed, and the tests go on")
            self.passed += counts
        except _Skipped:
            self._left_out += 1
        except BaseException as error:  # noqa: BLE001
            self._catch(error)

    # ---- what the changed text calls ----

    def _hold(self) -> None:
        self._held += 1

    def _pass(self) -> None:
        self.passed += 1

    def _end(self, name: str, value: Any = None) -> Any:
        self._ended.add(name)
        return value

    def _catch(self, error: BaseException) -> None:
        if isinstance(error, (LinkLost, BadTests)):
            raise error
        self.failures.append(line_of(error))

    # ---- collecting ----

    def _import(self) -> None:
        """Run the tests' own imports, before anything of the response can take part. Raises `BadTests`."""
        for node in self._tree.body:
            if isinstance(node, ast.Import):
                foreign = all(alias.name.partition(".")[0] != "solution" for alias in node.names)
            else:
                foreign = isinstance(node, ast.ImportFrom) and not node.level and node.module != "solution"
            if foreign and getattr(node, "module", "") != "__future__":
                try:
                    exec(compile(ast.Module([node], []), FILE, "exec", dont_inherit=True), {})
                except Exception as error:  # noqa: BLE001
                    raise BadTests(f"{type(error).__name__}: {error}"[:300]) from None

    def _found(self, namespace: dict[str, Any]) -> Iterator[tuple[str, Callable[[], Any]]]:
        """Tests by name, those of classes as `Class.test`."""
        wanted = {name for name in namespace if name.startswith("test")} if self._tests is None else set(self._tests)
        mixed_in = _mixed_in(namespace)
        for name, value in list(namespace.items()):
            if isinstance(value, type) and type.__getattribute__(value, "__module__") == namespace["__name__"]:
                yield from _of_class(value) if value not in mixed_in else ()
            elif isinstance(value, types.FunctionType) and name in wanted:
                yield name, partial(_run_function, value, namespace)

    def _run_pytest(self, module: types.ModuleType, ended: set[str]) -> None:
        import pytest
        from _pytest.config import main  # the tests may call pytest.main, which does nothing here

        script, mixed_in = self, _mixed_in(vars(module))
        known = set(self._tests or ())
        for name, value in vars(module).items():
            if name.startswith("test") and isinstance(value, types.FunctionType) and name not in known:
                value.__test__ = False  # type: ignore[attr-defined]

        class Given(pytest.Module):
            def _getobj(self) -> Any:
                return module

        class Plugin:
            def __init__(self) -> None:
                self.outcomes: dict[str, str] = {}

            @pytest.hookimpl
            def pytest_collection(self, session: Any) -> bool:
                given = Given.from_parent(session, path=Path(FILE).absolute())
                found = [item for item in session.genitems(given)
                         if _qualified(item) not in ended and getattr(item, "cls", None) not in mixed_in]  # fmt: skip
                session.items, session.testscollected = found, len(found)
                script._taken |= {_qualified(item) for item in found}
                self.outcomes = {item.nodeid: "" for item in found}
                return True

            @pytest.hookimpl
            def pytest_collectreport(self, report: Any) -> None:
                if report.failed:
                    script.failures.append(str(report.longrepr).strip().splitlines()[-1][:400])

            @pytest.hookimpl(tryfirst=True)
            def pytest_pyfunc_call(self, pyfuncitem: Any) -> bool | None:
                if not inspect.iscoroutinefunction(pyfuncitem.obj):
                    return None
                wanted = pyfuncitem._fixtureinfo.argnames
                asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in wanted}))
                return True

            @pytest.hookimpl(wrapper=True)
            def pytest_runtest_makereport(self, item: Any, call: Any) -> Any:
                report = yield
                error = call.excinfo.value if call.excinfo else None
                if isinstance(error, LinkLost):
                    script._lost = error
                    item.session.shouldstop = "lost"
                # By marks in the tests' text, not by what they call while they run: the response has a say in that.
                marks = {mark.name for mark in item.iter_markers()}
                by_mark = marks & {"skip", "skipif"} if report.when == "setup" else set()
                if report.outcome == "skipped" and (by_mark or (hasattr(report, "wasxfail") and "xfail" in marks)):
                    self.outcomes[item.nodeid] = "left out"
                elif report.outcome != "passed":
                    self.outcomes[item.nodeid] = "failed"
                    script.failures.append(line_of(error) if error is not None else str(report.longrepr)[:400])
                    if not script._go_on:
                        item.session.shouldstop = "a test failed"
                elif report.when == "call":
                    self.outcomes[item.nodeid] = "passed"
                return report

        plugin = Plugin()
        try:
            main(list(PYTEST_OPTIONS), plugins=[plugin])
        except BaseException as error:  # noqa: BLE001
            self._catch(error)
        if self._lost is not None:
            raise self._lost
        outcomes = list(plugin.outcomes.values())
        self.passed += outcomes.count("passed")
        self._left_out += outcomes.count("left out")
        if not self.failures and "" in outcomes:
            self.failures.append("a test did not run to its end")


def warm_pytest(folder: str) -> None:
    """Have pytest import what it imports late; in the starter, once. `folder`: for its files, which are removed."""
    source = "import pytest\n@pytest.mark.parametrize('x', [1])\ndef test_x(x, tmp_path, capsys, monkeypatch): assert x"
    script = Script(source, uses_pytest=True, tests=["test_x"])
    before = os.getcwd()  # noqa: PTH109
    os.chdir(folder)
    module = types.ModuleType("tests")
    script.run(module, vars(module))
    clear(f"{folder}/pytest")
    os.chdir(before)
    if script.failures or script.passed != 1:
        raise RuntimeError(f"pytest does not run here: {script.failures}")


class _Skipped(BaseException):
    """A test that its own text leaves out."""


def _qualified(item: Any) -> str:
    kind = getattr(item, "cls", None)
    name = getattr(item, "originalname", None) or item.name
    return f"{kind.__qualname__}.{name}" if kind is not None else str(name)


def _run_candidate(namespace: dict[str, Any], name: str, entry: str) -> None:
    namespace[name](eval(entry, namespace))


def _run_function(test: Any, namespace: dict[str, Any]) -> None:
    for name in ("setup_function", "", "teardown_function"):
        if not name:
            _waited(test())
        elif name in namespace:
            _waited(_given(namespace[name], test))


def _waited(value: Any) -> None:
    if inspect.iscoroutine(value):
        asyncio.run(value)


def _given(step: Any, argument: Any) -> Any:
    """Call a set-up with what it is for, if it wants that."""
    return step(argument) if inspect.signature(step).parameters else step()


def _run_step(owner: Any, name: str, argument: Any) -> None:
    if name in vars(owner):
        _waited(_given(vars(owner)[name], argument))


def _of_class(kind: type) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Tests of a class and of the classes in it."""
    unittest = sys.modules["unittest"]
    if _is_case(kind):
        names = unittest.defaultTestLoader.getTestCaseNames(kind)
        for method in names or (["runTest"] if hasattr(kind, "runTest") else []):
            yield f"{kind.__qualname__}.{method}", partial(_run_case, kind, method)
    elif _can_be_made(kind):
        for method in [each for each in dir(kind) if each.startswith("test") and callable(getattr(kind, each))]:
            yield f"{kind.__qualname__}.{method}", partial(_run_method, kind, method)
    for inner in list(vars(kind).values()):
        if isinstance(inner, type) and inner.__qualname__.startswith(f"{kind.__qualname__}."):
            yield from _of_class(inner)


def _is_case(kind: type) -> bool:
    return issubclass(kind, sys.modules["unittest"].TestCase)


def _mixed_in(namespace: dict[str, Any]) -> set[type]:
    """Classes that are no test cases, but a part of some: their tests run there alone, since they may need those."""
    classes = [value for value in namespace.values() if isinstance(value, type) and not is_remote(value)]
    return {base for each in classes if _is_case(each) for base in each.__mro__ if not _is_case(base)}


def _can_be_made(kind: type) -> bool:
    """Whether an object of a class is made without arguments."""
    try:
        inspect.signature(kind).bind()
    except (TypeError, ValueError):
        return False
    return True


def _run_method(kind: type, name: str) -> None:
    tested = kind()
    for step in ("setup_class", "setUp", "setup_method", name, "teardown_method", "tearDown", "teardown_class"):
        if hasattr(tested, step):
            method = getattr(tested, step)
            _waited(_given(method, getattr(tested, name)) if step.endswith("_method") else method())


def _run_case(kind: Any, name: str) -> None:
    unittest = sys.modules["unittest"]
    if getattr(kind, "__unittest_skip__", False) or getattr(getattr(kind, name), "__unittest_skip__", False):
        raise _Skipped
    result = unittest.TestResult()
    # A suite, which runs what the class and the module set up.
    unittest.TestSuite([kind(name)]).run(result)
    failed = [*result.errors, *result.failures]
    if failed:
        raise AssertionError(failed[0][1].strip().splitlines()[-1])
    if result.unexpectedSuccesses or result.skipped or result.testsRun != 1:
        raise AssertionError("an expected failure passed" if result.unexpectedSuccesses else "was not run to its end")


def _is_own_exit(error: BaseException) -> bool:
    """Whether the tests themselves end their run, and say that all is well."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    return (
        type(error) is SystemExit
        and error.code in (None, 0, False)
        and last is not None
        and last.tb_frame.f_code.co_filename == FILE
    )


def line_of(error: BaseException) -> str:
    """`Type: message`, and the line of the tests at which it was raised."""
    text = " ".join("".join(traceback.format_exception_only(error)).split())[:400]
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == FILE]
    return f"{text} (line {lines[-1]} of the tests)" if lines else text
