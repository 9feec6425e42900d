"""The `Report` on a plan that only one side has: a plan that was added or removed.

The report compares a plan with its alternative: the plain synchronous plan of the job, or each job on its own nodes.
"""

from __future__ import annotations

from typing import Any

from ..check.solved_rules import has_edited_decisions, has_edited_predictions
from ..phrases.numbers import count
from ..phrases.sentences import PHASE_NAMES, shorten
from ..phrases.tables import Table, TableRow, columns
from ..schema.groups_plan import GroupsPlan
from ..schema.plan import Plan
from .change import Unit, figure, relative_text
from .groups_report import JOB_COLUMNS, groups_warnings
from .input_diff import InputFiles, stale_inputs
from .job_diff import free_memory, sides_of, speedup
from .job_report import edited_warnings, stale_warnings
from .review import Report


def one_plan_report(plan: Plan | GroupsPlan, name: str, new: bool, files: InputFiles) -> Report:
    """The report on a plan that was added (`new`) or removed."""
    warnings = edited_warnings(
        sides_of(False, new and has_edited_decisions(plan)), sides_of(False, new and has_edited_predictions(plan))
    )
    if new and files.folder is not None:
        warnings += stale_warnings(plan, stale_inputs(plan, files))
    change = "new plan" if new else "plan removed"
    if isinstance(plan, GroupsPlan):
        warnings += groups_warnings(plan) if new else []
        return Report(
            name, name, f"{change}: {_groups_line(plan)}", tuple(warnings), (_beside_others(plan), _jobs(plan)), ()
        )
    error = (
        f"relative error of its mean seconds, one standard deviation: {figure(plan.predicted.error.total, 'share')}",
    )
    sections = (_beside_sync(plan), _why(plan)) if new else (_beside_sync(plan),)
    return Report(name, name, f"{change}: {_job_line(plan)}", tuple(warnings), sections, error)


def one_plan_dict(plan: Plan | GroupsPlan, new: bool) -> dict[str, Any]:
    """The plan that was added (`new`) or removed, for JSON."""
    exclude = {"inputs", "volatile", "rlplan", "rlplan_groups"}
    return {
        "kind": "groups" if isinstance(plan, GroupsPlan) else "job",
        "same": False,
        "added" if new else "removed": plan.model_dump(mode="json", exclude=exclude),
    }


def _job_line(plan: Plan) -> str:
    fast = speedup(plan.predicted)
    return (
        f"{plan.job.name} by mode {plan.job.bias.mode}, {figure(plan.predicted.step_s.mean, 's')} a step, "
        f"{'unknown' if fast is None else f'{fast:.2f}x'} the samples per second of plain rounds, "
        f"{figure(plan.predicted.usd_per_1k_samples, 'usd')} USD per 1000 samples, "
        f"length ratio {figure(plan.predicted.length_ratio, 'ratio')}"
    )


def _beside_sync(plan: Plan) -> Table:
    p, base = plan.predicted, plan.predicted.baseline
    pairs: list[tuple[str, float | None, float]] = [
        ("seconds per sample", base.seconds_per_sample, p.seconds_per_sample),
        ("step, mean", base.step_s.mean, p.step_s.mean),
        ("step, p50", base.step_s.p50, p.step_s.p50),
        ("step, p95", base.step_s.p95, p.step_s.p95),
    ]
    rows = [
        TableRow((label, figure(a, "s", b < 1), figure(b, "s", b < 1), relative_text(b / a - 1) if a else ""))
        for label, a, b in pairs
    ]
    phases = ((key, getattr(p.phases_s, key)) for key in ("rollout", "reward_exposed", "train", "sync"))
    rows += [TableRow((f"· {PHASE_NAMES[key]}", "", figure(value, "s", value < 1), "")) for key, value in phases]
    figures: list[tuple[str, float, Unit]] = [
        ("USD per 1000 samples", p.usd_per_1k_samples, "usd"),
        ("USD per hour", p.usd_per_hour, "usd"),
        ("nodes", float(p.nodes), "count"),
        ("length ratio", p.length_ratio, "ratio"),
    ]
    if p.cut is not None:
        figures.append(("trained samples cut at the cap", p.cut.share, "share"))
    rows += [TableRow((label, "", figure(value, unit), "")) for label, value, unit in figures]
    names = {"kv": "KV memory free", "train": "training memory free", "host": "host memory free"}
    rows += [TableRow((names[key], "", figure(free, "share"), "")) for key, free in free_memory(p).items()]
    return Table(columns("figure", ">plain rounds", ">this plan", ">change"), tuple(rows))


def _why(plan: Plan) -> Table:
    rows = tuple(TableRow((key, shorten(text, 200))) for key, text in plan.job.why.items())
    return Table(columns("`decision", "why"), rows)


def _groups_line(plan: GroupsPlan) -> str:
    jobs = sum(len(group.jobs) for group in plan.groups.values())
    figures = plan.predicted.plan
    return (
        f"{count(jobs, 'job')} in {count(len(plan.groups), 'group')}, "
        f"{figure(figures.usd_per_hour, 'usd')} USD per hour, {figure(figures.usd_per_unit, 'usd')} USD per unit, "
        f"bounds kept by {figure(figures.slo_attained, 'share')} of the jobs"
    )


def _beside_others(plan: GroupsPlan) -> Table:
    p = plan.predicted
    rows = [
        TableRow(
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


def _jobs(plan: GroupsPlan) -> Table:
    rows = [
        TableRow(
            (
                name,
                key if m.point is None else f"{key}, by {m.point.name}",
                *(figure(value, "x") for value in (m.slowdown.mean, m.slowdown.p95, m.slowdown.slo)),
            ),
            tone=0 if m.slowdown.keeps else -1,
        )
        for key, group in plan.groups.items()
        for name, m in group.jobs.items()
    ]
    return Table(JOB_COLUMNS, tuple(sorted(rows, key=lambda row: row.tone)))
