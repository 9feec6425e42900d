"""Numbers as they are written, exact: decimals, repeating and scientific ones, mixed fractions, other bases.

The leaves of the tree that `math_reading` builds, and the tree's type.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any, NamedTuple


class Unread(ValueError):
    """The text is outside of the grammar."""


class Node(NamedTuple):
    """A part of an answer.

    By `op`, the parts in `args`: num (Fraction, the value of its last decimal place or None) · based (digits, base) ·
    sym (name) · add, mul, pow, div, neg, pm, mp, fact, abs, root, call (name, arguments) of nodes ·
    list (as written, without brackets), set, tuple, matrix (rows) of nodes · dots, for what an ellipsis leaves out ·
    interval (low, high, low is in, high is in) · union · rel (sign, left, right) · chain (relations) · percent, degree.
    """

    op: str
    args: tuple[Any, ...] = ()


def walk(part: Any) -> Iterator[Node]:
    """A tree, or the rows of a matrix: all nodes, each before those in it."""
    if isinstance(part, Node):
        yield part
    for inner in (part.args if isinstance(part, Node) else part) if isinstance(part, tuple) else ():
        yield from walk(inner)


def replaced(part: Any, other: Callable[[str], Node]) -> Any:
    """A tree, or the rows of a matrix, with another node in place of each symbol, by its name."""
    if not isinstance(part, tuple):
        return part
    if not isinstance(part, Node):
        return tuple(replaced(inner, other) for inner in part)
    return other(part.args[0]) if part.op == "sym" else Node(part.op, replaced(part.args, other))


_BASE_WORDS = {"two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10,
               "twelve": 12, "sixteen": 16}  # fmt: skip
_REPEATING = re.compile(
    r"(\d*)\.(\d*)(?:\\overline\s*(?:\{(\d+)\}|(\d))|\((\d+)\)(?![\w(^])"
    r"|\\dot\s*\{?(\d)\}?(?:(\d*)\\dot\s*\{?(\d)\}?)?)(?:\\ldots|\.\.\.)?"
)
_ELLIPTIC = re.compile(r"(\d+)\.(\d+)\s*(?:\\ldots|\.\.\.)")
_MIXED = re.compile(
    r"(?<![\d.\w}])(\d+)\s*(?:\\frac\s*(?:\{\s*(\d+)\s*\}|(\d))\s*(?:\{\s*(\d+)\s*\}|(\d))| (\d+)\s*/\s*(\d+))(?![\d.])"
)
_SCIENTIFIC = re.compile(r"(?<![\w.])(\d+(?:\.\d*)?|\.\d+)[eE]([+-]?\d{1,4})(?![\w.])")
_BASED = re.compile(
    r"^\(?\s*(-?[0-9A-Za-z]+)\s*\)?\s*_\s*\{?\s*\(?(?:\\text\s*\{\s*)?"
    rf"(\d{{1,2}}|{'|'.join(_BASE_WORDS)})\s*\}}?\)?\s*\}}?$"
)
_CONTINENTAL = re.compile(r"([+-]?\d{1,3}(?:\.\d{3})+)(,\d+)|([+-]?\d{1,3}(?:\.\d{3}){2,})")
MOST_DIGITS = 4000
"""Digits of a number that is written out; longer ones are outside of the grammar."""


def number(text: str, last: bool = True) -> Node:
    """A decimal as written."""
    if len(text) > MOST_DIGITS:
        raise Unread("a number of too many digits")
    places = len(text.partition(".")[2])
    return Node(
        "num", (Fraction(text if text[0] != "." else "0" + text), Fraction(1, 10**places) if places and last else None)
    )


def whole_number_form(text: str) -> Node | None:
    """A number in another base (`1010_2`) or with the points of the continent (`1.234,5`), if the whole text is one."""
    if based := _BASED.match(text):
        base = _BASE_WORDS.get(based[2]) or int(based[2])
        digits = based[1].lstrip("-").upper().lstrip("0") or "0"
        known = 2 <= base <= 36 and all(int(digit, 36) < base for digit in digits)
        if known and any(digit.isdigit() for digit in digits):
            return Node("based", (("-" if based[1][0] == "-" else "") + digits, base))
    if continental := _CONTINENTAL.fullmatch(text):
        whole, decimals = continental[1] or continental[3], continental[2] or ""
        return number(whole.replace(".", "") + decimals.replace(",", "."))
    return None


def repeating(whole: str, fixed: str, cycle: str) -> Fraction:
    """The fraction that `whole.fixed(cycle)` is."""
    scale = 10 ** len(fixed)
    return Fraction(int((whole or "0") + fixed), scale) + Fraction(int(cycle), scale * (10 ** len(cycle) - 1))


def _repeating(found: re.Match[str]) -> Node | None:
    whole, fixed, *ways = found.groups()
    braced, digit, bracketed, first, middle, end = ways
    if first is not None:
        cycle = first + (middle or "") + end if end is not None else first
        if end is None and middle:
            return None
    else:
        cycle = braced or digit or bracketed
    return Node("num", (repeating(whole, fixed, cycle), None))


def _elliptic(found: re.Match[str]) -> Node:
    """`0.1666...`: the digits at the end repeat if they stand there three times (one digit) or twice (more digits)."""
    whole, decimals = found[1], found[2]
    for size in range(1, len(decimals) // 2 + 1):
        cycle = decimals[-size:]
        times = 1
        while decimals[: len(decimals) - size * times].endswith(cycle):
            times += 1
        if times >= (3 if size == 1 else 2):
            return Node("num", (repeating(whole, decimals[: len(decimals) - size * times], cycle), None))
    return number(f"{whole}.{decimals}")


def _mixed(found: re.Match[str]) -> Node | None:
    whole, top, top_digit, bottom, bottom_digit, plain_top, plain_bottom = found.groups()
    over, under = int(top or top_digit or plain_top), int(bottom or bottom_digit or plain_bottom)
    if not under:
        return None
    return Node("num", (int(whole) + Fraction(over, under), None))


def _scientific(found: re.Match[str]) -> Node:
    places = len(found[1].partition(".")[2])
    scale = Fraction(10) ** int(found[2])
    return Node(
        "num", (Fraction(found[1] if found[1][0] != "." else "0" + found[1]) * scale, Fraction(1, 10**places) * scale)
    )


NUMBER_FORMS = ((_REPEATING, _repeating), (_ELLIPTIC, _elliptic), (_MIXED, _mixed), (_SCIENTIFIC, _scientific))
