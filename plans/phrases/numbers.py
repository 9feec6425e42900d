"""Numbers as people read them: seconds, shares, counts, bytes, dollars, factors.

Terminal, diff, pages and messages format numbers with these functions alone, so that one value reads the same
everywhere. Documents and `--json` hold the numbers themselves.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

NONE = "–"
"""The text where there is no number."""

MATTERS = 0.01
"""A smaller relative difference, or a smaller share of the step, is not told."""

_BYTES = (("EB", 1e18), ("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3))


def is_finite(value: float | None) -> TypeGuard[float]:
    """Return whether there is a finite number."""
    return value is not None and math.isfinite(value)


def digits(value: float | None, figures: int = 3) -> str:
    """Return a number with `figures` significant digits and thousands separators: `0.0123`, `1.23`, `12,346`."""
    if not is_finite(value):
        return NONE
    if value and not 1e-4 <= abs(value) < 1e15:
        return f"{value:.{figures}g}"
    rounded = float(f"{abs(value):.{figures - 1}e}")
    places = max(0, figures - 1 - math.floor(math.log10(rounded))) if value else 0
    return f"{value:,.{places}f}"


def fixed(value: float | None, form: str) -> str:
    """Return a number in one of Python's formats, or NONE."""
    return format(value, form) if is_finite(value) else NONE


def seconds(value: float | None) -> str:
    """Return seconds with their unit to three digits: `1.23 s`; milliseconds below a tenth of a second."""
    if not is_finite(value):
        return NONE
    return f"{digits(1000 * value, 2)} ms" if 0 < abs(value) < 0.1 else f"{digits(value)} s"


def duration(value: float | None) -> str:
    """Return a time to wait in the unit that fits: `42 s`, `7 min`, `3.4 h`, `2.1 days`."""
    if not is_finite(value):
        return NONE
    for unit, size, places in (("days", 86400, 1), ("h", 3600, 1), ("min", 60, 0)):
        if value >= 1.5 * size:
            return f"{value / size:.{places}f} {unit}"
    return f"{value:.0f} s"


def span(low: float, high: float) -> str:
    """Return a range of seconds: `1.29–1.55 s`."""
    if seconds(low) == seconds(high):
        return seconds(high)
    if high >= 0.1:
        return f"{digits(low) if low >= 0.001 else 0}–{digits(high)} s"
    return f"{seconds(low).removesuffix(' ms').removesuffix(' s')}–{seconds(high)}"


def percent(share: float | None, places: int | None = None) -> str:
    """Return a share as a percentage: `9.4%` below a tenth, `12%` above, `<0.1%` for little; or to `places` digits."""
    if not is_finite(share):
        return NONE
    if places is None:
        if 0 < abs(share) < 0.0005:
            return "<0.1%"
        places = 1 if 0 < abs(share) < 0.0995 else 0
    return f"{share:.{places}%}" if abs(share) < 1e6 else f"{100 * share:.2g}%"


def deviation(measured: float, predicted: float) -> float:
    """Return measured / predicted - 1, the one sense in which a deviation is told; NaN where nothing was predicted."""
    return measured / predicted - 1.0 if predicted else math.nan


def machine_text(factor: float) -> str:
    """Return how fast a machine is beside when it was profiled: `machine 1.19x slower than profiled`."""
    if abs(factor - 1) < 0.005:
        return "machine as fast as profiled"
    return f"machine {max(factor, 1 / factor):.2f}x {'slower' if factor > 1 else 'faster'} than profiled"


def deviation_text(share: float | None) -> str:
    """Return a deviation with its sign: `+68%`, `-4.1%`; `0%` for less than 0.05%."""
    if is_finite(share) and abs(share) < 0.0005:
        return "0%"
    return ("+" if is_finite(share) and share > 0 else "") + percent(share)


def model_error_text(detail: Mapping[str, Any]) -> str:
    """Return a run's `model_error` with its standard error, where that is known: `-12% ± 9.6%`."""
    error, chance = detail["model_error"], detail.get("model_error_standard_error")
    return deviation_text(error) + (f" ± {percent(chance)}" if is_finite(chance) else "")


def beside_predicted(measured_s: float | None, predicted_s: float) -> str:
    """Return seconds beside those predicted: `predicted 9.30 s, took 3.00 s (-68%)`."""
    if not is_finite(measured_s):
        return f"predicted {seconds(predicted_s)}, took unknown"
    off = f" ({deviation_text(deviation(measured_s, predicted_s))})" if predicted_s else ""
    return f"predicted {seconds(predicted_s)}, took {seconds(measured_s)}{off}"


def usd(value: float) -> str:
    """Return money without its unit: whole cents from ten dollars on, four digits of less."""
    in_cents = abs(value) < 1e12 and (abs(value) >= 10 or value == round(value, 2))
    return f"{value:,.2f}" if in_cents else f"{value:.4g}"


def bytes_text(size: float) -> str:
    """Return bytes to four digits in decimal units: `80 MB`, `76.5 GB`, `2 TB`; never 0 for what is above it."""
    name, unit = next((pair for pair in _BYTES if size >= pair[1]), ("bytes", 1.0))
    return f"{size / unit:.4g} {name}"


def per_second(rate: float, unit: str) -> str:
    """Return operations or bytes a second to three digits: `989 TFLOP/s`, `37.6 GB/s`."""
    prefix, factor = ("T", 1e12) if rate >= 1e12 else ("G", 1e9)
    return f"{digits(rate / factor)} {prefix}{unit}/s"


def bytes_of(needed: float, capacity: float) -> str:
    """Return bytes of a capacity, both in the unit of the capacity: `28.7 of 70.5 GB`."""
    name, unit = next((pair for pair in _BYTES[2:5] if capacity >= pair[1]), _BYTES[5])
    total = capacity / unit
    places = 0 if total >= 100 else 1 if total >= 10 else 2
    least = 10.0**-places
    part = f"<{least:.{places}f}" if 0 < needed / unit < least / 2 else f"{needed / unit:.{places}f}"
    return f"{part} of {total:.{places}f} {name}"


def count(number: float, noun: str, plural: str = "") -> str:
    """Return a number of things: `1 step`, `1,000 steps`."""
    return f"{number:,.0f} {noun if number == 1 else plural or noun + 's'}"


def times(value: float | None, places: int = 2) -> str:
    """Return a factor: `1.60x`."""
    if not is_finite(value):
        return NONE
    return f"{value:.{places}f}x" if abs(value) < 1000 else f"{value:.3g}x"


def ratio(value: float | None) -> str:
    """Return a ratio of lengths to three places: `0.998`."""
    return times(value, 3).removesuffix("x")


def signed(value: float) -> str:
    """Return a number with its sign, as `unsigned` writes it: `+6.9`, `-0.04`."""
    return ("-" if value < 0 else "+") + unsigned(value)


def unsigned(value: float) -> str:
    """Return a number without its sign: one digit behind the point, two significant digits below 1."""
    size = abs(value)
    return f"{size:.1f}" if 1 <= size < 1e6 else f"{size:.2g}"


def runs_text(numbers: Sequence[int]) -> str:
    """Return ascending numbers as text, runs of them by their first and last: `0-3, 6`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
