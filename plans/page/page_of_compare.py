"""The page of a comparison: plans of one job over clusters and values."""

from __future__ import annotations

from collections.abc import Sequence

from ..facts.compared_plans import ComparedPoint, assumed_line, binds, cheapest, fastest, short_name, speedup
from ..phrases.numbers import count, percent, ratio, seconds, times, usd
from ..phrases.sentences import sentence
from .charts import charts_compare
from .page_text import esc, table
from .shell import Card, cards, document, section


def page(points: Sequence[ComparedPoint], job: str, title: str) -> str:
    """The document."""
    solved = [point for point in points if point.plan is not None]
    paths = list(points[0].values)
    subtitle = f"Job {job}: {count(len(points), 'point')}, {count(len(solved), 'plan')}"
    if paths:
        subtitle += f"; varied: {', '.join(paths)}"
    parts = [cards(headline(points))]
    if solved:
        charts = [charts_compare.steps(solved), charts_compare.speed_and_cost(solved), charts_compare.phases(solved)]
        parts.append(section("Pictures", *(chart.html() for chart in charts), grid=True))
    parts.append(
        section(
            "Points",
            f'<div class="panel">{_rows(points)}</div>',
            intro="Speed-up is over plain synchronous rounds on the same nodes, per trained sample. A length ratio of "
            "1 is unbiased.",
        )
    )
    notes = _notes(points)
    if notes:
        listed = "".join(f"<li>{esc(note)}</li>" for note in notes)
        parts.append(section("Notes", f'<div class="panel"><ul>{listed}</ul></div>'))
    return document(title, subtitle, "".join(parts))


def headline(points: Sequence[ComparedPoint]) -> list[Card]:
    """The figures that are asked for first."""
    best, least = fastest(points), cheapest(points)
    found = []
    for name, index in (("Fastest", best), ("Cheapest", least)):
        plan = points[index].plan if index is not None else None
        if index is None or plan is None:
            continue
        predicted = plan.predicted
        value = seconds(predicted.seconds_per_sample)
        if name == "Cheapest":
            value = f"{usd(predicted.usd_per_1k_samples)} USD"
        found.append(
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
        *found,
        Card(
            "Points with a plan",
            f"{len(points) - without} of {len(points)}",
            "the others say why below" if without else "",
            "warn" if without else "",
        ),
    ]


def _rows(points: Sequence[ComparedPoint]) -> str:
    paths = list(points[0].values)
    best, least = fastest(points), cheapest(points)
    rows = []
    for index, point in enumerate(points):
        values = [esc(value) for value in point.shown.values()]
        if point.plan is None:
            rows.append([*values, "no plan", *[""] * 7, esc(point.reason)])
            continue
        plan, found = point.plan, point.plan.predicted
        mark = [word for word, at in (("fastest", best), ("cheapest", least)) if at == index]
        rows.append([
            *values, esc(plan.job.bias.mode), esc(f"{found.nodes:,}"), esc(seconds(found.step_s.mean)),
            esc(f"± {percent(found.error.total)}"), esc(seconds(found.seconds_per_sample)), esc(times(speedup(plan))),
            esc(usd(found.usd_per_1k_samples)), esc(ratio(found.length_ratio)),
            esc(binds(plan)) + (f" <b>{esc(', '.join(mark))}</b>" if mark else ""),
        ])  # fmt: skip
    head = [short_name(path, paths) for path in paths]
    head += [
        "mode",
        "nodes taken",
        "a step",
        "error",
        "a sample",
        "speed-up",
        "USD per 1,000",
        "length ratio",
        "what binds",
    ]
    return table(head, rows, numbers=range(len(paths) + 1, len(head) - 1))


def _notes(points: Sequence[ComparedPoint]) -> list[str]:
    """What must be known of points, each said once with the points that it is about."""
    by_note: dict[str, list[str]] = {}
    assumed = assumed_line(points)
    for point in points:
        for note in point.notes:
            by_note.setdefault(note, []).append(point.label)
    said = [sentence(f"assumed: {assumed}")] if assumed else []
    return said + [
        sentence(note) if len(labels) == len(points) else f"{'; '.join(labels)}: {sentence(note)}"
        for note, labels in by_note.items()
    ]
