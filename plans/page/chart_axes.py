"""What charts share: an empty figure in the page's style, axes, lanes, and bands around a line."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import plotly.graph_objects as go

from ..phrases.numbers import seconds, span
from .elements import CLEAR, INK, LINE, MUTED, PANEL, Swatch, faded

FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif'


def figure(**layout: Any) -> Any:
    """Return an empty figure; `layout` overrides the page's style."""
    base = {
        # Without it plotly writes its whole default template into every chart.
        "template": go.layout.Template(),
        "paper_bgcolor": CLEAR,
        "plot_bgcolor": CLEAR,
        "font": {"family": FONT, "size": 12, "color": INK},
        "margin": {"l": 4, "r": 12, "t": 8, "b": 8, "pad": 4},
        "showlegend": False,
        "hovermode": "closest",
        "barmode": "overlay",
        "hoverlabel": {"bgcolor": PANEL, "bordercolor": LINE, "font": {"family": FONT, "size": 12, "color": INK}},
    }
    return go.Figure(layout={**base, **layout})


def axis(title: str = "", **more: Any) -> dict[str, Any]:
    """Return an axis in the page's style."""
    return {
        "title": {"text": title, "font": {"size": 11, "color": MUTED}, "standoff": 8},
        "automargin": True,
        "gridcolor": LINE,
        "zeroline": False,
        "linecolor": LINE,
        "tickfont": {"size": 11, "color": MUTED},
        "separatethousands": True,
        **more,
    }


def share_axis(title: str, most: float = 1.0) -> dict[str, Any]:
    """Return an axis of shares from 0 to `most`, with ticks at quarters, and room for the last tick's label."""
    return axis(
        title,
        range=[0, most * 1.005],
        tickformat=".0%",
        tickvals=[0, 0.25, 0.5, 0.75, 1],
        ticklabeloverflow="allow",
    )


def lanes(labels: Sequence[tuple[float, str]], low: float, high: float) -> dict[str, Any]:
    """Return a vertical axis of named rows (position, name); rows run downwards from `low` to `high`."""
    return axis(
        tickvals=[position for position, _ in labels],
        ticktext=[name for _, name in labels],
        range=[high, low],
        showgrid=False,
        fixedrange=True,
        tickfont={"size": 12, "color": INK},
    )


def hovering(text: str | Sequence[str]) -> dict[str, Any]:
    """What is shown of a mark under the pointer; nothing for no text."""
    return {"hovertext": text, "hoverinfo": "text"} if text else {"hoverinfo": "skip"}


def draw_bar(
    chart: Any,
    x: Sequence[float],
    y: Sequence[float],
    width: float,
    colour: str,
    hover: str | Sequence[str] = "",
    **more: Any,
) -> None:
    """Draw horizontal bars of one colour without outlines: their lengths, rows, share of a row's height."""
    marker = {"color": colour, "line": {"width": 0}}
    chart.add_bar(orientation="h", x=x, y=y, width=width, **{"marker": marker, **hovering(hover), **more})


def tick(chart: Any, x: float, row: float, half: float, colour: str, width: float = 2, hover: str = "") -> None:
    """Draw a line across a row, `half` of its height to either side."""
    line = {"color": colour, "width": width}
    chart.add_scatter(x=[x, x], y=[row - half, row + half], mode="lines", line=line, **hovering(hover))


def diamonds(chart: Any, x: Sequence[float], y: Sequence[float], size: int = 8, hover: str = "", **more: Any) -> None:
    """Draw diamonds in the colour of text."""
    marker = {"symbol": "diamond", "size": size, "color": INK, "line": {"color": PANEL, "width": 1}}
    chart.add_scatter(x=x, y=y, mode="markers", marker=marker, **hovering(hover), **more)


def beside(chart: Any, x: float, y: float, text: str, position: str = "middle right") -> None:
    """Write small text beside a point; what does not fit the drawing is not cut off."""
    chart.add_scatter(
        x=[x], y=[y], mode="text", text=[text], textposition=position, textfont={"size": 11, "color": MUTED},
        hoverinfo="skip", cliponaxis=False,
    )  # fmt: skip


def hatch(colour: str, size: int, solidity: float, ground: float) -> dict[str, Any]:
    """The pattern of bars that are hatched in a colour, on a ground of it with this opacity."""
    return {"shape": "/", "size": size, "solidity": solidity, "fgcolor": colour, "bgcolor": faded(colour, ground)}


