"""One round of a run: who decoded, scored and trained when."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...phrases.numbers import percent, seconds
from ...phrases.phase_names import exposed_text
from ..elements import Chart, Swatch, esc
from ..palette import PHASE, faded
from .axes import axis, figure, lanes

_COLOUR = {"decode": PHASE["rollout"], "score": PHASE["scoring"], "stream": PHASE["train"], "train": PHASE["train"]}
_VERB = {"decode": "decodes", "score": "score", "stream": "trains groups that are complete", "train": "trains the rest"}
MOST_ROWS = 24


def timeline(key: str, name: str, detail: Mapping[str, Any]) -> Chart | None:
    """Return a Gantt chart of one round, a row for each engine, the reward workers and the trainer; None without one.

    Of more than `MOST_ROWS` rows the first engines are left out.
    """
    round_ = detail["timeline"]
    if round_ is None:
        return None
    rows = round_["rows"][-MOST_ROWS:]
    chart, labels = figure(), []
    for position, row in enumerate(rows):
        labels.append((float(position), row["name"]))
        for began, ended in row["spans"]:
            chart.add_bar(
                orientation="h",
                base=[began],
                x=[ended - began],
                y=[position],
                width=0.62,
                hovertext=f"<b>{esc(row['name'])}</b> {_VERB[row['what']]}<br>{seconds(began)} to {seconds(ended)}",
                hoverinfo="text",
                marker={
                    "color": faded(_COLOUR[row["what"]], 0.55 if row["what"] == "stream" else 1.0),
                    "line": {"width": 0},
                },
            )
    end_s = round_["end_s"]
    chart.update_layout(
        xaxis=axis("seconds from the round's beginning", range=[0, 1.01 * end_s], nticks=9),
        yaxis=lanes(labels, -0.6, len(rows) - 0.4),
    )
    engines = [row for row in round_["rows"] if row["what"] == "decode"]
    idle = [1 - sum(ended - began for began, ended in row["spans"]) / end_s for row in engines]
    caption = (
        f"Step {round_['step']:,}, a {round_['kind']} round of {seconds(end_s)}: engines decode nothing in "
        f"{percent(sum(idle) / len(idle))} of it. In the mean of all steps: {exposed_text(detail['overlap'])}."
    )
    legend = (
        Swatch("decoding", PHASE["rollout"]),
        Swatch("scoring", PHASE["scoring"]),
        Swatch("training before the round's end", PHASE["train"], "band"),
        Swatch("update", PHASE["train"]),
    )
    return Chart(f"timeline-{key}", f"{name}: one round", caption, chart, 24 * len(rows) + 70, legend, wide=True)
