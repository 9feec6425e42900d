"""Canonical YAML text: the same values give the same bytes, and a small change of values changes few lines.

The rules: keys in the order they come in; two spaces of indentation; a list of scalars, and a mapping of scalars below
the root that holds no prose and fits a line, in flow style (as an item of a list also if it holds lists of scalars);
floats in the shortest form that reads back as the same value, after rounding if `digits` is given; strings quoted only
if YAML 1.1 or 1.2 might read them as another type; no aliases; LF; one line break at the end.
"""

from __future__ import annotations

import math
import re
from numbers import Integral, Real
from typing import Any, NamedTuple

import yaml

from .errors import InputError
from .yaml_doc import Loc, plain_value

_WIDTH = 140  # wide enough for {path, sha256, provenance} of an input on one line
_PLAIN = re.compile(r"[A-Za-z0-9_./][A-Za-z0-9_./+-]*")
_IMPLICIT = yaml.SafeLoader.yaml_implicit_resolvers
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def number(value: float, digits: int | None = None) -> str:
    """A float as text that YAML 1.1 and 1.2 both read as a float; `digits`: significant digits, None: all digits."""
    if not math.isfinite(value):
        raise InputError(f"{value} is no value of a document; write a finite number")
    text = repr((value if digits is None else float(f"{value:.{digits}g}")) + 0.0)  # + 0.0 turns -0.0 into 0.0
    mantissa, e, exponent = text.partition("e")
    if e and "." not in mantissa:
        mantissa += ".0"
    return mantissa + e + exponent


def string(value: str) -> str:
    """A string as YAML: without quotes where that is safe, else in double quotes on one line."""
    if _PLAIN.fullmatch(value) and plain_value(value) == value and not _implicit_in_yaml_1_1(value):
        return value
    return '"' + "".join(_ESCAPES.get(c) or (c if c.isprintable() else _escape(c)) for c in value) + '"'


def _implicit_in_yaml_1_1(value: str) -> bool:
    return any(pattern.match(value) for _, pattern in _IMPLICIT.get(value[0], []))


def _escape(char: str) -> str:
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _scalar(value: Any, digits: int | None) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Integral):
        return str(int(value))
    if isinstance(value, Real):
        return number(float(value), digits)
    if not isinstance(value, str):
        raise InputError(f"{value!r} is no value of a document; write text, a number, true, false or a list of these")
    return string(value)


def _flow(value: Any, digits: int | None, listed: bool = False) -> str | None:
    """`value` in flow style; None if it must be a block. `listed`: whether it is an item of a list."""
    if isinstance(value, dict):
        nested = [v for v in value.values() if isinstance(v, (dict, list, tuple))]
        if any(isinstance(v, dict) or not listed or _flow(v, digits) is None for v in nested):
            return None
        if any(isinstance(v, str) and " " in v for v in value.values()):
            return None
        return "{" + ", ".join(f"{string(k)}: {_flow(v, digits)}" for k, v in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        if any(isinstance(v, (dict, list, tuple)) for v in value):
            return None
        return "[" + ", ".join(_scalar(v, digits) for v in value) + "]"
    return _scalar(value, digits)


class Line(NamedTuple):
    """A line of a document, and the location of the key or list item at its start."""

    text: str
    location: Loc


def _block(value: Any, indent: str, location: Loc, out: list[Line], digits: int | None) -> None:
    pairs: list[tuple[str, str | int, Any]]
    if isinstance(value, dict):
        # PyYAML reads a key of at most 1024 characters.
        assert all(len(k) <= 500 for k in value), "a key is a name, not a text"
        pairs = [(f"{string(k)}:", k, v) for k, v in value.items()]
    else:
        pairs = [("-", index, v) for index, v in enumerate(value)]
    for head, key, item in pairs:
        flow = _flow(item, digits, head == "-")
        breakable = isinstance(item, dict) and bool(item)
        if flow is not None and (not breakable or len(indent) + len(head) + 1 + len(flow) <= _WIDTH):
            out.append(Line(f"{indent}{head} {flow}", (*location, key)))
        else:
            out.append(Line(f"{indent}{head}", (*location, key)))
            _block(item, indent + "  ", (*location, key), out, digits)


def lines(value: dict[str, Any], digits: int | None = None) -> list[Line]:
    """Canonical lines of a document: str keys; values are dict, list, tuple, str, int, float, bool or None."""
    out: list[Line] = []
    _block(value, "", (), out, digits)
    return out or [Line("{}", ())]


def write(value: dict[str, Any], digits: int | None = None) -> str:
    """Canonical text of a document."""
    return "".join(f"{line.text}\n" for line in lines(value, digits))
