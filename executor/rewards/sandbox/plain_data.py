"""How tester and response write values to each other: plain data by value, everything else by reference.

A value is JSON: None, bool, int, float and str stand for themselves, all else is a list that begins with a tag; of data
its parts follow (`Form`). Only *exact* types are data; an instance of a subclass is an object, with a class of the
response's that must not run in the tester. Reading makes nothing but the types named here, and runs no code of the
sender's.

Arrays and numbers of numpy are data too, in a sandbox that has it (`use_numpy`): their type, shape and bytes.

Containers that can be changed are numbered as they come, by writer and reader alike. So a second mention of one is
written as its number, which keeps cycles and identity; and an answer can say which of a request's containers changed.
"""

from __future__ import annotations

import datetime
import itertools
import re
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple

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


class Unreadable(Exception):
    """What came is no value as it is described here."""


class Form(NamedTuple):
    """How values of one type are written: a tag, and a list of parts, each of which is a value."""

    tag: str
    parts: Callable[[Any], Iterable[Any] | None]
    """Of a value; None if it is no data."""
    make: Callable[..., Any]
    """From the parts to the value; of a container that can be changed, from what was written to an empty one."""
    fill: Callable[[Any, list[Any]], Any] | None = None
    """Of such a container: puts the parts into a new one."""
    holds_all: bool = False
    """Whether parts may be other values than scalars."""


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
            return ["i", hex(value)] if kind is int and value.bit_length() > BARE_BITS else value
        if (number := self._numbers.get(id(value))) is not None:
            return ["=", number]
        form = _FORMS.get(kind)
        parts = form.parts(value) if form else None
        if form and parts is not None:
            if form.fill:
                self._number(value)
            return [form.tag, self.many(parts)]
        name = getattr(value, "__name__", "") if kind is type else ""
        return ["type", name] if name and TYPES.get(name) is value else self._refer(value)

    def contents(self, value: Any) -> Any:
        """The JSON of what a numbered container holds now."""
        form = _FORMS[type(value)]
        return [form.tag, self.many(form.parts(value) or ())]

    def _number(self, value: Any) -> None:
        self._numbers[id(value)] = len(self.numbered)
        self.numbered.append(value)  # keeps it alive, and so its id its own

    def many(self, values: Iterable[Any]) -> list[Any]:
        """The JSON of several values."""
        listed = list(values)
        return listed if _bare(listed) else [self.write(value) for value in listed]


def _bare(values: list[Any]) -> bool:
    """Whether all values stand for themselves, so that they need not be looked at one by one."""
    kinds = set(map(type, values))
    return kinds <= SCALARS and (int not in kinds or all(-(1 << 63) < v < 1 << 63 for v in values if type(v) is int))


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
            if tag in _BY_TAG:
                return self._made(_BY_TAG[tag], into, *rest)
            if tag in _SINGLE:
                return _SINGLE[tag](self, *rest)
        except Unreadable:
            raise
        except (TypeError, ValueError, LookupError, ArithmeticError, AttributeError) as error:
            raise Unreadable(f"not a value: {type(error).__name__} in {tag!r}") from None
        return self._referred(written)

    def many(self, written: list[Any]) -> list[Any]:
        """Several values."""
        return [one if type(one) in SCALARS else self.read(one) for one in written]

    def _made(self, form: Form, into: Any, written: Any) -> Any:
        if type(written) is not list:
            raise Unreadable("not parts")
        new = form.make(written) if form.fill else None
        if form.fill and into is None:
            self.numbered.append(new)  # before its parts, which may hold it
        parts = self.many(written)
        if not form.holds_all and not set(map(type, parts)) <= SCALARS:
            raise Unreadable("not scalars")
        if not form.fill:
            return form.make(*parts)
        form.fill(new, parts)
        if into is None:
            return new
        if type(into) is not type(new):
            raise Unreadable("a container does not change its type")
        return refill(into, new)


def is_plain(value: Any) -> bool:
    """Whether a value is written as data."""
    return type(value) in SCALARS or type(value) in _FORMS


def is_changeable(value: Any) -> bool:
    """Whether a value is a container that is numbered."""
    form = _FORMS.get(type(value))
    return form is not None and form.fill is not None


def refill(container: Any, new: Any) -> Any:
    """Have a container hold what another of its type holds; returns it."""
    if hasattr(container, "tobytes"):  # an array
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


# ---- the types ----


def _of_pairs(tag: str, kind: type[dict[Any, Any]]) -> Form:
    """Of a mapping its keys and values in turns."""
    return Form(tag, _in_turns, lambda written: kind(), _put, holds_all=True)


def _in_turns(mapping: dict[Any, Any]) -> Iterable[Any]:
    return itertools.chain.from_iterable(dict.items(mapping))


def _put(new: dict[Any, Any], parts: list[Any]) -> None:
    new.update(dict(zip(parts[::2], parts[1::2], strict=True)))  # to a `Counter`, pairs would be what to count


