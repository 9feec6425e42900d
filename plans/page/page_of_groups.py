"""The pages of co-execution groups, planned and executed, and their charts. A job has one colour on all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..facts.digest import groups_decisions
from ..facts.group_cells import (
    GROUP_COLUMNS,
    MOVE_COLUMNS,
    SWITCH_COLUMNS,
    SWITCH_TEXT,
    bounds_text,
    declined_text,
    group_cells,
    move_cells,
    move_reason,
    point_text,
    switch_rows,
)
from ..facts.plan_text import groups_status
from ..phrases.numbers import NONE, count, percent, seconds, times, usd
from ..phrases.sentences import listed, sentence
from ..phrases.tables import Table, right
from ..schema.groups_plan import GroupsPlan, PlannedGroup
from ..schema.plan import InputFile
from .chart_axes import axis, diamonds, draw_bar, figure, hatch, lanes, tick
from .charts_plan import filled
from .elements import (
    BAD,
    GOOD,
    INK,
    LINE,
    MUTED,
    PANEL,
    PHASE,
    TRACK,
    Card,
    Chart,
    Swatch,
    SwatchStyle,
    faded,
    job_colours,
    mark,
    render,
    text_on,
)
from .page_of_plan import banners, inputs, solved


def costs(plan: GroupsPlan) -> Chart:
    """Return a chart of USD per hour: of the plan, of Algorithm 1, and with each job on its own nodes."""
    chart = figure()
    this_plan, algorithm_1, solo = plan.predicted.plan, plan.predicted.algorithm_1, plan.predicted.solo_d
    rows = (("this plan", this_plan), ("Algorithm 1", algorithm_1), ("each alone", solo))
    most = max(figures.usd_per_hour for _, figures in rows) or 1.0
    for index, (name, figures) in enumerate(rows):
        colour = GOOD if index == 0 else PHASE["other"]
        pattern = {} if figures.fits else {"pattern": hatch(colour, 6, 0.3, 0.15)}
        draw_bar(
            chart, [figures.usd_per_hour], [index], 0.46, colour,
            f"<b>{name}</b><br>{usd(figures.usd_per_hour)} USD/h<br>{figures.usd_per_unit:.3f} USD/unit"
            f"<br>bounds kept {percent(figures.slo_attained)}",
            marker={"color": colour, "line": {"width": 0}, **pattern},
        )  # fmt: skip
        chart.add_annotation(
            x=0, y=index - 0.42, xanchor="left", yanchor="middle", xshift=2, showarrow=False, bgcolor=PANEL,
            text=f"{usd(figures.usd_per_hour)} USD/h, {figures.usd_per_unit:.3f} USD/unit",
            font={"size": 11, "color": MUTED},
        )  # fmt: skip
    legend = []
    if any(not figures.fits for _, figures in rows):
        legend.append(Swatch("does not fit the cluster", PHASE["other"], "hatch"))
    bounds: tuple[tuple[str, float | None, str, str, SwatchStyle], ...] = (
        (f"of {plan.solver.universe}", plan.solver.bound_usd_per_hour, INK, "dash", "dash"),
        ("of any schedule at all", plan.solver.fluid_usd_per_hour, MUTED, "dot", "dots"),
    )
    for label, bound, colour, dash, style in bounds:
        if bound is not None:
            chart.add_vline(x=bound, line={"color": colour, "width": 1.5, "dash": dash})
            legend.append(Swatch(f"lower bound {label}: {usd(bound)} USD/h", colour, style))
    chart.update_layout(
        xaxis=axis("USD per hour", range=[0, 1.05 * most], nticks=6),
        yaxis=lanes([(i, name) for i, (name, _) in enumerate(rows)], -0.75, len(rows) - 0.5),
    )
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
    rows = _rows(group)
    place = {unit: index for index, (_, units) in enumerate(rows) for unit in units}
    spans = [(s.job, s.phase, s.units, s.begin_s, s.end_s) for s in group.timeline.spans]
    busy = sorted(((node.busy, f"{node.pool} {index}") for index, node in enumerate(group.nodes)), reverse=True)
    period = f"repeats every {seconds(group.timeline.period_s)}" if group.timeline.repeats else "never repeats exactly"
    caption = (
        f"{listed(group.jobs)} on {count(len(group.nodes), 'node')}, {usd(group.usd_per_hour)} USD/h; "
        f"{busy[0][1]} is the busiest, {percent(busy[0][0])} of the time, {busy[-1][1]} the idlest, "
        f"{percent(busy[-1][0])}. With mean seconds it {period}."
    )
    names = [name for name, _ in rows]
    texts = (f"timeline-{key}", f"{key}: who has which node when", caption)
    return _who_has_what(texts, spans, place, names, group.timeline.span_s, group.jobs, colours)


def _who_has_what(
    texts: tuple[str, str, str],
    spans: Sequence[tuple[str, str, Sequence[int], float, float]],
    row_of: Mapping[int, int],
    names: Sequence[str],
    until_s: float,
    jobs: Iterable[str],
    colours: Mapping[str, str],
) -> Chart:
    """Return a timeline, by its key, title and caption, of phases that run (job, phase, units, begin, end), each on the
    rows of its units; training is hatched. `names`: of the rows."""
    chart = figure()
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
    chart.update_layout(
        xaxis=axis("seconds", range=[0, until_s], nticks=9),
        yaxis=lanes(list(enumerate(names)), -0.6, len(names) - 0.4),
        uniformtext={"minsize": 10, "mode": "hide"},  # names that do not fit their bars
    )
    phases = Swatch("rollout", MUTED), Swatch("train", MUTED, "hatch")
    legend = (*(Swatch(name, colours[name]) for name in jobs), *phases)
    return Chart(*texts, chart, 32 * len(names) + 52, legend, wide=True)


SHOWN_TURNS = 48
"""Turns that a chart of a run shows, the last ones in which all jobs ran."""


def turns_taken(report: Mapping[str, Any], colours: Mapping[str, str]) -> Chart:
    """Return a timeline of a group that was executed: who had which unit when; `report`: of group_report.py."""
    units = [int(unit) for unit in report["units"]]
    names = {unit: f"{figures['pool'] or 'unit'} {unit}" for unit, figures in report["units"].items()}
    begin_s, end_s = report["together_s"]
    shown = [turn for turn in report["turns"] if turn["end_s"] > begin_s and turn["begun_s"] < end_s][-SHOWN_TURNS:]
    from_s = min((turn["begun_s"] for turn in shown), default=0.0)
    spans = [
        (turn["job"], turn["phase"], turn["units"], turn["begun_s"] - from_s, turn["end_s"] - from_s) for turn in shown
    ]
    busy = [
        f"{names[unit]} {percent(figures['busy'])}"
        for unit, figures in report["units"].items()
        if figures["busy"] is not None
    ]
    caption = f"The last {count(len(shown), 'turn')} while all jobs ran" + (f"; busy: {listed(busy)}." if busy else ".")
    texts = (f"turns-{report['group']}", f"Group {report['group']}: who had which unit when", caption)
    until_s = max((span[4] for span in spans), default=1.0)
    place = {unit: row for row, unit in enumerate(units)}
    return _who_has_what(texts, spans, place, [*names.values()], until_s, (*report["jobs"], *report["left"]), colours)


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
    members = plan.members
    top = max(max(m.slowdown.slo, m.slowdown.p95) for _, _, m in members)
    for index, (key, name, member) in enumerate(members):
        s = member.slowdown
        draw_bar(
            chart, [max(s.p95 - s.p50, 0.003 * top)], [index], 0.5, faded(colours[name], 0.55),
            f"<b>{name}</b>, {key}<br>mean {times(s.mean, 3)}, p50 {times(s.p50, 3)}, p95 {times(s.p95, 3)}"
            f"<br>at most {times(s.slo, 3)}<br>alone {seconds(s.alone_s)} an iteration", base=[s.p50],
        )  # fmt: skip
        diamonds(chart, [s.mean], [index])
        tick(chart, s.slo, index, 0.36, INK if s.keeps else BAD, 2.5)
    low = min(0.98, *(m.slowdown.p50 for _, _, m in members))
    chart.add_vline(x=1.0, line={"color": LINE, "width": 1.5})
    chart.update_layout(
        xaxis=axis("seconds of an iteration, × alone", range=[low, 1.02 * top], nticks=7),
        yaxis=lanes([(i, name) for i, (_, name, _) in enumerate(members)], -0.7, len(members) - 0.4),
    )
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


def groups_page(plan: GroupsPlan, *, title: str, notes: Sequence[str] = ()) -> str:
    """Return the page of a plan of co-execution groups; `notes` as of `plan_page`."""
    names = [name for _, name, _ in plan.members]
    colours = job_colours(sorted(names))
    subtitle = (
        f"Plan of {count(len(names), 'job')} in {count(len(plan.groups), 'co-execution group')} on "
        f"{_nodes(plan)}; policy {plan.rules.policy}, at most {plan.rules.group_cap} jobs a group"
    )
    edited = groups_decisions(plan.groups) != plan.decisions_sha256
    previous_known = plan.inputs.previous is not None or plan.moves or plan.declined is not None
    previous = plan.inputs.previous
    return render(
        "groups.html.j2",
        title,
        subtitle,
        banners=banners(notes, edited),
        cards=headline(plan),
        charts=[costs(plan), slowdowns(plan, colours), memory(plan)],
        jobs=_jobs(plan, colours),
        timelines=[timeline(key, group, colours) for key, group in plan.groups.items()],
        moves=_moves(plan) if previous_known else None,
        moves_from="" if previous is None else f"From {previous.path}, in the order in which to make them.",
        declined=sentence(declined_text(plan)) if plan.declined is not None else "",
        reasons=_reasons(plan),
        inputs=inputs(_files(plan), plan.decisions_sha256),
        solved=solved(plan.volatile, "changes"),
    )


def headline(plan: GroupsPlan) -> list[Card]:
    """Return the cards with the headline figures."""
    predicted, solver = plan.predicted, plan.solver
    usd_per_hour = predicted.plan.usd_per_hour or 1.0
    fullest = max(
        (node.resident_bytes / node.host_memory_bytes, f"{key} {node.pool} {index}")
        for key, group in plan.groups.items()
        for index, node in enumerate(group.nodes)
    )
    proof, _, among = groups_status(plan).partition(" of ")
    others = (
        ("Algorithm 1 costs", predicted.algorithm_1, f", {predicted.algorithm_1.usd_per_unit:.3f} per unit"),
        ("Each job alone costs", predicted.solo_d, "" if predicted.solo_d.fits else "; the cluster has too few nodes"),
    )
    unit = f"{predicted.plan.usd_per_unit:.3f} USD per unit of training"
    return [
        Card("USD per hour", usd(predicted.plan.usd_per_hour), unit),
        *(
            Card(
                label,
                times(costs.usd_per_hour / usd_per_hour),
                f"{usd(costs.usd_per_hour)} USD/h{note}",
                "good" if costs.usd_per_hour > 1.005 * usd_per_hour else "",
            )
            for label, costs, note in others
        ),
        Card(
            "Bounds kept",
            percent(predicted.plan.slo_attained),
            bounds_text(plan),
            "good" if all(member.slowdown.keeps for _, _, member in plan.members) else "bad",
        ),
        Card(
            "Host memory to spare",
            percent(1 - fullest[0]),
            f"fullest: {fullest[1]}",
            "bad" if fullest[0] > 1 else "warn" if fullest[0] > 0.95 else "",
        ),
        Card(
            "Proof",
            proof,
            f"of {among}; {count(solver.simulated, 'simulation')}; {solver.universe}; {solver.name}",
            "good" if solver.status == "optimal" else "warn",
        ),
    ]


def _nodes(plan: GroupsPlan) -> str:
    pools = Counter(node.pool for group in plan.groups.values() for node in group.nodes)
    return listed(f"{number} {pool}" for pool, number in sorted(pools.items()))


def _jobs(plan: GroupsPlan, colours: dict[str, str]) -> Table:
    rows = []
    for key, name, member in plan.members:
        tail = NONE if member.tail_from is None else f"from {percent(member.tail_from)} on {member.tail_units}"
        means = (member.rollout.mean_s, member.train.mean_s, member.slowdown.alone_s)
        point = point_text(member).removeprefix(", ")
        rows.append([mark(colours[name], name), f"{key}: {point}" if point else key, *map(seconds, means), tail])
    return Table.of(["job", "group", ">rollout", ">train", ">alone", "tail moves"], rows)


def _moves(plan: GroupsPlan) -> Table:
    rows = [
        [
            move.job,
            f"{move.from_group} → {move.to_group}",
            f"{usd(move.price_usd)} USD",
            seconds(move.price_s),
            move_reason(move),
        ]
        for move in plan.moves
    ]
    return Table.of(["job", "move", ">price", ">takes", "why"], rows)


def _reasons(plan: GroupsPlan) -> Table:
    # `slack`, of an older plan, names the nearest bound by another measure than `bounds_text`.
    rows = [
        (key, about, text)
        for key, group in plan.groups.items()
        for about, text in group.why.items()
        if about != "slack"
    ]
    return Table.of(["group", "`about", "why"], rows, kind="groupwhy")


def _files(plan: GroupsPlan) -> list[tuple[str, InputFile]]:
    inputs = plan.inputs
    files = [("workload", inputs.workload), ("cluster", inputs.cluster)]
    files += [(f"source of {name}", file) for name, file in inputs.sources.items()]
    return files + ([("previous plan", inputs.previous)] if inputs.previous is not None else [])


def group_run_page(report: Mapping[str, Any], *, title: str, written_at: str) -> str:
    """Return the page of co-execution groups that were executed.

    Args:
        report: what `rlplan report --json` prints of them: `groups`, the report of each, and `moves`
            (traces/groups/group_report.py, groups_status.py).
        written_at: now, in UTC.
    """
    groups = report["groups"]
    jobs = {name: (key, row) for key, each in groups.items() for name, row in each["jobs"].items()}
    colours = job_colours(sorted({*jobs, *(name for each in groups.values() for name in each["left"])}))
    rules = sorted({each["rule"] for each in groups.values()})
    subtitle = (
        f"{count(len(jobs), 'job')} in {count(len(groups), 'group')}, executed; permit rule {listed(rules)}; read "
        f"{written_at}"
    )
    moves = report["moves"]
    return render(
        "group_run.html.j2",
        title,
        subtitle,
        cards=_cards(groups),
        charts=[turns_taken(each, colours) for each in groups.values()],
        jobs=_table(jobs, colours),
        moves=None if moves is None else _moves_made(moves, colours),
        moves_title="" if moves is None else f"Moves to {moves['plan']}: {moves['state']}",
        switches=_switches(jobs, colours),
        switch_text=SWITCH_TEXT,
    )


def _cards(groups: Mapping[str, Any]) -> list[Card]:
    jobs = {name: row for each in groups.values() for name, row in each["jobs"].items()}
    broken = [name for name, row in jobs.items() if row["keeps"] is False]
    known = [row for row in jobs.values() if row["slowdown"] is not None]
    # What one job after the other would have taken in each group, over what its jobs took together.
    gains = [sum(1.0 / row["slowdown"] for row in each["jobs"].values()) for each in groups.values() if _measured(each)]
    gain = min(gains) if gains else None
    starts = sum(row["starts"] for row in jobs.values())
    return [
        Card(
            "Throughput",
            NONE if gain is None else times(gain),
            "of one job after the other on the same nodes, by the plan's seconds alone"
            + ("; the least of the groups" if len(gains) > 1 else ""),
            "" if gain is None else "good" if gain > 1 else "bad",
        ),
        Card(
            "Bounds kept",
            f"{len(known) - len(broken)} of {len(known)}",
            (f"{listed(broken)} broke a bound" if broken else "slowdown of each job against its bound")
            + (f"; {count(len(jobs) - len(known), 'job')} not measured" if len(known) < len(jobs) else ""),
            "bad" if broken else "good" if known else "",
        ),
        Card("Starts of jobs", f"{starts}", f"{max(0, starts - len(jobs))} of them after deaths or to resume", ""),
    ]


def _measured(group: Mapping[str, Any]) -> bool:
    return bool(group["jobs"]) and all(row["slowdown"] is not None for row in group["jobs"].values())


def _table(jobs: Mapping[str, tuple[str, Any]], colours: Mapping[str, str]) -> Table:
    rows = [
        [mark(colours[name], name), key, f"{row['steps']:,}", *group_cells(row)] for name, (key, row) in jobs.items()
    ]
    return Table.of(["job", "group", *right(("steps", *GROUP_COLUMNS))], rows)


def _moves_made(moves: Mapping[str, Any], colours: Mapping[str, str]) -> Table:
    rows = [[mark(colours[move["job"]], move["job"]), *move_cells(move)] for move in moves["moves"]]
    return Table.of(["job", *MOVE_COLUMNS[:3], *right(MOVE_COLUMNS[3:])], rows)


def _switches(jobs: Mapping[str, tuple[str, Any]], colours: Mapping[str, str]) -> Table | None:
    cells = switch_rows({name: row for name, (_, row) in jobs.items()})
    rows = [[mark(colours[name], name), *own] for name, own in cells.items()]
    return Table.of(["job", *right(SWITCH_COLUMNS)], rows) if rows else None
