"""A plan of groups in the terminal: what it costs, its groups with their jobs, their timelines, moves, and why."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import Group as Renderables
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from ..plans.groups_plan import CostFigures, GroupsPlan
    from ..plans.planned_group import PlannedGroup

LABELS = 38  # characters of a timeline's row beside the bar
_COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "red")


def costs_text(plan: GroupsPlan) -> str:
    """What the plan costs beside what else could be done. A unit of training is what one USD buys alone."""
    predicted = plan.predicted
    rows: list[tuple[str, CostFigures]] = [
        ("this plan", predicted.plan),
        ("RollMux's Algorithm 1", predicted.algorithm_1),
        ("each job alone", predicted.solo_d),
    ]
    lines = []
    for name, figures in rows:
        lines.append(
            f"  {name:22} {figures.usd_per_hour:9.2f} USD/h {figures.usd_per_unit:6.3f} USD/unit"
            + (f"   bounds kept {figures.slo_attained:.0%}" if figures.fits else "   does not fit the cluster")
        )
    return "\n".join(lines)


def groups_text(plan: GroupsPlan) -> Iterator[str]:
    """A line for each group, and one for each of its jobs."""
    for key, group in plan.groups.items():
        nodes: dict[str, int] = {}
        for node in group.nodes:
            nodes[node.pool] = nodes.get(node.pool, 0) + 1
        named = " + ".join(f"{count} {pool}" for pool, count in nodes.items())
        yield f"{key}: {named}, {group.usd_per_hour:.2f} USD/h"
        for name, member in group.jobs.items():
            s = member.slowdown
            ways = "".join(
                f", {phase} on {pinned.pool} by way {pinned.way}"
                for phase, pinned in (("rollout", member.rollout), ("train", member.train))
                if pinned.way
            )
            yield f"  {name}: {s.mean:.3f}x (p50 {s.p50:.3f}, p95 {s.p95:.3f}) of at most {s.slo:.3f}x{ways}" + (
                "" if s.keeps else "  breaks its bound"
            )


def moves_text(plan: GroupsPlan) -> Iterator[str]:
    """A line for each move."""
    if plan.inputs.previous is not None:
        yield f"{len(plan.moves) or 'no'} move(s) from {plan.inputs.previous.path}" + (":" if plan.moves else "")
    for move in plan.moves:
        reason = "needed for bounds or nodes" if move.needed else f"saves {move.saves_usd_per_hour:.2f} USD/h"
        alike = sum(other.together == move.together for other in plan.moves) - 1
        yield (
            f"  {move.job}: {move.from_group} -> {move.to_group}, costs {move.price_usd:.2f} USD "
            f"({move.price_s:.0f} s), {reason}" + (f" with {alike} more" if alike else "")
        )
    spared = plan.declined
    if spared is not None:
        why = f"more than they save in the {spared.hours:.2g} h until the next change, a quarter to spare"
        if spared.reason == "bounds":
            why = "and a job is too little ahead of its bound for it, or a new group would not outlive a departure"
        yield (
            f"not made: moves of {', '.join(spared.jobs)}, worth {spared.saves_usd_per_hour:.2f} USD/h, would cost "
            f"{spared.price_usd:.2f} USD once, {why}"
        )


def render(plan: GroupsPlan, width: int) -> Renderables:
    """The whole plan, timelines drawn to `width` characters."""
    parts: list[Text | Table] = [Text(costs_text(plan))]
    for key, group in plan.groups.items():
        parts += [Text(), Text(f"{key}  {group.usd_per_hour:.2f} USD/h, {plan.rules.policy}", style="bold")]
        parts += [_gantt(group, max(20, width - LABELS)), _jobs(group)]
        parts += [Text(f"{name}: {text}", style="dim") for name, text in group.why.items()]
    parts += [Text(line) for line in moves_text(plan)]
    return Renderables(*parts)


def _marks(group: PlannedGroup) -> dict[str, tuple[str, str]]:
    """Letter and colour of each job."""
    return {
        name: (chr(ord("a") + index % 26), _COLOURS[index % len(_COLOURS)]) for index, name in enumerate(group.jobs)
    }


def _gantt(group: PlannedGroup, width: int) -> Table:
    """A row for each node, or each slot of it: small letters decode, capitals train."""
    table = Table(box=None, pad_edge=False, show_header=False)
    for title in ("node", "time", "busy", "memory"):
        table.add_column(title, no_wrap=True, justify="left" if title in ("node", "time") else "right")
    first = 0
    for index, node in enumerate(group.nodes):
        rows = [_row(group, unit, width) for unit in range(first, first + node.slots)]
        first += node.slots
        memory = f"{node.resident_bytes / 1e9:.0f} of {node.host_memory_bytes / 1e9:.0f} GB"
        # A node that nobody has a part of is one row.
        whole = all(row == rows[0] for row in rows)
        for slot, row in enumerate(rows[:1] if whole else rows):
            label = f"{node.pool} {index}" + ("" if whole else f".{slot}")
            table.add_row(label, row, *((f"{node.busy:.0%}", memory) if slot == 0 else ("", "")))
    table.add_row("", Text(f"0{group.timeline.span_s:>{width - 3}.0f} s", style="dim"), "busy", "host memory")
    return table


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


def _jobs(group: PlannedGroup) -> Table:
    """Seconds of an iteration, then slowdowns: in the long run, and at quantiles of stretches of iterations."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1))
    for title in ("job", "rollout", "train", "alone", "slowdown", "p50", "p95", "at most", "tail"):
        left = title == "job"
        table.add_column(
            title, justify="left" if left else "right", no_wrap=True, overflow="ellipsis" if left else "crop"
        )
    for name, (letter, colour) in _marks(group).items():
        member = group.jobs[name]
        s = member.slowdown
        table.add_row(
            Text(f"{letter}/{letter.upper()} {name}", style=colour),
            f"{member.rollout.mean_s:.1f} s",
            f"{member.train.mean_s:.1f} s",
            f"{s.alone_s:.1f} s",
            f"{s.mean:.3f}x",
            f"{s.p50:.3f}x",
            f"{s.p95:.3f}x",
            f"{s.slo:.3f}x",
            "" if member.tail_from is None else f"{member.tail_from:.0%}",
        )
    return table
