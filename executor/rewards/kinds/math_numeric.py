"""Whether two expressions are the same number or function: exactly where they are fractions, else by value.

Two closed forms are equal if they agree to 40 digits of their size, two functions if they do at points drawn once:
a difference between elementary functions that vanishes at random points vanishes everywhere (Schwartz 1980, Zippel
1979). So tiny numbers are told apart by their ratio, and nothing here can search, simplify or hang.
"""

from __future__ import annotations

import functools
import random
from fractions import Fraction
from typing import Any

import mpmath

from ....plans.answers.gold_math import value
from ....plans.answers.math_numbers import Node, replaced, walk

DIGITS, AGREED = 60, 40
LEAST_DIGITS = 6
"""A decimal stands for what it rounds (0.333333 for 1/3) from so many digits on."""
_LARGEST = mpmath.mpf(10) ** 15
"""An exponent or the argument of a factorial beyond is not computed."""
_CONSTANTS = {"\\pi", "e", "i", "\\infty"}
_POINTS = 12


class NoValue(ValueError):
    """There is no number to compare."""


@functools.lru_cache(maxsize=1024)
def _point(name: str, number: int) -> Any:
    """A value of a symbol: positive in the first half of the points, of either sign in the rest; some are large, so
    that |x - 9| is not 9 - x."""
    drawn = random.Random(f"{name} {number}")
    size = mpmath.mpf(drawn.randrange(300_001, 2_700_001, 2)) / 1_000_003 * {2: 17, 5: 1009}.get(number % 6, 1)
    return size if number < _POINTS // 2 or drawn.random() < 0.4 else -size


def symbols(node: Node) -> frozenset[str]:
    """Names of the variables in an expression."""
    return frozenset(part.args[0] for part in walk(node) if part.op == "sym") - _CONSTANTS


def has_op(node: Node, *ops: str) -> bool:
    """Whether a part of the tree, but for rows of matrices, is one of these operations."""
    return node.op in ops or any(isinstance(part, Node) and has_op(part, *ops) for part in node.args)


def at(node: Node, values: dict[str, Any]) -> Any:
    """The value of an expression at a point, an mpmath number. Raises `NoValue`."""
    op, args = node
    if op == "num":
        return mpmath.mpf(args[0].numerator) / args[0].denominator
    if op == "sym":
        return _symbol(args[0], values)
    if op == "call":
        return _called(args[0], [at(each, values) for each in args[1:]])
    if op in ("pow", "root"):
        return _power(node, values)
    if op not in _ARITHMETIC:
        raise NoValue(op)
    parts = [at(each, values) for each in args]
    try:
        return _ARITHMETIC[op](*parts)
    except (ZeroDivisionError, ValueError, OverflowError) as error:
        raise NoValue(op) from error


def _symbol(name: str, values: dict[str, Any]) -> Any:
    if name in values:
        return values[name]
    constants = {"\\pi": mpmath.pi, "e": mpmath.e, "i": mpmath.mpc(0, 1), "\\infty": mpmath.inf}
    if name in constants:
        return +constants[name]
    raise NoValue(name)


def _divided(left: Any, right: Any) -> Any:
    if right == 0:
        raise NoValue("a division by zero")
    return left / right


def _factorial(number: Any) -> Any:
    if abs(number) > _LARGEST:
        raise NoValue("a factorial of a large number")
    return mpmath.factorial(number)


_ARITHMETIC: dict[str, Any] = {
    "add": lambda *parts: mpmath.fsum(parts),
    "mul": lambda *parts: mpmath.fprod(parts),
    "div": _divided,
    "ratio": _divided,
    "neg": lambda part: -part,
    "abs": abs,
    "fact": _factorial,
    "percent": lambda part: part / 100,
    "degree": lambda part: part * mpmath.pi / 180,
}


def _power(node: Node, values: dict[str, Any]) -> Any:
    base, exponent_node = at(node.args[0], values), node.args[1]
    exact = value(exponent_node)
    if node.op == "root":
        exact = 1 / exact if exact else None
        exponent = _divided(mpmath.mpf(1), at(exponent_node, values))
    else:
        exponent = at(exponent_node, values)
    if abs(exponent) > _LARGEST or (base == 0 and mpmath.re(exponent) <= 0):
        raise NoValue("a power")
    if exact is not None and exact.denominator % 2 == 1 and mpmath.im(base) == 0 and mpmath.re(base) < 0:
        # School mathematics takes the real root where there is one: the third root of -8 is -2.
        size = mpmath.power(-mpmath.re(base), exponent)
        return -size if exact.numerator % 2 else size
    try:
        return mpmath.power(base, exponent)
    except (ZeroDivisionError, ValueError, OverflowError) as error:
        raise NoValue("a power") from error


def _called(name: str, args: list[Any]) -> Any:
    try:
        if name in ("ln", "log", "lg"):
            base = args[1] if len(args) > 1 else mpmath.mpf(10) if name == "lg" else mpmath.e
            return mpmath.log(args[0]) / mpmath.log(base)
        if name == "binom":
            return mpmath.binomial(*args)
        if name in ("max", "min"):
            return (max if name == "max" else min)(args)
        if name in ("gcd", "lcm"):
            import math

            if any(arg != int(arg) for arg in args):
                raise NoValue(name)
            return mpmath.mpf((math.gcd if name == "gcd" else math.lcm)(*(int(arg) for arg in args)))
        spelled = {"arc": "a", "Re": "re", "Im": "im", "sgn": "sign"}
        for before, after in spelled.items():
            name = name.replace(before, after)
        if name not in _FUNCTIONS or len(args) != 1:
            raise NoValue(name)
        return getattr(mpmath, name)(args[0])
    except (ZeroDivisionError, ValueError, OverflowError, TypeError) as error:
        raise NoValue(name) from error


