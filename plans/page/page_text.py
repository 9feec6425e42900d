"""Figures and names as text for people: units, thousands separators, three digits; and the escaping of all else."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence

NONE = "–"
"""What stands where there is no figure."""


def esc(text: object) -> str:
    """Text for HTML, in an element or in a quoted attribute; without what would turn the direction of what follows, and
    without halves of letters, which no file can hold."""
    return html.escape("".join(c if c.isprintable() or c.isspace() else " " for c in str(text)), quote=True)


def sentence(text: str) -> str:
    """The text as a sentence of its own."""
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


def fixed(value: float | None, form: str) -> str:
    """A figure in Python's format, or NONE."""
    return NONE if value is None or not math.isfinite(value) else format(value, form)


def known(value: float | None) -> bool:
    """Whether there is a figure."""
    return value is not None and math.isfinite(value)


def digits(value: float) -> str:
    """Three digits, more where the whole number has more, with thousands separators."""
    if value and not 1e-4 <= abs(value) < 1e15:
        return f"{value:.3g}"
    if value == 0 or abs(value) >= 99.95:
        return f"{value:,.0f}"
    places = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{places}f}"


def seconds(value: float | None) -> str:
    """Seconds; milliseconds below a tenth of one."""
    if value is None or not math.isfinite(value):
        return NONE
    if value and abs(value) < 0.1:
        return f"{1000 * value:.2g} ms" if abs(value) < 0.01 else f"{1000 * value:.0f} ms"
    return f"{digits(value)} s"


def span(low: float, high: float) -> str:
    """`1.29–1.55 s`."""
    if seconds(low) == seconds(high):
        return seconds(high)
    if high >= 0.1:
        return f"{digits(low) if low >= 0.001 else 0}–{digits(high)} s"
    return f"{seconds(low).removesuffix(' ms').removesuffix(' s')}–{seconds(high)}"


def percent(share: float | None, places: int = 0) -> str:
    """A share as a percentage."""
    return NONE if share is None or not math.isfinite(share) else f"{100 * share:.{places}f} %"


def usd(value: float) -> str:
    """Money, without its unit: cents from one dollar on."""
    if value >= 10000:
        return f"{value:,.0f}"
    return f"{value:,.2f}" if value >= 1 or value == 0 else digits(value)


def size(value: float) -> str:
    """Bytes in decimal units."""
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if value >= factor:
            return f"{digits(value / factor)} {unit}"
    return f"{value:,.0f} B"


def count(number: float, one: str, many: str | None = None) -> str:
    """`1 step`, `1,000 steps`."""
    return f"{number:,.0f} {one if number == 1 else many or one + 's'}"


def ratio(value: float | None, places: int = 2) -> str:
    """`1.60×`."""
    return NONE if value is None or not math.isfinite(value) else f"{value:.{places}f}×"


def listed(words: Iterable[str]) -> str:
    """`a, b and c`."""
    found = list(words)
    return " and ".join([", ".join(found[:-1]), found[-1]] if len(found) > 1 else found)


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, kind: str = "", numbers: Sequence[int] = ()) -> str:
    """An HTML table; cells are HTML already. Columns in `numbers` are right-aligned. On a narrow screen each cell
    carries its column's title."""

    def cell(tag: str, index: int, inner: str) -> str:
        label = f' data-label="{esc(head[index])}"' if tag == "td" and head[index] else ""
        right = ' class="n"' if index in numbers else ""
        return f"<{tag}{right}{label}>{inner}</{tag}>"

    top = "".join(cell("th", index, esc(name)) for index, name in enumerate(head))
    body = "".join("<tr>" + "".join(cell("td", i, inner) for i, inner in enumerate(row)) + "</tr>\n" for row in rows)
    return (
        f'<div class="scroll"><table class="{kind}"><thead><tr>{top}</tr></thead>\n<tbody>{body}</tbody></table></div>'
    )


def code(text: object) -> str:
    """A name of a key or a file, which may break across lines at its dots and slashes."""
    return f"<code>{esc(text).replace('.', '.<wbr>').replace('/', '/<wbr>').replace('_', '_<wbr>')}</code>"
