"""The chart of what drafts gave a run: accepted tokens by epoch and source."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...phrases.draft_sources import source_text
from ...phrases.numbers import bytes_text, count, digits, percent, seconds
from ...phrases.sentences import listed
from ..elements import Chart, Swatch, esc
from ..palette import MUTED, SOURCE
from .axes import axis, figure
from .charts_one_run import Detail

MOST_TICKS = 12


def drafts(key: str, name: str, detail: Detail) -> Chart | None:
    """Return a chart of the accepted tokens of a sample's step, by epoch and source; None of a run without drafts."""
    given = detail.get("drafts")
    if given is None:
        return None
    epochs = given["epochs"]
    numbers = [epoch["epoch"] for epoch in epochs]
    hover = [_hover(epoch) for epoch in epochs]
    chart = figure(barmode="stack", bargap=0.35)
    legend = []
    for source in given["by_source"]:
        colour = SOURCE.get(source, MUTED)
        legend.append(Swatch(source_text(source), colour))
        chart.add_bar(
            x=numbers, y=[epoch["by_source"].get(source, 0.0) for epoch in epochs], hovertext=hover, hoverinfo="text",
            marker={"color": colour, "line": {"width": 0}}, width=0.6,
        )  # fmt: skip
    top = max(epoch["accepted"] for epoch in epochs) or 1.0
    ticks = {"tickvals": numbers} if len(numbers) <= MOST_TICKS else {"nticks": MOST_TICKS}
    chart.update_layout(
        xaxis=axis("epoch", range=[numbers[0] - 0.7, numbers[-1] + 0.7], **ticks),
        yaxis=axis("accepted tokens a step", range=[0, 1.12 * top], nticks=6),
    )
    return Chart(f"drafts-{key}", f"{name}: drafts", _caption(given), chart, 260, tuple(legend))


def _hover(epoch: Mapping[str, Any]) -> str:
    lines = [f"<b>epoch {epoch['epoch']}</b>, {count(epoch['rounds'], 'round')}: {digits(epoch['accepted'])} accepted"]
    lines += [f"{esc(source_text(source))} {digits(tokens)}" for source, tokens in epoch["by_source"].items()]
    if epoch["saved_s"] is not None:
        lines.append(f"{_saved(epoch['saved_s'], epoch['rounds'])} a round")
    return "<br>".join(lines)


def _saved(saved_s: float, rounds: int) -> str:
    return f"{'saved' if saved_s >= 0 else 'cost'} {seconds(abs(saved_s) / rounds)} of engine time"


def _caption(given: Mapping[str, Any]) -> str:
    shares = listed([percent(share) for share in given["accepted_share_at"]])
    text = f"In rounds with drafts, a sample's decoding step accepted {digits(given['accepted'])} drafted tokens."
    if shares:
        text += f" Accepted by position in the draft, from the first: {shares}."
    if given["saved_s"] is not None:
        text += f" Drafts {_saved(given['saved_s'], given['rounds'])} a round."
    if given["ahead_samples"]:
        text += f" {count(given['ahead_samples'], 'sample')} were decoded ahead for drafts alone."
    return (
        f"{text} An engine's index took at most {bytes_text(given['index_bytes'])}; the run keeps "
        f"{bytes_text(given['history_bytes'])} of earlier responses."
    )
