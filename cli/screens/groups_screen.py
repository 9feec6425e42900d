"""A plan of groups in the terminal: cost, nearest bound, groups with their jobs and timelines, moves, and reasons."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Group as Renderables
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ...plans.facts.group_cells import bounds_text, declined_text, limit, move_reason, nodes_text, point_text, slack
from ...plans.facts.plan_text import groups_status
from ...plans.phrases.numbers import bytes_of, count, percent, seconds, times, usd
from ...plans.phrases.sentences import one_line
from ...plans.phrases.tables import right
from ...plans.schema.groups_plan import GroupsPlan, PlannedGroup
from ...plans.schema.workload import GroupRules
from .bars import table


def summary(plan: GroupsPlan, out: Path) -> dict[str, Any]:
    """The figures of a plan of groups, for --json."""
    greedy = plan.predicted.algorithm_1
    return {
        "plan": str(out),
        "objective": plan.rules.objective,
        "status": plan.solver.status,
        "gap": plan.solver.gap,
        "universe": plan.solver.universe,
        "columns": plan.solver.columns,
        "simulated": plan.solver.simulated,
        "usd_per_hour": {
            "plan": plan.predicted.plan.usd_per_hour,
            "solo_d": plan.predicted.solo_d.usd_per_hour,
            "algorithm_1": greedy.usd_per_hour,
            "bound": plan.solver.bound_usd_per_hour,
            "fluid": plan.solver.fluid_usd_per_hour,
        },
        "usd_per_unit": {
            "plan": plan.predicted.plan.usd_per_unit,
            "solo_d": plan.predicted.solo_d.usd_per_unit,
            "algorithm_1": greedy.usd_per_unit,
            "bound": plan.solver.bound_usd_per_unit,
        },
        "fits": {"solo_d": plan.predicted.solo_d.fits, "algorithm_1": greedy.fits},
        "slo_attained": plan.predicted.plan.slo_attained,
        "groups": {key: sorted(group.jobs) for key, group in plan.groups.items()},
        "slowdown": {name: member.slowdown.mean for _, name, member in plan.members},
        "moves": [move.model_dump() for move in plan.moves],
        "declined": plan.declined.model_dump() if plan.declined else None,
        "solved_at": plan.volatile.solved_at,
        "solve_s": plan.volatile.solve_s,
    }


LABELS = 38  # characters of a timeline's row beside the bar
_COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "red")


def costs_text(plan: GroupsPlan) -> str:
    """Costs of the plan, of Algorithm 1 and of each job alone. A unit of training is what one USD buys a job alone."""
    predicted = plan.predicted
    rows = (
        ("this plan", predicted.plan),
        ("RollMux's Algorithm 1", predicted.algorithm_1),
        ("each job alone", predicted.solo_d),
    )
    return "\n".join(
        f"  {name:22} {figures.usd_per_hour:9.2f} USD/h {figures.usd_per_unit:6.3f} USD/unit"
        + (f"   bounds kept {percent(figures.slo_attained)}" if figures.fits else "   does not fit the cluster")
        for name, figures in rows
    )


def groups_text(plan: GroupsPlan) -> Iterator[str]:
    """A line for each group, and one for each of its jobs."""
    for key, group in plan.groups.items():
        yield f"{key}: {nodes_text(group)}, {usd(group.usd_per_hour)} USD/h"
        for name, member in group.jobs.items():
            s = member.slowdown
            ways = point_text(member) or "".join(
                f", {phase} on {pinned.pool} by way {pinned.way}"
                for phase, pinned in (("rollout", member.rollout), ("train", member.train))
                if pinned.way
            )
            quantiles = f"p50 {times(s.p50, 3)}, p95 {times(s.p95, 3)}"
            if len(group.jobs) == 1 and s.keeps:
                # The bound is relative to the job alone, so only its own iterations can make p95 exceed the mean.
                own = f"({quantiles} of its own iterations), alone on its nodes"
                yield f"  {name}: slowdown {times(s.mean, 3)} {own}{ways}"
                continue
            quantile = "" if plan.rules.quantile == 0.95 else f" at p{100 * plan.rules.quantile:g}"
            yield f"  {name}: slowdown {times(s.mean, 3)} ({quantiles}), at most {times(s.slo, 3)}{quantile}{ways}" + (
                "" if s.keeps else "  breaks its bound"
            )


def moves_text(plan: GroupsPlan) -> Iterator[str]:
    """A line for each move."""
    if plan.inputs.previous is not None:
        yield f"{count(len(plan.moves), 'move')} from {plan.inputs.previous.path}" + (":" if plan.moves else "")
    for move in plan.moves:
        alike = sum(other.together == move.together for other in plan.moves) - 1
        yield (
            f"  {move.job}: {move.from_group} -> {move.to_group}, costs {usd(move.price_usd)} USD "
            f"({seconds(move.price_s)}), {move_reason(move)}"
            + (f", together with {count(alike, 'other move')}" if alike else "")
        )
    if plan.declined is not None:
        yield declined_text(plan)


def data(plan: GroupsPlan, path: Path) -> dict[str, Any]:
    """The plan for --json: the summary of `solve --json`, the plan's own sections, and each job's slack."""
    whole = plan.model_dump(mode="json")
    return {
        **summary(plan, path),
        "rules": whole["rules"],
        "solver": whole["solver"],
        "predicted": whole["predicted"],
        "detail": whole["groups"],
        "slack": {
            name: {"group": key, "at_most": limit(member, plan.rules), "p95_slack": slack(member, plan.rules)}
            for key, name, member in plan.members
        },
        "why": {key: group.why for key, group in plan.groups.items()},
    }


def render(plan: GroupsPlan, path: str, notes: Sequence[str], width: int) -> Renderables:
    """The whole screen for a terminal of `width` characters; `notes` stand below the headline."""
    rows: list[RenderableType] = [*_headline(plan, path), *(Text(f"note: {note}", style="yellow") for note in notes)]
    for key, group in plan.groups.items():
        rows += [Text(), Text(f"{key}: {usd(group.usd_per_hour)} USD/h, {nodes_text(group)}", style="bold")]
        rows += [_gantt(group, max(20, width - LABELS)), _jobs(group, plan.rules), _why(group)]
    rows += [Text(line) for line in moves_text(plan)]
    rows.append(Text("small letters decode, capitals train; slack: by how much p95 is below 'at most'", style="dim"))
    return Renderables(*rows)


def _headline(plan: GroupsPlan, path: str) -> list[Text]:
    """Cost and gain, whether every bound is kept and which is nearest, and the solver's proof."""
    p = plan.predicted
    per_hour = [
        f"{_change(p.plan.usd_per_hour, other.usd_per_hour)} {name} ({usd(other.usd_per_hour)}"
        + ("" if other.fits else ", does not fit the cluster")
        + ")"
        for name, other in (("each job alone", p.solo_d), ("RollMux's Algorithm 1", p.algorithm_1))
    ]
    head = f"{count(len(plan.members), 'job')} in {count(len(plan.groups), 'group')}: {usd(p.plan.usd_per_hour)} USD/h"
    per_unit = f"each job alone {p.solo_d.usd_per_unit:.3f}, Algorithm 1 {p.algorithm_1.usd_per_unit:.3f}"
    return [
        Text.assemble((head, "bold"), f", {'; '.join(per_hour)}"),
        Text(bounds_text(plan), style="green" if all(m.slowdown.keeps for _, _, m in plan.members) else "bold red"),
        Text(
            f"{p.plan.usd_per_unit:.3f} USD per unit of training ({per_unit}); {groups_status(plan)}; policy "
            f"{plan.rules.policy}; {path}",
            style="dim",
        ),
    ]