_NAMES = "sin cos tan cot sec csc asin acos atan acot sinh cosh tanh coth asinh acosh atanh re im sign floor ceil"
_FUNCTIONS = set(_NAMES.split())


def equal(gold: Node, given: Node) -> bool | None:
    """Whether two expressions have one value, everywhere; None if that cannot be computed."""
    left, right = value(gold), value(given)
    if left is not None and right is not None:
        with mpmath.workdps(DIGITS):
            return left == right or _rounds(left, gold, right, given)
    names, others = symbols(gold), symbols(given)
    if names != others:
        if {name.lower() for name in names} != {name.lower() for name in others} or len(names) != len(others):
            return False if _closed(gold) and _closed(given) else None
        given, gold = replaced(given, _lowered), replaced(gold, _lowered)
        names = symbols(gold)
    with mpmath.workdps(DIGITS):
        if not names:
            try:
                one, two = at(gold, {}), at(given, {})
            except NoValue:
                return True if gold == given else None
            if mpmath.isnan(one) or mpmath.isnan(two):
                return None
            return _agree(one, two) or _rounds(one, gold, two, given)
        return _same_function(gold, given, sorted(names))


def _closed(node: Node) -> bool:
    """Whether the tree has nothing in it but arithmetic, functions, numbers and symbols."""
    return all(part.op in _ARITHMETIC.keys() | {"num", "sym", "call", "pow", "root"} for part in walk(node))


def _lowered(name: str) -> Node:
    return Node("sym", (name.lower() if name[0] != "\\" else name,))


def _agree(one: Any, two: Any) -> bool:
    if mpmath.isinf(one) or mpmath.isinf(two):
        return bool(one == two)
    size = max(abs(one), abs(two))
    # What is nothing but the rounding of a difference of numbers of ordinary size is zero.
    if size < mpmath.mpf(10) ** (5 - DIGITS) and min(abs(one), abs(two)) == 0:
        return True
    return bool(abs(one - two) <= size * mpmath.mpf(10) ** -AGREED)


def _same_function(gold: Node, given: Node, names: list[str]) -> bool | None:
    """Equal at every drawn point at which both are real (or, with an i in either, have a value)."""
    is_complex = any(part == Node("sym", ("i",)) for node in (gold, given) for part in walk(node))
    seen = 0
    for number in range(_POINTS):
        point = {name: _point(name, number) for name in names}
        try:
            one, two = at(gold, point), at(given, point)
        except NoValue:
            continue
        if not is_complex and any(abs(mpmath.im(each)) > mpmath.mpf(10) ** -AGREED for each in (one, two)):
            continue
        if mpmath.isnan(one) or mpmath.isnan(two):
            continue
        seen += 1
        if not _agree(one, two):
            return _same_at_whole_numbers(gold, given, names)
    return True if seen >= 2 or _same_at_whole_numbers(gold, given, names) else None


def _same_at_whole_numbers(gold: Node, given: Node, names: list[str]) -> bool:
    """cos(n pi) is (-1)^n, where names say that whole numbers are meant."""
    if not set(names) <= set("nkm"):
        return False
    try:
        return all(
            _agree_near(at(gold, point), at(given, point))
            for point in (
                {name: 1 + number * (3 * place + 1) % 11 for place, name in enumerate(names)} for number in range(1, 9)
            )
        )
    except NoValue:
        return False


def _agree_near(one: Any, two: Any) -> bool:
    return bool(abs(one - two) <= mpmath.mpf(10) ** -AGREED * (1 + abs(one)))


def _rounds(left: Any, gold: Node, right: Any, given: Node) -> bool:
    """Whether one of two unequal numbers is a decimal that stands for the other.

    A decimal of six digits or more, three of them behind the point, is what it rounds or cuts off: 0.333333 is 1/3,
    0.333 is not. Of two decimals the coarser needs five places, and both must agree to a millionth: 1234.5 is not
    1234.56. Beyond ten digits the noise of floating point is forgiven (0.30000000000000004).
    """
    decimals = [node.args for node in (gold, given) if node.op == "num" and node.args[1]]
    if not decimals or any(not isinstance(each, Fraction) and mpmath.im(each) != 0 for each in (left, right)):
        return False
    difference, size = abs(_real(left) - _real(right)), abs(_real(left))
    (number, place), (fine, fine_place) = max(decimals, key=_place), min(decimals, key=_place)
    exact = abs(_real(right if number == left else left))
    nearest = difference * 2 <= _real(place) or (difference < _real(place) and abs(_real(number)) < exact)
    if _digits(number, place) >= LEAST_DIGITS and place <= Fraction(1, 10**3) and nearest:
        return len(decimals) == 1 or (place <= Fraction(1, 10**5) and difference * 10**6 <= size)
    return _digits(fine, fine_place) >= 10 and difference * 10**9 <= size and difference * 10**6 <= 1


def _place(decimal: tuple[Fraction, Fraction]) -> Fraction:
    return decimal[1]


def _digits(number: Fraction, place: Fraction) -> int:
    return len(str(abs(round(number / place))))


def _real(number: Any) -> Any:
    return mpmath.mpf(number.numerator) / number.denominator if isinstance(number, Fraction) else mpmath.re(number)
