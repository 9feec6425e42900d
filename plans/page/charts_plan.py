"""A plan's other charts: seconds of phases, speed against bias, lengths, memory."""

from __future__ import annotations

import math
from typing import Any

from ..phrases.numbers import bytes_text, digits, percent, seconds, times, usd
from ..phrases.sentences import PHASE_NAMES, listed, sentence
from ..schema.plan import Plan
from ..schema.predicted import ROUGH_ROUNDS, MemoryBar, Predicted, PredictedRound, Quantiles
from .chart_axes import (
    BandGroup,
    BandRow,
    DurationSpread,
    axis,
    bands,
    beside,
    cut,
    draw_bar,
    figure,
    lanes,
    share_axis,
)
from .elements import BAD, INK, MODE, MUTED, PANEL, PHASE, TRACK, Chart, Swatch, faded


def spread(quantiles: Quantiles) -> DurationSpread:
    """Return quantiles of a plan as a spread, which charts draw."""
    return DurationSpread(quantiles.p50, quantiles.p95, quantiles.mean)


def phase_spreads(kind: PredictedRound) -> dict[str, DurationSpread]:
    """Return the spread of each phase of a kind of round, in order; of the weight transfer only the mean is known."""
    return {
        "sync": DurationSpread(kind.sync_s, kind.sync_s, kind.sync_s),
        "rollout": spread(kind.rollout_s),
        "reward_exposed": spread(kind.reward_exposed_s),
        "train": spread(kind.train_s),
    }


def phases(plan: Plan) -> Chart:
    """Return a chart of the seconds of whole steps, of the baseline's steps, and of the phases by kind of round."""
    predicted = plan.predicted
    kinds = predicted.rounds.kinds
    steps = [
        BandRow("plain rounds", MODE["sync"], spread(predicted.baseline.step_s)),
        BandRow("this plan", MODE[plan.job.bias.mode], spread(predicted.step_s)),
    ]
    groups = [BandGroup("whole step", tuple(steps))]
    for name, kind in kinds:
        rows = [BandRow("step", PHASE["step"], spread(kind.step_s))] if len(kinds) > 1 else []
        rows += [BandRow(PHASE_NAMES[p], PHASE[p], s) for p, s in phase_spreads(kind).items()]
        groups.append(BandGroup(f"{name} round" if len(kinds) > 1 else "its phases", tuple(rows)))
    chart, height, legend = bands(groups)
    most = max(predicted.phases_s.model_dump().items(), key=lambda item: float(item[1]))
    caption = (
        f"The mean step takes {seconds(predicted.step_s.mean)}, one of plain rounds "
        f"{seconds(predicted.baseline.step_s.mean)}. Its longest phase is {PHASE_NAMES[most[0]]}, {seconds(most[1])}. "
        "Bands run from the median to the 95th percentile over steps; a mean lies below its band where the shorter "
        "half is far shorter, above it where few steps are far longer."
    )
    return Chart("phases", "Seconds by phase", caption, chart, height, legend)