def _change(ours: float, theirs: float) -> str:
    if not theirs or abs(ours / theirs - 1) < 0.005:
        return "as much as"
    return f"{percent(abs(1 - ours / theirs))} {'less' if ours < theirs else 'more'} than"


# Reasons that the screen shows elsewhere.
_SHOWN_ELSEWHERE = ("slack",)
_TITLES = {"next_best": "next best"}


def _why(group: PlannedGroup) -> Table:
    drawn = table(["", ""], gap=1)
    drawn.show_header = False
    names = drawn.columns[0]
    names.no_wrap, names.overflow, names.style = True, "ellipsis", "bold"
    for name, text in group.why.items():
        if name not in _SHOWN_ELSEWHERE:
            drawn.add_row(_TITLES.get(name, name), one_line(text))
    return drawn


def _marks(group: PlannedGroup) -> dict[str, tuple[str, str]]:
    """Letter and colour of each job."""
    return {
        name: (chr(ord("a") + index % 26), _COLOURS[index % len(_COLOURS)]) for index, name in enumerate(group.jobs)
    }


def _gantt(group: PlannedGroup, width: int) -> Table:
    """A row for each node, or each slot of it: small letters decode, capitals train."""
    drawn = table(["node", "time", ">busy", ">memory"], overflow="ellipsis", no_wrap=True)
    drawn.show_header = False
    first = 0
    for index, node in enumerate(group.nodes):
        rows = [_row(group, unit, width) for unit in range(first, first + node.slots)]
        first += node.slots
        memory = bytes_of(node.resident_bytes, node.host_memory_bytes)
        # If no job has only a part of the node, one row shows all its slots.
        whole = all(row == rows[0] for row in rows)
        for slot, row in enumerate(rows[:1] if whole else rows):
            label = f"{node.pool} {index}" + ("" if whole else f".{slot}")
            drawn.add_row(label, row, *((percent(node.busy), memory) if slot == 0 else ("", "")))
    drawn.add_row("", Text(f"0{group.timeline.span_s:>{width - 3}.0f} s", style="dim"), "busy", "host memory")
    return drawn


