"""What all charts share: an empty figure in the page's style, axes, and lanes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from ..palette import CLEAR, INK, LINE, MUTED, PANEL

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
