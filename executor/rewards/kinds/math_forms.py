"""The forms in which trees are compared: signs written out, ellipses filled in, inequalities as intervals."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import mpmath

from ....plans.answers.gold_math import value
from ....plans.answers.math_numbers import Node
from .math_numeric import NoValue, at, has_op, symbols

_INFINITY = Node("sym", ("\\infty",))
REALS = Node("interval", (Node("neg", (_INFINITY,)), _INFINITY, False, False))
OPPOSITE = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "=": "=", "!=": "!="}
_MOST_LISTED = 1000
Ends = tuple[Node, Node, bool, bool]
"""An interval: low, high, whether low is in it, whether high is."""


def plain(node: Node) -> Node:
    """Both signs written out, ellipses filled in, a list of one without its list."""
    if node.op == "sym" and node.args[0] == "\\mathbb{R}":
        return REALS
    if node.op == "rel" and node.args[0] == "in":
        return node
    if node.op in ("list", "set"):
        node = _filled(Node(node.op, tuple(part for each in node.args for part in _parts_of(plain(each)))))
    elif node.op == "tuple":
        node = _filled(node)
    elif node.op == "rel" and node.args[0] == "=" and has_op(node.args[2], "pm", "mp"):
        node = Node("list", tuple(Node("rel", ("=", node.args[1], each)) for each in _both_signs(node.args[2])))
    elif node.op not in ("rel", "chain", "interval", "union", "matrix") and has_op(node, "pm", "mp"):
        node = Node("list", tuple(_both_signs(node)))
    if node.op in ("list", "set") and len(node.args) == 1:
        return node.args[0] if isinstance(node.args[0], Node) else node
    return node


def _parts_of(node: Node) -> tuple[Node, ...]:
    return node.args if node.op == "list" else (node,)


def _both_signs(node: Node) -> list[Node]:
    def signed(part: Any, upper: bool) -> Any:
        if not isinstance(part, Node):
            return part
        args = tuple(signed(each, upper) for each in part.args)
        if part.op in ("pm", "mp"):
            return args[0] if (part.op == "pm") == upper else Node("neg", args)
        return Node(part.op, args)

    return [signed(node, True), signed(node, False)]


def _filled(node: Node) -> Node:
    """1, 2, ..., 10 with all its numbers, where whole numbers follow each other by one step."""
    if Node("dots") not in node.args:
        return node
    spot = node.args.index(Node("dots"))
    before, after = ([value(each) for each in part] for part in (node.args[:spot], node.args[spot + 1 :]))
    if len(before) < 2 or not after or None in before or None in after:
        return node
    known = [each for each in before if each is not None]
    step, last = known[1] - known[0], after[0]
    if step == 0 or last is None or any(two - one != step for one, two in pairwise(known)):
        return node
    count = (last - known[-1]) / step
    if count.denominator != 1 or not 0 < count <= _MOST_LISTED:
        return node
    listed = (Node("num", (known[-1] + step * place, None)) for place in range(1, int(count)))
    return Node(node.op, (*node.args[:spot], *listed, *node.args[spot + 1 :]))


def is_order(node: Node) -> bool:
    """Whether a tree is an inequality, a chain of them, or says what a variable lies in."""
    if node.op == "chain":
        return all(is_order(each) for each in node.args)
    if node.op == "list":
        return len(node.args) > 1 and all(is_order(each) for each in node.args)
    return node.op == "rel" and node.args[0] in ("<", ">", "<=", ">=", "!=", "in")


def _turned(relation: Node) -> Node:
    """With the variable on the left."""
    sign, left, right = relation.args
    if sign in OPPOSITE and symbols(right) and not symbols(left):
        return Node("rel", (OPPOSITE[sign], right, left))
    return relation


def variable_of(node: Node) -> str | None:
    """The one variable that an inequality is about."""
    relations = node.args if node.op in ("chain", "list") else (node,)
    names: set[str] = set()
    for each in relations:
        if each.op in ("chain", "list"):
            names.add(variable_of(each) or "")
        elif each.op == "rel":
            names |= symbols(_turned(each).args[1])
    return names.pop() if len(names) == 1 else None


def as_intervals(node: Node) -> list[Ends] | None:
    """The intervals that a tree of intervals, a union or inequalities in one variable names; None if it names none."""
    if node.op == "interval":
        return [node.args]
    if node.op == "tuple" and len(node.args) == 2:
        return [(*node.args, False, False)]
    if node.op == "set" and node.args:
        return [(each, each, True, True) for each in node.args]
    if node.op == "union":
        parts = [as_intervals(plain(each)) for each in node.args]
        return None if None in parts else [ends for part in parts if part is not None for ends in part]
    if not is_order(node):
        return None
    if node.op == "list":
        holes = [_turned(each).args for each in node.args if each.op == "rel" and each.args[0] == "!="]
        others = [as_intervals(each) for each in node.args if each.op != "rel" or each.args[0] != "!="]
        return _without(_of_several(others) if others else [REALS.args], holes)
    if node.op == "chain":
        if len(node.args) != 2 or any(_is_bare(each) is None for each in node.args):
            return None
        return _of_several([as_intervals(each) for each in node.args])
    sign, left, right = _turned(node).args
    if sign == "in":
        return None if left.op == "neg" else as_intervals(plain(right))
    if left.op != "sym" or symbols(right):
        return None
    minus = Node("neg", (_INFINITY,))
    if sign == "!=":
        return [(minus, right, False, False), (right, _INFINITY, False, False)]
    if sign in ("<", "<="):
        return [(minus, right, False, sign == "<=")]
    return [(right, _INFINITY, sign == ">=", False)]


def _without(ends: list[Ends] | None, holes: list[tuple[Any, ...]]) -> list[Ends] | None:
    """Intervals without the points that a variable is not equal to: of 0 < x < 2, x != 1 two."""
    for _, name, point in holes:
        if ends is None or name.op != "sym" or symbols(point):
            return None
        try:
            split = [(each, real(each[0]) < real(point) < real(each[1])) for each in ends]
        except NoValue:
            return None
        ends = [
            part
            for each, inside in split
            for part in ([(each[0], point, each[2], False), (point, each[1], False, each[3])] if inside else [each])
        ]
    return ends


def _is_bare(relation: Node) -> Node | None:
    turned = _turned(relation)
    return turned if turned.args[1].op == "sym" else None


def real(node: Node) -> Any:
    found = at(node, {})
    if mpmath.im(found) != 0:
        raise NoValue("a complex end")
    return mpmath.re(found)


def _of_several(parts: list[list[Ends] | None]) -> list[Ends] | None:
    """Two bounds that face each other hold together (1 < x and x < 3); all others are cases (x < 1 or x > 3)."""
    if None in parts:
        return None
    ends = [each for part in parts if part is not None for each in part]
    if len(ends) == 2:
        lows = [each for each in ends if each[1] == _INFINITY]
        highs = [each for each in ends if each[0] == Node("neg", (_INFINITY,))]
        try:
            if len(lows) == len(highs) == 1 and real(lows[0][0]) < real(highs[0][1]):
                return [(lows[0][0], highs[0][1], lows[0][2], highs[0][3])]
        except NoValue:
            return None
    return ends
