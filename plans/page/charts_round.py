"""Timelines of one round: a mean round of each kind as planned, and a round as it was measured.

Which resource works when, and how many sequences run in the rollout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..facts.round_bars import LANES, Lane, RoundBar, slack_text
from ..phrases.numbers import percent, seconds
from ..phrases.sentences import PHASE_NAMES, exposed_text, listed
from ..schema.predicted import Predicted, PredictedRound
from .chart_axes import axis, draw_bar, figure, hatch, header, lanes
from .elements import INK, PHASE, Chart, Swatch, esc, faded

_LANE: Mapping[str, str] = {"sync": "transfer"}
_HALF = 0.33  # of a lane's height


def timeline(predicted: Predicted, bars: Sequence[RoundBar]) -> Chart:
    """Return a Gantt chart of one mean round of each kind, on one scale."""
    chart = figure()
    labels: list[tuple[float, str]] = []
    top = 0.0
    kinds = predicted.rounds.kinds
    for name, kind in kinds:
        bars_of_kind = [bar for bar in bars if bar.kind == name]
        rows = {lane: top + 1 + index for index, lane in enumerate(LANES)}
        title = f"<b>{name} round</b>, {seconds(kind.step_s.mean)}, {percent(kind.share)} of the steps"
        header(chart, top, title if len(kinds) > 1 else f"<b>every round</b>, {seconds(kind.step_s.mean)}")
        labels += [(position, _LANE.get(lane, lane)) for lane, position in rows.items()]
        for bar in bars_of_kind:
            _draw(chart, bar, rows[bar.lane])
        _running(chart, bars_of_kind, kind, rows["engines"])
        _path(chart, bars_of_kind, rows)
        top += len(LANES) + 1.3
    end = max((bar.begin_s + bar.seconds for bar in bars), default=1.0)
    chart.update_layout(
        xaxis=axis("seconds into the round", range=[0, 1.01 * end], nticks=9),
        yaxis=lanes(labels, -0.6, top - 0.6),
    )
    legend = (
        Swatch("weight transfer", PHASE["sync"]),
        Swatch("rollout: share of sequences running", PHASE["rollout"]),
        Swatch("its tail", PHASE["tail"], "hatch"),
        Swatch("scoring, beside", PHASE["scoring"], "band"),
        Swatch("waiting for rewards", PHASE["reward_exposed"]),
        Swatch("gradients and update", PHASE["train"]),
        Swatch("critical path", INK, "line"),
    )
    caption = " ".join(_caption(name, kind, len(kinds) > 1) for name, kind in kinds)
    return Chart("timeline", "A mean round", caption, chart, round(24 * top) + 60, legend, wide=True)


def _caption(name: str, kind: PredictedRound, named: bool) -> str:
    phases = {
        "rollout": kind.rollout_s.mean,
        "train": kind.train_s.mean,
        "sync": kind.sync_s,
        "reward_exposed": kind.reward_exposed_s.mean,
    }
    total = sum(phases.values()) or 1.0
    most = [
        f"{PHASE_NAMES[phase]} {percent(value / total)}" for phase, value in phases.items() if value / total >= 0.005
    ]
    tail = kind.tail_s / kind.rollout_s.mean if kind.rollout_s.mean else 0.0
    return (
        f"{name.capitalize() + ' round' if named else 'A round'} of {seconds(total)}: {listed(most)}; "
        f"in {percent(tail)} of its rollout fewer than a quarter of its sequences run; "
        f"{slack_text(kind.reward_slack_s, total)}."
    )


def _draw(chart: Any, bar: RoundBar, position: float) -> None:
    colour = PHASE.get(bar.phase, PHASE["other"])
    bar_names = {**PHASE_NAMES, "tail": "rollout, its tail", "scoring": "scoring, beside the rollout"}
    name = bar_names[bar.phase]
    pale = bar.phase in ("rollout", "tail", "scoring")
    chart.add_bar(
        orientation="h", base=[bar.begin_s], x=[bar.seconds], y=[position], width=2 * _HALF,
        hovertext=f"<b>{esc(name)}</b><br>{seconds(bar.begin_s)} to {seconds(bar.begin_s + bar.seconds)}: "
        f"{seconds(bar.seconds)}<br>{'on' if bar.critical else 'off'} the critical path",
        hoverinfo="text",
        marker={
            "color": faded(colour, 0.3 if bar.phase == "scoring" else 0.16) if pale else colour,
            "line": {"width": 0},
            **({"pattern": hatch(colour, 5, 0.25, 0.12)} if bar.phase == "tail" else {}),
        },
    )  # fmt: skip


def _running(chart: Any, bars: Sequence[RoundBar], kind: PredictedRound, position: float) -> None:
    """Draw how many sequences run during the rollout; the lane's full height is the most that run at once."""
    engines = [bar for bar in bars if bar.lane == "engines" and bar.phase in ("rollout", "tail")]
    if not engines:
        return
    begin = min(bar.begin_s for bar in engines)
    length = max(bar.begin_s + bar.seconds for bar in engines) - begin
    foot = position + _HALF
    points = [(begin + length * index / 20, foot - 2 * _HALF * share) for index, share in enumerate(kind.running)]
    chart.add_scatter(
        x=[begin, *(x for x, _ in points), begin + length], y=[foot, *(y for _, y in points), foot], mode="lines",
        fill="toself", fillcolor=PHASE["rollout"], line={"width": 0, "color": PHASE["rollout"]}, hoverinfo="skip",
    )  # fmt: skip


def _path(chart: Any, bars: Sequence[RoundBar], rows: Mapping[Lane, float]) -> None:
    """Draw the critical path: a line under its bars, from lane to lane."""
    xs: list[float] = []
    ys: list[float] = []
    for bar in sorted((bar for bar in bars if bar.critical), key=lambda bar: bar.begin_s):
        foot = rows[bar.lane] + _HALF + 0.09
        xs += [bar.begin_s, bar.begin_s + bar.seconds]
        ys += [foot, foot]
    chart.add_scatter(x=xs, y=ys, mode="lines", hoverinfo="skip", line={"color": INK, "width": 1.5})


_COLOUR = {"decode": PHASE["rollout"], "score": PHASE["scoring"], "stream": PHASE["train"], "train": PHASE["train"]}
_VERB = {"decode": "decodes", "score": "score", "stream": "trains groups that are complete", "train": "trains the rest"}
MOST_ROWS = 24


def one_round(key: str, name: str, detail: Mapping[str, Any]) -> Chart | None:
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
            hover = f"<b>{esc(row['name'])}</b> {_VERB[row['what']]}<br>{seconds(began)} to {seconds(ended)}"
            colour = faded(_COLOUR[row["what"]], 0.55 if row["what"] == "stream" else 1.0)
            draw_bar(chart, [ended - began], [position], 0.62, colour, hover, base=[began])
    end_s = round_["end_s"]
    chart.update_layout(
        xaxis=axis("seconds into the round", range=[0, 1.01 * end_s], nticks=9),
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