def cut(chart: Any, x_axis: dict[str, Any], tokens: int, text: str) -> None:
    """Draw a dashed line across an axis of lengths, with its text above the drawing, where no curve runs."""
    log, (low, high) = x_axis.get("type") == "log", x_axis["range"]
    x = math.log10(tokens) if log else float(tokens)
    right = x > (low + high) / 2
    chart.add_vline(x=tokens, line={"color": INK, "width": 1.5, "dash": "dash"})
    chart.add_annotation(
        x=x, y=1, yref="paper", yanchor="bottom", xanchor="right" if right else "left", xshift=5 if right else -5,
        showarrow=False, text=text, align="right" if right else "left", font={"size": 11.5, "color": INK},
    )  # fmt: skip
    chart.update_layout(margin_t=12 + 17 * len(text.split("<br>")))


def header(chart: Any, position: float, text: str) -> None:
    """Write a row's title over the plot, at its left edge."""
    chart.add_annotation(
        x=0, xref="paper", xanchor="left", xshift=2, y=position, yanchor="middle", text=text, showarrow=False,
        font={"size": 11.5, "color": MUTED}, align="left",
    )  # fmt: skip


class DurationSpread(NamedTuple):
    """A duration over steps: seconds at p50 and p95, and their mean."""

    p50: float
    p95: float
    mean: float


@dataclass(frozen=True)
class BandRow:
    """A row of a chart of bands: what is predicted, and what was measured."""

    label: str
    colour: str
    predicted: DurationSpread | None
    measured: DurationSpread | None = None


@dataclass(frozen=True)
class BandGroup:
    """Rows under a title."""

    title: str
    rows: tuple[BandRow, ...]


ROW_PX = 26


def bands(groups: Sequence[BandGroup]) -> tuple[Any, int, tuple[Swatch, ...]]:
    """Return a chart of grouped durations as bands from p50 to p95 with their means: figure, height, legend.

    Measured durations, where the rows have any, lie on the predicted bands as lines from p50 to p95.
    """
    chart = figure()
    labels: list[tuple[float, str]] = []
    position = 0.0
    spreads = [s for group in groups for row in group.rows for s in (row.predicted, row.measured) if s is not None]
    longest = max((max(s.p95, s.mean) for s in spreads), default=1.0) or 1.0
    for index, group in enumerate(groups):
        name, colon, detail = group.title.partition(":")
        header(chart, position, f"<b>{name}</b>{colon}{detail}")
        for row in group.rows:
            position += 1.0
            labels.append((position, row.label))
            _band(chart, position, row, longest)
        position += 1.35 if index + 1 < len(groups) else 0.6
    chart.update_layout(
        xaxis=axis("seconds", range=[0, 1.6 * longest], rangemode="tozero", nticks=7),
        yaxis=lanes(labels, -0.6, position),
    )
    ink = [Swatch("p50 to p95, predicted", MUTED, "band"), Swatch("mean", INK, "diamond")]
    if any(row.measured is not None for group in groups for row in group.rows):
        ink = [
            Swatch("predicted p50 to p95", MUTED, "band"),
            Swatch("predicted mean", MUTED, "tick"),
            Swatch("measured p50 to p95", INK, "line"),
            Swatch("measured mean", INK, "diamond"),
        ]
    return chart, round(ROW_PX * (position + 0.6)) + 50, tuple(ink)


def _band(chart: Any, position: float, row: BandRow, longest: float) -> None:
    expected, measured = row.predicted, row.measured
    lines = [
        f"{name} p50 {seconds(spread.p50)}, p95 {seconds(spread.p95)}, mean {seconds(spread.mean)}"
        for name, spread in (("predicted", expected), ("measured", measured))
        if spread is not None
    ]
    hover = f"<b>{row.label}</b><br>" + "<br>".join(lines)
    if expected is not None:
        # A band of no width would not be seen.
        width = max(expected.p95 - expected.p50, 0.004 * longest)
        draw_bar(chart, [width], [position], 0.66, faded(row.colour, 0.38), hover, base=[expected.p50])
    if expected is not None and measured is not None:
        tick(chart, expected.mean, position, 0.36, row.colour)
    if measured is not None:
        chart.add_scatter(
            x=[measured.p50, measured.p95], y=[position, position], mode="lines+markers", cliponaxis=False,
            line={"color": row.colour, "width": 3}, **hovering(hover),
            marker={"size": 8, "color": [row.colour, PANEL], "line": {"color": row.colour, "width": 2}},
        )  # fmt: skip
    shown = measured or expected
    if shown is None:
        return
    diamonds(chart, [shown.mean], [position], hover=hover, cliponaxis=False)
    right = max(max(s.p95, s.mean) for s in (measured, expected) if s is not None)
    beside(chart, right, position, "  " + span(shown.p50, shown.p95))
