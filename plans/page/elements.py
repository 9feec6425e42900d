"""The document around charts and tables: head, style, plotly.js once, and the script that draws.

A chart is a `<figure>` with its title, its legend as text, a box that plotly draws into, the data as JSON, and a
caption that says what one should see. The script (page.js) finds boxes by their class, so that no id is made up.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, Literal

from ... import __version__
from .page_text import esc
from .palette import STAND_INS

SwatchStyle = Literal["fill", "band", "line", "dash", "dot", "ring", "hatch", "diamond", "tick", "dots"]


@dataclass(frozen=True)
class Swatch:
    """An entry of a legend."""

    label: str
    colour: str
    style: SwatchStyle = "fill"


@dataclass(frozen=True)
class Chart:
    """A chart with what is said around it.

    Attributes:
        key: unique on the page; letters, digits and `-`.
        title: what it shows.
        caption: its message in words, for those who cannot see it; plain text.
        figure: a plotly figure.
        height: of the drawing, pixels.
        legend: entries, in order.
        wide: whether it takes the page's width.
    """

    key: str
    title: str
    caption: str
    figure: Any
    height: int
    legend: tuple[Swatch, ...] = ()
    wide: bool = False

    def html(self) -> str:
        """The `<figure>`."""
        assert re.fullmatch(r"[A-Za-z0-9-]+", self.key), self.key
        # The only character that could end the script element, or begin a comment in it, stands in strings only.
        data = self.figure.to_json(engine="json").replace("<", "\\u003c")
        legend = "".join(
            f'<li><i class="{entry.style}" style="--c:{_theme(entry.colour)}"></i>{esc(entry.label)}</li>'
            for entry in self.legend
        )
        return (
            f'<figure id="{self.key}" class="panel{" wide" if self.wide else ""}">\n<h3>{esc(self.title)}</h3>\n'
            + (f'<ul class="legend">{legend}</ul>\n' if legend else "")
            + f'<div class="chart" style="height:{self.height}px" role="img" aria-label="{esc(self.caption)}">'
            f'</div>\n<script type="application/json">{data}</script>\n'
            f"<figcaption>{esc(self.caption)}</figcaption>\n</figure>\n"
        )


@dataclass(frozen=True)
class Card:
    """A headline figure: what it is, the figure, and a line or two beneath; plain text."""

    label: str
    value: str
    note: str = ""
    tone: Literal["", "good", "bad", "warn"] = ""

    def html(self) -> str:
        """The card."""
        return (
            f'<div class="card {self.tone}"><div class="label">{esc(self.label)}</div>'
            f'<div class="value">{esc(self.value)}</div><div class="note">{esc(self.note)}</div></div>'
        )


def cards(items: Sequence[Card]) -> str:
    """A row of cards."""
    return f'<div class="cards">{"".join(card.html() for card in items)}</div>\n'


def section(title: str, *parts: str, intro: str = "", grid: bool = False) -> str:
    """A part of the page; `parts` are HTML, `intro` plain text. Panels of a grid stand side by side where there is
    room."""
    inner = "".join(parts)
    lead = f'<p class="intro">{esc(intro)}</p>\n' if intro else ""
    body = f'<div class="grid">{inner}</div>' if grid else inner
    return f"<section>\n<h2>{esc(title)}</h2>\n{lead}{body}\n</section>\n"


def banner(text: str, tone: Literal["warn", "bad", "info"] = "warn") -> str:
    """A line that must not be overlooked; plain text."""
    return f'<p class="banner {tone}">{esc(text)}</p>\n'


def document(title: str, subtitle: str, body: str) -> str:
    """The whole page. `title` and `subtitle` are plain text, `body` is HTML."""
    from plotly.offline import get_plotlyjs

    library = get_plotlyjs()
    assert "</script" not in library.lower(), "plotly.js cannot be put into a page"
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f'<meta name="generator" content="rlplan {esc(__version__)}">\n<title>{esc(title)}</title>\n'
        '<link rel="icon" href="data:,">\n'
        f"<style>\n{_asset('page.css')}</style>\n</head>\n<body>\n<main>\n"
        f"<header><h1>{esc(title)}</h1><p>{esc(subtitle)}</p></header>\n"
        '<noscript><p class="banner info">Charts need JavaScript; each one is told in words under it.</p></noscript>\n'
        f"{body}<footer>Written by rlplan {esc(__version__)}. This file is complete: it fetches nothing.</footer>\n"
        f"</main>\n<script>{library}</script>\n<script>\n{_asset('page.js')}</script>\n</body>\n</html>\n"
    )


def _asset(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _theme(colour: str) -> str:
    """A stand-in colour as the style sheet calls it."""
    return f"var(--{STAND_INS[colour]})" if colour in STAND_INS else colour
