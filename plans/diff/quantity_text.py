"""Figures as text: three or four digits, one unit in a row, differences with a sign, unknown figures never as 0."""

from __future__ import annotations

import re
from typing import Any

from ..phrases.numbers import digits, percent, ratio, signed, times, unsigned, usd
from ..phrases.sentences import shorten
from .change import NOT_GIVEN, KeyChange, Quantity, Unit

UNKNOWN = "unknown"
_DIGEST = re.compile(r"[0-9a-f]{64}")


def figure(value: float | None, unit: Unit, milli: bool = False) -> str:
    """One value with its unit."""
    if value is None:
        return UNKNOWN
    if unit == "s":
        return f"{digits(1000 * value)} ms" if milli else f"{digits(value)} s"
    if unit == "usd":
        return usd(value)
    if unit == "x":
        return times(value, 3)
    if unit == "ratio":
        return ratio(value)
    return percent(value, 1) if unit == "share" else f"{value:,.0f}" if abs(value) < 1e15 else digits(value)


def values(quantity: Quantity) -> tuple[str, str]:
    """Old and new in the same unit."""
    milli = _in_milliseconds(quantity)
    old, new = (
        quantity.missing if side is None else figure(side, quantity.unit, milli)
        for side in (quantity.old, quantity.new)
    )
    return old, new


def _in_milliseconds(quantity: Quantity) -> bool:
    """Whether old and new are shown in milliseconds: both are below one second."""
    sizes = [abs(side) for side in (quantity.old, quantity.new) if side is not None]
    return quantity.unit == "s" and bool(sizes) and max(sizes) < 1


def delta_text(quantity: Quantity) -> str:
    """The difference in the unit of the row, with its sign; for a share, in percentage points."""
    delta = quantity.delta
    if delta is None or not quantity.changed:
        return ""
    if quantity.unit == "share":
        return f"{signed(100 * delta)} points"
    size = abs(delta)
    return ("-" if delta < 0 else "+") + (
        f"{size:.2g}"
        if quantity.unit == "ratio" and size < 0.0005
        else figure(size, quantity.unit, _in_milliseconds(quantity))
    )


def change_text(quantity: Quantity) -> str:
    """The relative difference with its uncertainty: `-6.9% ±4.1%`; `-1.2% ±3.1%, not certain` if it may be none."""
    if quantity.old is None or quantity.new is None:
        return "" if quantity.old is quantity.new or quantity.missing != UNKNOWN else UNKNOWN
    if not quantity.changed:
        return "unchanged"
    relative, sigma = quantity.relative, quantity.relative_sigma
    if relative is None or quantity.unit not in ("s", "usd", "x"):
        return ""
    text = relative_text(relative)
    if not sigma:
        return text
    return f"{text} {sigma_text(relative, sigma)}" + (", not certain" if quantity.within_error else "")


def relative_text(relative: float) -> str:
    """A relative difference: `-6.9%`, `+0.04%`; for ratios of 11 and more or below 0.01, the ratio: `12.3 times`."""
    return f"{relative + 1:.3g} times" if _in_times(relative) else f"{signed(100 * relative)}%"


def sigma_text(relative: float, sigma: float) -> str:
    """The uncertainty of `relative_text` in the same unit: `±4.1%`, `±0.5`."""
    return f"±{sigma:.2g}" if _in_times(relative) else f"±{unsigned(100 * sigma)}%"


def _in_times(relative: float) -> bool:
    return relative >= 10 or -1 < relative < -0.99


def value_text(value: Any, width: int = 60) -> str:
    """A value of a document, on one line."""
    if value is None:
        return "none"
    if value is NOT_GIVEN:
        return "not given"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value) if abs(value) < 10**15 else f"{float(value):.6g}" if abs(value) < 10**300 else "huge"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, dict):
        return shorten("{" + ", ".join(f"{k}: {value_text(v, width)}" for k, v in value.items()) + "}", width)
    if isinstance(value, (list, tuple)):
        return shorten("[" + ", ".join(value_text(v, width) for v in value) + "]", width)
    text = str(value)
    return f"{text[:8]}…" if _DIGEST.fullmatch(text) else shorten(text, width)


def key_values(change: KeyChange, width: int = 60) -> tuple[str, str]:
    """Old and new value of a key; after the new value the relative difference if both are numbers."""
    relative = change.relative
    behind = f" ({relative_text(relative)})" if relative and isinstance(change.new, float) else ""
    return value_text(change.old, width), value_text(change.new, width) + behind