def _dated(kind: Any) -> Form:
    def parts(value: Any) -> tuple[str, int] | None:
        zone = getattr(value, "tzinfo", None)
        if zone is not None and type(zone) is not datetime.timezone:
            return None
        return value.isoformat(), getattr(value, "fold", 0)

    def make(text: str, fold: int) -> Any:
        value = kind.fromisoformat(text)
        return value.replace(fold=1) if fold else value

    return Form(kind.__name__, parts, make)


def _factory(name: str | None) -> Any:
    return None if name is None else TYPES[FACTORIES[FACTORIES.index(name)]]


_FORMS: dict[type, Form] = {
    list: Form("l", iter, lambda written: [], list.extend, holds_all=True),
    dict: _of_pairs("d", dict),
    Counter: _of_pairs("C", Counter),
    OrderedDict: _of_pairs("o", OrderedDict),
    defaultdict: Form(
        "D",
        lambda v: (next((each for each in FACTORIES if TYPES[each] is v.default_factory), None), *_in_turns(v)),
        lambda written: defaultdict(_factory(written[0])),
        lambda new, parts: _put(new, parts[1:]),
        holds_all=True,
    ),
    set: Form("s", iter, lambda written: set(), set.update, holds_all=True),
    deque: Form(
        "q",
        lambda v: (v.maxlen, *v),
        lambda written: deque(maxlen=written[0]),
        lambda new, parts: new.extend(parts[1:]),
        holds_all=True,
    ),
    bytearray: Form(
        "B", lambda v: [v.decode("latin-1")], lambda written: bytearray(), lambda new, parts: new.extend(_bytes(*parts))
    ),
    tuple: Form("t", iter, lambda *parts: parts, holds_all=True),
    frozenset: Form("f", iter, lambda *parts: frozenset(parts), holds_all=True),
    bytes: Form("b", lambda v: [v.decode("latin-1")], lambda text: _bytes(text)),
    complex: Form("c", lambda v: (v.real, v.imag), complex),
    range: Form("r", lambda v: (v.start, v.stop, v.step), range),
    slice: Form("slice", lambda v: (v.start, v.stop, v.step), slice, holds_all=True),
    type(...): Form("...", lambda v: (), lambda: ...),
    Decimal: Form("dec", lambda v: [str(v)], Decimal),
    Fraction: Form("frac", lambda v: (v.numerator, v.denominator), Fraction),
    datetime.date: _dated(datetime.date),
    datetime.datetime: _dated(datetime.datetime),
    datetime.time: _dated(datetime.time),
    datetime.timedelta: Form("delta", lambda v: (v.days, v.seconds, v.microseconds), datetime.timedelta),
    type({}.keys()): Form("keys", iter, lambda *parts: dict.fromkeys(parts).keys(), holds_all=True),
    type({}.values()): Form("values", iter, lambda *parts: dict(enumerate(parts)).values(), holds_all=True),
    type({}.items()): Form("items", iter, lambda *parts: dict(parts).items(), holds_all=True),
}
_BY_TAG = {form.tag: form for form in _FORMS.values()}
_SINGLE: dict[str, Callable[..., Any]] = {
    "=": lambda reader, number: reader.numbered[number],
    "i": lambda reader, text: int(text, 16),
    "type": lambda reader, name: TYPES[name],
}
VIEWED: tuple[type, ...] = (
    int, float, complex, str, bytes, bytearray, list, tuple, set, frozenset, Counter, OrderedDict, defaultdict, dict,
    deque, Decimal, Fraction, datetime.datetime, datetime.date, datetime.time, datetime.timedelta,
)  # fmt: skip
"""Data types that a class can be derived from; the first that an object is an instance of is what it is as data."""


def _bytes(text: str) -> bytes:
    return text.encode("latin-1")


_ARRAY_TYPE = re.compile(r"[<>|=][biufcSUmM]\d+(\[\d*\w+\])?", re.ASCII)
"""Types of arrays that hold no objects and no fields."""


def use_numpy(numpy: Any) -> None:
    """From now on, arrays and scalars of numpy are data; called before anything of a response or test has run."""

    def parts(value: Any) -> tuple[Any, ...] | None:
        if not _ARRAY_TYPE.fullmatch(value.dtype.str):
            return None
        return value.dtype.str, value.tobytes().decode("latin-1"), *value.shape

    def read(kind: str, text: str, *shape: int) -> Any:
        if not _ARRAY_TYPE.fullmatch(kind):
            raise ValueError(kind)
        return numpy.frombuffer(_bytes(text), dtype=numpy.dtype(kind)).reshape(shape).copy()

    array = Form("array", parts, lambda written: read(*written), lambda new, parts: None)
    number = Form("number", parts, lambda kind, text: read(kind, text)[()])
    kinds = {each for each in numpy.sctypeDict.values() if not issubclass(each, (numpy.void, numpy.object_))}
    _FORMS.update({numpy.ndarray: array, **dict.fromkeys(kinds, number)})
    _BY_TAG.update(array=array, number=number)
