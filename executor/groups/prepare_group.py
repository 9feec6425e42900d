"""Which jobs of a plan of groups are executed, on which nodes, in which turns: every check that needs no engine.

Nothing is written and nothing heavy is imported here. What of a plan of groups can be run at all:
plans/facts/executable_groups.py.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ...plans.check.plan_check import changed_inputs, input_path
from ...plans.facts.executable_groups import unsupported_in_groups
from ...plans.schema.cluster import Cluster
from ...plans.schema.groups_plan import GroupsPlan, load_groups_plan
from ...plans.schema.sections.planned_group import GroupMember, PlannedGroup
from ...plans.schema.workload import Source, Workload, load_workload
from ...plans.yaml.errors import ErrorCollector, InputError
from ...plans.yaml.output_files import must_take_folder
from ...plans.yaml.yaml_io import error_at
from ...rounds.permits.permit_events import Seat
from ...traces.groups.group_turns import TURNS
from ...traces.run_log import TRACE, read_run
from ...traces.trace import TraceError, read_trace
from ..placement.seats import Room
from ..prepare import Execution, placement_of, prepare
from ..records.execution_folder import holds_run
from .live_permits import OTHER_GROUP, is_of, journal_header


@dataclass(frozen=True)
class GroupJob:
    """A job of a group that passed all checks.

    Attributes:
        name: its name.
        execution: its own plan, and where its run is kept.
        resume: whether it goes on from the last checkpoint in that folder.
        seat: what it brings to the permit machine.
        nodes: the group's nodes that stand for those of its plan's placement, in order.
        planned: what the plan of groups says of it.
    """

    name: str
    execution: Execution
    resume: bool
    seat: Seat
    nodes: tuple[int, ...]
    planned: GroupMember


@dataclass(frozen=True)
class PreparedGroup:
    """A group that passed all checks: its plan, id, permit rule, jobs, and its nodes as the devices of a pool."""

    plan_path: Path
    key: str
    permit_rule: str
    jobs: tuple[GroupJob, ...]
    rooms: tuple[Room, ...]
    kind: str
    """Of all devices: `cpu` or `cuda`."""


def prepare_group(path: Path, key: str | None, out: Path, resume: bool) -> PreparedGroup:
    """Load and check a plan of groups and the own plans of one group's jobs.

    `key`: of the group; None: the only one. With `resume` a job whose run came to no checkpoint begins anew. Raises
    InputError with everything that is wrong of the plan, the jobs or the folder.
    """
    plan = load_groups_plan(path)
    if changed := changed_inputs(plan, path):
        raise InputError(f"{', '.join(changed)} changed since it was solved; solve again with --from", str(path))
    key = _chosen(plan, key, path)
    workload, cluster = load_workload(input_path(plan.inputs.workload, path))
    group, faults = plan.groups[key], ErrorCollector()
    jobs = []
    for location, fault, remedy in unsupported_in_groups(plan):
        if location[1] == key:
            text = f"{'.'.join(map(str, location))}: {fault}; {remedy}"
            faults.errors.append(error_at(path, location, text))
    faults.raise_any()
    for name in group.jobs:
        job = faults.try_read(lambda name=name: _job(path, plan, group, name, workload, out, resume))  # type: ignore[misc]
        jobs += [] if job is None else [job]
    faults.raise_any()
    rooms = tuple(_room(node.pool, number, cluster) for number, node in enumerate(group.nodes))
    kinds = sorted({cluster.pools[room.pool].accelerators.kind for room in rooms})
    if kinds != ["cpu"]:
        raise InputError(
            f"group {key} has nodes of kind {' and '.join(kinds)}; groups are executed on CPUs only, since nothing of "
            "a job leaves a GPU between its turns yet",
            str(path),
        )
    prepared = PreparedGroup(path, key, plan.rules.policy, tuple(jobs), rooms, "cpu")
    _check_folder(prepared, out, resume)
    return prepared


def _check_folder(group: PreparedGroup, out: Path, resume: bool) -> None:
    """Raises InputError unless the group can start in a folder, or go on with its own run there."""
    must_take_folder(out)
    journal = out / TURNS
    if holds_run(out):
        raise InputError("holds the run of one job; choose another --out", str(out))
    if not journal.is_file():
        if resume:
            raise InputError("holds no run of a group to resume; run without --resume", str(out))
        return
    try:
        events = list(read_trace(journal))
    except TraceError as error:
        raise InputError(f"{error}; choose another --out") from None
    if not resume:
        if any(event["event"] == "done" for event in events):
            raise InputError("holds a group's run already; continue it with --resume or choose another --out", str(out))
        return
    header = journal_header(group.key, group.permit_rule, [job.seat for job in group.jobs])
    if events and not is_of(events[0], header):
        raise InputError(f"its {TURNS} {OTHER_GROUP}", str(out))


def _chosen(plan: GroupsPlan, key: str | None, path: Path) -> str:
    groups = ", ".join(plan.groups)
    if key is None and len(plan.groups) > 1:
        raise InputError(
            f"holds the groups {groups}; say which to execute, as --group {next(iter(plan.groups))}", str(path)
        )
    if key is not None and key not in plan.groups:
        raise InputError(f"--group {key}: there is no such group; there are {groups}", str(path))
    return key or next(iter(plan.groups))


def _job(
    path: Path, plan: GroupsPlan, group: PlannedGroup, name: str, workload: Workload, out: Path, resume: bool
) -> GroupJob:
    source, planned = workload.jobs[name].source, group.jobs[name]
    assert source is not None, "its plan of groups has the digest of its source"
    run_dir = out / name
    goes_on = resume and any((run_dir / "checkpoints").glob("*step-*"))
    own = _plan_of(source, input_path(plan.inputs.workload, path).parent)
    [execution] = prepare([own], run_dir, goes_on)
    apart = execution.plan.job.placement
    if apart is None or apart.streams:
        raise InputError(
            f"job {name}: its plan trains {'beside' if apart else 'on the devices of'} its rollout; in a group rollout "
            "and training take turns on nodes of their own; solve it with a pool for trainers, without streaming",
            str(own),
        )
    nodes = _nodes(group, planned, execution, own)
    seat = Seat(
        name,
        (planned.rollout.units, planned.train.units),
        (planned.rollout.mean_s, planned.train.mean_s),
        (planned.rollout.switch_s, planned.train.switch_s),
        planned.pace_s,
    )
    return GroupJob(name, execution, goes_on, seat, nodes, planned)


def _plan_of(source: Source, folder: Path) -> Path:
    """The job's own plan: that of its source, or that which its source, a run, was of. Raises InputError."""
    if source.plan is not None:
        return folder / source.plan
    assert source.run is not None, "a source is a plan or a run"
    run = folder / source.run
    try:
        plan = read_run(run / TRACE).started.get("plan")
    except (OSError, TraceError) as error:
        raise InputError(f"its run cannot be read: {error}", str(run)) from None
    if plan is None:
        raise InputError("its run does not say which plan it was of; write source: {plan: ...}", str(run))
    return Path(os.path.normpath(run / str(plan)))


def _nodes(group: PlannedGroup, planned: GroupMember, execution: Execution, own: Path) -> tuple[int, ...]:
    """The group's nodes for those that the job's placement uses, in order. Raises InputError if they do not fit."""
    by_pool = []
    for pinned in (planned.rollout, planned.train):
        by_pool.append((pinned.pool, sorted({group.node_of_unit(unit) for unit in pinned.units})))
    chosen = []
    for number, room in placement_of([execution]).nodes_in_use().items():
        pool, nodes = by_pool[0 if room.first == 0 else 1]
        if room.pool != pool or number - room.first >= len(nodes):
            raise InputError(
                f"its plan takes node {number - room.first + 1} of pool '{room.pool}', and the group gives it "
                f"{len(nodes)} of '{pool}'; solve the job and the groups for the same nodes",
                str(own),
            )
        chosen.append(nodes[number - room.first])
    return tuple(chosen)


def _room(pool: str, number: int, cluster: Cluster) -> Room:
    own = cluster.pools[pool]
    return Room(pool, 1, own.accelerators.per_node, own.cores, first=number)
