"""What stands in one process for an object that lives in the other: a `Remote`, whose every use is asked of its owner.

In the tester this is where the line runs between what a response may answer and what it may not. It may say what its
object holds, for it could have returned that in the first place. It may not be shown the value that a test expects and
then say whether that is right. So, for a response's object and data of the test's:

- `==`, `!=`, `<` and so on: an object whose class derives from a data type is compared as that data, by the tester; any
  other is never equal, and has no order;
- arithmetic: an object whose class derives from a data type is computed with as that data, too. Another object's own
  operator is asked, and must return an object again. The tester believes no number, length or truth value of that
  result, nor of objects made from it. It also rejects text, members and items of the result if they would be right
  whatever the answer is: only zeros after a difference, only ones after a quotient.

What an object is as data is asked once, if that data cannot change. Other questions that only look at an object are
asked once until an operation that may change it (`OwnerLink.look`). So an object cannot be larger than one bound and
then smaller than another.

Between two objects of the response's, their class decides, and so it does in `x in object` and in any method: a test
that is written so leaves the decision to the response.
"""

from __future__ import annotations

import copy
import datetime
import operator
import re
import warnings
from collections import deque
from collections.abc import Callable, Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any, Protocol

from .plain_data import SCALARS, VIEWED

# What is done for the other process with an object of this one, by name, and what its results may tell.

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
    known = isinstance(category, type) and issubclass(category, Warning)
    warnings.warn(str(text), category if known else UserWarning, stacklevel=2)


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
    "view": view, "await": _await, "exit": _exit, "copy": copy.copy, "deepcopy": copy.deepcopy, "warn": _warn,
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

VIEWS = {kind.__name__: kind for kind in VIEWED}


class OwnerLink(Protocol):
    """The connection to the owner, as a `Remote` uses it."""

    is_tester: bool
    seen: int

    def ask(self, operation: str, *values: Any) -> Any:
        """Have the owner carry out an operation."""

    def look(self, operation: str, *values: Any) -> Any:
        """`ask` for what changes nothing; the answer is kept as long as nothing else was asked."""

    def drop(self, number: int) -> None:
        """Tell the owner, some time, that its object of this number is no longer used here."""


