"""The page of a comparison: plans of one job for several clusters and values."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from ..facts.compared_plans import ComparedPoint, assumed_line, binds, cheapest, fastest, short_name
from ..phrases.numbers import count, percent, ratio, seconds, times, usd
from ..phrases.sentences import sentence
from .charts import charts_compare
from .elements import Card, Table, render


def page(points: Sequence[ComparedPoint], job: str, title: str) -> str:
    """Return the HTML document."""
    solved = [point for point in points if point.plan is not None]
    paths = list(points[0].values)
    subtitle = f"Job {job}: {count(len(points), 'point')}, {count(len(solved), 'plan')}"
    if paths:
        subtitle += f"; varied: {', '.join(paths)}"
    charts = (charts_compare.steps, charts_compare.speed_and_cost, charts_compare.phases)
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
    head = [short_name(path, paths) for path in paths]
    head += ["mode", "nodes taken", "a step", "error", "a sample", "speed-up", "USD per 1,000", "length ratio", "cut"]
    return Table([*head, "bottleneck"], rows, numbers=range(len(paths) + 1, len(head)))


def _notes(points: Sequence[ComparedPoint]) -> list[str]:
    """Return the notes of all points, each once with the labels of its points."""
    by_note: dict[str, list[str]] = {}
    assumed = assumed_line(points)
    for point in points:
        for note in point.notes:
            by_note.setdefault(note, []).append(point.label)
    lines = [sentence(f"assumed: {assumed}")] if assumed else []
    return lines + [
        sentence(note) if len(labels) == len(points) else f"{'; '.join(labels)}: {sentence(note)}"
        for note, labels in by_note.items()
    ]
