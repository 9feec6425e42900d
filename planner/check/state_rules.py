"""What a plan of groups asks of its workload's jobs as they are now: seconds and states of the ways that it chose.

The figures of the jobs are those that `solve` works with (groups/from_plans.py). Reads no file.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...plans.check.finding import Fault
from ...plans.check.prediction_rules import CLOSE, close
from ...plans.schema.groups_plan import GroupsPlan
from ...plans.schema.sections.planned_group import PinnedPhase, PlannedGroup
from ...plans.yaml.yaml_doc import Loc
from ..groups.inputs.group_model import Group, GroupJob, PhaseWay, Pin
from ..groups.inputs.workload_jobs import Problem
from ..groups.place.group_nodes import resident_bytes


def against_jobs(plan: GroupsPlan, problem: Problem) -> Iterator[Fault]:
    """Seconds, switches and states that are no longer those of the workload's jobs. Ways that a job no longer has are
    plans/check/groups_fit.py's to report, and are passed over here."""
    for key, group in plan.groups.items():
        pins: list[Pin] = []
        for name, member in group.jobs.items():
            job = problem.jobs.get(name)
            if job is None:
                continue
            at: Loc = ("groups", key, "jobs", name)
            yield from _same((*at, "slowdown", "alone_s"), member.slowdown.alone_s, job.solo_s, "its reference takes")
            rollout, train = _way(member.rollout, job.rollout), _way(member.train, job.train)
            for phase, pinned, way in (("rollout", member.rollout, rollout), ("train", member.train, train)):
                if way is not None:
                    yield from _same((*at, phase, "mean_s"), pinned.mean_s, way.mean_s, "this way of the job takes")
                    yield from _same((*at, phase, "switch_s"), pinned.switch_s, way.warm_s, "a warm switch takes")
            if rollout is not None and train is not None:
                pins.append(Pin(name, member.rollout.way, member.rollout.units, member.train.way, member.train.units))
        yield from _states(key, group, pins, problem)


def _way(pinned: PinnedPhase, ways: tuple[PhaseWay, ...]) -> PhaseWay | None:
    way = ways[pinned.way] if pinned.way < len(ways) else None
    return way if way is not None and way.pool == pinned.pool else None


def _same(at: Loc, stated: float, now: float, what: str) -> Iterator[Fault]:
    if not close(stated, now):
        yield Fault("way-changed", at, f"is {stated:.6g} s, and {what} {now:.6g} s", "solve again")


def _states(key: str, group: PlannedGroup, pins: list[Pin], problem: Problem) -> Iterator[Fault]:
    """States of the jobs whose ways are known, node by node."""
    node_types = problem.node_types
    if any(node.pool not in node_types or node_types[node.pool].slots != node.slots for node in group.nodes):
        return
    jobs: dict[str, GroupJob] = dict(problem.jobs)
    held = resident_bytes(Group(tuple(node.pool for node in group.nodes), tuple(pins)), jobs, node_types)
    for index, (node, now) in enumerate(zip(group.nodes, held, strict=True)):
        at: Loc = ("groups", key, "nodes", index, "resident_bytes")
        room = node_types[node.pool].host_memory_bytes
        if now > room * (1 + CLOSE):
            what = f"the states of the jobs on this node take {now:.6g} bytes, and it has {room:.6g}"
            yield Fault("state-beyond-memory", at, what, "solve again, or add host memory")
        elif len(pins) == len(group.jobs) and not close(now, node.resident_bytes):
            what = f"is {node.resident_bytes:.6g}, and the states of the jobs on this node take {now:.6g} bytes"
            yield Fault("state-contradicts-jobs", at, what, "solve again")
