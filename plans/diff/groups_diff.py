"""The difference of two plans of groups: jobs that arrived, left or moved, the slowdown of each job, and the price.

Groups are matched by their jobs (match_groups), so a group with the same jobs under another id is no difference.
Otherwise the same things count as in job_diff.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import networkx as nx

from ..schema.base import whole
from ..schema.groups_plan import GroupMember, GroupsPlan, Move
from .change import KeyChange, Quantity, changes
from .input_diff import InputFiles
from .job_diff import NO_FILES, AnyDiff, parts_of

Status = Literal["arrived", "left", "moved", "other nodes", "stays"]


@dataclass(frozen=True)
class JobChange:
    """A job of either plan.

    Attributes:
        name: the job's name.
        status: `moved`: to another group; `other nodes`: in the same group, but on another pool, in another way, or by
            a move that the plan lists.
        old_group, new_group: ids of its group in each plan; None if the plan does not have the job.
        old, new: its entry in each group.
        move: its move as listed in the new plan; None if it has none.
    """

    name: str
    status: Status
    old_group: str | None
    new_group: str | None
    old: GroupMember | None
    new: GroupMember | None
    move: Move | None

    @property
    def mean(self) -> Quantity:
        """Mean slowdown."""
        return self._slowdown("mean")

    @property
    def p95(self) -> Quantity:
        """95th percentile of the slowdown over stretches of iterations."""
        return self._slowdown("p95")

    @property
    def breaks_bound(self) -> bool:
        """Whether the new plan breaks the job's bound."""
        return self.new is not None and not self.new.slowdown.keeps

    @property
    def newly_broken(self) -> bool:
        """Whether the new plan breaks the job's bound and the old plan did not."""
        return self.breaks_bound and (self.old is None or self.old.slowdown.keeps)

    @property
    def differs(self) -> bool:
        """Whether anything of the job changed."""
        if self.status != "stays" or self.old is None or self.new is None:
            return True
        return any(changes(whole(self.old), whole(self.new)))

    def _slowdown(self, figure: str) -> Quantity:
        sides = [None if side is None else float(getattr(side.slowdown, figure)) for side in (self.old, self.new)]
        return Quantity(f"slowdown.{figure}", f"slowdown, {figure}", "x", sides[0], sides[1], better=-1)

    def as_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return {
            "job": self.name,
            "status": self.status,
            "old_group": self.old_group,
            "new_group": self.new_group,
            "slowdown": {"mean": self.mean.as_dict(), "p95": self.p95.as_dict()},
            "slo": {"old": self.old and self.old.slowdown.slo, "new": self.new and self.new.slowdown.slo},
            "keeps": {"old": self.old and self.old.slowdown.keeps, "new": self.new and self.new.slowdown.keeps},
            "move": self.move and self.move.model_dump(mode="json"),
        }


@dataclass(frozen=True)
class GroupsDiff(AnyDiff[GroupsPlan]):
    """What differs between two plans of groups; effects are prices, broken bounds, numbers of jobs, groups and nodes.

    Attributes:
        jobs: each job of either plan, most important first.
        matched: ids of matched groups: id in the new plan to id in the old plan.
        rules: rules that differ, dotted below `rules`.
        moves_from_old: whether the new plan's moves begin from the old plan; None: no moves, or unknown.
    """

    jobs: tuple[JobChange, ...]
    matched: Mapping[str, str]
    rules: tuple[KeyChange, ...]
    moves_from_old: bool | None

    def count(self, status: Status) -> int:
        """Number of jobs with this status."""
        return sum(job.status == status for job in self.jobs)

    def as_dict(self) -> dict[str, Any]:
        """Everything with numbers, for JSON."""
        return (
            {"kind": "groups"}
            | super().as_dict()
            | {
                "jobs": [job.as_dict() for job in self.jobs],
                "groups": dict(self.matched),
                "rules": [change.as_dict() for change in self.rules],
                "moves_from_old": self.moves_from_old,
                "moves_usd": sum(move.price_usd for move in self.new.moves),
            }
        )


def diff_groups(
    old: GroupsPlan,
    new: GroupsPlan,
    old_files: InputFiles = NO_FILES,
    new_files: InputFiles = NO_FILES,
    old_sha256: str | None = None,
) -> GroupsDiff:
    """The difference from `old` to `new`.

    Args:
        old_files, new_files: input files, to compare those that are at hand.
        old_sha256: digest of the old plan's file, to find out whether the new plan's moves begin from the old plan.
    """
    matched = match_groups(old, new)
    previous = new.inputs.previous
    from_old = None if previous is None or old_sha256 is None else previous.sha256 == old_sha256
    meanings = _meaning(old, {key: key for key in old.groups}), _meaning(new, matched)
    return GroupsDiff(
        **parts_of(
            old,
            new,
            (old_files, new_files),
            differs=any(changes(*meanings)),
            effects=_effects(old, new),
            from_old=from_old,
        ),
        jobs=_jobs(old, new, matched, moved={move.job: move for move in new.moves if from_old is not False}),
        matched=matched,
        rules=tuple(changes(whole(old.rules), whole(new.rules))),
        moves_from_old=from_old,
    )


