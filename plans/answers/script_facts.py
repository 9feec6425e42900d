"""What the text of Python tests says: which tests it has, what they use of the response, what they import.

A test is what can fail: an assertion, or what raises, that runs when the module does or when its test functions are
called. Who calls whom is read by name alone, so that more counts as reached than is.
"""

from __future__ import annotations

import abc
import ast
import builtins
import collections
import enum
import io
import json
import symtable
import sys
import threading
import typing
import unittest
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

SOLUTION = "solution"
"""The module by which tests may import what the response defines."""
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_ENDS = ("exit", "_exit", "quit", "abort", "raises", "warns", "deprecated_call", "testmod")
_FIXTURES = frozenset({
    "cache", "capfd", "capfdbinary", "capsys", "capsysbinary", "monkeypatch", "pytestconfig", "record_property",
    "recwarn", "request", "tmp_path", "tmp_path_factory", "tmpdir", "tmpdir_factory",
})  # fmt: skip
"""Of pytest's own, those that it has here; a response's log is in another process than `caplog`."""
_OF_RECORDS = ("__init__", "__repr__", "__str__", "__eq__", "__hash__", "__lt__")
_COMMON = frozenset({
    "Any", "Callable", "ChainMap", "Counter", "Decimal", "Deque", "Dict", "Fraction", "FrozenSet", "Generator",
    "Iterable", "Iterator", "List", "Mapping", "NamedTuple", "Optional", "OrderedDict", "Sequence", "Set", "Tuple",
    "Type", "TypeVar", "Union", "dataclass", "defaultdict", "deque", "namedtuple",
})  # fmt: skip
"""Names of the standard library that tests use without importing them, since data sets import them beforehand."""


@dataclass(frozen=True)
class ScriptFacts:
    """What is known of a script before it runs.

    Attributes:
        needs: names that it uses and does not define: the response must.
        packages: top-level modules that it imports, beyond the standard library and `solution`.
        tests: names of functions and classes that hold tests, as `test_f` and `TestF`, in their order.
        candidates: functions that test the function that they are given, as HumanEval's `check`.
        as_main: whether its tests run only as a program's, below `if __name__ == "__main__"`.
        uses_pytest: whether it can only be run by pytest.
        overrides: built-in names that stand for functions of the response's.
        defines: names that it defines or imports itself, other than from `solution`.
        records: by name, the text of classes that only hold data, as LeetCode's `TreeNode`: a response may use them.
        problem: why it cannot be run as tests; "" if it can.
    """

    needs: frozenset[str]
    packages: frozenset[str]
    tests: tuple[str, ...]
    candidates: tuple[str, ...]
    as_main: bool
    uses_pytest: bool
    overrides: frozenset[str]
    defines: frozenset[str]
    records: dict[str, str]
    problem: str


