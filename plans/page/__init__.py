"""Plans and runs as pages: one self-contained HTML document each, which opens from a file, offline, on any screen.

    plan_page     a plan of one job
    groups_page   a plan of co-execution groups
    group_run_page    a co-execution group that was executed
    run_page      runs, with what their plans predicted
    comparison_page   plans of one job for several clusters and values

Invariants: the same input gives the same bytes; nothing is fetched; text that comes from a user's file is escaped; what
a chart shows is also said in words under it. plotly is imported when a page is asked for, not with this package.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..facts.compared_plans import ComparedPoint
    from ..schema.groups_plan import GroupsPlan
    from ..schema.plan import Plan


def plan_page(plan: Plan, *, title: str, notes: Sequence[str] = ()) -> str:
    """Return the page of a plan of one job.

    `notes`: warnings that are not in the plan itself, such as that its inputs have changed.
    """
    from .page_of_plan import page

    return page(plan, title, notes)


def groups_page(plan: GroupsPlan, *, title: str, notes: Sequence[str] = ()) -> str:
    """Return the page of a plan of co-execution groups; `notes` as of `plan_page`."""
    from .page_of_groups import page

    return page(plan, title, notes)


def run_page(report: Mapping[str, Any], *, title: str, written_at: str | None = None) -> str:
    """Return the page of one or several runs; `report` is what `rlplan report --json` prints (traces/report.py).

    `written_at`: now, in UTC; the page of a run that has not ended shows it, since it may be opened days later.
    """
    from .page_of_run import page

    return page(report, title, written_at)


def group_run_page(report: Mapping[str, Any], *, title: str, written_at: str) -> str:
    """Return the page of co-execution groups that were executed; `report` is what `rlplan report --json` prints of
    them. `written_at`: now, in UTC."""
    from .page_of_group_run import page

    return page(report, title, written_at)


def comparison_page(points: Sequence[ComparedPoint], *, job: str, title: str) -> str:
    """Return the page of a comparison; `points`: at least one, all of one job (compared_plans.py)."""
    from .page_of_compare import page

    return page(points, job, title)
