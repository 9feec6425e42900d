"""Prepares the groups and jobs of a plan for execution: every check that needs no engine.

Nothing is written and nothing heavy is imported here. plans/facts/executable.py says which plans of groups can be
executed at all.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ...plans.check.plan_check import changed_inputs, input_path
from ...plans.facts.executable import unsupported_in_groups
from ...plans.schema.cluster import Cluster
from ...plans.schema.groups_plan import GroupMember, GroupsPlan, PlannedGroup, load_groups_plan
from ...plans.schema.workload import PhaseSource, Workload, load_workload
from ...plans.yaml.errors import ErrorCollector, InputError
from ...plans.yaml.output_files import must_take_folder
from ...plans.yaml.yaml_io import error_at, sha256_file
from ...rounds.permits.permit_events import PlacedJob
from ...traces.groups.group_journal import GROUP_JOURNAL, GROUPS_COPY
from ...traces.groups.groups_folder import group_folders, is_one_groups
from ...traces.run_log import TRACE, read_run
from ...traces.trace import TraceError, read_trace
from ..placement.run_placement import Room
from ..prepare import Execution, placement_of, prepare
from ..records.execution_folder import has_checkpoint, holds_run


@dataclass(frozen=True)
class MemberJob:
    """A job of a group that passed all checks.

    Attributes:
        name: its name.
        execution: its own plan, and where its run is kept.
        placed: its units and seconds in the group, for the permit machine.
        nodes: the group's nodes that stand for the nodes of its own placement, in order.
        planned: what the plan of groups says of it.
    """

    name: str
    execution: Execution
    placed: PlacedJob
    nodes: tuple[int, ...]
    planned: GroupMember


@dataclass(frozen=True)
class PreparedGroup:
    """A group that passed all checks.

    Attributes:
        plan_path: its plan.
        key: its id.
        permit_rule: of its permits.
        jobs: its jobs.
        rooms: its nodes, each as a room of one node.
        units: the plan's units of each of its nodes.
        kind: of all devices, `cpu` or `cuda`.
    """

    plan_path: Path
    key: str
    permit_rule: str
    jobs: tuple[MemberJob, ...]
    rooms: tuple[Room, ...]
    units: tuple[tuple[int, ...], ...]
    kind: str

    def job(self, name: str) -> MemberJob:
        """The job of this name."""
        return next(job for job in self.jobs if job.name == name)


def prepare_groups(path: Path, key: str | None, out: Path, resume: bool) -> list[PreparedGroup]:
    """Load and check a plan of groups and the own plans of its jobs; nothing is written.

    `key`: of the group that is to run, in `out` itself; None: all groups, each in a folder of `out` (groups_folder.py).
    With `resume` a job whose run has no checkpoint begins anew. Raises InputError with all faults of the plan, the jobs
    and the folder.
    """
    _check_folder(path, out, resume, key is not None)
    folders = {} if key is None else {key: out}
    return checked_groups(path, key, lambda group, name: (folders.get(group, out / group) / name, resume))


def checked_groups(path: Path, key: str | None, run_of: Callable[[str, str], tuple[Path, bool]]) -> list[PreparedGroup]:
    """The groups of a plan, or the one of this key, checked; `run_of` returns the folder of a job of a group, and
    whether a run in it continues. Raises InputError with all faults of the plan and the jobs."""
    plan = load_groups_plan(path)
    if changed := changed_inputs(plan, path):
        raise InputError(f"{', '.join(changed)} changed since it was solved; solve again with --from", str(path))
    if key is not None and key not in plan.groups:
        groups = ", ".join(plan.groups)
        raise InputError(f"--group {key}: there is no such group; there are {groups}", str(path))
    keys = list(plan.groups) if key is None else [key]
    workload, cluster = load_workload(input_path(plan.inputs.workload, path))
    faults = ErrorCollector()
    for location, fault, remedy in unsupported_in_groups(plan):
        if location[1] in keys:
            text = f"{'.'.join(map(str, location))}: {fault}; {remedy}"
            faults.errors.append(error_at(path, location, text))
    faults.raise_any()
    prepared = [_group(path, plan, each, workload, cluster, run_of, faults) for each in keys]
    faults.raise_any()
    return prepared


def _group(
    path: Path,
    plan: GroupsPlan,
    key: str,
    workload: Workload,
    cluster: Cluster,
    run_of: Callable[[str, str], tuple[Path, bool]],
    faults: ErrorCollector,
) -> PreparedGroup:
    """A group of the plan; faults of its jobs go into `faults`. Raises InputError if they cannot share its nodes."""
    group = plan.groups[key]
    jobs = []
    for name in group.jobs:
        run_dir, goes_on = run_of(key, name)
        job = faults.try_read(lambda name=name, d=run_dir, on=goes_on: _job(path, plan, group, name, workload, d, on))  # type: ignore[misc]
        jobs += [] if job is None else [job]
    rooms = tuple(_room(node.pool, number, cluster) for number, node in enumerate(group.nodes))
    kinds = sorted({cluster.pools[room.pool].accelerators.kind for room in rooms})
    if len(kinds) > 1:
        raise InputError(f"group {key} has nodes of kind {' and '.join(kinds)}; write pools of one kind", str(path))
    if kinds == ["cuda"] and (judged := [job.name for job in jobs if job.execution.plan.job.reward.judge is not None]):
        raise InputError(
            f"group {key}: {', '.join(judged)}: a judge stays on its GPUs between the phases of its job, and other "
            "jobs have them then; run it alone, or without the judge",
            str(path),
        )
    ends = list(itertools.accumulate(node.slots for node in group.nodes))
    units = tuple(tuple(range(end - node.slots, end)) for node, end in zip(group.nodes, ends, strict=True))
    return PreparedGroup(path, key, plan.rules.policy, tuple(jobs), rooms, units, kinds[0])


def _check_folder(path: Path, out: Path, resume: bool, alone: bool) -> None:
    """Raises InputError unless groups can start in a folder, or continue their own runs there; `alone`: the folder is
    for one group."""
    must_take_folder(out)
    if holds_run(out):
        raise InputError("holds the run of one job; choose another --out", str(out))
    folders = group_folders(out)
    if resume and not folders:
        raise InputError("holds no run of a group to resume; run without --resume", str(out))
    if folders and alone != is_one_groups(out):
        whose = "of all groups of a plan" if alone else "of one group, which was started with --group"
        raise InputError(
            f"holds the runs {whose}; continue them as they were started, or choose another --out", str(out)
        )
    for folder in folders.values():
        try:
            done = any(event["event"] == "done" for event in read_trace(folder / GROUP_JOURNAL))
        except TraceError as error:
            raise InputError(f"{error}; choose another --out") from None
        if done and not resume:
            raise InputError("holds a group's run already; continue it with --resume or choose another --out", str(out))
    copy = out / GROUPS_COPY
    if resume and (not copy.is_file() or sha256_file(copy) != sha256_file(path)):
        raise InputError(
            f"runs another plan of groups than {path} is now (a copy is {GROUPS_COPY} in it); resume with that, and "
            "then change it with rlplan apply",
            str(out),
        )


def _job(
    path: Path, plan: GroupsPlan, group: PlannedGroup, name: str, workload: Workload, run_dir: Path, resume: bool
) -> MemberJob:
    source, planned = workload.jobs[name].source, group.jobs[name]
    assert source is not None, "its plan of groups has the digest of its source"
    goes_on = resume and has_checkpoint(run_dir)
    if planned.point is not None:
        own = input_path(plan.inputs.sources[name], path)
    else:
        own = _plan_of(source, input_path(plan.inputs.workload, path).parent)
    [execution] = prepare([own], run_dir, goes_on)
    apart = execution.plan.job.placement
    if apart is None or apart.streams:
        raise InputError(
            f"job {name}: its plan trains {'beside' if apart else 'on the devices of'} its rollout; in a group rollout "
            "and training take turns on nodes of their own; write placement: {train_pool: POOL, streams: false} into "
            "its job.yaml and solve it again",
            str(own),
        )
    nodes = _nodes(group, planned, execution, own)
    long = execution.plan.job.rounds.long
    if planned.rollout.resume_s is not None and long is not None and long.tail is not None:
        raise InputError(
            f"job {name}: its long rounds have a tail on engines of a higher TP size, and its rollout may be put aside "
            "for more urgent jobs (resume_s); remove one of the two",
            str(own),
        )
    if any(member.tail_units for member in group.jobs.values()):
        _must_follow_tails(group, planned, execution, own)
    return MemberJob(name, execution, placed_job(name, planned), nodes, planned)


def _must_follow_tails(group: PlannedGroup, planned: GroupMember, execution: Execution, own: Path) -> None:
    """Raises InputError unless a job can decode on a part of its rollout's nodes; its group has tails."""
    name, nodes = execution.name, len({group.node_of_unit(unit) for unit in planned.rollout.units})
    long = execution.plan.job.rounds.long
    if nodes > 1 and long is not None and long.tail is not None:
        raise InputError(
            f"job {name}: its long rounds have a tail on engines of a higher TP size, and its group moves tails to "
            "fewer nodes; remove one of the two",
            str(own),
        )
    there = len({held.node for held in placement_of([execution]).engines.values()})
    if there < nodes:
        raise InputError(
            f"job {name}: its plan has engines on {there} of its {nodes} nodes, and its group gives these one by one "
            "since tails move to fewer; solve it for engines on each, or set rules.tail_keep to 0",
            str(own),
        )


