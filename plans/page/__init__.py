"""Plans and runs as pages: one self-contained HTML document each, which opens from a file, offline, on any screen.

    plan_page     a plan of one job
    groups_page   a plan of co-execution groups
    run_page      what runs did beside what their plans predicted

Invariants: the same input gives the same bytes; nothing is fetched; text that comes from a user's file is escaped; what
a chart shows is also said in words under it. plotly is imported when a page is asked for, not with this package.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from ..groups_plan import GroupsPlan
    from ..plan import Plan


class RoundBar(Protocol):
    """What a page reads of `round_bars.Bar`: what one resource does for a while in a mean round."""

    @property
    def kind(self) -> str:
        """`short` or `long`."""

    @property
    def lane(self) -> str:
        """The resource: `sync`, `engines`, `rewards`, `trainers`."""

    @property
    def phase(self) -> str:
        """`sync`, `rollout`, `tail`, `scoring`, `reward_exposed` or `train`."""

    @property
    def begin_s(self) -> float:
        """Seconds from the round's beginning."""

    @property
    def seconds(self) -> float:
        """How long."""

    @property
    def critical(self) -> bool:
        """Whether the step would be shorter without it."""


def plan_page(plan: Plan, *, title: str, bars: Sequence[RoundBar]) -> str:
    """The page of a plan of one job; `bars` are `round_bars.round_bars(plan)`."""
    from .of_plan import page

    return page(plan, title, bars)


def groups_page(plan: GroupsPlan, *, title: str) -> str:
    """The page of a plan of co-execution groups."""
    from .of_groups import page

    return page(plan, title)


def run_page(report: Mapping[str, Any], *, title: str) -> str:
    """The page of one or several runs; `report` is what `rlplan report --json` prints (executor/report.py)."""
    from .of_run import page

    return page(report, title)
