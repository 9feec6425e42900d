"""How tester and response write values to each other: plain data by value, everything else by reference.

A value is JSON: None, bool, int, float and str stand for themselves, all else is a list that begins with a tag. Only
*exact* types are data; an instance of a subclass is an object, with a class of the response's that must not run in the
tester. Reading makes nothing but the types named here, and runs no code of the sender's.

Arrays and numbers of numpy are data too, in a sandbox that has it (`use_numpy`): their type, shape and bytes.

Containers that can be changed are numbered as they come, by writer and reader alike. So a second mention of one is
written as its number, which keeps cycles and identity; and an answer can say which of a request's containers changed.
"""

from __future__ import annotations

import datetime
import re
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from decimal import Decimal
from fractions import Fraction
from typing import Any

SCALARS = frozenset({type(None), bool, int, float, str})
BARE_BITS = 12_000
"""Larger integers are written in hexadecimal: Python limits the decimal digits that it reads (to 4,300)."""
TYPES: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        int, float, complex, bool, str, bytes, bytearray, list, tuple, dict, set, frozenset, range, object, type(None),
        deque, Counter, OrderedDict, defaultdict, Decimal, Fraction,
    )
}  # fmt: skip
FACTORIES = ("int", "float", "str", "bool", "list", "tuple", "dict", "set")
DATES: dict[str, Any] = {kind.__name__: kind for kind in (datetime.date, datetime.datetime, datetime.time)}


class Unreadable(Exception):
    """What came is no value as it is described here."""


class Writer:
    """Writes the values of one message.

    Args:
        refer: what is written for an object that is no plain data.
        known: changeable containers that the other side has numbered already, in their order.
    """

    def __init__(self, refer: Callable[[Any], list[Any]], known: Iterable[Any] = ()) -> None:
        self._refer = refer
        self.numbered: list[Any] = []
        self._numbers: dict[int, int] = {}
        for container in known:
            self._number(container)

    def write(self, value: Any) -> Any:
        """The JSON of a value."""
        kind = type(value)
        if kind in SCALARS:
            if kind is int and value.bit_length() > BARE_BITS:
                return ["i", hex(value)]
            return value
        written = _WRITERS.get(kind)
        if written is not None:
            return written(self, value)
        name = getattr(value, "__name__", "") if kind is type else ""
        if name and TYPES.get(name) is value:
            return ["type", name]
        return self._refer(value)

    def contents(self, value: Any) -> Any:
        """The JSON of what a numbered container holds now."""
        return _WRITERS[type(value)](self, value, again=True)

    def number_of(self, value: Any) -> int | None:
        """The number of a container that was written before."""
        return self._numbers.get(id(value))

    def _number(self, value: Any) -> None:
        self._numbers[id(value)] = len(self.numbered)
        self.numbered.append(value)  # keeps it alive, and so its id its own

    def many(self, values: Iterable[Any]) -> list[Any]:
        return [self.write(value) for value in values]

    def pairs(self, value: dict[Any, Any]) -> list[Any]:
        return [[self.write(key), self.write(item)] for key, item in dict.items(value)]


def _bare(values: Any) -> bool:
    """Whether all values stand for themselves, so that they need not be looked at one by one."""
    kinds = set(map(type, values))
    return kinds <= SCALARS and (int not in kinds or all(-(1 << 63) < v < 1 << 63 for v in values if type(v) is int))


def _changeable(tag: str, body: Callable[[Writer, Any], list[Any]]) -> Callable[..., list[Any]]:
    def write(writer: Writer, value: Any, again: bool = False) -> list[Any]:
        if not again:
            number = writer.number_of(value)
            if number is not None:
                return ["=", number]
            writer._number(value)
        return [tag, *body(writer, value)]

    return write


def _list(writer: Writer, value: Any, again: bool = False) -> list[Any]:
    if not again:
        number = writer.number_of(value)
        if number is not None:
            return ["=", number]
        writer._number(value)
    return ["L", value] if _bare(value) else ["l", writer.many(value)]


def _tuple(writer: Writer, value: Any) -> list[Any]:
    return ["T", value] if _bare(value) else ["t", writer.many(value)]


def _date(writer: Writer, value: Any) -> list[Any]:
    zone = getattr(value, "tzinfo", None)
    if zone is not None and type(zone) is not datetime.timezone:
        return writer._refer(value)
    return ["date", type(value).__name__, value.isoformat(), getattr(value, "fold", 0)]


def _defaultdict(writer: Writer, value: Any) -> list[Any]:
    factory = value.default_factory
    name = next((each for each in FACTORIES if TYPES[each] is factory), None)
    return [writer.pairs(value), name]


