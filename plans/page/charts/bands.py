"""A chart of durations: a band from p50 to p95 for each, with its mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ...phrases.numbers import seconds, span
from ..elements import Swatch
from ..palette import INK, MUTED, PANEL, faded
from .axes import axis, figure, header, lanes


class Spread(NamedTuple):
    """A duration over steps: seconds at p50 and p95, and their mean."""

    p50: float
    p95: float
    mean: float


@dataclass(frozen=True)
class BandRow:
    """A row of a chart of bands: what is predicted, and what was measured."""

    label: str
    colour: str
    predicted: Spread | None
    measured: Spread | None = None


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
    lines = []
    if (expected := row.predicted) is not None:
        lines.append(
            f"predicted p50 {seconds(expected.p50)}, p95 {seconds(expected.p95)}, mean {seconds(expected.mean)}"
        )
    if (measured := row.measured) is not None:
        lines.append(
            f"measured p50 {seconds(measured.p50)}, p95 {seconds(measured.p95)}, mean {seconds(measured.mean)}"
        )
    hover = f"<b>{row.label}</b><br>" + "<br>".join(lines)
    if expected is not None:
        # A band of no width would not be seen.
        width = max(expected.p95 - expected.p50, 0.004 * longest)
        chart.add_bar(
            orientation="h", base=[expected.p50], x=[width], y=[position], width=0.66, hovertext=hover,
            hoverinfo="text", marker={"color": faded(row.colour, 0.38), "line": {"width": 0}},
        )  # fmt: skip
    if expected is not None and measured is not None:
        _tick(chart, expected.mean, position, row.colour)
    if measured is not None:
        chart.add_scatter(
            x=[measured.p50, measured.p95], y=[position, position], mode="lines+markers", hovertext=hover,
            hoverinfo="text", line={"color": row.colour, "width": 3},
            marker={"size": 8, "color": [row.colour, PANEL], "line": {"color": row.colour, "width": 2}},
            cliponaxis=False,
        )  # fmt: skip
    shown = measured or expected
    if shown is None:
        return
    chart.add_scatter(
        x=[shown.mean], y=[position], mode="markers", hovertext=hover, hoverinfo="text",
        marker={"symbol": "diamond", "size": 8, "color": INK, "line": {"color": PANEL, "width": 1}}, cliponaxis=False,
    )  # fmt: skip
    right = max(s.p95 if s.p95 > s.mean else s.mean for s in (measured, expected) if s is not None)
    chart.add_scatter(
        x=[right], y=[position], mode="text", text=["  " + span(shown.p50, shown.p95)], textposition="middle right",
        textfont={"size": 11, "color": MUTED}, hoverinfo="skip", cliponaxis=False,
    )  # fmt: skip


def _tick(chart: Any, x: float, position: float, colour: str) -> None:
    chart.add_scatter(
        x=[x, x], y=[position - 0.36, position + 0.36], mode="lines", hoverinfo="skip",
        line={"color": colour, "width": 2},
    )  # fmt: skip
