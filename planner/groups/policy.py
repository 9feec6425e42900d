"""What a policy that places jobs is: running groups and one arrival or departure in, the next groups out.

A `State` holds all that a policy may look at, so that ours and the published baselines can be exchanged and replayed.
Group ids are stable: a group keeps its id for as long as it has nodes, and an id says nothing else. Nodes of one pool
in a group are alike, so which jobs moved is read off two states: `moves(before, after)` matches the nodes of a group
before and after, pool by pool, such that the most phases stay where they were.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import permutations
from typing import Protocol, runtime_checkable

from .model import Group, GroupJob, NodeKind, Pin


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
    pins = tuple(
        Pin(
            pin.job,
            pin.rollout,
            tuple(kept[u] for u in pin.rollout_units),
            pin.train,
            tuple(kept[u] for u in pin.train_units),
        )
        for pin in group.pins
    )
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
    """Jobs of both whose nodes differ, if `new` takes over the nodes of `old`, matched to keep most phases in place."""
    was, now = nodes_of_pins(old, kinds), nodes_of_pins(new, kinds)
    names = sorted(was.keys() & now.keys())
    if all(was[name] == now[name] for name in names) and old.nodes == new.nodes[: len(old.nodes)]:
        return []
    matched: dict[int, int] = {}
    for pool in sorted(set(old.nodes)):
        olds = [at for at, p in enumerate(old.nodes) if p == pool]
        news = [at for at, p in enumerate(new.nodes) if p == pool]
        matched.update(_match(olds, news, [(was[n], now[n]) for n in names]))
    return [
        n for n in names if any({matched.get(at, -1) for at in a} != b for a, b in zip(was[n], now[n], strict=True))
    ]


_EXACT_NODES = 6
"""Nodes of a pool up to which every matching is tried; above, nodes are matched one by one by the jobs they share."""


def _match(
    olds: list[int], news: list[int], pins: list[tuple[tuple[frozenset[int], ...], tuple[frozenset[int], ...]]]
) -> dict[int, int]:
    """Old node to new node of one pool, such that most pins keep their nodes; -1: given back."""

    def shared(a: int, b: int) -> int:
        return sum((a in x) and (b in y) for was, now in pins for x, y in zip(was, now, strict=True))

    if max(len(olds), len(news)) > _EXACT_NODES:
        free, found = list(news), {}
        for a in olds:
            b = max(free, key=lambda b: (shared(a, b), -b), default=-1)
            found[a] = b
            free = [x for x in free if x != b]
        return found
    newset = set(news)
    padded = news + [-1] * max(0, len(olds) - len(news))
    ours = set(olds)

    def kept(matching: dict[int, int]) -> int:
        return sum(
            {matching[at] for at in x & ours} == {at for at in y if at in newset}
            for was, now in pins
            for x, y in zip(was, now, strict=True)
        )

    return max((dict(zip(olds, p, strict=True)) for p in permutations(padded, len(olds))), key=kept)
