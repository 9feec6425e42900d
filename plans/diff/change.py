"""Differences of two values, and their text: numbers with their uncertainty, and trees of plain values by dotted key.

Numbers are the same if they agree to the digits that rlplan writes, so that a plan in memory is the same as its file.
Items of a list are matched by the keys that identify them (a layout, a pool) and not by position. As text, a figure has
three or four digits, one unit in a row, a difference has a sign, and what is unknown is never 0."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from ..phrases.numbers import digits, percent, ratio, signed, times, unsigned, usd
from ..phrases.sentences import shorten
from ..yaml.yaml_io import WRITTEN_DIGITS

CERTAIN = 1.5
"""Standard deviations from which on a difference is certain; of pairs whose truth is known (benchmarks.headlines) the
sign is then right in more than 95 of 100, and few differences above 5 % are left uncertain."""

Unit = Literal["s", "usd", "x", "ratio", "share", "count"]
"""Seconds, USD, times as fast, a ratio near 1, a share of a whole, a number of things."""


def finite(value: float | None) -> float | None:
    """The value; None (unknown) if it is None, infinite or NaN."""
    return value if value is not None and math.isfinite(value) else None


def rounded(value: float) -> float:
    """A number with the digits that a plan's file has."""
    return float(f"{value:.{WRITTEN_DIGITS}g}")


@dataclass(frozen=True)
class Quantity:
    """A figure of two plans.

    Attributes:
        key: dotted; the plan's key if the plan has the figure.
        label: the name in tables.
        unit: of old, new and sigma.
        old, new: the values; None has the meaning that `missing` says.
        sigma: one standard deviation of `new - old`; None: unknown, or no error (a price, a count).
        relative_sigma: one standard deviation of `new / old`, often much smaller than the errors of old and new; None
            as for `sigma`.
        better: -1 if less is better, 1 if more is better, 0 if neither.
        missing: the meaning of None: `unknown`, or `none` if only one of the plans has such a thing.
    """

    key: str
    label: str
    unit: Unit
    old: float | None
    new: float | None
    sigma: float | None = None
    relative_sigma: float | None = None
    better: int = 0
    missing: str = "unknown"

    @property
    def delta(self) -> float | None:
        """new - old; None if one of the two is unknown."""
        return None if self.old is None or self.new is None else finite(self.new - self.old)

    @property
    def relative(self) -> float | None:
        """The difference divided by the old value; None if unknown, or if the old value is 0."""
        return None if self.delta is None or not self.old else finite(self.delta / self.old)

    @property
    def changed(self) -> bool:
        """Whether old and new differ in the digits that a plan has."""
        if self.old is None or self.new is None:
            return self.old is not self.new
        return rounded(self.old) != rounded(self.new)

    @property
    def within_error(self) -> bool | None:
        """Whether the relative difference is not certain (CERTAIN); None if it or its uncertainty is unknown."""
        if self.relative is None or self.relative_sigma is None:
            return None
        return self.changed and abs(self.relative) < CERTAIN * self.relative_sigma

    @property
    def tone(self) -> int:
        """1: better, -1: worse, 0: neither, unknown or not certain."""
        if self.delta is None or not self.changed or self.within_error:
            return 0
        return self.better if self.delta > 0 else -self.better

    def as_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return {
            "unit": self.unit, "old": self.old, "new": self.new, "delta": self.delta, "relative": self.relative,
            "sigma": self.sigma, "relative_sigma": self.relative_sigma, "within_error": self.within_error,
        }  # fmt: skip


@dataclass(frozen=True)
class KeyChange:
    """A key whose value differs. A section that only one side has is one change, with the section as value."""

    key: str
    old: Any
    new: Any

    @property
    def relative(self) -> float | None:
        """Relative difference of two numbers; None for other values."""
        if not _number(self.old) or not _number(self.new) or not self.old:
            return None
        try:
            return finite((self.new - self.old) / self.old)
        except OverflowError:
            return None

    def as_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return {"key": self.key, "old": plain(self.old), "new": plain(self.new), "relative": self.relative}


class _NotGiven:
    """Stands for the value of a key that one side does not have, where null has another meaning."""

    def __repr__(self) -> str:
        return "not given"


NOT_GIVEN = _NotGiven()


def plain(value: Any) -> Any:
    """A value that JSON can hold: NOT_GIVEN, infinities and NaN become null."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return None if value is NOT_GIVEN or (isinstance(value, float) and not math.isfinite(value)) else value


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def same(old: Any, new: Any) -> bool:
    """Whether two plain values are the same: numbers to the written digits, mappings in any order."""
    if _number(old) and _number(new):
        try:
            return bool(old == new or rounded(old) == rounded(new))
        except OverflowError:  # an integer beyond any float
            return False
    if isinstance(old, dict) and isinstance(new, dict):
        return old.keys() == new.keys() and all(same(old[key], new[key]) for key in old)
    if isinstance(old, list) and isinstance(new, list):
        return len(old) == len(new) and all(map(same, old, new))
    return type(old) is type(new) and bool(old == new)


# Keys that identify the items of a list if all items have them: the layouts of a profile, the links of a cluster.
_IDENTITY = (
    "pool", "pools", "name", "tp", "engines", "dp", "pp", "cp", "sp", "state_copies", "ep",
    "micro_batch_tokens", "recompute", "offload", "phase", "job",
)  # fmt: skip


def changes(old: Any, new: Any, missing: Any = None, prefix: str = "") -> Iterator[KeyChange]:
    """The keys whose values differ between two trees, in the order of the new tree, then of the old tree.

    Args:
        missing: the value of a key that one side does not have; None if null and a missing key mean the same.
        prefix: dotted key of the trees, before every key.
    """
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*new, *(key for key in old if key not in new)]:
            below = f"{prefix}.{key}" if prefix else str(key)
            yield from changes(old.get(key, missing), new.get(key, missing), missing, below)
        return
    if isinstance(old, list) and isinstance(new, list):
        named = _by_identity(old, new)
        if named is not None:
            for key in [*named[1], *(key for key in named[0] if key not in named[1])]:
                yield from changes(named[0].get(key, missing), named[1].get(key, missing), missing, f"{prefix}[{key}]")
            return
    if not same(old, new):
        yield KeyChange(prefix, old, new)


def _by_identity(old: list[Any], new: list[Any]) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """The items of both lists by their identifying keys, else by position; None if the items are not mappings."""
    items = [*old, *new]
    if not items or not all(isinstance(item, dict) for item in items):
        return None
    fields = [key for key in _IDENTITY if all(key in item for item in items)]
    distinguishing = [key for key in fields if any(not same(item[key], items[0][key]) for item in items)] or fields[:1]

    def named(values: list[Any]) -> dict[str, Any]:
        return {",".join(f"{key}={_text(item[key])}" for key in distinguishing): item for item in values}

    by_name = named(old), named(new)
    if distinguishing and len(by_name[0]) == len(old) and len(by_name[1]) == len(new):
        return by_name
    return {str(i): item for i, item in enumerate(old)}, {str(i): item for i, item in enumerate(new)}


def _text(value: Any) -> str:
    return "+".join(map(str, value)) if isinstance(value, list) else str(value)


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


def key_values(change: KeyChange) -> tuple[str, str]:
    """Old and new value of a key; after the new value the relative difference if both are numbers."""
    relative = change.relative
    behind = f" ({relative_text(relative)})" if relative and isinstance(change.new, float) else ""
    return value_text(change.old), value_text(change.new) + behind
