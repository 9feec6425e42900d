"""The difference of two plans of groups: who arrived, left and moved, what each job pays in slowdown, and the price.

Groups are matched by their jobs (match_groups), so that a group that bears another id with the same members is no
difference. What else counts, and what does not, is as in job_diff.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import networkx as nx

from ..schema.groups_plan import GroupsPlan, Move
from ..schema.sections.planned_group import GroupMember, PlannedGroup
from .change import KeyChange, Quantity, changes
from .input_diff import InputChange, InputFiles, State, altered, input_changes, inputs_of, stale_inputs
from .job_diff import NOWHERE, edited, figures_edited, found_by, sides_of

Status = Literal["arrived", "left", "moved", "other nodes", "stays"]


@dataclass(frozen=True)
class JobChange:
    """A job of either plan.

    Attributes:
        name: the job's.
        status: `moved`: to a group that is not its old one; `other nodes`: in its group, but on another pool, in
            another way, or by a move that the plan names.
        old_group, new_group: ids in either plan; None where it is not.
        old, new: its members.
        move: what the new plan says about its move; None: nothing.
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
        """Slowdown in the long run."""
        return self._slowdown("mean")

    @property
    def p95(self) -> Quantity:
        """95th percentile of the slowdown over stretches of iterations."""
        return self._slowdown("p95")

    @property
    def breaks(self) -> bool:
        """Whether the new plan does not keep its bound."""
        return self.new is not None and not self.new.slowdown.keeps

    @property
    def newly(self) -> bool:
        """Whether it breaks its bound, and did not in the old plan."""
        return self.breaks and (self.old is None or self.old.slowdown.keeps)

    @property
    def differs(self) -> bool:
        """Whether anything about it changed."""
        if self.status != "stays" or self.old is None or self.new is None:
            return True
        return any(changes(self.old.model_dump(mode="json"), self.new.model_dump(mode="json")))

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
class GroupsDiff:
    """What differs between two plans of groups.

    Attributes:
        old, new: the plans.
        same: whether they mean the same.
        effects: prices, nodes by pool, numbers of jobs and groups, bounds broken.
        jobs: each job of either plan, most important first.
        matched: id in the new plan to id in the old one, of groups that are one and the same by their jobs.
        rules: rules that differ, dotted below `rules`.
        inputs: files that differ by digest.
        stale: input files of the new plan that are not what it was solved from, by name.
        solver: how it was found differently.
        edited: sides whose decisions were edited since they were solved.
        figures_edited: sides whose predictions were edited since they were solved.
        moves_from_old: whether the new plan's moves begin from the old plan; None: it has none, or that is not known.
    """

    old: GroupsPlan
    new: GroupsPlan
    same: bool
    effects: tuple[Quantity, ...]
    jobs: tuple[JobChange, ...]
    matched: Mapping[str, str]
    rules: tuple[KeyChange, ...]
    inputs: tuple[InputChange, ...]
    stale: Mapping[str, State]
    solver: tuple[KeyChange, ...]
    edited: tuple[str, ...]
    figures_edited: tuple[str, ...]
    moves_from_old: bool | None

    def count(self, status: Status) -> int:
        """Jobs with this status."""
        return sum(job.status == status for job in self.jobs)

    def effect(self, key: str) -> Quantity:
        """The figure with this key."""
        return next(each for each in self.effects if each.key == key)

    def as_dict(self) -> dict[str, Any]:
        """Everything with numbers, for JSON."""
        return {
            "kind": "groups",
            "same": self.same,
            "effects": {each.key: each.as_dict() for each in self.effects},
            "jobs": [each.as_dict() for each in self.jobs],
            "groups": dict(self.matched),
            "rules": [each.as_dict() for each in self.rules],
            "inputs": [each.as_dict() for each in self.inputs],
            "stale": dict(self.stale),
            "solver": [each.as_dict() for each in self.solver],
            "versions": {"old": self.old.volatile.rlplan, "new": self.new.volatile.rlplan},
            "edited": list(self.edited),
            "figures_edited": list(self.figures_edited),
            "moves_from_old": self.moves_from_old,
            "moves_usd": sum(move.price_usd for move in self.new.moves),
        }


