"""Figures and names as text for people: units, thousands separators, three digits; and the escaping of all else."""

from __future__ import annotations

import html
from collections.abc import Sequence


def esc(text: object) -> str:
    """Text for HTML, in an element or in a quoted attribute; without what would turn the direction of what follows, and
    without halves of letters, which no file can hold."""
    return html.escape("".join(c if c.isprintable() or c.isspace() else " " for c in str(text)), quote=True)


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
