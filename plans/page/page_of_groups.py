"""The page of a plan of co-execution groups."""

from __future__ import annotations

from collections.abc import Sequence

from ..facts.digest import groups_decisions
from ..phrases.group_cells import bounds_text, declined_text, point_text
from ..phrases.numbers import NONE, count, percent, seconds, times, usd
from ..phrases.sentences import listed, sentence
from ..phrases.solver_status import groups_status
from ..schema.groups_plan import GroupsPlan
from ..schema.plan import InputFile
from . import decision_tables
from .charts import charts_groups
from .elements import Card, Table, code, mark, render
from .palette import job_colours


def page(plan: GroupsPlan, title: str, notes: Sequence[str]) -> str:
    """Return the HTML document."""
    names = [name for group in plan.groups.values() for name in group.jobs]
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
        banners=decision_tables.banners(notes, edited),
        cards=headline(plan),
        charts=[charts_groups.costs(plan), charts_groups.slowdowns(plan, colours), charts_groups.memory(plan)],
        jobs=_jobs(plan, colours),
        timelines=[charts_groups.timeline(key, group, colours) for key, group in plan.groups.items()],
        moves=_moves(plan) if previous_known else None,
        moves_from="" if previous is None else f"From {previous.path}, in the order in which to make them.",
        declined=sentence(declined_text(plan)) if plan.declined is not None else "",
        reasons=_reasons(plan),
        inputs=decision_tables.inputs(_files(plan), plan.decisions_sha256),
        solved=decision_tables.solved(plan.volatile, "changes"),
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
    return [
        Card(
            "USD per hour",
            usd(predicted.plan.usd_per_hour),
            f"{predicted.plan.usd_per_unit:.3f} USD per unit of training",
        ),
        Card(
            "Algorithm 1 costs",
            times(predicted.algorithm_1.usd_per_hour / usd_per_hour),
            f"{usd(predicted.algorithm_1.usd_per_hour)} USD/h, {predicted.algorithm_1.usd_per_unit:.3f} per unit",
            "good" if predicted.algorithm_1.usd_per_hour > 1.005 * usd_per_hour else "",
        ),
        Card(
            "Each job alone costs",
            times(predicted.solo_d.usd_per_hour / usd_per_hour),
            f"{usd(predicted.solo_d.usd_per_hour)} USD/h"
            + ("" if predicted.solo_d.fits else "; the cluster has too few nodes"),
            "good" if predicted.solo_d.usd_per_hour > 1.005 * usd_per_hour else "",
        ),
        Card(
            "Bounds kept",
            percent(predicted.plan.slo_attained),
            bounds_text(plan),
            "good" if all(m.slowdown.keeps for group in plan.groups.values() for m in group.jobs.values()) else "bad",
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
    pools: dict[str, int] = {}
    for group in plan.groups.values():
        for node in group.nodes:
            pools[node.pool] = pools.get(node.pool, 0) + 1
    return listed(f"{number} {pool}" for pool, number in sorted(pools.items()))


def _jobs(plan: GroupsPlan, colours: dict[str, str]) -> Table:
    rows = []
    for key, group in plan.groups.items():
        for name, member in group.jobs.items():
            tail = NONE if member.tail_from is None else f"from {percent(member.tail_from)} on {member.tail_units}"
            means = (member.rollout.mean_s, member.train.mean_s, member.slowdown.alone_s)
            point = point_text(member).removeprefix(", ")
            rows.append([mark(colours[name], name), f"{key}: {point}" if point else key, *map(seconds, means), tail])
    return Table(["job", "group", "rollout", "train", "alone", "tail moves"], rows, numbers=(2, 3, 4))


def _moves(plan: GroupsPlan) -> Table:
    rows = [
        [
            move.job,
            f"{move.from_group} → {move.to_group}",
            f"{usd(move.price_usd)} USD",
            seconds(move.price_s),
            "needed to keep bounds or node counts" if move.needed else f"saves {usd(move.saves_usd_per_hour)} USD/h",
        ]
        for move in plan.moves
    ]
    return Table(["job", "move", "price", "takes", "why"], rows, numbers=(2, 3))


def _reasons(plan: GroupsPlan) -> Table:
    # `slack`, of an older plan, names the nearest bound by another measure than `bounds_text`.
    rows = [
        [key, code(about), text]
        for key, group in plan.groups.items()
        for about, text in group.why.items()
        if about != "slack"
    ]
    return Table(["group", "about", "why"], rows, kind="groupwhy")


def _files(plan: GroupsPlan) -> list[tuple[str, InputFile]]:
    inputs = plan.inputs
    files = [("workload", inputs.workload), ("cluster", inputs.cluster)]
    files += [(f"source of {name}", file) for name, file in inputs.sources.items()]
    return files + ([("previous plan", inputs.previous)] if inputs.previous is not None else [])
