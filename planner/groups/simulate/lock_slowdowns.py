"""Slowdowns of a planned group if a job in its turn has all nodes of a lock (plans/export/node_locks.py), and turns
come in the order of asking.

That is what systems do that know locks of pools and not units: the machine is the permit machine under `first_come`,
and each phase holds all units of its lock. No tail moves and no turn is paused.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ....plans.export.node_locks import NodeLock, PhaseName, lock_of
from ....plans.schema.groups_plan import PlannedGroup
from ..inputs.group_model import Group, Pin, Slowdown
from ..inputs.workload_jobs import Problem
from .slowdowns import bounds_kept, slowdowns


@dataclass(frozen=True)
class LockedJob:
    """A job under locks: its slowdown, and whether its bound holds."""

    slowdown: Slowdown
    keeps: bool


def lock_slowdowns(group: PlannedGroup, locks: tuple[NodeLock, ...], problem: Problem) -> dict[str, LockedJob]:
    """Simulated slowdowns of a planned group's jobs under locks of its nodes.

    Args:
        group: of a plan that was solved from the problem.
        locks: of the group.
        problem: with the seconds of the jobs' phases.
    """

    def units(job: str, phase: PhaseName) -> tuple[int, ...]:
        nodes = lock_of(locks, job, phase).nodes
        all_units = sum(node.slots for node in group.nodes)
        return tuple(unit for unit in range(all_units) if group.node_of_unit(unit) in nodes)

    pins = tuple(
        Pin(name, member.rollout.way, units(name, "rollout"), member.train.way, units(name, "train"))
        for name, member in sorted(group.jobs.items())
    )
    locked = Group(tuple(node.pool for node in group.nodes), pins)
    rules = replace(problem.rules, permit_rule="first_come", tail_keep=0.0)
    simulated = slowdowns(locked, problem.jobs, rules)
    kept = bounds_kept(locked, problem.jobs, simulated, rules)
    return {name: LockedJob(simulated[name], kept[name]) for name in simulated}
