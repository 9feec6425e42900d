"""Edits of a group's nodes: add nodes, choose nodes for a job, pin a job to nodes; and the host memory that they need.

Whole nodes only: a job that is pinned here holds all slots of its nodes, as the published placers do.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Protocol, runtime_checkable

from ..inputs.group_model import Group, GroupJob, GroupsState, Jobs, NodeTypes, Pin, node_of_units, without_idle_nodes

# The interface of a placer: a rule that places jobs one at a time, as they arrive and depart.
#
# A placer sees the groups that run and one arrival or departure, and returns the next groups, so that ours and the
# published placers can be exchanged and replayed.


class Placer(Protocol):
    """A rule that places jobs. It keeps nothing between calls that the state does not hold."""

    def arrive(self, state: GroupsState, job: GroupJob) -> GroupsState:
        """The state with `job` placed; jobs already placed may have moved (moves.py)."""
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


MOST_CHOICES = 64
"""Sets of nodes that a placer of one job tries for each number of new nodes. Only many wide jobs in one group have
more; such a placer proves nothing, and the group program (pricing.py) does not choose nodes here."""


def grow(group: Group, pools: Iterable[str], node_types: NodeTypes) -> tuple[Group, tuple[int, ...]]:
    """The group with one more node for each of `pools`, and the indices of the new nodes; no job uses them yet."""
    new = sorted(pools)
    if not new:
        return group, ()
    nodes = [(pool, 0, old) for old, pool in enumerate(group.nodes)]
    for index, pool in enumerate(new):
        insort(nodes, (pool, 1, index))  # after the old nodes of its pool, so that these keep their order
    shifted: dict[int, range] = {}
    unit = 0
    for pool, is_new, old in nodes:
        if not is_new:
            shifted[old] = range(unit, unit + node_types[pool].slots)
        unit += node_types[pool].slots
    renumbered = dict(enumerate(unit for old in range(len(group.nodes)) for unit in shifted[old]))
    grown = Group(tuple(pool for pool, _, _ in nodes), tuple(pin.renumbered(renumbered) for pin in group.pins))
    return grown, tuple(index for index, (_, is_new, _) in enumerate(nodes) if is_new)


def node_choices(group: Group, among: Sequence[int], count: int, node_types: NodeTypes) -> list[tuple[int, ...]]:
    """Sets of `count` of the nodes `among`, in order, at most `MOST_CHOICES`.

    Nodes are alike if they are of one pool and hold the same phases on the same slots. Of choices that differ only by
    nodes that are alike one is returned; choices that take more of the first alike nodes come first.
    """
    on: list[list[tuple[int, int]]] = [[] for _ in node_of_units(group, node_types)]
    for number, pin in enumerate(group.pins):
        for phase, units in enumerate((pin.rollout_units, pin.train_units)):
            for unit in units:
                on[unit].append((number, phase))
    held: list[list[object]] = [[pool] for pool in group.nodes]
    for unit, node in enumerate(node_of_units(group, node_types)):
        held[node].append(tuple(on[unit]))
    alike: dict[tuple[object, ...], list[int]] = {}
    for node in among:
        alike.setdefault(tuple(held[node]), []).append(node)
    return sorted(tuple(sorted(nodes)) for nodes in islice(_first_of_each(list(alike.values()), count), MOST_CHOICES))


def _first_of_each(alike: Sequence[Sequence[int]], count: int) -> Iterator[tuple[int, ...]]:
    """Every way to take `count` nodes in all, the first ones of each list."""
    if not alike:
        if count == 0:
            yield ()
        return
    room = sum(map(len, alike[1:]))
    for taken in range(min(len(alike[0]), count), max(0, count - room) - 1, -1):
        for rest in _first_of_each(alike[1:], count - taken):
            yield (*alike[0][:taken], *rest)


def pinned(
    group: Group,
    name: str,
    options: tuple[int, int],
    rollout_nodes: Iterable[int],
    train_nodes: Iterable[int],
    node_types: NodeTypes,
) -> Group:
    """The group with job `name` pinned to all slots of these nodes, its rollout and training by these `ways`."""
    node_of = node_of_units(group, node_types)
    rollout_units, train_units = (
        tuple(unit for unit, node in enumerate(node_of) if node in nodes)
        for nodes in (set(rollout_nodes), set(train_nodes))
    )
    return group.with_pin(Pin(name, options[0], rollout_units, options[1], train_units))


def solo_group(job: GroupJob, node_types: NodeTypes, options: tuple[int, int] = (0, 0)) -> Group:
    """A group of the job's own: nodes for its rollout, and nodes for its training unless both ways are of one pool."""
    rollout, train = job.rollout[options[0]], job.train[options[1]]
    empty = Group((), ())
    if rollout.pool == train.pool:
        group, nodes = grow(empty, [train.pool] * max(rollout.nodes, train.nodes), node_types)
        return pinned(group, job.name, options, nodes[: rollout.nodes], nodes[: train.nodes], node_types)
    group, nodes = grow(empty, [rollout.pool] * rollout.nodes + [train.pool] * train.nodes, node_types)
    on_rollout = [node for node in nodes if group.nodes[node] == rollout.pool]
    return pinned(group, job.name, options, on_rollout, set(nodes) - set(on_rollout), node_types)


def resident_bytes(group: Group, jobs: Jobs, node_types: NodeTypes) -> list[float]:
    """Host memory that the sleeping states of all members take, per node of the group."""
    total = [0.0] * len(group.nodes)
    node_of = node_of_units(group, node_types)
    for pin in group.pins:
        job = jobs[pin.job]
        for option, units in ((job.rollout[pin.rollout], pin.rollout_units), (job.train[pin.train], pin.train_units)):
            for node in {node_of[unit] for unit in units}:
                total[node] += option.state_bytes
    return total


def resident(group: Group, jobs: Jobs, node_types: NodeTypes) -> bool:
    """Whether every node's host memory holds the states pinned to it (RollMux, arXiv 2512.11306)."""
    return all(
        used < node_types[pool].host_memory_bytes
        for used, pool in zip(resident_bytes(group, jobs, node_types), group.nodes, strict=True)
    )