def script_facts(source: str) -> ScriptFacts:
    """Read a script. Raises `SyntaxError` (or `ValueError`, `RecursionError`) if it is no Python."""
    tree = ast.parse(source, "tests.py")
    compile(tree, "tests.py", "exec")  # finds what parsing does not, as a `return` outside of a function
    records = _records(tree)
    _shorten(tree)
    modules, aliases, imported, starred = _imports(tree)
    packages = {name for name in modules if name not in sys.stdlib_module_names and name != SOLUTION}
    free, bound = _names(source)
    for module in starred:
        # Only what is loaded already: to import a module is to run it.
        free -= set(vars(sys.modules[module])) if module in sys.modules else set()
    # A module cannot be called: where its name is, a function of the response's is meant.
    called = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    usual = (sys.stdlib_module_names - called) | _COMMON
    needs = set(imported.values()) | (free - usual)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in aliases:
            needs.add(node.attr)
    needs = needs or (free & called)
    if aliases and not needs:
        needs.add(SOLUTION)
    reached = _Reach(tree)
    always, main = reached.statements()
    tests, candidates, begun, problem, fixtures = _collected(tree, reached)
    if not problem and begun and (fixtures or "pytest" in modules):
        problem = f"pytest does not run the tests of {begun[0]}, since that class has an __init__; use setup_method"
    roots = [*always, *(node for name in (*tests, *candidates) for node in reached.defined[name])]
    checks = reached.checks(roots)
    as_main = reached.checks(main)
    bases = {name.id for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for base in node.bases
             for name in ast.walk(base) if isinstance(name, ast.Name)}  # fmt: skip
    if not problem and bases & (aliases | set(imported) | (free - _classes() - sys.stdlib_module_names)):
        problem = "they derive a class from one of the response's, which lives in another process; have them use it"
    if not problem and _skips(tree, needs | aliases | set(imported)):
        problem = "a test of theirs is skipped where the response says so; write it without that condition"
    logs = ("assertLogs", "assertNoLogs")
    if not problem and any(isinstance(node, ast.Call) and _called(node) in logs for node in ast.walk(tree)):
        problem = "a test of theirs looks at the log, which the response writes in another process; remove that test"
    if not problem and not checks and not as_main:
        unused = next((name for name in reached.functions if reached.checks(reached.functions[name].body)), "")
        problem = "the tests check nothing: no assertion in them could fail; write assert, or use pytest or unittest"
        if unused:
            problem = f"the tests check nothing: nothing calls {unused}, which holds the assertions; call it at the end"
    overrides = set() if needs else _builtin_subjects(tree) - bound
    needs |= overrides
    return ScriptFacts(
        frozenset(needs), frozenset(packages | ({"pytest"} if fixtures else set())), tuple(tests), tuple(candidates),
        as_main, fixtures or "pytest" in modules, frozenset(overrides),
        frozenset(bound - set(imported)), records, problem,
    )  # fmt: skip


def _shorten(tree: ast.Module) -> None:
    """Leave one item of each list, tuple and set that holds only constants: some tests have megabytes of them."""
    plain = (ast.Constant, ast.List, ast.Tuple, ast.Set, ast.UnaryOp)
    for node in reversed(list(ast.walk(tree))):  # what is inside before what it is in
        if isinstance(node, (ast.List, ast.Tuple, ast.Set)) and isinstance(getattr(node, "ctx", None), ast.Load | None):
            if all(isinstance(each, plain) and getattr(each, "is_data", True) for each in node.elts):
                del node.elts[1:]
            else:
                node.is_data = False  # type: ignore[union-attr]
        elif isinstance(node, ast.UnaryOp) and not isinstance(node.operand, ast.Constant):
            node.is_data = False  # type: ignore[attr-defined]


