"""What stands in one process for an object that lives in the other: a `Remote`, whose every use is asked of its owner.

In the tester this is where the line runs between what a response may answer and what it may not. It may say what its
object holds, for it could have returned that in the first place. It may not be shown the value that a test expects and
then say whether that is right. So, for a response's object and data of the test's:

- `==`, `!=`, `<` and so on: an object whose class derives from a data type is compared as that data, by the tester; any
  other is never equal, and has no order;
- arithmetic: the same for data; another object's own operator is asked, its result must be an object again, and that
  one has no number, length or truth that would be believed.

Between two objects of the response's, their class decides, and so it does in `x in object` and in any method: a test
that is written so leaves the decision to the response.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Protocol

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
    "neg",
    "pos",
    "invert",
    "abs",
    "int",
    "float",
    "complex",
    "index",
    "round",
    "trunc",
    "floor",
    "ceil",
    "bool",
    "len",
)
"""Those of which an object that was shown a test's data could give the result that the test wants."""
VIEWS = {kind.__name__: kind for kind in VIEWED}


class Link(Protocol):
    """The connection to the owner, as a `Remote` uses it."""

    is_tester: bool
    seen: int

    def ask(self, operation: str, *values: Any) -> Any:
        """Have the owner carry out an operation."""

    def drop(self, number: int) -> None:
        """Tell the owner, some time, that its object of this number is no longer used here."""


class Untestable(BaseException):
    """Tests do what no tester in another process can: the row's fault, whatever the response. No `Exception`: no test
    is to swallow it."""


class Remote:
    """An object of the other process."""

    __slots__ = ("__weakref__", "_link", "_number", "_shown")

    def __init__(self, link: Link, number: int) -> None:
        object.__setattr__(self, "_link", link)
        object.__setattr__(self, "_number", number)
        object.__setattr__(self, "_shown", False)

    def __del__(self) -> None:
        self._link.drop(self._number)

    def __getattr__(self, name: str) -> Any:
        return self._link.ask("getattr", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._link.ask("setattr", self, name, value)

    def __delattr__(self, name: str) -> None:
        self._link.ask("delattr", self, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._link.ask("call", self, args, kwargs)

    def __instancecheck__(self, instance: Any) -> bool:
        return isinstance(instance, Remote) and self._link.ask("isinstance", instance, self) is True

    def __subclasscheck__(self, subclass: Any) -> bool:
        return isinstance(subclass, Remote) and self._link.ask("issubclass", subclass, self) is True

    def __mro_entries__(self, bases: Any) -> Any:
        raise Untestable("they derive a class from one of the response's, which lives in another process")

    def __enter__(self) -> Any:
        return self._link.ask("call", self.__getattr__("__enter__"), (), {})

    def __exit__(self, kind: Any, error: Any, trace: Any) -> Any:
        return self._link.ask("exit", self, error)

    def __copy__(self) -> Any:
        return self._link.ask("copy", self)

    def __deepcopy__(self, memo: Any) -> Any:
        return self._link.ask("deepcopy", self)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("an object of another process cannot be pickled")


class RemoteCoroutine(Remote):
    """A coroutine of the other process; awaiting it has it run there, from its start to its end."""

    __slots__ = ()

    def send(self, value: Any) -> Any:
        raise StopIteration(self._link.ask("await", self))

    def __next__(self) -> Any:
        raise StopIteration(self._link.ask("await", self))

    def throw(self, *error: Any) -> Any:
        raise error[0]

    def close(self) -> None:
        """Nothing to do: it has not begun."""

    def __await__(self) -> Any:
        return self._link.ask("await", self)
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
    data = remote._link.ask("view", remote)
    # An owner that calls this one an object again would have it asked for ever.
    return () if is_remote(data) else (data,)


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
        if is_remote(other) or not self._link.is_tester:
            return self._link.ask(name, *pair)
        data = data_of(self)
        if data:
            return method(other, data[0]) if swapped else method(data[0], other)
        result = self._link.ask(name, *pair)
        if not is_remote(result) or data_of(result):
            raise TypeError(f"the response's object and data of the test's give data ({name}); that is not believed")
        object.__setattr__(result, "_shown", True)
        return result

    return apply


def _unary(name: str) -> Callable[..., Any]:
    def apply(self: Remote, *rest: Any) -> Any:
        if name in TELLING and self._shown and self._link.is_tester:
            raise TypeError(f"the response's object was shown data of the test's; its {name} is not believed")
        return self._link.ask(name, self, *rest)

    return apply


for _name in COMPARISONS:
    setattr(Remote, f"__{_name}__", _compare(_name))
for _name in BINARY:
    setattr(Remote, f"__{_name.rstrip('_')}__", _binary(_name))
    setattr(Remote, f"__r{_name.rstrip('_')}__", _binary(_name, swapped=True))
for _name in UNARY:
    setattr(Remote, f"__{_name}__", _unary(_name))


# ---- the owner's side ----


def _await(coroutine: Any) -> Any:
    import asyncio

    async def run() -> Any:
        return await coroutine

    return asyncio.run(run())


def _exit(manager: Any, error: BaseException | None) -> Any:
    return type(manager).__exit__(manager, None if error is None else type(error), error, None)


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
    "view": view, "await": _await, "exit": _exit, "copy": _copy, "deepcopy": _deepcopy,
    **{name: getattr(operator, name) for name in (*BINARY, *COMPARISONS)}, **UNARY,
}  # fmt: skip
"""What is done for the other side with an object of ours, by name."""
