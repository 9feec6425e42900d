"""Elements of a page, and `render`, which fills one of the templates in templates/ with them.

Jinja2 escapes every text that is put into a template; HTML is only what the templates hold, and `Markup`. The script
(page.js) finds a chart's box by its class, so that no id is made up.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Literal

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from ... import __version__

INK, MUTED, TRACK, PANEL, LINE = "#010101", "#020202", "#030303", "#040404", "#050505"
STAND_INS = {INK: "ink", MUTED: "muted", TRACK: "track", PANEL: "panel", LINE: "line"}
"""Names of the stand-ins in the style sheet."""
CLEAR = "rgba(0,0,0,0)"

PHASE = {
    "sync": "#8b6fd0",
    "rollout": "#3f84d6",
    "tail": "#3f84d6",
    "scoring": "#dc9a2e",
    "reward_exposed": "#dc9a2e",
    "train": "#36a06c",
    "other": "#8b95a3",
    "step": "#6c7887",
}

MODE = {"sync": "#7f8b99", "exact": "#1d9bb8", "defer": "#d9822b", "race": "#d4574e", "predict": "#8a63c9"}

_JOBS = ("#2a9bb5", "#c05fa8", "#cf9a2b", "#45a163", "#4d7fd6", "#d2625b", "#7a8796", "#9a74d8", "#8a9a2e", "#b8775a")
"""As in the terminal: cyan, magenta, yellow, green, blue, red; then four more."""

SOURCE = {"earlier": "#3f84d6", "ahead": "#8b6fd0", "sibling": "#36a06c", "own": "#dc9a2e", "other": "#8b95a3"}
"""Of accepted drafts, by where they come from."""

GOOD, BAD = "#36a06c", "#d4574e"


def job_colours(names: Iterable[str]) -> dict[str, str]:
    """Return a colour for each job, by order."""
    return {name: _JOBS[index % len(_JOBS)] for index, name in enumerate(names)}


def run_colours(modes: dict[str, str]) -> dict[str, str]:
    """Return a colour for each run: its mode's; if several runs have one mode, a job's colour for the later ones."""
    colours: dict[str, str] = {}
    for index, (name, mode) in enumerate(modes.items()):
        colour = MODE.get(mode, _JOBS[index % len(_JOBS)])
        colours[name] = colour if colour not in colours.values() else _JOBS[index % len(_JOBS)]
    return colours


def contrast(first: str, second: str) -> float:
    """Return the contrast of two colours, 1 to 21 (WCAG 2.1, contrast ratio)."""
    darker, lighter = sorted((_luminance(first), _luminance(second)))
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(colour: str) -> float:
    shares = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in shares)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def text_on(colour: str) -> str:
    """Return black or white, whichever is read more easily on a colour."""
    return max(("#000000", "#ffffff"), key=lambda ink: contrast(ink, colour))


def faded(colour: str, share: float) -> str:
    """Return a colour of the palette with an opacity."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{share:g})"


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


@cache
def _environment() -> Environment:
    assert __package__ is not None
    environment = Environment(
        loader=PackageLoader(__package__), autoescape=True, undefined=StrictUndefined, finalize=printable,
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    environment.filters["code"] = code
    return environment


Live = Literal["", "page", "content"]
"""Whether a page is complete and stays as it is, or follows a server, or is the content that the server gives it."""


def render(template: str, title: str, subtitle: str, live: Live = "", **content: Any) -> str:
    """Return a page: a template of this package, filled with text and elements.

    `live`: the page follows the server that it came from (templates/live.js), or what it takes from there, without
    scripts.
    """
    from plotly.offline import get_plotlyjs

    library = get_plotlyjs() if live != "content" else ""
    assert "</script" not in library.lower(), "plotly.js cannot be put into a page"
    files = resources.files(__package__).joinpath("templates")
    scripts = {"": ["page.js"], "page": ["page.js", "live.js"], "content": []}[live]
    css, *js = (Markup(files.joinpath(name).read_text(encoding="utf-8")) for name in ("page.css", *scripts))
    page = _environment().get_template(template)
    return page.render(
        title=title, subtitle=subtitle, version=__version__, live=bool(live), css=css, js=Markup("").join(js),
        plotly=Markup(library), **content,
    )  # fmt: skip
