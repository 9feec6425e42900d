"""The page of a comparison: plans of one job for several clusters and values."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from ..facts.compared_plans import ComparedPoint, assumed_line, binds, cheapest, fastest, notes_of, short_name
from ..phrases.numbers import count, percent, ratio, seconds, times, usd
from ..phrases.sentences import PHASE_NAMES, sentence
from ..phrases.tables import Table, right
from ..schema.plan import Plan
from .chart_axes import axis, beside, draw_bar, figure, lanes, share_axis, tick
from .elements import INK, MODE, MUTED, PHASE, Card, Chart, Swatch, esc, render

ROW_PX = 44


def _plans(points: Sequence[ComparedPoint]) -> list[tuple[str, Plan]]:
    return [(point.label, point.plan) for point in points if point.plan is not None]


def steps(points: Sequence[ComparedPoint]) -> Chart:
    """Return a chart of the mean seconds of a step, and of a step of plain rounds, by point."""
    chart, plans = figure(), _plans(points)
    longest_s = max(max(p.predicted.step_s.mean, p.predicted.baseline.step_s.mean) for _, p in plans)
    for index, (label, plan) in enumerate(plans):
        step_s, baseline_s, mode = plan.predicted.step_s.mean, plan.predicted.baseline.step_s.mean, plan.job.bias.mode
        hover = (
            f"<b>{esc(label)}</b><br>{mode}: {seconds(step_s)} a step, p95 {seconds(plan.predicted.step_s.p95)}<br>"
            f"plain rounds: {seconds(baseline_s)}"
        )
        draw_bar(chart, [step_s], [index], 0.5, MODE[mode], hover)
        tick(chart, baseline_s, index, 0.3, INK, hover=hover)
        beside(chart, 0, index - 0.44, f"{seconds(step_s)}, {times(plan.predicted.speedup)} plain rounds")
    chart.update_layout(
        xaxis=axis("seconds a step", range=[0, 1.04 * longest_s], nticks=6),
        yaxis=lanes([(index, esc(label)) for index, (label, _) in enumerate(plans)], -0.75, len(plans) - 0.5),
    )
    caption = f"Mean step: {'; '.join(f'{label}: {seconds(p.predicted.step_s.mean)}' for label, p in plans)}."
    if len({(p.job.issue.prompts_per_step, p.job.issue.samples_per_prompt) for _, p in plans}) > 1:
        caption += " Steps are of different sizes here; the cost per sample compares them."
    modes = dict.fromkeys(plan.job.bias.mode for _, plan in plans)
    legend = (
        *(Swatch(mode, MODE[mode]) for mode in modes),
        Swatch("plain rounds on the same nodes", INK, "tick"),
    )
    return Chart("steps", "Seconds a step", caption, chart, ROW_PX * len(plans) + 56, legend)


def speed_and_cost(points: Sequence[ComparedPoint]) -> Chart:
    """Return a chart of samples per hour against USD per 1,000 samples, one mark for each point."""
    chart, plans = figure(), _plans(points)
    rates = [3600 / plan.predicted.seconds_per_sample for _, plan in plans]
    costs = [plan.predicted.usd_per_1k_samples for _, plan in plans]
    for (label, plan), rate, cost in zip(plans, rates, costs, strict=True):
        mode = plan.job.bias.mode
        chart.add_scatter(
            x=[rate], y=[cost], mode="markers", cliponaxis=False, hoverinfo="text",
            marker={"size": 10, "opacity": 1, "color": MODE[mode], "line": {"color": MODE[mode], "width": 2}},
            hovertext=f"<b>{esc(label)}</b><br>{rate:,.0f} samples per hour<br>{usd(cost)} USD per 1,000 samples<br>"
                      f"{mode}, length ratio {plan.predicted.length_ratio:.3f}",
        )  # fmt: skip
        chart.add_annotation(
            x=rate, y=cost, text=esc(label), showarrow=False, yshift=13, font={"size": 11, "color": MUTED},
            xanchor="right" if rate > 0.8 * max(rates) else "left",
        )  # fmt: skip
    chart.update_layout(
        xaxis=axis("samples per hour", range=[0, 1.08 * max(rates)], nticks=6),
        yaxis=axis("USD per 1,000 samples", range=[0, 1.2 * (max(costs) or 1.0)], nticks=6),
    )
    fast, cheap = rates.index(max(rates)), costs.index(min(costs))
    caption = (
        f"Fastest: {plans[fast][0]}, {rates[fast]:,.0f} samples per hour for {usd(costs[fast])} USD per 1,000; "
        f"cheapest: {plans[cheap][0]}, {usd(costs[cheap])} USD per 1,000 at {rates[cheap]:,.0f} per hour. Right and "
        "low is better."
    )
    modes = dict.fromkeys(plan.job.bias.mode for _, plan in plans)
    legend = tuple(Swatch(mode, MODE[mode], "dot") for mode in modes)
    return Chart("speed-cost", "Speed against cost", caption, chart, 330, legend)


def phases(points: Sequence[ComparedPoint]) -> Chart:
    """Return a chart of the phases' shares of the mean step, by point."""
    chart, plans = figure(barmode="stack"), _plans(points)
    names = ("sync", "rollout", "reward_exposed", "train")
    phases_of = [plan.predicted.phases_s.model_dump() for _, plan in plans]
    totals = [sum(seconds_of[name] for name in names) or 1.0 for seconds_of in phases_of]
    for name in names:
        shares = [seconds_of[name] / total for seconds_of, total in zip(phases_of, totals, strict=True)]
        draw_bar(
            chart, shares, list(range(len(plans))), 0.5, PHASE[name],
            [f"<b>{esc(label)}</b>, {PHASE_NAMES[name]}<br>{seconds(seconds_of[name])}, "
             f"{percent(seconds_of[name] / total)}"
             for (label, _), seconds_of, total in zip(plans, phases_of, totals, strict=True)],
        )  # fmt: skip
    chart.update_layout(
        xaxis=share_axis("share of the mean step"),
        yaxis=lanes([(index, esc(label)) for index, (label, _) in enumerate(plans)], -0.6, len(plans) - 0.4),
    )
    longest_texts = [
        f"{label}: {PHASE_NAMES[longest]} {percent(seconds_of[longest] / total)}"
        for (label, _), seconds_of, total in zip(plans, phases_of, totals, strict=True)
        for longest in [max(names, key=lambda name: float(seconds_of[name]))]
    ]
    legend = tuple(Swatch(PHASE_NAMES[name], PHASE[name]) for name in names)
    caption = f"The longest phase of the mean step: {'; '.join(longest_texts)}."
    return Chart("shares", "Where the step goes", caption, chart, 40 * len(plans) + 74, legend)


