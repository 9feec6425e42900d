"""Elements of a page, and `render`, which fills one of the templates in templates/ with them.

Jinja2 escapes every text that is put into a template; HTML is only what the templates hold, and `Markup`. The script
(page.js) finds a chart's box by its class, so that no id is made up.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Literal

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from ... import __version__
from .palette import STAND_INS

SwatchStyle = Literal["fill", "band", "line", "dash", "dot", "ring", "hatch", "diamond", "tick", "dots"]
Tone = Literal["", "good", "bad", "warn", "info"]


def printable(text: object) -> object:
    """Return text without characters that turn the direction of what follows, and without halves of letters, which no
    file can hold; HTML (`Markup`) as it is."""
    if isinstance(text, Markup):
        return text
    return "".join(c if c.isprintable() or c.isspace() else " " for c in str(text))


def esc(text: object) -> str:
    """Return text escaped for HTML, for the hover texts and labels of charts."""
    return str(escape(printable(text)))


def code(name: object) -> Markup:
    """Return a key or a file name as HTML that may break across lines at its dots, slashes and underscores."""
    breakable = re.sub("([./_])", r"\1<wbr>", esc(name))
    return Markup(f"<code>{breakable}</code>")


def mark(colour: str, name: str) -> Markup:
    """Return a name as HTML, with a dot of its colour before it."""
    return Markup('<i class="mark" style="--c:{}"></i>{}').format(colour, printable(name))


@dataclass(frozen=True)
class Swatch:
    """An entry of a legend."""

    label: str
    colour: str
    style: SwatchStyle = "fill"

    @property
    def css_colour(self) -> str:
        """The colour as the style sheet calls it."""
        return f"var(--{STAND_INS[self.colour]})" if self.colour in STAND_INS else self.colour


@dataclass(frozen=True)
class Chart:
    """A chart with the text around it.

    Attributes:
        key: unique on the page; letters, digits and `-`.
        title: what the chart shows.
        caption: the chart's message in words, for those who cannot see it.
        figure: a plotly figure.
        height: of the drawing, pixels.
        legend: entries, in order.
        wide: whether the chart takes the page's width.
    """

    key: str
    title: str
    caption: str
    figure: Any
    height: int
    legend: tuple[Swatch, ...] = ()
    wide: bool = False

    def __post_init__(self) -> None:
        assert re.fullmatch(r"[A-Za-z0-9-]+", self.key), self.key

    @property
    def data(self) -> Markup:
        """The figure as JSON in a script element."""
        # The only character that could end the script element, or begin a comment in it, stands in strings only.
        return Markup(self.figure.to_json(engine="json").replace("<", "\\u003c"))


@dataclass(frozen=True)
class Card:
    """A headline figure: its label, the figure, and a line or two beneath."""

    label: str
    value: str
    note: str = ""
    tone: Tone = ""


@dataclass(frozen=True)
class Banner:
    """A line at the top of a page that must not be overlooked."""

    text: str
    tone: Tone = "warn"


@dataclass(frozen=True)
class Table:
    """A table; on a narrow screen each cell carries its column's title.

    Attributes:
        head: titles of the columns.
        rows: cells, text or `Markup`.
        kind: the table's class in the style sheet.
        numbers: indices of columns that are aligned to the right.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    kind: str = ""
    numbers: Sequence[int] = ()


@cache
def _environment() -> Environment:
    assert __package__ is not None
    environment = Environment(
        loader=PackageLoader(__package__), autoescape=True, undefined=StrictUndefined, finalize=printable,
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    environment.filters["code"] = code
    return environment


def render(template: str, title: str, subtitle: str, **content: Any) -> str:
    """Return a page: a template of this package, filled with text and elements."""
    from plotly.offline import get_plotlyjs

    library = get_plotlyjs()
    assert "</script" not in library.lower(), "plotly.js cannot be put into a page"
    files = resources.files(__package__).joinpath("templates")
    css, js = (Markup(files.joinpath(name).read_text(encoding="utf-8")) for name in ("page.css", "page.js"))
    page = _environment().get_template(template)
    return page.render(
        title=title, subtitle=subtitle, version=__version__, css=css, js=js, plotly=Markup(library), **content
    )