_WRITERS: dict[type, Callable[..., list[Any]]] = {
    list: _list,
    tuple: _tuple,
    dict: _changeable("d", lambda w, v: [w.pairs(v)]),
    set: _changeable("s", lambda w, v: [w.many(v)]),
    frozenset: lambda w, v: ["f", w.many(v)],
    bytes: lambda w, v: ["b", v.decode("latin-1")],
    bytearray: _changeable("B", lambda w, v: [v.decode("latin-1")]),
    complex: lambda w, v: ["c", v.real, v.imag],
    range: lambda w, v: ["r", w.many((v.start, v.stop, v.step))],
    slice: lambda w, v: ["slice", w.many((v.start, v.stop, v.step))],
    type(...): lambda w, v: ["..."],
    deque: _changeable("q", lambda w, v: [w.many(v), v.maxlen]),
    Counter: _changeable("C", lambda w, v: [w.pairs(v)]),
    OrderedDict: _changeable("o", lambda w, v: [w.pairs(v)]),
    defaultdict: _changeable("D", _defaultdict),
    Decimal: lambda w, v: ["dec", str(v)],
    Fraction: lambda w, v: ["frac", w.write(v.numerator), w.write(v.denominator)],
    datetime.date: _date,
    datetime.datetime: _date,
    datetime.time: _date,
    datetime.timedelta: lambda w, v: ["delta", v.days, v.seconds, v.microseconds],
    type({}.keys()): lambda w, v: ["keys", w.many(v)],
    type({}.values()): lambda w, v: ["values", w.many(v)],
    type({}.items()): lambda w, v: ["items", w.many(v)],
}
VIEWED: tuple[type, ...] = (
    int, float, complex, str, bytes, bytearray, list, tuple, set, frozenset, Counter, OrderedDict, defaultdict, dict,
    deque, Decimal, Fraction, datetime.datetime, datetime.date, datetime.time, datetime.timedelta,
)  # fmt: skip
"""Data types that a class can be derived from; the first that an object is an instance of is what it is as data."""


_ARRAY_TYPE = re.compile(r"[<>|=][biufcSUmM]\d+(\[\d*\w+\])?", re.ASCII)
"""Types of arrays that hold no objects and no fields."""
_arrays: tuple[type, ...] = ()
"""The class of arrays, where there is numpy."""


def use_numpy(numpy: Any) -> None:
    """From now on, arrays and scalars of numpy are data; called before anything of a response or test has run."""
    global _arrays
    _arrays = (numpy.ndarray,)

    def array(writer: Writer, value: Any, again: bool = False) -> list[Any]:
        if not _ARRAY_TYPE.fullmatch(value.dtype.str):
            return writer._refer(value)
        if not again:
            number = writer.number_of(value)
            if number is not None:
                return ["=", number]
            writer._number(value)
        return ["array", value.dtype.str, list(value.shape), value.tobytes().decode("latin-1")]

    def scalar(writer: Writer, value: Any) -> list[Any]:
        if not _ARRAY_TYPE.fullmatch(value.dtype.str):
            return writer._refer(value)
        return ["number", value.dtype.str, value.tobytes().decode("latin-1")]

    def read(kind: str, shape: Any, text: str) -> Any:
        if not _ARRAY_TYPE.fullmatch(kind):
            raise ValueError(kind)
        return numpy.frombuffer(text.encode("latin-1"), dtype=numpy.dtype(kind)).reshape(shape).copy()

    _WRITERS[numpy.ndarray] = array
    for kind in {each for each in numpy.sctypeDict.values() if not issubclass(each, (numpy.void, numpy.object_))}:
        _WRITERS[kind] = scalar
    _CHANGEABLE["array"] = (lambda rest: read(*rest), lambda r, new, rest: None)
    _FIXED["number"] = lambda r, kind, text: read(kind, (), text)[()]


def is_plain(value: Any) -> bool:
    """Whether a value is written as data."""
    return type(value) in SCALARS or type(value) in _WRITERS


