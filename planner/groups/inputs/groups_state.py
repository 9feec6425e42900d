"""The state that placing and re-planning start from: which jobs are in the system, and the groups they run in.

Group ids are stable: a group keeps its id for as long as it has nodes, and an id says nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .group_model import Group, GroupJob, Jobs, NodeTypes


@dataclass(frozen=True)
class GroupsState:
    """Jobs in the system and the groups that they run in; every job is pinned in exactly one group."""

    jobs: Jobs = field(default_factory=dict)
    groups: Mapping[str, Group] = field(default_factory=dict)

    def usd_per_hour(self, node_types: NodeTypes) -> float:
        """Price of all nodes of all groups."""
        return sum(group.usd_per_hour(node_types) for group in self.groups.values())

    def group_of(self, name: str) -> str:
        """Id of the group that job `name` runs in; KeyError if none."""
        for key, group in self.groups.items():
            if any(pin.job == name for pin in group.pins):
                return key
        raise KeyError(name)

    def with_job(self, job: GroupJob, key: str, group: Group) -> GroupsState:
        """The state with `job`, which `group` holds, and this group under id `key`."""
        return GroupsState({**self.jobs, job.name: job}, {**self.groups, key: group})


def next_id(groups: Mapping[str, Group]) -> str:
    """A group id that `groups` does not use."""
    return f"g{1 + max((int(key[1:]) for key in groups), default=0):06d}"