def diff_groups(
    old: GroupsPlan,
    new: GroupsPlan,
    old_files: InputFiles = NOWHERE,
    new_files: InputFiles = NOWHERE,
    old_sha256: str | None = None,
) -> GroupsDiff:
    """What differs from `old` to `new`.

    Args:
        old_files, new_files: what says what changed in the inputs, as far as they are at hand.
        old_sha256: digest of the old plan's bytes, which tells whether the new plan's moves begin from it.
    """
    matched = match_groups(old, new)
    previous = new.inputs.previous
    from_old = None if previous is None or old_sha256 is None else previous.sha256 == old_sha256
    inputs = input_changes(inputs_of(old), inputs_of(new), old_files, new_files)
    if from_old:  # that the old plan is what the new one was solved from is no difference between them
        inputs = tuple(change for change in inputs if change.name != "previous")
    solver = found_by(old, new)
    sides = sides_of(edited(old), edited(new))
    stale = {} if new_files.folder is None else stale_inputs(new, new_files)
    meanings = _meaning(old, {key: key for key in old.groups}), _meaning(new, matched)
    return GroupsDiff(
        old=old,
        new=new,
        same=not (inputs or solver or altered(stale) or any(changes(*meanings))) and len(sides) != 1,
        effects=_effects(old, new),
        jobs=_jobs(old, new, matched, moved={move.job: move for move in new.moves if from_old is not False}),
        matched=matched,
        rules=tuple(changes(old.rules.model_dump(mode="json"), new.rules.model_dump(mode="json"))),
        inputs=inputs,
        stale=stale,
        solver=solver,
        edited=sides,
        figures_edited=sides_of(figures_edited(old), figures_edited(new)),
        moves_from_old=from_old,
    )


def _meaning(plan: GroupsPlan, names: Mapping[str, str]) -> dict[str, Any]:
    """All that counts in a plan but inputs and solver, with its groups under the ids of the old plan."""
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
    a, b = old.predicted.plan, new.predicted.plan
    nodes = _nodes(old), _nodes(new)
    broken = [
        float(sum(not member.slowdown.keeps for group in plan.groups.values() for member in group.jobs.values()))
        for plan in (old, new)
    ]
    jobs = [float(sum(len(group.jobs) for group in plan.groups.values())) for plan in (old, new)]
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


def nodes_text(group: PlannedGroup) -> str:
    """`2 h20 + 2 h800`."""
    return " + ".join(f"{count} {pool}" for pool, count in Counter(node.pool for node in group.nodes).items())


def _jobs(
    old: GroupsPlan, new: GroupsPlan, matched: Mapping[str, str], moved: Mapping[str, Move]
) -> tuple[JobChange, ...]:
    was = {name: key for key, group in old.groups.items() for name in group.jobs}
    is_ = {name: key for key, group in new.groups.items() for name in group.jobs}
    found = []
    for name in sorted(was.keys() | is_.keys()):
        before, after = was.get(name), is_.get(name)
        a = None if before is None else old.groups[before].jobs[name]
        b = None if after is None else new.groups[after].jobs[name]
        status: Status = "stays"
        if before is None:
            status = "arrived"
        elif after is None:
            status = "left"
        elif matched.get(after) != before:
            status = "moved"
        elif name in moved or (a and b and _place(a) != _place(b)):
            status = "other nodes"
        found.append(JobChange(name, status, before, after, a, b, moved.get(name)))
    return tuple(sorted(found, key=_importance))


def _place(member: GroupMember) -> tuple[Any, ...]:
    """Where a job runs, whatever the numbers of its group's nodes."""
    phases = ((phase.pool, phase.way, len(phase.units)) for phase in (member.rollout, member.train))
    return *phases, member.tail_from, member.tail_units


_ORDER: tuple[Status, ...] = ("arrived", "left", "moved", "other nodes", "stays")


def _importance(job: JobChange) -> tuple[int, int, float, str]:
    return (
        0 if job.newly else 1 if job.breaks else 2,
        _ORDER.index(job.status),
        -abs(job.p95.relative or 0.0),
        job.name,
    )


def match_groups(old: GroupsPlan, new: GroupsPlan) -> dict[str, str]:
    """Id in `new` to id in `old`, for groups that have a job in common and are paired.

    Groups are paired by their jobs, since a group's id says nothing: so that as many jobs as possible stay in their
    group (a maximum weight matching); among such pairings the one that keeps most ids. A job whose group is not paired
    with its old one has moved.
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
    return {a[1]: b[1] for pair in pairs for a, b in [pair if pair[0][0] == "new" else pair[::-1]]}
