"""The `Report` on the difference of two plans of groups, or on one that was added or removed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..facts.group_cells import nodes_text
from ..phrases.numbers import count, usd
from ..phrases.sentences import shorten
from ..phrases.tables import Row, Table, columns
from ..schema.groups_plan import GroupsPlan
from .change import Quantity, figure, key_values, relative_text
from .groups_diff import GroupsDiff, JobChange, Status
from .input_diff import InputFiles
from .review import (
    Report,
    edited_warnings,
    effects_section,
    inputs_section,
    one_plan_warnings,
    out_of_date,
    report_of,
    solver_text,
    stale_warnings,
)

_VERBS: dict[Status, str] = {
    "arrived": "arrived",
    "left": "left",
    "moved": "moved",
    "other nodes": "on other nodes",
}
JOB_COLUMNS = columns("`job", "group", ">slowdown", ">p95", ">bound")
_ALWAYS = ("usd_per_hour", "usd_per_unit", "bounds_broken")


def groups_report(diff: GroupsDiff, name: str, title: str = "", full: bool = False) -> Report:
    """The report on a difference.

    Args:
        name: path of the new plan.
        title: title of the report; empty: the name.
        full: whether to show jobs and figures that did not change, too.
    """
    rules = tuple(Row((f"rules.{change.key}", *key_values(change)), "rules") for change in diff.rules)
    sections = (
        effects_section(diff.effects, _ALWAYS, full),
        _jobs(diff, full),
        inputs_section(diff.inputs),
        Table(columns("`rule", "`old", "`new"), rules),
        _groups(diff, full),
    )
    remarks = (
        "prices are exact; a plan of groups states no error of its slowdowns",
        *_moves(diff),
        *solver_text(diff, full),
    )
    return report_of(diff, name, title, full, groups_verdict(diff), _warnings(diff), sections, remarks)


def groups_verdict(diff: GroupsDiff) -> str:
    """The difference in one line."""
    if diff.same:
        return "same: groups, predictions, rules, inputs and solver do not differ"
    hour, unit = diff.effect("usd_per_hour"), diff.effect("usd_per_unit")
    prices = [_price(hour, "USD per hour"), _price(unit, "USD per unit"), _bounds(diff)]
    job_counts = [f"{count(jobs, 'job')} {verb}" for status, verb in _VERBS.items() if (jobs := diff.count(status))]
    end = ", ".join(job_counts) or "no job arrived, left or moved"
    if diff.inputs:
        names = ", ".join(change.name for change in diff.inputs[:3])
        more = f" and {len(diff.inputs) - 3} more" if len(diff.inputs) > 3 else ""
        verb = "differs" if len(diff.inputs) == 1 else "differ"
        end += f"; {count(len(diff.inputs), 'input')} ({names}{more}) {verb}"
    first = out_of_date(diff)
    return f"{first + '; ' if first else ''}{', '.join(prices)}; {end}"


def _price(price: Quantity, unit: str) -> str:
    new = figure(price.new, "usd")
    if not price.changed:
        return f"{new} {unit}"
    relative = "" if price.relative is None else f" ({relative_text(price.relative)})"
    return f"{figure(price.old, 'usd')} -> {new} {unit}{relative}"


def _bounds(diff: GroupsDiff) -> str:
    broken = [job for job in diff.jobs if job.breaks_bound]
    if not broken:
        return "every bound is kept"
    newly = sum(job.newly_broken for job in broken)
    return f"{count(len(broken), 'bound')} broken" + (f" ({newly} newly)" if newly != len(broken) else "")


def _warnings(diff: GroupsDiff) -> tuple[str, ...]:
    before = {job.name: " as before" for job in diff.jobs if not job.newly_broken}
    warnings = groups_warnings(diff.new, before) + edited_warnings(diff.edited, diff.figures_edited)
    warnings += stale_warnings(diff.new, diff.stale)
    if diff.new.solver.status == "limit" and diff.old.solver.status != "limit":
        warnings.append("the search for the new plan ended at a limit: it may not be the best plan")
    return tuple(warnings)


def groups_warnings(plan: GroupsPlan, before: Mapping[str, str] | None = None) -> list[str]:
    """A warning for each bound that a plan breaks; `before`: " as before" by job, for bounds that the old plan broke
    too. Other jobs come first."""
    broken = [(name, member.slowdown) for _, name, member in plan.members if not member.slowdown.keeps]
    before = before or {}
    broken.sort(key=lambda item: (item[0] in before, item[0]))
    return [
        f"{name} breaks its bound{before.get(name, '')}: p95 {s.p95:.3f}x of at most {s.slo:.3f}x" for name, s in broken
    ]


def _jobs(diff: GroupsDiff, full: bool) -> Table:
    rows = []
    names = _Names(diff)
    for job in diff.jobs:
        if full or job.differs or job.breaks_bound:
            tone = -1 if job.newly_broken else job.p95.tone
            cells = (job.name, _where(job, names), _pair(job.mean), _pair(job.p95), _bound(job))
            rows.append(Row(cells, _status(job), tone=tone))
    return Table(JOB_COLUMNS, tuple(rows))


def _status(job: JobChange) -> str:
    return "breaks its bound" if job.breaks_bound else job.status


@dataclass(frozen=True)
class _Names:
    """Texts for groups whose ids differ between the two plans: `g1 (now g5)`."""

    diff: GroupsDiff

    def new(self, key: str | None) -> str:
        """The text for a group of the new plan."""
        was = self.diff.matched.get(key or "")
        if was is None:
            return f"{key} (new)" if key in self.diff.old.groups else f"{key}"
        return was if was == key else f"{was} (now {key})"

    def old(self, key: str | None) -> str:
        """The text for a group of the old plan."""
        now = next((new for new, old in self.diff.matched.items() if old == key), None)
        if now is None:
            return f"{key} (gone)" if key in self.diff.new.groups else f"{key}"
        return self.new(now)


def _where(job: JobChange, names: _Names) -> str:
    price = f", {usd(job.move.price_usd)} USD" if job.move else ""
    if job.status == "arrived":
        return f"arrived in {names.new(job.new_group)}"
    if job.status == "left":
        return f"left {names.old(job.old_group)}"
    if job.status == "moved":
        return f"{names.old(job.old_group)} -> {names.new(job.new_group)}{price}"
    where = names.new(job.new_group)
    points = [side.point.name for side in (job.old, job.new) if side is not None and side.point is not None]
    if len(set(points)) > 1:
        return f"{where}, {' -> '.join(points)}{price}"
    return f"{where}, other nodes{price}" if job.status == "other nodes" else where


def _pair(quantity: Quantity) -> str:
    old, new = figure(quantity.old, "x"), figure(quantity.new, "x")
    if quantity.old is None or quantity.new is None or old == new:
        return new if quantity.new is not None else old
    return f"{old} -> {new}"


def _bound(job: JobChange) -> str:
    sides = [side.slowdown.slo for side in (job.old, job.new) if side is not None]
    text = " -> ".join(dict.fromkeys(f"{slo:.3f}x" for slo in sides))
    return f"{text} broken" if job.breaks_bound else text


def _groups(diff: GroupsDiff, full: bool) -> Table:
    """A table of the groups whose nodes or jobs differ."""
    rows = []
    names = _Names(diff)
    back = {old: new for new, old in diff.matched.items()}
    for key, group in diff.new.groups.items():
        was = diff.old.groups.get(diff.matched[key]) if key in diff.matched else None
        jobs = _members(set(group.jobs), set() if was is None else set(was.jobs))
        nodes = (nodes_text(was) if was else "new", nodes_text(group))
        if full or nodes[0] != nodes[1] or was is None or set(was.jobs) != set(group.jobs):
            rows.append(Row((names.new(key), " -> ".join(dict.fromkeys(nodes)) if was else f"new: {nodes[1]}", jobs)))
    for key, group in diff.old.groups.items():
        if key not in back:
            rows.append(Row((names.old(key), f"gone: {nodes_text(group)}", _members(set(), set(group.jobs)))))
    return Table(columns("group", "nodes", "jobs"), tuple(rows))


def _members(new: set[str], old: set[str]) -> str:
    """Jobs that joined and left a group, and the number of the others: `+a -b; 3 stay`."""
    signs = [f"+{name}" for name in sorted(new - old)] + [f"-{name}" for name in sorted(old - new)]
    stay = len(new & old)
    clauses = [shorten(" ".join(signs), 100)] if signs else []
    return "; ".join(clauses + ([f"{stay} stay"] if stay else []))


def _moves(diff: GroupsDiff) -> list[str]:
    """Remarks on the price of the moves, and on moves that the solver declined."""
    remarks = []
    moves, declined = diff.new.moves, diff.new.declined
    if moves:
        text = f"{count(len(moves), 'move')} for {usd(sum(move.price_usd for move in moves))} USD once"
        if diff.moves_from_old is False:
            text += ", starting from another plan than the old one"
        remarks.append(text)
    elif diff.count("moved") and diff.new.inputs.previous is None:
        remarks.append("the new plan was not solved from the old one: the price of the moves is unknown")
    if declined is not None:
        remarks.append(
            f"moves of {count(len(declined.jobs), 'job')} that would save {usd(declined.saves_usd_per_hour)} USD per "
            f"hour are not made ({declined.reason})"
        )
    return remarks


def one_groups_report(plan: GroupsPlan, name: str, new: bool, files: InputFiles) -> Report:
    """The report on a plan that was added (`new`) or removed: it beside Algorithm 1, and each job on its own nodes."""
    verdict = f"{'new plan' if new else 'plan removed'}: {_one_line(plan)}"
    warnings = one_plan_warnings(plan, new, files) + (groups_warnings(plan) if new else [])
    return Report(name, name, verdict, tuple(warnings), (_beside_others(plan), _jobs_of(plan)), ())


def _one_line(plan: GroupsPlan) -> str:
    figures = plan.predicted.plan
    return (
        f"{count(len(plan.members), 'job')} in {count(len(plan.groups), 'group')}, "
        f"{figure(figures.usd_per_hour, 'usd')} USD per hour, {figure(figures.usd_per_unit, 'usd')} USD per unit, "
        f"bounds kept by {figure(figures.slo_attained, 'share')} of the jobs"
    )


def _beside_others(plan: GroupsPlan) -> Table:
    p = plan.predicted
    rows = [
        Row(
            (
                label,
                figure(costs.usd_per_hour, "usd"),
                figure(costs.usd_per_unit, "usd"),
                figure(costs.slo_attained, "share") if costs.fits else "does not fit",
            )
        )
        for label, costs in (("this plan", p.plan), ("Algorithm 1", p.algorithm_1), ("each job alone", p.solo_d))
    ]
    return Table(columns("placement", ">USD per hour", ">USD per unit", ">bounds kept"), tuple(rows))


def _jobs_of(plan: GroupsPlan) -> Table:
    rows = [
        Row(
            (
                name,
                key if m.point is None else f"{key}, by {m.point.name}",
                *(figure(value, "x") for value in (m.slowdown.mean, m.slowdown.p95, m.slowdown.slo)),
            ),
            tone=0 if m.slowdown.keeps else -1,
        )
        for key, name, m in plan.members
    ]
    return Table(JOB_COLUMNS, tuple(sorted(rows, key=lambda row: row.tone)))
