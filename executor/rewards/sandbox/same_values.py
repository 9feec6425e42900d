"""Whether what a response printed or returned is what the row wants; both are data by then, and no code of its runs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

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
    return (
        {True: "true", False: "false", None: "null"}.get(key, str(key))
        if isinstance(key, (bool, type(None)))
        else str(key)
    )


_SCALARS = (type(None), bool, int, float, str)