def front(plan: Plan) -> Chart:
    """Return a chart of speed against bias: how much faster a plan with a larger bias budget would be."""
    predicted = plan.predicted
    base = predicted.baseline.seconds_per_sample
    chart = figure()
    points = sorted(predicted.front, key=lambda p: (p.length_ratio, p.seconds_per_sample))
    speeds = [base / p.seconds_per_sample for p in points]
    chart.add_vline(x=1.0, line={"color": MUTED, "width": 1, "dash": "dot"})
    chart.add_scatter(
        x=[p.length_ratio for p in points], y=speeds, mode="lines", hoverinfo="skip",
        line={"color": TRACK, "width": 2, "shape": "linear"},
    )  # fmt: skip
    for mode in dict.fromkeys(p.mode for p in points):
        points_of_mode = [(p, s) for p, s in zip(points, speeds, strict=True) if p.mode == mode]
        chart.add_scatter(
            x=[p.length_ratio for p, _ in points_of_mode], y=[s for _, s in points_of_mode], mode="markers",
            cliponaxis=False,
            marker={
                "size": [12 if p.chosen else 9 for p, _ in points_of_mode],
                "opacity": 1,  # with several sizes plotly would fade them
                "color": [PANEL if p.rough else MODE[mode] for p, _ in points_of_mode],
                "line": {"color": MODE[mode], "width": 2},
            },
            hoverinfo="text",
            hovertext=[
                f"<b>{mode}</b>{', this plan' if p.chosen else ''}<br>{times(s)} plain rounds, "
                f"{seconds(p.seconds_per_sample)} per sample<br>length ratio {p.length_ratio:.3f}<br>"
                f"{usd(p.usd_per_1k_samples)} USD per 1,000 samples<br>{p.rounds} rounds simulated"
                for p, s in points_of_mode
            ],
        )  # fmt: skip
    chosen = [(p, s) for p, s in zip(points, speeds, strict=True) if p.chosen]
    for point, speed in chosen:
        chart.add_annotation(
            x=point.length_ratio, y=speed, text=f"<b>this plan</b> {times(speed)}", showarrow=False, yshift=-17,
            xanchor="right" if point.length_ratio > 0.9 else "left", font={"size": 12, "color": INK},
        )  # fmt: skip
    ratios = [1.0, *(p.length_ratio for p in points)]
    low, high = min(ratios), max(ratios)
    room = max(0.02, 0.08 * (high - low))
    tops = [*speeds, 1.0]
    rise = max(0.08, 0.22 * (max(tops) - min(tops)))
    chart.update_layout(
        xaxis=axis("trained / unconditioned mean length", range=[low - room, high + room], nticks=7),
        yaxis=axis("speed, × plain rounds", range=[min(tops) - rise / 2, max(tops) + rise], nticks=6),
    )
    legend = [Swatch(mode, MODE[mode], "dot") for mode in dict.fromkeys(p.mode for p in points)]
    if any(p.rough for p in points):
        legend.append(Swatch(f"rough: under {ROUGH_ROUNDS} rounds simulated", MUTED, "ring"))
    return Chart("front", "Speed against bias", _front_caption(predicted), chart, 330, tuple(legend))


def _front_caption(predicted: Predicted) -> str:
    base = predicted.baseline.seconds_per_sample
    best = min(predicted.front, key=lambda p: p.seconds_per_sample)
    text = f"This plan trains {times(predicted.speedup)} the samples per second of plain rounds "
    text += f"at length ratio {predicted.length_ratio:.3f}; 1 is unbiased. "
    if best.chosen:
        slower = predicted.seconds_per_sample > 1.005 * base
        return text + (
            "Plain rounds are faster." if slower else "No schedule that was simulated beside it is faster at any bias."
        )
    return text + (
        f"The fastest at any bias is {best.mode}: {times(base / best.seconds_per_sample)} at length ratio "
        f"{best.length_ratio:.3f}, {usd(best.usd_per_1k_samples)} USD per 1,000 samples."
    )


def share_within(lengths: tuple[int, ...], tokens: float) -> float:
    """Return the share of the responses with at most `tokens` tokens, interpolated between the quantiles."""
    if tokens >= lengths[-1]:
        return 1.0
    steps = len(lengths) - 1
    for index in range(steps, 0, -1):
        low, high = lengths[index - 1], lengths[index]
        if low <= tokens < high:
            return (index - 1 + (tokens - low) / (high - low)) / steps
    return 0.0


def length_axis(longest: float, median: float) -> dict[str, Any]:
    """Return the axis of response lengths; logarithmic if the tail is heavy."""
    if longest > 8 * max(median, 1.0):
        top = math.ceil(math.log10(longest))
        ticks = [
            base * 10**power for power in range(top + 1) for base in (1, 2, 5) if base * 10**power <= 1.2 * longest
        ]
        kept = ticks if len(ticks) <= 8 else [tick for tick in ticks if str(tick)[0] == "1"]
        return axis(
            "response tokens", type="log", range=[0, math.log10(1.15 * longest)], tickvals=kept,
            ticktext=[f"{tick:,}" for tick in kept],
        )  # fmt: skip
    return axis("response tokens", range=[0, 1.03 * longest], nticks=7)


