"""Charts of a plan of co-execution groups: costs, timelines, slowdowns, memory. A job has one colour on all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...phrases.group_cells import bounds_text
from ...phrases.numbers import count, percent, seconds, times, usd
from ...phrases.sentences import listed, sentence
from ...schema.groups_plan import CostFigures, GroupsPlan, PlannedGroup
from ..elements import Chart, Swatch
from ..palette import BAD, GOOD, INK, LINE, MUTED, PANEL, PHASE, TRACK, faded, text_on
from .axes import axis, figure, lanes
from .charts_plan import filled


def alternatives(plan: GroupsPlan) -> list[tuple[str, CostFigures]]:
    """Return the costs of this plan, and those of the two placements that it is compared with."""
    predicted = plan.predicted
    return [
        ("this plan", predicted.plan),
        ("Algorithm 1", predicted.algorithm_1),
        ("each alone", predicted.solo_d),
    ]


def costs(plan: GroupsPlan) -> Chart:
    """Return a chart of USD per hour: of the plan, of Algorithm 1, and with each job on its own nodes."""
    chart = figure()
    rows = alternatives(plan)
    most = max(figures.usd_per_hour for _, figures in rows) or 1.0
    for index, (name, figures) in enumerate(rows):
        colour = GOOD if index == 0 else PHASE["other"]
        pattern = {"shape": "/", "size": 6, "solidity": 0.3, "fgcolor": colour, "bgcolor": faded(colour, 0.15)}
        chart.add_bar(
            orientation="h", x=[figures.usd_per_hour], y=[index], width=0.46, hoverinfo="text",
            hovertext=f"<b>{name}</b><br>{usd(figures.usd_per_hour)} USD/h<br>{figures.usd_per_unit:.3f} USD/unit"
            f"<br>bounds kept {percent(figures.slo_attained)}",
            marker={"color": colour, "line": {"width": 0}, **({} if figures.fits else {"pattern": pattern})},
        )  # fmt: skip
        chart.add_annotation(
            x=0, y=index - 0.42, xanchor="left", yanchor="middle", xshift=2, showarrow=False, bgcolor=PANEL,
            text=f"{usd(figures.usd_per_hour)} USD/h, {figures.usd_per_unit:.3f} USD/unit",
            font={"size": 11, "color": MUTED},
        )  # fmt: skip
    legend = []
    if any(not figures.fits for _, figures in rows):
        legend.append(Swatch("does not fit the cluster", PHASE["other"], "hatch"))
    for label, bound, dash in (
        (f"of {plan.solver.universe}", plan.solver.bound_usd_per_hour, "dash"),
        ("of any schedule at all", plan.solver.fluid_usd_per_hour, "dot"),
    ):
        if bound is not None:
            chart.add_vline(x=bound, line={"color": INK if dash == "dash" else MUTED, "width": 1.5, "dash": dash})
            legend.append(
                Swatch(
                    f"lower bound {label}: {usd(bound)} USD/h",
                    INK if dash == "dash" else MUTED,
                    "dash" if dash == "dash" else "dots",
                )
            )
    chart.update_layout(
        xaxis=axis("USD per hour", range=[0, 1.05 * most], nticks=6),
        yaxis=lanes([(i, name) for i, (name, _) in enumerate(rows)], -0.75, len(rows) - 0.5),
    )
    this_plan, algorithm_1, solo = (figures for _, figures in rows)
    price = this_plan.usd_per_hour or 1.0
    caption = (
        f"{usd(this_plan.usd_per_hour)} USD an hour, {times(algorithm_1.usd_per_hour / price)} as much by "
        f"RollMux's Algorithm 1 and {times(solo.usd_per_hour / price)} with each job on nodes of its own"
        + ("" if solo.fits else ", for which the cluster has too few")
        + ". A unit is the training that one USD buys if each job has its own nodes."
    )
    return Chart("costs", "Cost beside what else could be done", caption, chart, 46 * len(rows) + 60, tuple(legend))


def timeline(key: str, group: PlannedGroup, colours: Mapping[str, str]) -> Chart:
    """Return a timeline of a group: which job has which node when."""
    chart = figure()
    rows = _rows(group)
    place = {unit: index for index, (_, units) in enumerate(rows) for unit in units}
    spans = [(s.job, s.phase, s.units, s.begin_s, s.end_s) for s in group.timeline.spans]
    _draw_spans(chart, spans, place, colours)
    chart.update_layout(
        xaxis=axis("seconds", range=[0, group.timeline.span_s], nticks=9),
        yaxis=lanes([(index, name) for index, (name, _) in enumerate(rows)], -0.6, len(rows) - 0.4),
        uniformtext={"minsize": 10, "mode": "hide"},  # names that do not fit their bars
    )
    busy = sorted(((node.busy, f"{node.pool} {index}") for index, node in enumerate(group.nodes)), reverse=True)
    caption = (
        f"{listed(group.jobs)} on {count(len(group.nodes), 'node')}, {usd(group.usd_per_hour)} USD/h; "
        f"{busy[0][1]} is the busiest, {percent(busy[0][0])} of the time, {busy[-1][1]} the idlest, "
        f"{percent(busy[-1][0])}. With mean seconds "
        + (
            f"it repeats every {seconds(group.timeline.period_s)}."
            if group.timeline.repeats
            else "it never repeats exactly."
        )
    )
    legend = [Swatch(name, colours[name]) for name in group.jobs]
    legend += [Swatch("rollout", MUTED), Swatch("train", MUTED, "hatch")]
    return Chart(
        f"timeline-{key}", f"{key}: who has which node when", caption, chart, 32 * len(rows) + 52, tuple(legend), True
    )


def _draw_spans(
    chart: Any,
    spans: Sequence[tuple[str, str, Sequence[int], float, float]],
    row_of: Mapping[int, int],
    colours: Mapping[str, str],
) -> None:
    """Draw (job, phase, units, begin, end) of phases that run, each on the rows of its units; training is hatched."""
    for job, phase, units, begin_s, end_s in spans:
        # Without a colour of its own a pattern's ground is clear, and the bar gone.
        ground = colours[job]
        pattern = {
            "shape": "/", "size": 7, "solidity": 0.25, "fgcolor": "#ffffff", "fgopacity": 0.5, "bgcolor": ground
        }  # fmt: skip
        for row in sorted({row_of[unit] for unit in units}):
            chart.add_bar(
                orientation="h", base=[begin_s], x=[end_s - begin_s], y=[row], width=0.74, hoverinfo="text",
                hovertext=f"<b>{job}</b>, {phase}<br>{seconds(begin_s)} to {seconds(end_s)}: "
                f"{seconds(end_s - begin_s)}",
                text=[job], textposition="inside", insidetextanchor="middle", textangle=0,
                textfont={"size": 11, "color": text_on(ground)},
                marker={
                    "color": ground, "line": {"color": PANEL, "width": 1},
                    **({"pattern": pattern} if phase == "train" else {}),
                },
            )  # fmt: skip


SHOWN_TURNS = 48
"""Turns that a chart of a run shows, the last ones in which all jobs ran."""


def turns_taken(report: Mapping[str, Any], colours: Mapping[str, str]) -> Chart:
    """Return a timeline of a group that was executed: who had which unit when; `report`: of group_report.py."""
    chart = figure()
    units = [int(unit) for unit in report["units"]]
    names = {unit: f"{figures['pool'] or 'unit'} {unit}" for unit, figures in report["units"].items()}
    begin_s, end_s = report["together_s"]
    shown = [turn for turn in report["turns"] if turn["end_s"] > begin_s and turn["begun_s"] < end_s][-SHOWN_TURNS:]
    from_s = min((turn["begun_s"] for turn in shown), default=0.0)
    spans = [
        (turn["job"], turn["phase"], turn["units"], turn["begun_s"] - from_s, turn["end_s"] - from_s) for turn in shown
    ]
    _draw_spans(chart, spans, {unit: row for row, unit in enumerate(units)}, colours)
    chart.update_layout(
        xaxis=axis("seconds", range=[0, max((span[4] for span in spans), default=1.0)], nticks=9),
        yaxis=lanes(list(enumerate(names.values())), -0.6, len(units) - 0.4),
        uniformtext={"minsize": 10, "mode": "hide"},
    )
    busy = [
        f"{names[unit]} {percent(figures['busy'])}"
        for unit, figures in report["units"].items()
        if figures["busy"] is not None
    ]
    caption = f"The last {count(len(shown), 'turn')} while all jobs ran" + (f"; busy: {listed(busy)}." if busy else ".")
    legend = [Swatch(name, colours[name]) for name in (*report["jobs"], *report["left"])]
    legend += [Swatch("rollout", MUTED), Swatch("train", MUTED, "hatch")]
    title = f"Group {report['group']}: who had which unit when"
    return Chart(f"turns-{report['group']}", title, caption, chart, 32 * len(units) + 52, tuple(legend), True)


def _rows(group: PlannedGroup) -> list[tuple[str, list[int]]]:
    """Return (name, units) of each row: a node, or each of its slots if a job holds only some of them."""
    rows: list[tuple[str, list[int]]] = []
    first = 0
    held = [set(span.units) for span in group.timeline.spans]
    for index, node in enumerate(group.nodes):
        units = list(range(first, first + node.slots))
        first += node.slots
        if all(not units_held & set(units) or units_held >= set(units) for units_held in held):
            rows.append((f"{node.pool} {index}", units))
        else:
            rows += [(f"{node.pool} {index}.{slot}", [unit]) for slot, unit in enumerate(units)]
    return rows


def slowdowns(plan: GroupsPlan, colours: Mapping[str, str]) -> Chart:
    """Return a chart of each job's slowdown and its bound."""
    chart = figure()
    members = [(name, member, key) for key, group in plan.groups.items() for name, member in group.jobs.items()]
    top = max(max(m.slowdown.slo, m.slowdown.p95) for _, m, _ in members)
    for index, (name, member, key) in enumerate(members):
        s = member.slowdown
        chart.add_bar(
            orientation="h", base=[s.p50], x=[max(s.p95 - s.p50, 0.003 * top)], y=[index], width=0.5, hoverinfo="text",
            hovertext=f"<b>{name}</b>, {key}<br>mean {times(s.mean, 3)}, p50 {times(s.p50, 3)}, p95 {times(s.p95, 3)}"
            f"<br>at most {times(s.slo, 3)}<br>alone {seconds(s.alone_s)} an iteration",
            marker={"color": faded(colours[name], 0.55), "line": {"width": 0}},
        )  # fmt: skip
        chart.add_scatter(
            x=[s.mean], y=[index], mode="markers", hoverinfo="skip",
            marker={"symbol": "diamond", "size": 8, "color": INK, "line": {"color": PANEL, "width": 1}},
        )  # fmt: skip
        chart.add_scatter(
            x=[s.slo, s.slo], y=[index - 0.36, index + 0.36], mode="lines", hoverinfo="skip",
            line={"color": INK if s.keeps else BAD, "width": 2.5},
        )  # fmt: skip
    low = min(0.98, *(m.slowdown.p50 for _, m, _ in members))
    chart.add_vline(x=1.0, line={"color": LINE, "width": 1.5})
    chart.update_layout(
        xaxis=axis("seconds of an iteration, × alone", range=[low, 1.02 * top], nticks=7),
        yaxis=lanes([(i, name) for i, (name, _, _) in enumerate(members)], -0.7, len(members) - 0.4),
    )  # fmt: skip
    caption = sentence(bounds_text(plan))
    legend = (Swatch("p50 to p95", MUTED, "band"), Swatch("mean", INK, "diamond"), Swatch("bound", INK, "tick"))
    return Chart("slowdowns", "Slowdown of each job", caption, chart, 34 * len(members) + 62, legend)


def memory(plan: GroupsPlan) -> Chart:
    """Return a chart of the host memory that sleeping jobs' states take, by node."""
    rows = [
        (f"{key} {node.pool} {index}", node.resident_bytes, float(node.host_memory_bytes), PHASE["other"])
        for key, group in plan.groups.items()
        for index, node in enumerate(group.nodes)
    ]
    fullest = max(rows, key=lambda row: row[1] / row[2])
    chart, height = filled(rows)
    share = percent(fullest[1] / fullest[2])
    caption = f"States of jobs that sleep stay in host memory. {fullest[0]} is the fullest, {share}."
    legend = (Swatch("sleeping states", PHASE["other"]), Swatch("there is", TRACK))
    return Chart("memory", "Host memory of each node", caption, chart, height, legend)
