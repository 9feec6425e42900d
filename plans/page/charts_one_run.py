"""The chart of what drafts gave a run: accepted tokens by epoch and source."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from ..phrases.numbers import beside_predicted, bytes_text, count, digits, percent, seconds
from ..phrases.sentences import PHASE_NAMES, listed, source_text
from .chart_axes import BandGroup, BandRow, DurationSpread, axis, bands, diamonds, figure, share_axis
from .elements import BAD, INK, MODE, MUTED, PHASE, SOURCE, Chart, Swatch, esc, faded

Detail = Mapping[str, Any]
MAX_BARS = 240
PHASES = ("sync", "rollout", "reward_exposed", "train", "other")


def kinds_of(detail: Detail) -> list[tuple[str, Mapping[str, Any]]]:
    """Return (name, predictions) of each kind of round that the plan has."""
    rounds = detail["predicted"]["rounds"]
    return [(kind, rounds[kind]) for kind in ("short", "long") if rounds[kind] is not None]


def steps(key: str, name: str, detail: Detail) -> Chart:
    """Return a chart of the seconds of each step by phase, with the predicted bands; long rounds are marked."""
    series = detail["series"]
    numbers, kinds = series["step"], series["kind"]
    size = -(-len(numbers) // MAX_BARS)
    bins = [range(start, min(start + size, len(numbers))) for start in range(0, len(numbers), size)]
    xs = [numbers[part[0]] + (len(part) - 1) / 2 for part in bins]
    chart = figure(barmode="stack", bargap=0.18 if len(bins) < 120 else 0.0)
    several = len(kinds_of(detail)) > 1
    if several:
        chart.update_layout(margin_r=40)  # for the names of the bands
    for kind, expected in kinds_of(detail):
        low, high = expected["step_s"]["p50"], expected["step_s"]["p95"]
        chart.add_hrect(y0=low, y1=high, line={"width": 0}, fillcolor=faded(PHASE["step"], 0.2), layer="below")
        chart.add_hline(y=expected["step_s"]["mean"], line={"color": MUTED, "width": 1, "dash": "dot"}, layer="below")
        if several:
            chart.add_annotation(
                x=1, xref="paper", xanchor="left", xshift=4, y=(low + high) / 2, yanchor="middle", text=kind,
                showarrow=False, font={"size": 11, "color": MUTED},
            )  # fmt: skip
    totals = [statistics.fmean(series["total_s"][i] for i in part) for part in bins]
    hover = [_step_hover(series, part) for part in bins]
    shown = []
    for phase in PHASES:
        values = [statistics.fmean(series[f"{phase}_s"][i] or 0.0 for i in part) for part in bins]
        if max(values) <= 0:
            continue
        shown.append(Swatch(PHASE_NAMES[phase], PHASE[phase]))
        chart.add_bar(
            x=xs, y=values, hovertext=hover, hoverinfo="text", marker={"color": PHASE[phase], "line": {"width": 0}}
        )
    top = max(*totals, *(expected["step_s"]["p95"] for _, expected in kinds_of(detail)))
    long = [index for index, part in enumerate(bins) if any(kinds[i] == "long" for i in part)]
    if long and several:
        diamonds(chart, [xs[i] for i in long], [totals[i] + 0.03 * top for i in long], 7)
    _marks(chart, detail)
    chart.update_layout(
        xaxis=axis("step", range=[xs[0] - 0.7 * size, xs[-1] + 0.7 * size], nticks=12),
        yaxis=axis("seconds", range=[0, 1.12 * top], nticks=6),
    )
    legend = [*shown, Swatch("predicted p50 to p95", MUTED, "band")]
    if long and several:
        legend.append(Swatch("long round", INK, "diamond"))
    if any(row["kind"] in _MARKED for row in detail["incidents"]):
        legend.append(Swatch("restart, resume, violation or NaN", BAD, "dash"))
    caption = (
        f"{count(len(numbers), 'step')} of {seconds(statistics.fmean(series['total_s']))} in the mean, the longest "
        f"{seconds(max(series['total_s']))}. Mean step of the cycle, with a long round for prompts still deferred: "
        f"{beside_predicted(detail['step_s'], detail['step_s_predicted'])}"
        f"{', ' + owed if (owed := owed_text(detail)) else ''}."
        + (f" Each bar is the mean of {size} steps." if size > 1 else "")
    )
    return Chart(f"steps-{key}", f"{name}: seconds of each step", caption, chart, 300, tuple(legend), wide=True)


def owed_text(detail: Detail) -> str:
    """Return which seconds of the mean step are predicted, since no long round ran yet; empty if all are measured."""
    expected = detail["step_s_expected"]
    return f"of which {seconds(expected)} are the plan's own long round: none ran yet" if expected else ""


_MARKED = ("restart", "resume", "checkpoint", "conservation", "off-policy", "checksum", "not a number")


def _marks(chart: Any, detail: Detail) -> None:
    marked_steps = sorted({row["step"] + (0.5 if row["kind"] == "resume" else 0.0)
                 for row in detail["incidents"] if row["kind"] in _MARKED and row["step"] is not None})  # fmt: skip
    for step in marked_steps[:50]:
        chart.add_vline(x=step, line={"color": BAD, "width": 1.5, "dash": "dash"})


def _step_hover(series: Mapping[str, Sequence[Any]], part: range) -> str:
    first, last = part[0], part[-1]
    title = f"step {series['step'][first]}" + (f" to {series['step'][last]}" if last > first else "")
    kinds = listed(dict.fromkeys(esc(series["kind"][i]) for i in part))
    lines = [f"<b>{title}</b>, {kinds}: {seconds(statistics.fmean(series['total_s'][i] for i in part))}"]
    lines += [
        f"{PHASE_NAMES[phase]} {seconds(statistics.fmean(series[f'{phase}_s'][i] or 0.0 for i in part))}"
        for phase in PHASES
    ]
    if longest := [series["max_tokens"][i] for i in part if series["max_tokens"][i] is not None]:
        lines.append(f"longest {max(longest):,} tokens")
    return "<br>".join(lines)


def phases(key: str, name: str, detail: Detail) -> Chart:
    """Return a chart of the seconds of steps and phases by kind of round, measured and predicted."""
    kinds = kinds_of(detail)
    groups, differences = [], []
    for kind, expected in kinds:
        measured = detail["rounds"][kind]["measured"] if detail["steps"] and detail["rounds"][kind] else {}
        sync = expected["sync_s"]
        spreads = {"step": expected["step_s"], "sync": {"p50": sync, "p95": sync, "mean": sync}}
        spreads |= {phase: expected[f"{phase}_s"] for phase in ("rollout", "reward_exposed", "train")}
        rows = [_row(PHASE_NAMES[p], PHASE[p], s, measured.get(f"{p}_s")) for p, s in spreads.items()]
        title = kind if len(kinds) > 1 else "every round"
        if not measured:
            title += ": none yet"
        else:
            if len(kinds) > 1:
                title += f": {percent(detail['rounds'][kind]['share'])} of steps (plan {percent(expected['share'])})"
            measured_s, predicted_s = measured["step_s"]["mean"], expected["step_s"]["mean"]
            differences.append(
                f"{kind + ' ' if len(kinds) > 1 else ''}rounds: {beside_predicted(measured_s, predicted_s)}"
            )
        groups.append(BandGroup(title, tuple(rows)))
    chart, height, legend = bands(groups)
    text = "; ".join(differences)
    caption = text[:1].upper() + text[1:] + "." if differences else "Predictions only: no round was finished."
    title = f"{name}: phases, measured on predicted" if differences else f"{name}: phases, as predicted"
    return Chart(f"phases-{key}", title, caption, chart, height, legend)


def _row(label: str, colour: str, expected: Mapping[str, float], measured: Mapping[str, float] | None) -> BandRow:
    def spread(q: Mapping[str, float]) -> DurationSpread:
        return DurationSpread(q["p50"], q["p95"], q["mean"])

    return BandRow(label, colour, spread(expected), None if measured is None else spread(measured))


def shape(key: str, name: str, detail: Detail) -> Chart | None:
    """Return a chart of the sequences that run during a rollout, measured and predicted; None without a measurement."""
    tails = [(kind, detail["tail"][kind], expected) for kind, expected in kinds_of(detail) if detail["tail"].get(kind)]
    if not tails:
        return None
    chart = figure()
    colours = {"short": PHASE["rollout"], "long": MODE["defer"]}
    xs = [index / 20 for index in range(21)]
    legend, captions = [], []
    for kind, tail, expected in tails:
        for values, dash in ((expected["running"], "dot"), (tail["running"], "solid")):
            chart.add_scatter(
                x=xs, y=list(values), mode="lines", line={"color": colours[kind], "width": 2, "dash": dash},
                hoverinfo="text",
                hovertext=[f"{kind}, {'measured' if dash == 'solid' else 'predicted'}: {percent(v)} run at {percent(x)}"
                           for x, v in zip(xs, values, strict=True)],
            )  # fmt: skip
        legend += [
            Swatch(f"{kind}, measured", colours[kind], "line"),
            Swatch(f"{kind}, predicted", colours[kind], "dots"),
        ]
        share = expected["tail_s"] / (expected["rollout_s"]["mean"] or 1.0)
        captions.append(
            f"{kind} rounds {percent(tail['share'])} (predicted {percent(share)}; from {tail['rounds']:,} of "
            f"{count(tail['of_rounds'], 'round')})"
        )
    chart.add_hline(y=0.25, line={"color": MUTED, "width": 1, "dash": "dash"})
    chart.update_layout(
        xaxis=share_axis("share of the rollout's seconds"),
        yaxis=axis("sequences running, share of the most", range=[0, 1.05], tickformat=".0%", nticks=6),
    )
    caption = (
        f"Share of the rollout's seconds with fewer than a quarter of the sequences (dashed line): {listed(captions)}. "
        f"The longest response of a step is {detail['max_over_median_tokens']:.1f} times the median one."
    )
    return Chart(f"shape-{key}", f"{name}: the tail of its rollouts", caption, chart, 300, tuple(legend))


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