class Reader:
    """Reads the values of one message.

    Args:
        referred: the object for what the other side wrote for one.
        known: changeable containers that are numbered already, in their order.

    Raises `Unreadable` for anything that `Writer` does not write.
    """

    def __init__(self, referred: Callable[[list[Any]], Any], known: Iterable[Any] = ()) -> None:
        self._referred = referred
        self.numbered: list[Any] = list(known)

    def read(self, written: Any, into: Any = None) -> Any:
        """The value; `into`: a container that is to hold what was written as its contents, instead of a new one."""
        if type(written) in SCALARS:
            return written
        if type(written) is not list or not written or type(written[0]) is not str:
            raise Unreadable("not a value")
        tag, *rest = written
        try:
            if tag in _CHANGEABLE:
                return self._changeable(tag, rest, into)
            if tag in _FIXED:
                return _FIXED[tag](self, *rest)
        except Unreadable:
            raise
        except (TypeError, ValueError, LookupError, ArithmeticError, AttributeError) as error:
            raise Unreadable(f"not a value: {type(error).__name__} in {tag!r}") from None
        return self._referred(written)

    def many(self, written: Any) -> list[Any]:
        return [self.read(one) for one in written]

    def pairs(self, written: Any) -> list[Any]:
        return [(self.read(key), self.read(item)) for key, item in written]

    def _changeable(self, tag: str, rest: list[Any], into: Any) -> Any:
        make, fill = _CHANGEABLE[tag]
        new = make(rest)
        if into is None:
            self.numbered.append(new)
            fill(self, new, rest)
            return new
        if type(into) is not type(new):
            raise Unreadable("a container does not change its type")
        fill(self, new, rest)  # read whole before anything is lost
        return refill(into, new)


def is_changeable(value: Any) -> bool:
    """Whether a value is a container that is numbered."""
    return type(value) in (list, dict, set, bytearray, deque, Counter, OrderedDict, defaultdict, *_arrays)


def refill(container: Any, new: Any) -> Any:
    """Have a container hold what another of its type holds; returns it."""
    if type(container) in _arrays:
        if (container.shape, container.dtype) != (new.shape, new.dtype):
            raise Unreadable("an array does not change its shape or type")
        container[...] = new
        return container
    held = new.copy()
    container.clear()
    if isinstance(container, (list, bytearray, deque)):
        container.extend(held)
    else:
        container.update(held)
    return container


def _scalars(written: Any) -> Any:
    if type(written) is not list or not set(map(type, written)) <= SCALARS:
        raise Unreadable("not scalars")
    return written


def _read_date(kind: Any, text: str, fold: int) -> Any:
    value = kind.fromisoformat(text)
    return value.replace(fold=1) if fold else value


_CHANGEABLE: dict[str, tuple[Callable[[Any], Any], Callable[[Reader, Any, Any], Any]]] = {
    "L": (lambda rest: [], lambda r, new, rest: new.extend(_scalars(rest[0]))),
    "l": (lambda rest: [], lambda r, new, rest: new.extend(r.many(rest[0]))),
    "d": (lambda rest: {}, lambda r, new, rest: new.update(r.pairs(rest[0]))),
    "s": (lambda rest: set(), lambda r, new, rest: new.update(r.many(rest[0]))),
    "B": (lambda rest: bytearray(), lambda r, new, rest: new.extend(rest[0].encode("latin-1"))),
    "q": (lambda rest: deque(maxlen=rest[1]), lambda r, new, rest: new.extend(r.many(rest[0]))),
    "C": (lambda rest: Counter(), lambda r, new, rest: new.update(dict(r.pairs(rest[0])))),
    "o": (lambda rest: OrderedDict(), lambda r, new, rest: new.update(r.pairs(rest[0]))),
    "D": (
        lambda rest: defaultdict(None if rest[1] is None else TYPES[FACTORIES[FACTORIES.index(rest[1])]]),
        lambda r, new, rest: new.update(r.pairs(rest[0])),
    ),
}
_FIXED: dict[str, Callable[..., Any]] = {
    "=": lambda r, number: r.numbered[number],
    "i": lambda r, text: int(text, 16),
    "T": lambda r, items: tuple(_scalars(items)),
    "t": lambda r, items: tuple(r.many(items)),
    "f": lambda r, items: frozenset(r.many(items)),
    "b": lambda r, text: text.encode("latin-1"),
    "c": lambda r, real, imag: complex(real, imag),
    "r": lambda r, items: range(*r.many(items)),
    "slice": lambda r, items: slice(*r.many(items)),
    "...": lambda r: ...,
    "dec": lambda r, text: Decimal(text),
    "frac": lambda r, top, bottom: Fraction(r.read(top), r.read(bottom)),
    "date": lambda r, kind, text, fold: _read_date(DATES[kind], text, fold),
    "delta": lambda r, *parts: datetime.timedelta(*parts),
    "keys": lambda r, items: dict.fromkeys(r.many(items)).keys(),
    "values": lambda r, items: dict(enumerate(r.many(items))).values(),
    "items": lambda r, items: dict(r.many(items)).items(),
    "type": lambda r, name: TYPES[name],
}
