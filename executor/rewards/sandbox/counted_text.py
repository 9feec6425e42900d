"""Changes the text of a script of tests, so that it tells what it does while it runs: each assertion that held, each
that failed, each test function that ended."""

from __future__ import annotations

import ast
import itertools
import re
from typing import Any

HELD, FAILED, ENDED, CAUGHT, PASSED = "__held__", "__failed__", "__ended__", "__caught__", "__passed__"
"""What the text calls."""


class Changer(ast.NodeTransformer):
    """Has a script tell what it does."""

    def __init__(self, notes_failures: bool) -> None:
        self._notes_failures = notes_failures
        self._scope: list[str] = []
        self.counts = False

    def visit_Assert(self, node: ast.Assert) -> Any:
        self.counts = True
        told = [_call(FAILED, ast.Constant(node.lineno))] if self._notes_failures else []
        fails = ast.Assert(ast.Constant(False), node.msg)
        test = ast.If(ast.UnaryOp(ast.Not(), node.test), [*told, fails], [_call(HELD)])
        test.was_assert = True  # type: ignore[attr-defined]
        return _placed(test, node)

    def visit_Expr(self, node: ast.Expr) -> Any:
        if isinstance(node.value, ast.Call) and _name(node.value).lower().startswith("assert"):
            self.counts = True
            return [node, _placed(_call(HELD), node)]
        return node

    def visit_With(self, node: ast.With) -> Any:
        self.generic_visit(node)
        calls = [item.context_expr for item in node.items if isinstance(item.context_expr, ast.Call)]
        if any(re.search("raises|warns", _name(call), re.IGNORECASE) for call in calls):
            self.counts = True
            return [node, _placed(_call(HELD), node)]
        return node

    def visit_Try(self, node: ast.Try) -> Any:
        expected = any(map(_fails, [*node.body, *node.orelse])) or getattr(node, "was_before_failure", False)
        self.generic_visit(node)
        if expected:  # the exception that the tests want has come
            self.counts = True
            for handler in node.handlers:
                handler.body.insert(0, _placed(_call(HELD), handler))
        return node

    def generic_visit(self, node: ast.AST) -> Any:
        if isinstance(node, ast.expr):
            return node  # no statement is in it, and it may be long
        body = getattr(node, "body", None)
        for each, after in itertools.pairwise(body if isinstance(body, list) else ()):
            if isinstance(each, ast.Try) and _fails(after):
                each.was_before_failure = True  # type: ignore[attr-defined]
        return super().generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> Any:
        self._scope.append(node.name)
        self.generic_visit(node)
        self._scope.pop()
        return node

    def visit_FunctionDef(self, node: Any) -> Any:
        name = ".".join([*self._scope, node.name])
        self._scope.append(f"{node.name}.<locals>")
        self.generic_visit(node)
        self._scope.pop()
        if node.name.startswith("test") and "<locals>" not in name:
            _Returns(name).inside(node)
            node.body.append(_placed(_call(ENDED, ast.Constant(name)), node.body[-1]))
        return node

    visit_AsyncFunctionDef = visit_FunctionDef


def _fails(node: ast.stmt) -> bool:
    """Whether a statement of the tests always fails: what stands behind a call that must raise."""
    if isinstance(node, ast.Assert):
        return isinstance(node.test, ast.Constant) and not node.test.value
    return isinstance(node, ast.Raise) or (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and _name(node.value).endswith("fail")
    )


class _Returns(ast.NodeTransformer):
    """Has a function say that it ends where it returns."""

    def __init__(self, name: str) -> None:
        self._name = name

    def inside(self, node: Any) -> None:
        node.body = [part for each in node.body for part in _many(self.visit(each))]

    def visit_Return(self, node: ast.Return) -> Any:
        value = _call(ENDED, ast.Constant(self._name), node.value or ast.Constant(None)).value
        return _placed(ast.Return(value), node)

    def _stay_out(self, node: ast.AST) -> ast.AST:
        return node

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = visit_Lambda = _stay_out


def _many(node: Any) -> list[Any]:
    return node if isinstance(node, list) else [node]


def as_test(node: ast.stmt, goes_on: bool) -> Any:
    """A top-level assertion that is counted, and whose failure does not end the module if that `goes_on`."""
    assert isinstance(node, ast.If)
    node.orelse.append(_placed(_call(PASSED), node))
    if not goes_on:
        return node
    caught = _call(CAUGHT, ast.Name("__error__", ast.Load()))
    handler = ast.ExceptHandler(ast.Name("BaseException", ast.Load()), "__error__", [caught])
    return _placed(ast.Try([node], [handler], [], []), node)


def _call(name: str, *arguments: ast.expr) -> ast.Expr:
    return ast.Expr(ast.Call(ast.Name(name, ast.Load()), list(arguments), []))


def _name(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")


def _placed(node: Any, at: ast.AST) -> Any:
    for each in ast.walk(node):
        if "lineno" in each._attributes and not hasattr(each, "lineno"):
            ast.copy_location(each, at)
    return node