def _imports(tree: ast.Module) -> tuple[set[str], set[str], dict[str, str], set[str]]:
    """Top-level modules; names of the module `solution`; names of what is imported from it, with those that it has
    there; modules imported by `*`."""
    modules: set[str] = set()
    aliases: set[str] = set()
    imported: dict[str, str] = {}
    starred: set[str] = set()
    tries = [node for node in ast.walk(tree) if isinstance(node, ast.Try) and _catches(node)]
    optional = {id(node) for each in tries for node in ast.walk(each)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            aliases |= {alias.asname or alias.name for alias in node.names if alias.name == SOLUTION}
            modules |= set() if id(node) in optional else {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = (node.module or "").partition(".")[0] if node.level == 0 else SOLUTION
            modules |= set() if id(node) in optional else {module}
            if module == SOLUTION:
                imported |= {alias.asname or alias.name: alias.name for alias in node.names if alias.name != "*"}
            elif any(alias.name == "*" for alias in node.names):
                starred.add(node.module or "")
        elif isinstance(node, ast.Call) and _called(node) == "importorskip" and node.args:
            modules |= {str(each.value).partition(".")[0] for each in node.args[:1] if isinstance(each, ast.Constant)}
    return modules, aliases, imported, starred


def _records(tree: ast.Module) -> dict[str, str]:
    """Classes with no other methods than those of records; others might do what the response is to write."""
    return {
        node.name: ast.unparse(node)
        for node in tree.body
        if isinstance(node, ast.ClassDef)
        and all((isinstance(each, FUNCTIONS) and each.name in _OF_RECORDS) or _is_text(each) for each in node.body)
    }


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _called(node: ast.Call) -> str:
    """The last name of what is called."""
    return node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")


def _skips(tree: ast.Module, theirs: set[str]) -> bool:
    """Whether the response has a say in a condition by which tests are skipped."""
    return any(
        isinstance(name, ast.Name) and name.id in theirs
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and _called(node) in ("skipIf", "skipUnless", "skipif")
        for name in ast.walk(node)
    )


def _classes() -> set[str]:
    """Names of classes of the library that tests derive from, also without an import: the response may have done it."""
    modules = (abc, collections, enum, io, json, threading, typing, unittest)
    return {name for module in modules for name, value in vars(module).items() if isinstance(value, type)}


def _catches(node: ast.Try) -> bool:
    """Whether a `try` goes on without what it cannot import."""
    return any(handler.type is None or "Import" in ast.dump(handler.type) for handler in node.handlers)


def _names(source: str) -> tuple[set[str], set[str]]:
    """Names that a module uses and does not define, built-in ones left out; and those that it defines."""
    used: set[str] = set()
    bound: set[str] = {"__name__", "__file__", "__doc__"}
    waiting = [symtable.symtable(source, "tests.py", "exec")]
    while waiting:
        table = waiting.pop()
        waiting += table.get_children()
        top = table.get_type() == "module"
        for symbol in table.get_symbols():
            if not top and not symbol.is_global():
                continue
            if symbol.is_assigned() or symbol.is_imported() or (top and symbol.is_namespace()):
                bound.add(symbol.get_name())
            if symbol.is_referenced():
                used.add(symbol.get_name())
    return used - bound - set(dir(builtins)), bound


def _builtin_subjects(tree: ast.Module) -> set[str]:
    """Built-in functions that an assertion calls outermost: tests of a `sum` of the response's use no other name."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert):
            left = node.test.left if isinstance(node.test, ast.Compare) else node.test
            if isinstance(left, ast.Call) and isinstance(left.func, ast.Name) and hasattr(builtins, left.func.id):
                found.add(left.func.id)
    return found


# ---- what runs, and what pytest collects ----


class _Reach:
    """Functions and classes of a module by name, and what is reached from where."""

    def __init__(self, tree: ast.Module) -> None:
        self._tree = tree
        self.functions: dict[str, ast.FunctionDef | ast.AsyncFunctionDef] = {}
        """At the level of the module, also below `if` and the like."""
        self.defined: dict[str, list[ast.AST]] = {}
        """By name of such a function or class: its body."""
        self._by_name: dict[str, list[ast.AST]] = {}
        for node in _module_level(tree.body):
            if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
                inner = list(_methods(node)) if isinstance(node, ast.ClassDef) else []
                self.defined[node.name] = [
                    *node.body,
                    *node.decorator_list,
                    *(line for each in inner for line in each.body),
                ]
            if isinstance(node, FUNCTIONS):
                self.functions[node.name] = node
        self.used = {each.id for each in ast.walk(tree) if isinstance(each, ast.Name)}
        for each in ast.walk(tree):
            if isinstance(each, FUNCTIONS):
                self._by_name.setdefault(each.name, []).extend(each.body)

    def statements(self) -> tuple[list[ast.AST], list[ast.AST]]:
        """What runs whenever the module does, and what only runs as a program."""
        always: list[ast.AST] = []
        main: list[ast.AST] = []
        for node in self._tree.body:
            if isinstance(node, ast.If) and _asks_for_main(node.test):
                main += node.body
                always += node.orelse
            else:
                always.append(node)
        return always, main

    def checks(self, roots: Iterable[ast.AST]) -> bool:
        """Whether something that can fail is reached."""
        waiting, seen = list(roots), set()
        while waiting:
            node = waiting.pop()
            if isinstance(node, ast.Raise) or (isinstance(node, ast.Assert) and not _always_holds(node.test)):
                return True
            name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
            if name.lower().startswith(("assert", "fail")) or name in _ENDS:
                return True
            if name and name not in seen:
                seen.add(name)
                waiting += self._by_name.get(name, [])
            if isinstance(node, FUNCTIONS):
                continue  # its body runs when its name is used
            if isinstance(node, (ast.If, ast.While)) and isinstance(node.test, ast.Constant) and not node.test.value:
                waiting += node.orelse
                continue
            if isinstance(node, ast.ClassDef) and name not in seen:
                waiting += [each for each in node.body if not isinstance(each, FUNCTIONS)]
                continue
            waiting += ast.iter_child_nodes(node)
        return False

    def loaded(self) -> set[str]:
        """Names that the module's own statements use."""
        return {
            node.id
            for statement in _module_level(self._tree.body)
            if not isinstance(statement, (*FUNCTIONS, ast.ClassDef))
            for node in _own_nodes(statement)
            if isinstance(node, ast.Name)
        }


def _own_nodes(statement: ast.AST) -> Iterator[ast.AST]:
    waiting = [statement]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += [each for each in ast.iter_child_nodes(node) if not isinstance(each, (*FUNCTIONS, ast.ClassDef))]


def _module_level(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements of a module, also those below `if`, `for`, `with`, `try`."""
    for node in body:
        yield node
        if not isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            for field in ("body", "orelse", "finalbody"):
                yield from _module_level(getattr(node, field, []))
            for inner in (*getattr(node, "handlers", []), *getattr(node, "cases", [])):
                yield from _module_level(inner.body)


def _always_holds(test: ast.expr) -> bool:
    """Whether an assertion cannot fail: of a constant, or of a tuple (`assert (f(1) == 2, "message")`)."""
    return bool(test.elts) if isinstance(test, ast.Tuple) else isinstance(test, ast.Constant) and bool(test.value)


def _methods(node: ast.ClassDef) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Functions of a class, and of the classes in it."""
    for each in node.body:
        if isinstance(each, FUNCTIONS):
            yield each
        elif isinstance(each, ast.ClassDef):
            yield from _methods(each)


def _asks_for_main(test: ast.expr) -> bool:
    names = {node.id for node in ast.walk(test) if isinstance(node, ast.Name)}
    return "__name__" in names


def _collected(tree: ast.Module, reach: _Reach) -> tuple[list[str], list[str], list[str], str, bool]:
    """Test functions and classes, functions that want a candidate, classes with an __init__, what is wrong, and whether
    fixtures are wanted."""
    tests: list[str] = []
    candidates: list[str] = []
    begun: list[str] = []
    problem, fixtures = "", False
    loaded = reach.loaded()
    known = set(_FIXTURES)
    for function in filter(_is_fixture, reach.functions.values()):
        texts = [each for line in function.decorator_list for each in ast.walk(line) if isinstance(each, ast.Constant)]
        known |= {function.name, *(str(each.value) for each in texts)}  # `fixture(name="…")`
    for node in _module_level(tree.body):
        if isinstance(node, FUNCTIONS):
            wanted = required(node.args)
            if wanted == ["candidate"] or (node.name == "check" and len(wanted) == 1):
                if node.name not in reach.used and (node.name.startswith("test") or node.name.startswith("check")):
                    candidates.append(node.name)
            elif node.name.startswith("test") and not _is_fixture(node):
                more = len(wanted) > _patches(node)
                if more and node.name in reach.used:
                    continue  # a helper, which others call with arguments
                tests.append(node.name)
                fixtures |= more
                unknown = [] if node.decorator_list else sorted({*wanted} - known)
                if unknown:
                    problem = f"{node.name} wants {unknown[0]}, which is no fixture here; define it, or call the test"
        elif isinstance(node, ast.ClassDef):
            methods = [each for each in _methods(node) if each.name.startswith("test") or each.name == "runTest"]
            if methods:
                tests.append(node.name)
                plain = not any("TestCase" in ast.dump(base) for base in node.bases)
                begins = [each for each in node.body if isinstance(each, FUNCTIONS) and each.name == "__init__"]
                begun += [node.name] if begins and plain else []
                if begins and plain and len(required(begins[0].args)) > 1 and node.name not in loaded:
                    problem = f"nothing makes an object of the tests' class {node.name}, whose __init__ wants arguments"
                fixtures |= plain and any(len(required(each.args)) > 1 + _patches(each) for each in methods)
    return tests, candidates, begun, problem, fixtures


def required(arguments: ast.arguments) -> list[str]:
    """Parameters without a default."""
    places = [*arguments.posonlyargs, *arguments.args]
    named = [each.arg for each, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if value is None]
    return [each.arg for each in places[: len(places) - len(arguments.defaults)]] + named


def _patches(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Decorators that may hand over an argument: all but static methods' own."""
    return len(node.decorator_list)


def _is_fixture(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any("fixture" in ast.dump(each) for each in node.decorator_list)
