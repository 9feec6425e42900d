"""What is done for the other process with an object of this one, by name, and what its results may tell."""

from __future__ import annotations

import datetime
import operator
import re
from collections import deque
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

from .plain_data import VIEWED

BINARY = (
    "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "lshift", "rshift", "and_", "or_", "xor",
)  # fmt: skip
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
UNARY: dict[str, Callable[..., Any]] = {
    "neg": operator.neg, "pos": operator.pos, "invert": operator.invert, "abs": abs, "int": int, "float": float,
    "complex": complex, "index": operator.index, "round": round, "trunc": lambda x: x.__trunc__(), "bool": bool,
    "floor": lambda x: x.__floor__(), "ceil": lambda x: x.__ceil__(), "len": len, "hash": hash, "str": str,
    "repr": repr, "format": format, "bytes": bytes, "iter": iter, "next": next, "reversed": reversed, "dir": dir,
    "getitem": operator.getitem, "setitem": operator.setitem, "delitem": operator.delitem,
    "contains": operator.contains,
}  # fmt: skip
"""Operators and built-in functions that ask an object's class, by the name of its method."""
TELLING = (
    "neg", "pos", "invert", "abs", "int", "float", "complex", "index", "round", "trunc", "floor", "ceil", "bool", "len",
    "hash",
)  # fmt: skip
"""Operations of which an object that was shown a test's data could give the result that the test wants."""
LOOKS = frozenset({*TELLING, "str", "repr", "format", "bytes", "dir", "getitem", "contains"})
"""Operations that change nothing that would make them give something else the next time."""
NUMBERS = (int, float, complex, Decimal, Fraction)
OF_NUMBERS = ("int", "float", "complex", "index", "round", "trunc", "floor", "ceil", "bool", "hash")
"""Operations that the tester does itself with the number that an object is."""
DIFFERENCES, QUOTIENTS = frozenset({"add", "sub", "mod", "xor"}), frozenset({"truediv", "floordiv"})
"""Operators by which a test may compare: what is right gives 0, or 1."""
CLOSE = 0.01


def _await(coroutine: Any) -> Any:
    import asyncio

    async def run() -> Any:
        return await coroutine

    return asyncio.run(run())


def _exit(manager: Any, error: BaseException | None) -> Any:
    return type(manager).__exit__(manager, None if error is None else type(error), error, None)


def _warn(text: str, category: Any) -> None:
    import warnings

    known = isinstance(category, type) and issubclass(category, Warning)
    warnings.warn(str(text), category if known else UserWarning, stacklevel=2)


def _copy(value: Any) -> Any:
    import copy

    return copy.copy(value)


def _deepcopy(value: Any) -> Any:
    import copy

    return copy.deepcopy(value)


def view(value: Any) -> Any:
    """An object whose class derives from a data type, as that data; the class's own methods are not used."""
    base = next((kind for kind in VIEWED if isinstance(value, kind)), None)
    if base is None:
        raise TypeError("no data")
    if base in (set, frozenset, list, tuple):
        return base(base.__iter__(value))
    if issubclass(base, dict):
        plain = dict(dict.items(value))
        return plain if base is dict else base(plain) if base.__name__ != "defaultdict" else plain
    if base in (bytes, bytearray):
        return base(memoryview(value))
    return getattr(base, _EXACT[base])(value) if base in _EXACT else value


_EXACT: dict[type, str] = {int: "__int__", float: "__float__", complex: "__complex__", str: "__str__"}
"""Methods that give an instance of a derived class as one of the type itself."""


OPERATIONS: dict[str, Callable[..., Any]] = {
    "call": lambda function, args, kwargs: function(*args, **kwargs),
    "getattr": getattr, "setattr": setattr, "delattr": delattr, "isinstance": isinstance, "issubclass": issubclass,
    "view": view, "await": _await, "exit": _exit, "copy": _copy, "deepcopy": _deepcopy, "warn": _warn,
    **{name: getattr(operator, name) for name in (*BINARY, *COMPARISONS)}, **UNARY,
}  # fmt: skip
"""What is done for the other side with an object of ours, by name."""


def says_only(data: Any, number: int) -> bool:
    """Whether data says this number and nothing else; text and containers also if they are empty."""
    if hasattr(data, "tolist"):  # an array, or a number of numpy
        data = data.tolist()
    kind = type(data)
    if kind is datetime.timedelta:
        data = data.total_seconds()
    elif kind is str or kind in (bytes, bytearray):
        found = re.findall(r"\d+(?:\.\d+)?", data if kind is str else data.decode("latin-1"), re.ASCII)
        return not data or (found != [] and all(abs(float(each) - number) <= CLOSE for each in found))
    elif issubclass(kind, dict):
        return all(says_only(each, number) for each in data.values())
    elif kind in (list, tuple, set, frozenset, deque, range) or kind in DICT_VIEWS:
        return all(says_only(each, number) for each in data)
    elif kind not in NUMBERS:
        return False
    return bool(abs(data) < number + 1 and abs(complex(data) - number) <= CLOSE)


DICT_VIEWS: tuple[type, ...] = (type({}.keys()), type({}.values()), type({}.items()))
