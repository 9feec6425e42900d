"""The page of a plan of co-execution groups."""

from __future__ import annotations

from collections.abc import Sequence

from ..facts.digest import groups_decisions
from ..phrases.numbers import NONE, count, percent, seconds, times, usd
from ..phrases.sentences import listed, sentence
from ..schema.groups_plan import GroupsPlan
from ..schema.sections.origin import InputFile
from . import decision_tables
from .charts import charts_groups
from .page_text import code, esc, table
from .palette import job_colours
from .shell import Card, banner, cards, document, section


def page(plan: GroupsPlan, title: str, notes: Sequence[str]) -> str:
    """The document."""
    names = [name for group in plan.groups.values() for name in group.jobs]
    colours = job_colours(sorted(names))
    subtitle = (
        f"Plan of {count(len(names), 'job')} in {count(len(plan.groups), 'co-execution group')} on "
        f"{_nodes(plan)}; policy {plan.rules.policy}, at most {plan.rules.group_cap} jobs a group"
    )
    parts = [banner(sentence(note)) for note in notes]
    if groups_decisions(plan.groups) != plan.decisions_sha256:
        parts.append(banner("Edited since it was solved: the predictions and reasons below are of other decisions."))
    parts += [
        cards(headline(plan)),
        section(
            "Cost, slowdown, memory",
            charts_groups.costs(plan).html(),
            charts_groups.slowdowns(plan, colours).html(),
            charts_groups.memory(plan).html(),
            f'<div class="panel"><h3>Jobs</h3>{_jobs(plan, colours)}</div>',
            grid=True,
        ),
        section(
            "Timelines",
            *(charts_groups.timeline(key, group, colours).html() for key, group in plan.groups.items()),
            intro="Mean seconds, once a group has settled. Solid bars decode, hatched ones train.",
        ),
        _moves(plan),
        section("Why", f'<div class="panel">{_reasons(plan)}</div>'),
        section(
            "Inputs",
            f'<div class="panel">{decision_tables.inputs(_files(plan), plan.decisions_sha256)}</div>',
            intro=f"Solved {plan.volatile.solved_at} in {seconds(plan.volatile.solve_s)} by rlplan "
            f"{plan.volatile.rlplan}. When one of these files changes, the plan is stale.",
        ),
    ]
    return document(title, subtitle, "".join(parts))


def headline(plan: GroupsPlan) -> list[Card]:
    """The figures that a reviewer asks for first."""
    found, solver = plan.predicted, plan.solver
    here = found.plan.usd_per_hour or 1.0
    members = [(name, m.slowdown) for group in plan.groups.values() for name, m in group.jobs.items()]
    tightest = min(members, key=lambda item: item[1].slo - item[1].p95)
    fullest = max(
        (node.resident_bytes / node.host_memory_bytes, f"{key} {node.pool} {index}")
        for key, group in plan.groups.items()
        for index, node in enumerate(group.nodes)
    )
    proof = {"optimal": "optimal", "gap": "within a gap", "limit": "limit reached", "placed": "placed"}[solver.status]
    return [
        Card("USD per hour", usd(found.plan.usd_per_hour), f"{found.plan.usd_per_unit:.3f} USD per unit of training"),
        Card(
            "Algorithm 1 costs",
            times(found.algorithm_1.usd_per_hour / here),
            f"{usd(found.algorithm_1.usd_per_hour)} USD/h, {found.algorithm_1.usd_per_unit:.3f} per unit",
            "good" if found.algorithm_1.usd_per_hour > 1.005 * here else "",
        ),
        Card(
            "Each job alone costs",
            times(found.solo_d.usd_per_hour / here),
            f"{usd(found.solo_d.usd_per_hour)} USD/h"
            + ("" if found.solo_d.fits else "; the cluster has too few nodes"),
            "good" if found.solo_d.usd_per_hour > 1.005 * here else "",
        ),
        Card(
            "Bounds kept",
            percent(found.plan.slo_attained),
            f"tightest: {tightest[0]}, {tightest[1].p95:.3f} of {tightest[1].slo:.3f} at p95",
            "good" if all(s.keeps for _, s in members) else "bad",
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
            (NONE if solver.gap is None else f"gap {percent(solver.gap, 2)}")
            + f" of {count(solver.columns, 'group')}, {count(solver.simulated, 'simulation')}; {solver.universe}; "
            + solver.name,
            "good" if solver.status == "optimal" else "warn",
        ),
    ]


def _nodes(plan: GroupsPlan) -> str:
    pools: dict[str, int] = {}
    for group in plan.groups.values():
        for node in group.nodes:
            pools[node.pool] = pools.get(node.pool, 0) + 1
    return listed(f"{number} {pool}" for pool, number in sorted(pools.items()))


def _jobs(plan: GroupsPlan, colours: dict[str, str]) -> str:
    rows = []
    for key, group in plan.groups.items():
        for name, member in group.jobs.items():
            tail = NONE if member.tail_from is None else f"from {percent(member.tail_from)} on {member.tail_units}"
            rows.append([
                f'<i class="mark" style="--c:{colours[name]}"></i>{esc(name)}', esc(key),
                esc(seconds(member.rollout.mean_s)), esc(seconds(member.train.mean_s)),
                esc(seconds(member.slowdown.alone_s)), esc(tail),
            ])  # fmt: skip
    return table(["job", "group", "rollout", "train", "alone", "tail moves"], rows, numbers=(2, 3, 4))


def _moves(plan: GroupsPlan) -> str:
    if plan.inputs.previous is None and not plan.moves and plan.declined is None:
        return ""
    rows = [
        [
            esc(move.job), esc(f"{move.from_group} → {move.to_group}"), esc(f"{usd(move.price_usd)} USD"),
            esc(seconds(move.price_s)),
            "needed for bounds or nodes" if move.needed else esc(f"saves {usd(move.saves_usd_per_hour)} USD/h"),
        ]
        for move in plan.moves
    ]  # fmt: skip
    inner = table(["job", "move", "price", "takes", "why"], rows, numbers=(2, 3)) if rows else "<p>No job moves.</p>"
    if (spared := plan.declined) is not None:
        reason = (
            f"less than a quarter above their price within {spared.hours:.2g} h"
            if spared.reason == "price"
            else "a job is too little ahead of its bound, or a new group would not outlive a departure"
        )
        inner += (
            f'<p class="dim">Not made: moves of {esc(listed(spared.jobs))}, worth '
            f"{usd(spared.saves_usd_per_hour)} USD/h for {usd(spared.price_usd)} USD once: {reason}.</p>"
        )
    before = (
        "" if plan.inputs.previous is None else f"From {plan.inputs.previous.path}, in the order in which to make them."
    )
    return section("Moves", f'<div class="panel">{inner}</div>', intro=before)


def _reasons(plan: GroupsPlan) -> str:
    rows = [
        [esc(key), code(about), esc(text)] for key, group in plan.groups.items() for about, text in group.why.items()
    ]
    return table(["group", "about", "why"], rows, kind="groupwhy")


def _files(plan: GroupsPlan) -> list[tuple[str, InputFile]]:
    given = plan.inputs
    files = [("workload", given.workload), ("cluster", given.cluster)]
    files += [(f"source of {name}", file) for name, file in given.sources.items()]
    return files + ([("previous plan", given.previous)] if given.previous is not None else [])
