"""Rules of a plan of groups and of a workload. Reads their inputs.

The figures of a workload's jobs are those that `solve` works with (groups/inputs/workload_jobs.py).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from ...plans.check.finding import Fault
from ...plans.check.plan_fit import CLOSE, against_cluster, against_workload, close, differs
from ...plans.check.prediction_rules import self_contradictions
from ...plans.check.site_breaches import group_breaches, unknown_pools
from ...plans.check.solved_rules import (
    decisions_edited,
    input_path,
    other_version,
    predictions_edited,
    solved_at_unlikely,
    stale_inputs,
)
from ...plans.phrases.numbers import count
from ...plans.schema.cluster import Cluster
from ...plans.schema.groups_plan import GroupsPlan, PinnedPhase, PlannedGroup
from ...plans.schema.workload import Workload, way_faults
from ...plans.yaml.errors import InputError
from ...plans.yaml.yaml_doc import Loc
from ...profiles.profile_schema import Profile
from ..groups.choose.group_nodes import resident_bytes
from ..groups.inputs.group_model import Group, GroupJob, PhaseOption, Pin, shortages
from ..groups.inputs.job_points import points_there
from ..groups.inputs.measured_phases import given_phases, with_phases
from ..groups.inputs.workload_jobs import Problem, problem_of
from .accelerator_rules import unlike_names_at
from .check_options import CheckOptions, opened
from .job_rules import neighbour


def groups_faults(plan: GroupsPlan, path: str, options: CheckOptions) -> tuple[list[Fault], str]:
    """(faults of a plan of groups, a line on what was checked)."""
    faults: list[Fault] = [
        *stale_inputs(plan, path),
        *decisions_edited(plan),
        *other_version(plan),
        *self_contradictions(plan),
    ]
    faults += predictions_edited(plan)
    faults += solved_at_unlikely(plan, options.now)
    inputs = plan.inputs
    cluster = opened(input_path(inputs.cluster, path), inputs.cluster.path, Cluster, ("inputs", "cluster"), faults)
    workload_path = input_path(inputs.workload, path)
    workload = opened(workload_path, inputs.workload.path, Workload, ("inputs", "workload"), faults)
    if cluster is not None:
        faults += against_cluster(plan, cluster)
        beside = neighbour(str(input_path(inputs.cluster, path)), "profile.yaml", Profile)
        faults += unlike_names_at(("inputs", "cluster"), cluster, beside)
    if workload is not None:
        faults += against_workload(plan, workload)
    if workload is not None and cluster is not None and not any(way_faults(workload, cluster)):
        try:
            problem = problem_of(workload, workload_path, cluster)
            faults += against_jobs(plan, with_phases(problem, given_phases(inputs.measured)))
        except InputError as error:
            faults += [_unsolvable(("inputs", "workload"), each) for each in error.each()]
    if options.site_rules is not None:
        faults += group_breaches(plan, options.site_rules)
        faults += unknown_pools(options.site_rules, cluster, ("inputs", "cluster"))
    jobs = sum(len(group.jobs) for group in plan.groups.values())
    return faults, f"plan of {count(jobs, 'job')} in {count(len(plan.groups), 'group')}"


def workload_faults(workload: Workload, path: str) -> list[Fault]:
    """Faults of a workload that is not solved yet."""
    faults: list[Fault] = []
    cluster_path = Path(path).parent / workload.cluster
    if not os.path.isfile(cluster_path):  # noqa: PTH113 (pathlib raises for what can be no path)
        message = f"no such file: '{workload.cluster}'"
        return [Fault("input-missing", ("cluster",), message, "paths are relative to this file")]
    cluster = opened(cluster_path, workload.cluster, Cluster, ("cluster",), faults)
    if cluster is None:
        return faults
    faults += unlike_names_at(("cluster",), cluster, neighbour(str(cluster_path), "profile.yaml", Profile))
    for location, fault_text in way_faults(workload, cluster):
        faults.append(Fault.of("unknown-pool" if location[-1] == "pool" else "does-not-fit-pool", location, fault_text))
    if faults:
        return faults
    # What `solve` will plan has no seconds yet.
    known = {name: job for name, job in workload.jobs.items() if job.phases or points_there(Path(path), name)}
    if not known:
        return []
    try:
        problem = problem_of(workload.model_copy(update={"jobs": known}), Path(path), cluster)
    except InputError as error:
        return [_unsolvable(("jobs",), each) for each in error.each()]
    return _too_large(problem)


def _too_large(problem: Problem) -> list[Fault]:
    return [
        Fault("workload-too-large", ("jobs",), str(short), "add nodes, give jobs other ways, or raise their slo")
        for short in shortages(problem.jobs, problem.node_types, problem.rules)
    ]


def _unsolvable(location: Loc, error: InputError) -> Fault:
    """The fault of a workload whose jobs cannot be read: at the workload's own key if the message begins with one."""
    message, _, remedy = error.message.partition("; ")
    key, _, rest = message.partition(": ")
    if location == ("jobs",) and rest and key.startswith("jobs."):
        return Fault("workload-unsolvable", tuple(_part(part) for part in key.split(".")), rest, remedy)
    place = f"{Path(error.path).name}:{error.line}: " if error.path and error.line else ""
    return Fault("workload-unsolvable", location, f"{place}{message}", remedy)


