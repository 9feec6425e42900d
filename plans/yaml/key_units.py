"""Units at the end of keys, and numbers in a wrong unit: `deadline_ms: 2000` for `deadline_s: 2`."""

from __future__ import annotations

import re
from typing import Any

from .odd_text import meant_number

_UNITS: dict[str, tuple[str, float]] = {
    # unit -> (suffix of our keys, factor from the unit to that of the suffix)
    **{u: ("s", 1e-9) for u in ("ns", "nanoseconds")},
    **{u: ("s", 1e-6) for u in ("us", "microseconds")},
    **{u: ("s", 1e-3) for u in ("ms", "msec", "millis", "milliseconds")},
    **{u: ("s", 1.0) for u in ("s", "sec", "secs", "second", "seconds")},
    **{u: ("s", 60.0) for u in ("m", "min", "mins", "minute", "minutes")},
    **{u: ("s", 3600.0) for u in ("h", "hr", "hrs", "hour", "hours")},
    **{u: ("bytes", 1.0) for u in ("b", "byte", "bytes")},
    **{f"{p}b": ("bytes", 1000.0 ** (i + 1)) for i, p in enumerate("kmgt")},
    **{f"{p}ib": ("bytes", 1024.0 ** (i + 1)) for i, p in enumerate("kmgt")},
    **{u: ("tokens", 1.0) for u in ("tok", "toks", "token", "tokens")},
    **{u: ("tokens", 1000.0) for u in ("k", "ktok", "ktokens")},
    **{
        u: ("usd_per_node_hour", 1.0) for u in ("usd_per_node_hour", "usd_per_hour", "usd_per_h", "usd", "dollars", "$")
    },
}


UNIT_NAMES = {
    "s": "seconds",
    "bytes": "bytes",
    "bytes_per_s": "bytes per second",
    "tokens": "tokens",
    "usd_per_hour": "USD per hour",
    "usd_per_node_hour": "USD per node and hour",
    "usd_per_gpu_hour": "USD per GPU and hour",
}


def unit_factor(name: str, candidate: str) -> float | None:
    """Factor from the unit of `name` to that of `candidate`; None unless both are the same key in two units."""
    suffix = unit_of_key(candidate)
    if suffix is None:
        return None
    stem = candidate.removesuffix(suffix).rstrip("_")
    if name == stem:
        return 1.0
    head, _, unit = name.rpartition("_") if not name.startswith(stem + "_") else (stem, "_", name[len(stem) + 1 :])
    if head != stem or unit.lower() not in _UNITS:
        return None
    family, factor = _UNITS[unit.lower()]
    return factor if family == suffix else None


def unit_of_key(key: str) -> str | None:
    """Return the unit that a key ends with, as in `deadline_s`; None without one."""
    for suffix in sorted(UNIT_NAMES, key=len, reverse=True):
        if key == suffix or key.endswith("_" + suffix):
            return suffix
    return None


def in_unit(key: str) -> str:
    """Return the unit of a key as text to follow a number, with a space before it; empty without a unit."""
    suffix = unit_of_key(key)
    return f" {UNIT_NAMES[suffix]}" if suffix else ""


def not_a_number(key: str, value: Any, whole: bool, shown: str, quoted: bool) -> str:
    """Return the message for a value that is not a number, with the number to write where that can be told. `shown`: as
    it is written; `quoted`: whether in quotes."""
    kind = "a whole number" if whole else "a number"
    suffix = unit_of_key(key)
    of = f" of {UNIT_NAMES[suffix]}" if suffix else ""
    if isinstance(value, str):
        match = re.fullmatch(r"\s*([-+]?[0-9][0-9_]*\.?[0-9]*(?:[eE][-+]?[0-9]+)?)\s*([A-Za-z_$]*)\s*", value)
        if match and match[2] and suffix and _UNITS.get(match[2].lower(), ("", 0))[0] == suffix:
            converted = rounded(float(match[1]) * _UNITS[match[2].lower()][1])
            return f"wrong unit: must be {kind}{of} and no unit, not {shown}; write {converted}"
        if match and not match[2] and quoted:
            return f"must be {kind}{of}, not {shown} in quotes; write {match[1]}"
    text, meant = str(value) if isinstance(value, str) else shown, list[str]()
    if isinstance(value, str) or whole:
        meant = [number for number in meant_number(text, suffix == "s") if not whole or float(number) % 1 == 0]
    if not meant and whole and isinstance(value, float) and value == value // 1:
        meant = [str(int(value))]
    if whole:
        meant = [str(int(float(number))) for number in meant]
    return f"must be {kind}{of}, not {shown}" + (f"; write {' or '.join(meant)}" if meant else "")


def is_number(value: Any) -> bool:
    """Return whether a value is a number that can be converted."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e280


def rounded(value: float) -> str:
    """Return a number as text for a message: as an integer, or with six digits."""
    return str(int(value)) if abs(value) < 1e300 and value == int(value) else f"{value:.6g}"