def placed_job(name: str, planned: GroupMember) -> PlacedJob:
    """A job as the plan of its group places it, in the plan's units."""
    return PlacedJob(
        name,
        (planned.rollout.units, planned.train.units),
        (planned.rollout.mean_s, planned.train.mean_s),
        (planned.rollout.switch_s, planned.train.switch_s),
        planned.pace_s,
        planned.tail_units or 0,
        (planned.rollout.resume_s, None),
    )


def _plan_of(source: PhaseSource, folder: Path) -> Path:
    """The job's own plan: the one that its source names, or the plan of the run that its source names. Raises
    InputError."""
    if source.plan is not None:
        return folder / source.plan
    assert source.run is not None, "a source is a plan or a run"
    run = folder / source.run
    try:
        plan = read_run(run / TRACE).plan_named
    except (OSError, TraceError) as error:
        raise InputError(f"its run cannot be read: {error}", str(run)) from None
    if plan is None:
        raise InputError("its run does not say which plan it was of; write source: {plan: ...}", str(run))
    return Path(os.path.normpath(run / str(plan)))


def _nodes(group: PlannedGroup, planned: GroupMember, execution: Execution, own: Path) -> tuple[int, ...]:
    """The group's nodes that stand for the nodes of the job's placement, in order. Raises InputError if they do not
    fit."""
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
