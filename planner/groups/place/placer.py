"""The interface of a placer: a rule that places jobs one at a time, as they arrive and depart.

A placer sees the groups that run and one arrival or departure, and returns the next groups, so that ours and the
published placers can be exchanged and replayed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from ..inputs.group_model import Group, GroupJob, Jobs, NodeTypes, without_idle_nodes
from ..inputs.groups_state import GroupsState


class Placer(Protocol):
    """A rule that places jobs. It keeps nothing between calls that the state does not hold."""

    def arrive(self, state: GroupsState, job: GroupJob) -> GroupsState:
        """The state with `job` placed; jobs already placed may have moved (replan/moved_jobs.py)."""
        ...

    def depart(self, state: GroupsState, name: str) -> GroupsState:
        """The state without job `name`; nodes that no job needs any more are given back."""
        ...


@runtime_checkable
class Observer(Protocol):
    """A placer that is also told, before each event, the progress of the jobs."""

    def observe(self, elapsed_s: float, done_s: Mapping[str, float], jobs: Jobs) -> None:
        """In `elapsed_s` seconds each job did iterations that take it `done_s` seconds solo."""
        ...


def depart_in_place(state: GroupsState, name: str, node_types: NodeTypes) -> GroupsState:
    """The state without job `name`, all other jobs where they are; nodes that no job uses are given back."""
    key = state.group_of(name)
    group = state.groups[key]
    groups = dict(state.groups)
    pins = tuple(pin for pin in group.pins if pin.job != name)
    if pins:
        groups[key] = without_idle_nodes(Group(group.nodes, pins), node_types)
    else:
        del groups[key]
    return GroupsState({k: job for k, job in state.jobs.items() if k != name}, groups)


def placed_in_turn(placer: Placer, jobs: Jobs) -> GroupsState:
    """The state after all jobs arrived one after the other, by name."""
    state = GroupsState()
    for name in sorted(jobs):
        state = placer.arrive(state, jobs[name])
    return state
