"""The nodes of a planned group that must be locked together if a lock lets one job at a time have all of its nodes.

Nodes that a phase holds are locked together, and so are nodes that some phases have in common. Of a group with a
rollout pool and a training pool that makes two locks; three jobs that share no node with three others make two more.

Invariants: every node that a phase holds is in exactly one lock; all nodes of a phase are in one lock.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from ..schema.groups_plan import PinnedPhase, PlannedGroup

PhaseName = Literal["rollout", "train"]
PHASES: tuple[PhaseName, ...] = ("rollout", "train")


@dataclass(frozen=True)
class NodeLock:
    """A lock of a group's nodes: the job that has it may use all of them, and no other job may use any.

    Attributes:
        name: of the lock: the group's id, what its nodes are for, and a number if the group has several such locks.
        nodes: indices into the group's nodes, ascending.
        rollouts: jobs that decode on them, sorted.
        trains: jobs that train on them, sorted.
    """

    name: str
    nodes: tuple[int, ...]
    rollouts: tuple[str, ...]
    trains: tuple[str, ...]

    @property
    def jobs(self) -> tuple[str, ...]:
        """Jobs that take the lock, sorted."""
        return tuple(sorted({*self.rollouts, *self.trains}))

    def jobs_of(self, phase: PhaseName) -> tuple[str, ...]:
        """Jobs that take the lock for this phase, sorted."""
        return self.rollouts if phase == "rollout" else self.trains


def pinned_phases(group: PlannedGroup) -> Iterator[tuple[str, PhaseName, PinnedPhase]]:
    """Yield (job, phase, where it runs) of the group's jobs in the order of their names."""
    for name, member in sorted(group.jobs.items()):
        yield name, "rollout", member.rollout
        yield name, "train", member.train


def nodes_held(group: PlannedGroup, pinned: PinnedPhase) -> tuple[int, ...]:
    """Indices of the nodes that a phase has units of, ascending."""
    return tuple(sorted({group.node_of_unit(unit) for unit in pinned.units}))


def node_locks(key: str, group: PlannedGroup) -> tuple[NodeLock, ...]:
    """Return the locks of the group with id `key`, in the order of their first nodes."""
    sets: list[set[int]] = []
    for _, _, pinned in pinned_phases(group):
        held = set(nodes_held(group, pinned))
        touched = [nodes for nodes in sets if nodes & held]
        sets = [nodes for nodes in sets if not nodes & held] + [held.union(*touched)]
    found: list[tuple[str, NodeLock]] = []
    for nodes in sorted(sets, key=min):
        users: dict[PhaseName, list[str]] = {"rollout": [], "train": []}
        for name, phase, pinned in pinned_phases(group):
            if nodes.issuperset(nodes_held(group, pinned)):
                users[phase].append(name)
        use = "both" if users["rollout"] and users["train"] else "rollout" if users["rollout"] else "train"
        found.append((use, NodeLock("", tuple(sorted(nodes)), tuple(users["rollout"]), tuple(users["train"]))))
    locks = []
    for index, (use, lock) in enumerate(found):
        same_use = [place for place, (other, _) in enumerate(found) if other == use]
        number = f"-{same_use.index(index) + 1}" if len(same_use) > 1 else ""
        locks.append(NodeLock(f"{key}-{use}{number}", lock.nodes, lock.rollouts, lock.trains))
    return tuple(locks)


def lock_of(locks: tuple[NodeLock, ...], job: str, phase: PhaseName) -> NodeLock:
    """Return the lock that a job takes for a phase."""
    return next(lock for lock in locks if job in lock.jobs_of(phase))