def _row(group: PlannedGroup, unit: int, width: int) -> Text:
    marks = _marks(group)
    scale = width / group.timeline.span_s
    cells = [(" ", "")] * width
    for span in group.timeline.spans:
        if unit in span.units:
            letter, colour = marks[span.job]
            shown = letter if span.phase == "rollout" else letter.upper()
            first = min(width - 1, int(span.begin_s * scale))
            last = max(first + 1, min(width, int(span.end_s * scale)))
            cells[first:last] = [(shown, colour)] * (last - first)
    return Text.assemble(*cells)


def _jobs(group: PlannedGroup, rules: GroupRules) -> Table:
    """Seconds of an iteration alone, the slowdown in the group (mean, and quantiles over runs of iterations), and
    what is left of the bound."""
    figures = ["rollout s", "train s", "alone s", "slowdown", "p50", "p95", "at most", "slack"]
    tails = any(member.tail_from is not None for member in group.jobs.values())
    drawn = table(["job", *right(figures + ["tail"] * tails)], gap=1, overflow="crop", no_wrap=True)
    drawn.columns[0].overflow = "ellipsis"
    for name, (letter, colour) in _marks(group).items():
        member = group.jobs[name]
        s = member.slowdown
        spare = Text(percent(slack(member, rules)) if s.keeps else "breaks", style="" if s.keeps else "bold red")
        row: list[Text | str] = [
            Text(f"{letter}/{letter.upper()} {name}", style=colour),
            f"{member.rollout.mean_s:.1f}",
            f"{member.train.mean_s:.1f}",
            f"{s.alone_s:.1f}",
            times(s.mean, 3),
            times(s.p50, 3),
            times(s.p95, 3),
            *(
                (times(limit(member, rules), 3), spare)
                if len(group.jobs) > 1 or not s.keeps
                else ("-", "-")  # a bound is relative to the job alone
            ),
        ]
        if tails:
            row.append("" if member.tail_from is None else percent(member.tail_from))
        drawn.add_row(*row)
    return drawn
