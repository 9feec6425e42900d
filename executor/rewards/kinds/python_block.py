"""What a block of Python defines, uses, reads and prints, read from its text without running it."""

from __future__ import annotations

import ast
import builtins
import re
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

_PYTHON_TAGS = ("", "py", "py3", "python", "python2", "python3", "ipython", "ipython3", "code")
_BUILTINS = frozenset(dir(builtins)) | {"__name__", "__file__"}
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_DEFINITIONS = (*_FUNCTIONS, ast.ClassDef)
_SCOPES = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_OUTER, _INNER, _DEFINED = range(3)
"""Where a node stands: in the module's own scope, in that of an expression there, below a function or a class."""
_PASSED_OVER = (ast.Constant, ast.Load, ast.Store, ast.Del)
_BROKEN_DEFINITION = re.compile(
    r"^[ \t]*(?:async[ \t]+def|def|class)[ \t]+(\w+)\b.*\n(?:[ \t]*\n)*[ \t]+\S", re.MULTILINE
)
"""A definition with a body in a text that does not parse: the last word of a response may be wrong Python."""


@dataclass(frozen=True)
class Block:
    """One block of a response: its text, and the language that it is tagged with (lower case, "" for none)."""

    text: str
    tag: str = ""

    @cached_property
    def _parsed(self) -> tuple[ast.Module | None, str]:
        """The text as Python, or None and what is wrong with it."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return ast.parse(self.text), ""
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            return None, str(error)

    @property
    def tree(self) -> ast.Module | None:
        """The text as Python, or None if it is none."""
        return self._parsed[0]

    @property
    def leaves_string_open(self) -> bool:
        """Whether a string with three quotes begins in it and does not end."""
        return "unterminated triple-quoted" in self._parsed[1]

    @property
    def is_python(self) -> bool:
        """Whether it is meant as Python, be it with an error; a session with `>>>` is not."""
        if self.tree is not None:
            return True
        return self.tag in _PYTHON_TAGS and not self.text.lstrip().startswith(">>>")

    @cached_property
    def _nodes(self) -> list[tuple[ast.AST, int]]:
        """Its nodes but constants, in one pass, each with where it stands: see `_OUTER`."""
        found: list[tuple[ast.AST, int]] = []
        waiting: list[tuple[ast.AST, int]] = [(self.tree, _OUTER)] if self.tree else []
        while waiting:
            node, place = waiting.pop()
            found.append((node, place))
            kind = type(node)
            inside = max(place, _DEFINED if kind in _DEFINITIONS else _INNER if kind in _SCOPES else _OUTER)
            for field in node._fields:
                child = getattr(node, field, None)
                for each in child if type(child) is list else (child,):
                    if isinstance(each, ast.AST) and type(each) not in _PASSED_OVER:
                        waiting.append((each, inside))
        return found

    @cached_property
    def _outer(self) -> list[ast.AST]:
        """The nodes of the module's own scope, also those within `if`, `try`, `with` and loops."""
        return [node for node, place in self._nodes if place == _OUTER]

    @cached_property
    def _read(self) -> frozenset[str]:
        """Names that it reads anywhere."""
        return frozenset(
            node.id for node, _ in self._nodes if type(node) is ast.Name and isinstance(node.ctx, ast.Load)
        )

    @cached_property
    def _attributes(self) -> frozenset[str]:
        """Attributes that it reads anywhere, such as `stdin` in `sys.stdin`."""
        return frozenset(
            node.attr for node, _ in self._nodes if type(node) is ast.Attribute and isinstance(node.ctx, ast.Load)
        )

    @cached_property
    def bound(self) -> frozenset[str]:
        """Names that the module's scope gives a value; `*` where it imports all that a module has."""
        return frozenset(name for node in self._outer for name in _bound_by(node))

    @cached_property
    def free(self) -> frozenset[str]:
        """Names that it reads and that nothing in it gives a value."""
        return self._read - {name for node, _ in self._nodes for name in _bound_by(node)} - _BUILTINS

    @cached_property
    def defined(self) -> frozenset[str]:
        """Names that it defines for tests. Methods of a class `Solution` count; names that it imports from elsewhere
        than the standard library do not (`from solution import add` is an example of use), nor functions of no body."""
        if self.tree is None:
            return frozenset(_BROKEN_DEFINITION.findall(self.text) if self.is_python else ())
        names: set[str] = set()
        for node in self._outer:
            if isinstance(node, ast.ImportFrom) and (node.level or not _is_standard(node.module)):
                continue
            if isinstance(node, _FUNCTIONS) and _is_stub(node):
                continue
            names.update(_bound_by(node))
            if isinstance(node, ast.ClassDef) and node.name == "Solution":
                names.update(method.name for method in node.body if isinstance(method, _FUNCTIONS))
        return frozenset(names)

    @cached_property
    def defines_code(self) -> bool:
        """Whether it defines a function or a class."""
        if self.tree is None:
            return bool(self.defined)
        return any(isinstance(node, (*_DEFINITIONS, ast.Lambda)) for node in self._outer)

    @cached_property
    def reads(self) -> bool:
        """Whether it reads standard input."""
        if self.tree is None:
            return self.is_python and bool(re.search(r"\binput\s*\(|\bstdin\b", self.text))
        if "stdin" in self._read | self._attributes or ("input" in self._read and "input" not in self.bound):
            return True
        return any(type(node) is ast.Call and _opens_stdin(node) for node, _ in self._nodes)

    @cached_property
    def prints(self) -> bool:
        """Whether it writes to standard output."""
        if self.tree is None:
            return self.is_python and bool(re.search(r"\bprint\b|\bstdout\b", self.text))
        return "print" in self._read or not self._attributes.isdisjoint({"stdout", "write"})

    @cached_property
    def acts(self) -> bool:
        """Whether it calls something when it is run, beyond definitions and settings of the interpreter."""
        if self.tree is None:
            return self.is_python
        return any(
            type(node) is ast.Call and place != _DEFINED and not _is_setting(node) for node, place in self._nodes
        )


def _bound_by(node: ast.AST) -> Iterator[str]:
    """The names that this node itself gives a value."""
    if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
        yield node.name
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    elif isinstance(node, (ast.Import, ast.ImportFrom)):
        yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
    elif isinstance(node, ast.arg):
        yield node.arg
    elif isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and node.name:
        yield node.name


def _is_standard(module: str | None) -> bool:
    return module is not None and module.partition(".")[0] in sys.stdlib_module_names


def _is_stub(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether the function has no body but its docstring, `...` and `pass`: a signature that someone shows."""
    return all(
        isinstance(statement, ast.Pass)
        or (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant))
        for statement in function.body
    )


def _is_setting(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr in ("setrecursionlimit", "stack_size")


def _opens_stdin(node: ast.Call) -> bool:
    """Whether a call is such as `open(0)`, `os.read(0, n)`, `open("/dev/stdin")` or `fileinput.input()`."""
    name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
    if name == "input" and isinstance(node.func, ast.Attribute):
        return isinstance(node.func.value, ast.Name) and node.func.value.id == "fileinput"
    first = node.args[0].value if node.args and isinstance(node.args[0], ast.Constant) else None
    return name in ("open", "read", "fdopen", "Path") and (first == "/dev/stdin" or (first == 0 and first is not False))
