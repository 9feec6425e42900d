"""What a policy that places jobs is: running groups and one arrival or departure in, the next groups out.

A `State` holds all that a policy may look at, so that ours and the published baselines can be exchanged and replayed.
Group ids are stable: a group keeps its id for as long as it has nodes, and an id says nothing else. Nodes of one pool
in a group are alike, so which jobs moved is read off two states: `moves(before, after)` matches the nodes of a group
before and after, pool by pool, such that the most jobs stay where they were.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Protocol, runtime_checkable

from ..inputs.group_model import Group, GroupJob, NodeKind


@dataclass(frozen=True)
class State:
    """Jobs in the system and the groups that they run in; every job is pinned in exactly one group."""

    jobs: Mapping[str, GroupJob] = field(default_factory=dict)
    groups: Mapping[str, Group] = field(default_factory=dict)

    def usd_per_hour(self, kinds: Mapping[str, NodeKind]) -> float:
        """Price of all nodes of all groups."""
        return sum(group.usd_per_hour(kinds) for group in self.groups.values())

    def group_of(self, name: str) -> str:
        """Id of the group that job `name` runs in; KeyError if none."""
        for key, group in self.groups.items():
            if any(pin.job == name for pin in group.pins):
                return key
        raise KeyError(name)


class Placer(Protocol):
    """A policy that places jobs. It keeps nothing between calls that the state does not hold."""

    def arrive(self, state: State, job: GroupJob) -> State:
        """The state with `job` placed; jobs already placed may have moved (see `moves`)."""
        ...

    def depart(self, state: State, name: str) -> State:
        """The state without job `name`; nodes that nobody needs any more are given back."""
        ...


@runtime_checkable
class Observer(Protocol):
    """A policy that is also told how far the jobs got, before each event."""

    def observe(self, elapsed_s: float, done_s: Mapping[str, float], jobs: Mapping[str, GroupJob]) -> None:
        """For `elapsed_s` seconds each job did as much as takes it `done_s` seconds alone."""
        ...


def next_id(groups: Mapping[str, Group]) -> str:
    """A group id that `groups` does not use."""
    return f"g{1 + max((int(key[1:]) for key in groups), default=0):06d}"


def node_of_units(group: Group, kinds: Mapping[str, NodeKind]) -> tuple[int, ...]:
    """Index into `group.nodes` of each unit of the group."""
    return tuple(node for node, pool in enumerate(group.nodes) for _ in range(kinds[pool].slots))


def nodes_of_pins(group: Group, kinds: Mapping[str, NodeKind]) -> dict[str, tuple[frozenset[int], frozenset[int]]]:
    """Nodes (indices into `group.nodes`) that each job's rollout and training hold."""
    node = node_of_units(group, kinds)
    return {
        pin.job: (frozenset(node[u] for u in pin.rollout_units), frozenset(node[u] for u in pin.train_units))
        for pin in group.pins
    }


def without_idle_nodes(group: Group, kinds: Mapping[str, NodeKind]) -> Group:
    """The group without nodes that no pin uses; units are numbered anew, jobs stay where they are."""
    node = node_of_units(group, kinds)
    used = {node[u] for pin in group.pins for u in pin.rollout_units + pin.train_units}
    if len(used) == len(group.nodes):
        return group
    kept = {u: at for at, u in enumerate(u for u in range(len(node)) if node[u] in used)}
    pins = tuple(pin.renumbered(kept) for pin in group.pins)
    return Group(tuple(pool for at, pool in enumerate(group.nodes) if at in used), pins)


def depart_in_place(state: State, name: str, kinds: Mapping[str, NodeKind]) -> State:
    """The state without job `name`, everybody else where they are; nodes that nobody uses are given back."""
    key = state.group_of(name)
    group = state.groups[key]
    groups = dict(state.groups)
    pins = tuple(pin for pin in group.pins if pin.job != name)
    if pins:
        groups[key] = without_idle_nodes(Group(group.nodes, pins), kinds)
    else:
        del groups[key]
    return State({k: job for k, job in state.jobs.items() if k != name}, groups)


def moves(before: State, after: State, kinds: Mapping[str, NodeKind]) -> list[str]:
    """Names, sorted, of the jobs in both states whose nodes changed other than by nodes being added for others."""
    moved: list[str] = []
    for key, old in before.groups.items():
        new = after.groups.get(key)
        if new is old:
            continue
        stay = {pin.job for pin in new.pins} if new else set()
        here = {pin.job for pin in old.pins} & stay
        moved += [pin.job for pin in old.pins if pin.job not in here and pin.job in after.jobs]
        if new and here:
            moved += moved_within(old, new, kinds)
    return sorted(moved)


def moved_within(old: Group, new: Group, kinds: Mapping[str, NodeKind]) -> list[str]:
    """Jobs of both whose nodes differ, if `new` takes over the nodes of `old` such that the fewest have to move."""
    stay = staying(old, new, sorted({pin.job for pin in old.pins} & {pin.job for pin in new.pins}), kinds)
    return [pin.job for pin in new.pins if pin.job not in stay and any(pin.job == was.job for was in old.pins)]


def staying(
    old: Group,
    new: Group,
    names: Sequence[str],
    kinds: Mapping[str, NodeKind],
    worth: Mapping[str, float] | None = None,
) -> frozenset[str]:
    """Those of `names` that can all keep the nodes they have in `old` if `new` takes these over: the most of them, or
    the most in `worth`. Nodes of one pool are alike, so they can where they meet on as many nodes, in the same phases.
    """
    was, now = _occupants(old, kinds), _occupants(new, kinds)
    if _shape(was, names) == _shape(now, names):
        return frozenset(names)
    some = sorted(
        (frozenset(s) for size in range(1, len(names)) for s in combinations(names, size)),
        key=lambda s: (-sum(worth[name] if worth else 1.0 for name in sorted(s)), sorted(s)),
    )
    return next((s for s in some if _shape(was, s) == _shape(now, s)), frozenset())


_Occupants = list[tuple[str, list[tuple[str, int]]]]
"""Of each node: its pool, and who is on it in which phase (0 rollout, 1 training)."""


def _occupants(group: Group, kinds: Mapping[str, NodeKind]) -> _Occupants:
    found: _Occupants = [(pool, []) for pool in group.nodes]
    for name, phases in sorted(nodes_of_pins(group, kinds).items()):
        for phase, held in enumerate(phases):
            for node in held:
                found[node][1].append((name, phase))
    return found


def _shape(nodes: _Occupants, names: Collection[str]) -> list[tuple[str, tuple[tuple[str, int], ...]]]:
    """How the phases of `names` meet on nodes, whatever the order of nodes."""
    seen = ((pool, tuple(sorted(who for who in on if who[0] in names))) for pool, on in nodes)
    return sorted(row for row in seen if row[1])