def comparison_page(points: Sequence[ComparedPoint], *, job: str, title: str) -> str:
    """Return the page of a comparison; `points`: at least one, all of one job (compared_plans.py)."""
    solved = [point for point in points if point.plan is not None]
    paths = list(points[0].values)
    subtitle = f"Job {job}: {count(len(points), 'point')}, {count(len(solved), 'plan')}"
    if paths:
        subtitle += f"; varied: {', '.join(paths)}"
    charts = (steps, speed_and_cost, phases)
    return render(
        "compare.html.j2",
        title,
        subtitle,
        cards=headline(points),
        charts=[chart(solved) for chart in charts] if solved else [],
        points=_rows(points),
        notes=_notes(points),
    )


def headline(points: Sequence[ComparedPoint]) -> list[Card]:
    """Return the cards with the headline figures."""
    best, least = fastest(points), cheapest(points)
    cards = []
    for name, index in (("Fastest", best), ("Cheapest", least)):
        plan = points[index].plan if index is not None else None
        if index is None or plan is None:
            continue
        predicted = plan.predicted
        value = seconds(predicted.seconds_per_sample)
        if name == "Cheapest":
            value = f"{usd(predicted.usd_per_1k_samples)} USD"
        cards.append(
            Card(
                name,
                value,
                f"{'a sample' if name == 'Fastest' else 'per 1,000 samples'}: {points[index].label}; "
                f"{seconds(predicted.step_s.mean)} a step, {count(predicted.nodes, 'node')}, mode {plan.job.bias.mode}",
                "good",
            )
        )
    without = sum(point.plan is None for point in points)
    return [
        *cards,
        Card(
            "Points with a plan",
            f"{len(points) - without} of {len(points)}",
            "the others say why below" if without else "",
            "warn" if without else "",
        ),
    ]


def _rows(points: Sequence[ComparedPoint]) -> Table:
    paths = list(points[0].values)
    best, least = fastest(points), cheapest(points)
    rows = []
    for index, point in enumerate(points):
        values = list(point.value_texts.values())
        if point.plan is None:
            rows.append([*values, "no plan", *[""] * 8, point.reason])
            continue
        plan, predicted = point.plan, point.plan.predicted
        merits = ", ".join(merit for merit, winner in (("fastest", best), ("cheapest", least)) if winner == index)
        binding = Markup("{} <b>{}</b>").format(binds(plan), merits) if merits else binds(plan)
        rows.append([
            *values, plan.job.bias.mode, f"{predicted.nodes:,}", seconds(predicted.step_s.mean),
            f"± {percent(predicted.error.total)}", seconds(predicted.seconds_per_sample), times(predicted.speedup),
            usd(predicted.usd_per_1k_samples), ratio(predicted.length_ratio),
            percent(predicted.cut_share), binding,
        ])  # fmt: skip
    figures = ["nodes taken", "a step", "error", "a sample", "speed-up", "USD per 1,000", "length ratio", "cut"]
    return Table.of([*(short_name(path, paths) for path in paths), "mode", *right(figures), "bottleneck"], rows)


def _notes(points: Sequence[ComparedPoint]) -> list[str]:
    """Return the notes of all points, each once with the labels of its points."""
    assumed = assumed_line(points)
    lines = [sentence(f"assumed: {assumed}")] if assumed else []
    return lines + [
        sentence(note) if len(labels) == len(points) else f"{'; '.join(labels)}: {sentence(note)}"
        for note, labels in notes_of(points).items()
    ]
