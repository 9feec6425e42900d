"""Which jobs move between two placements.

Nodes of one pool in a group are alike, so which jobs moved follows from the two states alone: the nodes of a group
before and after are matched, pool by pool, such that the most jobs stay where they were.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import combinations

from ..inputs.group_model import Group, NodeTypes, nodes_of_pins
from ..inputs.groups_state import GroupsState


def moved_jobs(before: GroupsState, after: GroupsState, node_types: NodeTypes) -> list[str]:
    """Names, sorted, of the jobs in both states whose nodes changed other than by nodes being added for others."""
    moved: list[str] = []
    for key, old in before.groups.items():
        new = after.groups.get(key)
        if new is old:
            continue
        here = {pin.job for pin in old.pins} & ({pin.job for pin in new.pins} if new else set())
        moved += [pin.job for pin in old.pins if pin.job not in here and pin.job in after.jobs]
        if new and here:
            stay = staying(old, new, sorted(here), node_types)
            moved += [pin.job for pin in new.pins if pin.job in here and pin.job not in stay]
    return sorted(moved)


def staying(
    old: Group, new: Group, names: Sequence[str], node_types: NodeTypes, worth: Mapping[str, float] | None = None
) -> frozenset[str]:
    """The jobs of `names` that keep the nodes they have in `old` if `new` takes these nodes over: the most of them, or
    the most in `worth`. Nodes of one pool are alike, so jobs can stay where they meet on as many nodes, in the same
    phases.
    """
    before, after = _occupants(old, node_types), _occupants(new, node_types)
    if _meetings(before, names) == _meetings(after, names):
        return frozenset(names)
    subsets = sorted(
        (frozenset(s) for size in range(1, len(names)) for s in combinations(names, size)),
        key=lambda s: (-sum(worth[name] if worth else 1.0 for name in sorted(s)), sorted(s)),
    )
    return next((s for s in subsets if _meetings(before, s) == _meetings(after, s)), frozenset())


_Occupants = list[tuple[str, list[tuple[str, int]]]]
"""Of each node: its pool, and the (job, phase) pairs on it; phase 0 is rollout, 1 training."""


def _occupants(group: Group, node_types: NodeTypes) -> _Occupants:
    nodes: _Occupants = [(pool, []) for pool in group.nodes]
    for name, phases in sorted(nodes_of_pins(group, node_types).items()):
        for phase, held in enumerate(phases):
            for node in held:
                nodes[node][1].append((name, phase))
    return nodes


def _meetings(nodes: _Occupants, names: Collection[str]) -> list[tuple[str, tuple[tuple[str, int], ...]]]:
    """How the phases of `names` meet on nodes, whatever the order of nodes."""
    met = ((pool, tuple(sorted(pair for pair in on if pair[0] in names))) for pool, on in nodes)
    return sorted(row for row in met if row[1])