class Remote:
    """An object of the other process."""

    __slots__ = ("__weakref__", "_began", "_data", "_link", "_number", "_shown")

    def __init__(self, link: OwnerLink, number: int) -> None:
        object.__setattr__(self, "_link", link)
        object.__setattr__(self, "_number", number)
        # Operators by which it, or an object that it is from, was shown data of the test's.
        object.__setattr__(self, "_shown", frozenset())
        object.__setattr__(self, "_data", ())
        object.__setattr__(self, "_began", False)

    def __del__(self) -> None:
        self._link.drop(self._number)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__array"):  # numpy would read memory at an address that the owner names
            raise AttributeError(name)
        return _believed(self, name, self._link.look("getattr", self, name))

    def __setattr__(self, name: str, value: Any) -> None:
        self._link.ask("setattr", self, name, value)

    def __delattr__(self, name: str) -> None:
        self._link.ask("delattr", self, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _believed(self, "result", self._link.ask("call", self, args, kwargs))

    def __instancecheck__(self, instance: Any) -> bool:
        return isinstance(instance, Remote) and self._link.ask("isinstance", instance, self) is True

    def __subclasscheck__(self, subclass: Any) -> bool:
        return isinstance(subclass, Remote) and self._link.ask("issubclass", subclass, self) is True

    def __mro_entries__(self, bases: Any) -> Any:
        raise TypeError("the tests derive a class from one of the response's, which lives in another process")

    def __enter__(self) -> Any:
        return self._link.ask("call", self.__getattr__("__enter__"), (), {})

    def __exit__(self, kind: Any, error: Any, trace: Any) -> Any:
        return self._link.ask("exit", self, error)

    def __copy__(self) -> Any:
        return _believed(self, "copy", self._link.ask("copy", self))

    def __deepcopy__(self, memo: Any) -> Any:
        return _believed(self, "copy", self._link.ask("deepcopy", self))

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("an object of another process cannot be pickled")


class RemoteCoroutine(Remote):
    """A coroutine of the other process; awaiting it has it run there, from its start to its end."""

    __slots__ = ()

    def send(self, value: Any) -> Any:
        raise StopIteration(_believed(self, "result", self._link.ask("await", self)))

    def __next__(self) -> Any:
        return self.send(None)

    def throw(self, *error: Any) -> Any:
        raise error[0]

    def close(self) -> None:
        """Nothing to do: it has not begun."""

    def __await__(self) -> Any:
        return _believed(self, "result", self._link.ask("await", self))
        yield


class RemoteData(Remote):
    """An object of the other process whose class derives from a data type; `isinstance` says so here too."""

    __slots__ = ()
    _view_type: type = object

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return self._view_type


def local_type(name: str, view: str | None, coroutine: bool) -> type[Remote]:
    """The class of proxies for objects of a class that is called `name`, so that `type(x).__name__` is right."""
    base = RemoteCoroutine if coroutine else RemoteData if view in VIEWS else Remote
    members = {"__slots__": (), "__doc__": property(lambda self: self.__getattr__("__doc__"))} | (
        {"_view_type": VIEWS[view]} if view in VIEWS else {}
    )
    return type(name, (base,), members)


def is_remote(value: Any) -> bool:
    """Whether a value stands for an object of the other process."""
    return issubclass(type(value), Remote)


def data_of(remote: Remote) -> tuple[Any, ...]:
    """The object as data, in a tuple; an empty one if it is none."""
    if not issubclass(type(remote), RemoteData):
        return ()
    if not remote._data:
        data = remote._link.look("view", remote)
        # An owner that calls this one an object again would have it asked for ever.
        if is_remote(data):
            return ()
        if remote._shown and isinstance(data, NUMBERS):
            raise _unbelieved(remote, "number")
        _believed(remote, "data", data)
        if not _is_fixed(data):
            return (data,)
        object.__setattr__(remote, "_data", (data,))
    kept: tuple[Any, ...] = remote._data
    return kept


def _is_fixed(data: Any) -> bool:
    """Whether data cannot change, all that is in it included."""
    if type(data) in (tuple, frozenset):
        return all(map(_is_fixed, data))
    return not is_remote(data) and (type(data) in SCALARS or (type(data) in VIEWED and type(data).__hash__ is not None))


def _believed(remote: Remote, name: str, answer: Any) -> Any:
    """What an object gives. Raises `TypeError` for what one that was shown data of the test's may not give."""
    if remote._shown:
        zeros, ones = remote._shown & DIFFERENCES, remote._shown & QUOTIENTS
        if (zeros and says_only(answer, 0)) or (ones and says_only(answer, 1)):
            raise _unbelieved(remote, name)
        _show(answer, remote._shown)
    return answer


def _unbelieved(remote: Remote, name: str) -> TypeError:
    how = ", ".join(sorted(remote._shown))
    return TypeError(f"the response's object was shown data of the test's ({how}); its {name} is not believed")


def _show(answer: Any, shown: frozenset[str]) -> None:
    """Note for each object in an answer that it was shown data of the test's."""
    if is_remote(answer):
        object.__setattr__(answer, "_shown", answer._shown | shown)
    elif isinstance(answer, Mapping):
        _show([*answer, *answer.values()], shown)
    elif isinstance(answer, (list, tuple, set, frozenset)):
        for each in answer:
            _show(each, shown)


def _compare(name: str) -> Callable[[Remote, Any], Any]:
    method = getattr(operator, name)

    def compare(self: Remote, other: Any) -> Any:
        if is_remote(other) or not self._link.is_tester:
            ours, theirs = data_of(self), data_of(other) if is_remote(other) else ()
            if ours and theirs:
                return method(ours[0], theirs[0])
            return self._link.ask(name, self, other)
        data = data_of(self)
        return method(data[0], other) if data else NotImplemented

    return compare


def _binary(name: str, swapped: bool = False) -> Callable[[Remote, Any], Any]:
    method = getattr(operator, name)

    def apply(self: Remote, other: Any) -> Any:
        pair = (other, self) if swapped else (self, other)
        if not self._link.is_tester:
            return self._link.ask(name, *pair)
        if is_remote(other):
            result = _believed(self, name, self._link.ask(name, *pair))
            return _believed(other, name, result)
        data = data_of(self)
        if data:
            return method(other, data[0]) if swapped else method(data[0], other)
        result = self._link.ask(name, *pair)
        if not is_remote(result) or data_of(result):
            raise TypeError(f"the response's object and data of the test's give data ({name}); that is not believed")
        _show(result, self._shown | {name})
        return result

    return apply


def _unary(name: str) -> Callable[..., Any]:
    def apply(self: Remote, *rest: Any) -> Any:
        if not self._link.is_tester:
            return self._link.ask(name, self, *rest)
        if name in TELLING and self._shown:
            raise _unbelieved(self, name)
        if name == "next":
            return _next(self)
        if (
            name in OF_NUMBERS
            and issubclass(getattr(type(self), "_view_type", object), NUMBERS)
            and (data := data_of(self))
        ):
            return UNARY[name](data[0], *rest)
        return _believed(self, name, (self._link.look if name in LOOKS else self._link.ask)(name, self, *rest))

    return apply


def _next(iterator: Remote) -> Any:
    try:
        answer = _believed(iterator, "next", iterator._link.ask("next", iterator))
    except StopIteration:
        if iterator._shown & DIFFERENCES and not iterator._began:
            raise _unbelieved(iterator, "next") from None
        raise
    object.__setattr__(iterator, "_began", True)
    return answer


for _name in COMPARISONS:
    setattr(Remote, f"__{_name}__", _compare(_name))
for _name in BINARY:
    setattr(Remote, f"__{_name.rstrip('_')}__", _binary(_name))
    setattr(Remote, f"__r{_name.rstrip('_')}__", _binary(_name, swapped=True))
for _name in UNARY:
    setattr(Remote, f"__{_name}__", _unary(_name))