def lengths(plan: Plan) -> Chart:
    """Return a chart of the lengths of unconditioned responses, with the cutoff."""
    quantiles, cutoff = plan.predicted.lengths_tokens, plan.job.rounds.short.cutoff_tokens
    chart = figure()
    shares = [index / 20 for index in range(21)]
    colour = PHASE["rollout"]
    chart.add_scatter(
        x=list(quantiles), y=shares, mode="lines", line={"color": colour, "width": 2}, fill="tozeroy",
        fillcolor=faded(colour, 0.12), hoverinfo="text",
        hovertext=[f"{percent(share)} of responses: at most {tokens:,} tokens"
                   for share, tokens in zip(shares, quantiles, strict=True)],
    )  # fmt: skip
    x_axis = length_axis(quantiles[-1], quantiles[10])
    caption = (
        f"Half of the responses have at most {quantiles[10]:,} tokens, 95% at most {quantiles[19]:,}; the longest has "
        f"{quantiles[20]:,}, {digits(quantiles[20] / max(quantiles[10], 1))} times the median."
    )
    basis = plan.predicted.length_basis
    if basis is not None and basis.extrapolated:
        caption += f" {sentence(basis.sentence(plan.predicted.speedup))}"
    legend = [Swatch("share of responses of at most so many tokens", colour, "line")]
    if cutoff is not None:
        within = share_within(quantiles, cutoff)
        cut(chart, x_axis, cutoff, f"<b>{cutoff:,}</b> tokens<br>{percent(within)} within")
        legend.append(Swatch("cutoff of short rounds", INK, "dash"))
        caption += (
            f" {percent(within)} of single responses end within the cutoff of {cutoff:,}; a group is put off to a long "
            "round if one of its responses does not."
        )
    chart.update_layout(xaxis=x_axis, yaxis=axis("share of responses", range=[0, 1.04], tickformat=".0%", nticks=6))
    return Chart("lengths", "Lengths of unconditioned responses", caption, chart, 330, tuple(legend))


_MEMORY = {"kv": ("KV cache", PHASE["rollout"]), "train": ("trainer", PHASE["train"]), "host": ("host", PHASE["other"])}


def named_memory(plan: Plan) -> list[tuple[str, MemoryBar, str]]:
    """Return (name, bar, colour) of every memory that a plan uses."""
    several = plan.predicted.rounds.long is not None
    bars = sorted(plan.predicted.memory_bars, key=lambda item: [*_MEMORY].index(item[0]))
    return [
        (f"{_MEMORY[place][0]}{f', {kind}' if several and kind else ''}", bar, _MEMORY[place][1])
        for place, kind, bar in bars
    ]


def memory(plan: Plan) -> Chart:
    """Return a chart of the bytes that each memory needs, over its capacity."""
    bars = named_memory(plan)
    shares_text = "; ".join(
        f"{name}: {bytes_text(bar.needed_bytes)} of {bytes_text(bar.capacity_bytes)}, {percent(1 - bar.headroom)}"
        for name, bar, _ in bars
    )
    too_full = [name for name, bar, _ in bars if bar.headroom < 0]
    caption = f"{listed(too_full)} would not fit. " if too_full else ""
    unknown = any(kind.memory.train is None for _, kind in plan.predicted.rounds.kinds)
    caption += shares_text + (". The profile does not know the trainers' memory." if unknown else ".")
    chart, height = filled([(name, bar.needed_bytes, bar.capacity_bytes, colour) for name, bar, colour in bars])
    return Chart(
        "memory", "Memory at its fullest", caption, chart, height, (Swatch("needed", MUTED), Swatch("there is", TRACK))
    )


def filled(rows: list[tuple[str, float, float, str]]) -> tuple[Any, int]:
    """Return bars of bytes needed over capacity, from rows (name, needed, capacity, colour): figure and height."""
    chart = figure()
    shares = [needed / capacity for _, needed, capacity, _ in rows]
    most = max([1.0, *shares])
    for index, ((name, needed, capacity, colour), share) in enumerate(zip(rows, shares, strict=True)):
        hover = f"<b>{name}</b><br>{bytes_text(needed)} of {bytes_text(capacity)}, {percent(share, 1)}"
        draw_bar(chart, [1.0], [index], 0.5, TRACK, marker={"color": TRACK})
        draw_bar(chart, [share], [index], 0.5, BAD if share > 1 else colour, hover)
        beside(chart, most, index - 0.42, f"{bytes_text(needed)} of {bytes_text(capacity)}", "middle left")
    chart.update_layout(
        xaxis=share_axis("", most),
        yaxis=lanes([(i, row[0]) for i, row in enumerate(rows)], -0.75, len(rows) - 0.5),
    )
    return chart, 46 * len(rows) + 40