def _part(text: str) -> str | int:
    return int(text) if text.isdigit() else text


def against_jobs(plan: GroupsPlan, problem: Problem) -> Iterator[Fault]:
    """Faults of seconds, switches and states in a plan of groups that differ from those of the workload's jobs.

    plans/check/plan_fit.py reports ways that a job no longer has; they are skipped here.
    """
    for key, group in plan.groups.items():
        pins: list[Pin] = []
        for name, member in group.jobs.items():
            job = problem.jobs.get(name)
            if job is None:
                continue
            location: Loc = ("groups", key, "jobs", name)
            solo_at: Loc = (*location, "slowdown", "alone_s")
            alone_s = member.slowdown.alone_s
            yield from differs("way-changed", solo_at, alone_s, job.solo_s, "its reference takes", unit=" s")
            if job.points:  # by name, since their numbers change with the points that are planned
                names = [point.name for point in job.points]
                if member.point is None or member.point.name not in names:
                    continue
                ways = (names.index(member.point.name),) * 2
            else:
                ways = member.rollout.way, member.train.way
            rollout = _way(member.rollout, job.rollout, ways[0])
            train = _way(member.train, job.train, ways[1])
            for phase, pinned, way in (("rollout", member.rollout, rollout), ("train", member.train, train)):
                if way is not None:
                    for key_s, stated_s, now_s, beside in (
                        ("mean_s", pinned.mean_s, way.mean_s, "this way of the job takes"),
                        ("switch_s", pinned.switch_s, way.warm_s, "a warm switch takes"),
                    ):
                        at = (*location, phase, key_s)
                        yield from differs("way-changed", at, stated_s, now_s, beside, unit=" s")
            if rollout is not None and train is not None:
                pins.append(Pin(name, ways[0], member.rollout.units, ways[1], member.train.units))
        yield from _states(key, group, pins, problem)


def _way(pinned: PinnedPhase, ways: tuple[PhaseOption, ...], number: int) -> PhaseOption | None:
    way = ways[number] if number < len(ways) else None
    return way if way is not None and way.pool == pinned.pool else None


def _states(key: str, group: PlannedGroup, pins: list[Pin], problem: Problem) -> Iterator[Fault]:
    """Faults of the resident states, node by node, of the jobs whose ways are known."""
    node_types = problem.node_types
    if any(node.pool not in node_types or node_types[node.pool].slots != node.slots for node in group.nodes):
        return
    jobs: dict[str, GroupJob] = dict(problem.jobs)
    held = resident_bytes(Group(tuple(node.pool for node in group.nodes), tuple(pins)), jobs, node_types)
    for index, (node, now) in enumerate(zip(group.nodes, held, strict=True)):
        location: Loc = ("groups", key, "nodes", index, "resident_bytes")
        room = node_types[node.pool].host_memory_bytes
        if now > room * (1 + CLOSE):
            message = f"the states of the jobs on this node take {now:.6g} bytes, and it has {room:.6g}"
            yield Fault("state-beyond-memory", location, message, "solve again, or add host memory")
        elif len(pins) == len(group.jobs) and not close(now, node.resident_bytes):
            message = f"is {node.resident_bytes:.6g}, and the states of the jobs on this node take {now:.6g} bytes"
            yield Fault("state-contradicts-jobs", location, message, "solve again")
