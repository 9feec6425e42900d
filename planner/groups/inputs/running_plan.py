"""The running plan as a groups state: which of its jobs are still there, and where."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from pathlib import Path

from ....plans.phrases.numbers import count
from ....plans.schema.groups_plan import GroupsInputs, GroupsPlan, MeasuredPhases, PinnedPhase, PlannedGroup
from ....plans.schema.plan import InputFile
from ....plans.schema.workload import Workload
from ....plans.yaml.yaml_io import error_at, sha256_file
from .group_model import (
    Group,
    GroupJob,
    GroupsState,
    Jobs,
    NodeTypes,
    PhaseOption,
    Pin,
    nodes_of_pins,
    without_idle_nodes,
)
from .workload_jobs import Problem

# The files that a plan of groups is solved from, with their digests.


def solved_from(
    path: Path,
    workload: Workload,
    problem: Problem,
    previous: Path | None,
    out: Path,
    measured: Mapping[str, MeasuredPhases] | None = None,
) -> GroupsInputs:
    """Return the inputs of a plan that is written to `out`.

    Args:
        path: of the workload.
        problem: that the workload states.
        previous: the running plan; None: there is none.
        measured: by job, seconds that stand in for those of the workload.

    Raises InputError for a file that cannot be read.
    """

    def named(file: Path) -> InputFile:
        relative = os.path.relpath(file.resolve(), out.resolve().parent)
        return InputFile(path=Path(relative).as_posix(), sha256=sha256_file(file))

    return GroupsInputs(
        workload=named(path),
        cluster=named(path.parent / workload.cluster),
        sources={name: named(file) for name, file in sorted(problem.read.items())},
        previous=named(previous) if previous else None,
        measured=dict(sorted((measured or {}).items())),
    )


def running_state(plan: GroupsPlan, path: Path, jobs: Jobs, node_types: NodeTypes) -> GroupsState:
    """The state of the plan's jobs that `jobs` still has, with their phases of now, on the nodes that they hold.

    Jobs that left are gone, and nodes without a job are given back; remaining jobs that share no nodes become groups of
    their own, and the group with most jobs keeps the id. A job none of whose options has the pool and width that it
    runs on must be placed anew, and is left out. Raises InputError with the plan's line if its nodes are not those of
    the cluster any more.
    """
    groups: dict[str, Group] = {}
    for key, planned in plan.groups.items():
        for index, node in enumerate(planned.nodes):
            now = node_types.get(node.pool)
            if now is None or now.slots != node.slots:
                change = "is gone" if now is None else f"has nodes of {count(now.slots, 'slot')}, not {node.slots}"
                raise error_at(
                    path,
                    ("groups", key, "nodes", index),
                    f"groups.{key}.nodes.{index}: pool '{node.pool}' {change}; solve without --from",
                )
        pins = (_pin(name, planned, jobs[name]) for name in sorted(planned.jobs) if name in jobs)
        kept = tuple(pin for pin in pins if pin is not None)
        for part in unconnected_groups(Group(tuple(node.pool for node in planned.nodes), kept), node_types):
            new_keys = (f"g{n}" for n in itertools.count(1) if f"g{n}" not in plan.groups and f"g{n}" not in groups)
            groups[key if key not in groups else next(new_keys)] = without_idle_nodes(part, node_types)
    placed = {pin.job for group in groups.values() for pin in group.pins}
    return GroupsState({name: job for name, job in jobs.items() if name in placed}, groups)


def unconnected_groups(group: Group, node_types: NodeTypes) -> list[Group]:
    """The group split where no node is shared, most jobs first; each component still has all nodes."""
    components: list[tuple[set[int], list[Pin]]] = []
    held_by = nodes_of_pins(group, node_types)
    for pin in group.pins:
        held, pins = set().union(*held_by[pin.job]), [pin]
        for component in [component for component in components if component[0] & held]:
            components.remove(component)
            held, pins = held | component[0], pins + component[1]
        components.append((held, pins))
    ordered = sorted(
        (sorted(pins, key=lambda pin: pin.job) for _, pins in components), key=lambda p: (-len(p), p[0].job)
    )
    return [Group(group.nodes, tuple(pins)) for pins in ordered]


def _pin(name: str, group: PlannedGroup, job: GroupJob) -> Pin | None:
    member = group.jobs[name]
    if job.points:
        # By its name, since its number changes with the points that are planned.
        names, ran = [point.name for point in job.points], member.point and member.point.name
        option = names.index(ran) if ran in names else None
        return None if option is None else Pin(name, option, member.rollout.units, option, member.train.units)
    rollout, train = _option(member.rollout, job.rollout, group), _option(member.train, job.train, group)
    if rollout is None or train is None:
        return None
    return Pin(name, rollout, member.rollout.units, train, member.train.units)


def _option(pinned: PinnedPhase, options: tuple[PhaseOption, ...], group: PlannedGroup) -> int | None:
    """Index of the option with the pool, nodes and slots that the phase holds, the plan's own first; None: none has."""
    nodes = len({group.node_of_unit(unit) for unit in pinned.units})
    order = sorted(range(len(options)), key=lambda index: (index != pinned.way, index))
    shape = (pinned.pool, nodes, len(pinned.units))
    return next(
        (i for i in order if (options[i].pool, options[i].nodes, options[i].nodes * options[i].slots) == shape), None
    )