def _meaning(plan: GroupsPlan, names: Mapping[str, str]) -> dict[str, Any]:
    """The values of a plan that count as differences, without inputs and solver; `names` renames the groups."""
    groups = {
        names.get(key, f"new {key}"): group.model_dump(mode="json", exclude={"why"})
        for key, group in plan.groups.items()
    }
    moves = [
        {**move.model_dump(mode="json"), "to_group": names.get(move.to_group, f"new {move.to_group}")}
        for move in plan.moves
    ]
    rest = plan.model_dump(mode="json", include={"rules", "declined", "predicted"})
    return {**rest, "groups": groups, "moves": moves}


def _effects(old: GroupsPlan, new: GroupsPlan) -> tuple[Quantity, ...]:
    """Figures of the whole plan: prices, broken bounds, and numbers of jobs, groups and nodes."""
    a, b = old.predicted.plan, new.predicted.plan
    nodes = _nodes(old), _nodes(new)
    broken = [float(sum(not member.slowdown.keeps for _, _, member in plan.members)) for plan in (old, new)]
    jobs = [float(len(plan.members)) for plan in (old, new)]
    return (
        Quantity("usd_per_hour", "USD per hour", "usd", a.usd_per_hour, b.usd_per_hour, better=-1),
        Quantity("usd_per_unit", "USD per unit", "usd", a.usd_per_unit, b.usd_per_unit, better=-1),
        Quantity("bounds_broken", "bounds broken", "count", broken[0], broken[1], better=-1),
        Quantity("jobs", "jobs", "count", jobs[0], jobs[1]),
        Quantity("groups", "groups", "count", float(len(old.groups)), float(len(new.groups))),
        *(
            Quantity(f"nodes.{pool}", f"nodes of {pool}", "count", nodes[0][pool], nodes[1][pool])
            for pool in sorted(nodes[0].keys() | nodes[1].keys())
        ),
    )


def _nodes(plan: GroupsPlan) -> Counter[str]:
    return Counter(node.pool for group in plan.groups.values() for node in group.nodes)


def _jobs(
    old: GroupsPlan, new: GroupsPlan, matched: Mapping[str, str], moved: Mapping[str, Move]
) -> tuple[JobChange, ...]:
    old_group_of = {name: key for key, group in old.groups.items() for name in group.jobs}
    new_group_of = {name: key for key, group in new.groups.items() for name in group.jobs}
    job_changes = []
    for name in sorted(old_group_of.keys() | new_group_of.keys()):
        old_group, new_group = old_group_of.get(name), new_group_of.get(name)
        old_member = None if old_group is None else old.groups[old_group].jobs[name]
        new_member = None if new_group is None else new.groups[new_group].jobs[name]
        status: Status = "stays"
        if old_group is None:
            status = "arrived"
        elif new_group is None:
            status = "left"
        elif matched.get(new_group) != old_group:
            status = "moved"
        elif name in moved or (old_member and new_member and _place(old_member) != _place(new_member)):
            status = "other nodes"
        job_changes.append(JobChange(name, status, old_group, new_group, old_member, new_member, moved.get(name)))
    return tuple(sorted(job_changes, key=_importance))


def _place(member: GroupMember) -> tuple[Any, ...]:
    """Pools, ways and numbers of units of a job; the numbers of the nodes in its group do not count."""
    phases = ((phase.pool, phase.way, len(phase.units)) for phase in (member.rollout, member.train))
    return *phases, member.tail_from, member.tail_units, member.tail_finished, member.point and member.point.name


_ORDER: tuple[Status, ...] = ("arrived", "left", "moved", "other nodes", "stays")


def _importance(job: JobChange) -> tuple[int, int, float, str]:
    return (
        0 if job.newly_broken else 1 if job.breaks_bound else 2,
        _ORDER.index(job.status),
        -abs(job.p95.relative or 0.0),
        job.name,
    )


def match_groups(old: GroupsPlan, new: GroupsPlan) -> dict[str, str]:
    """Ids of matched groups: id in `new` to id in `old`.

    Groups are matched by their jobs and not by their ids: the matching keeps as many jobs as possible in their group (a
    maximum weight matching), and among such matchings it keeps the most ids. A job has moved if its new group is not
    matched with its old group.
    """
    home = {job: key for key, group in old.groups.items() for job in group.jobs}
    graph: nx.Graph[tuple[str, str]] = nx.Graph()
    scale = len(new.groups) + 1  # so that all kept ids together weigh less than one job
    for key, group in new.groups.items():
        for job in group.jobs:
            if job in home:
                edge = ("new", key), ("old", home[job])
                stay = graph.edges[edge]["weight"] if graph.has_edge(*edge) else int(key == home[job])
                graph.add_edge(*edge, weight=stay + scale)
    pairs = nx.max_weight_matching(graph)
    return dict(sorted((a[1], b[1]) for pair in pairs for a, b in [pair if pair[0][0] == "new" else pair[::-1]]))
