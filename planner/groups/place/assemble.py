"""Small edits of groups that every placing policy shares: grow, pin, residency, load.

Whole nodes only: what is pinned here holds all slots of its nodes, as the published policies do.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

from ..inputs.group_model import Group, GroupJob, NodeKind, Pin, Rules
from ..simulate.slowdowns import feasible
from .placing import node_of_units

MOST_CHOICES = 64
"""Sets of nodes that a policy which places one job looks at for each number of new nodes. Only many wide jobs in one
group have more; such a policy proves nothing, and the group program (pricing.py) does not ask here."""


def grow(group: Group, pools: Iterable[str], kinds: Mapping[str, NodeKind]) -> tuple[Group, tuple[int, ...]]:
    """The group with one more node for each of `pools`, and the indices of the new nodes; nobody uses them yet."""
    new = sorted(pools)
    if not new:
        return group, ()
    old = [(pool, 0, at) for at, pool in enumerate(group.nodes)]
    for at, pool in enumerate(new):
        insort(old, (pool, 1, at))  # after the old nodes of its pool: theirs keep their order
    place = {old_at: at for at, (_, is_new, old_at) in enumerate(old) if not is_new}
    first = {}
    unit = 0
    for at, (pool, _, _) in enumerate(old):
        first[at] = unit
        unit += kinds[pool].slots
    shifted: list[int] = []
    for at, pool in enumerate(group.nodes):
        shifted += range(first[place[at]], first[place[at]] + kinds[pool].slots)
    pins = tuple(pin.renumbered(dict(enumerate(shifted))) for pin in group.pins)
    return Group(tuple(pool for pool, _, _ in old), pins), tuple(at for at, (_, is_new, _) in enumerate(old) if is_new)


def choices(group: Group, among: Sequence[int], count: int, kinds: Mapping[str, NodeKind]) -> list[tuple[int, ...]]:
    """Choices of `count` of the nodes `among`, in order, but one only of those that differ by nodes that are alike (of
    one pool, with the same phases on the same slots), and at most `MOST_CHOICES`, those that keep to fewer kinds first.
    """
    on: list[list[tuple[int, int]]] = [[] for _ in node_of_units(group, kinds)]
    for at, pin in enumerate(group.pins):
        for phase, units in enumerate((pin.rollout_units, pin.train_units)):
            for unit in units:
                on[unit].append((at, phase))
    held: list[list[object]] = [[pool] for pool in group.nodes]
    for unit, node in enumerate(node_of_units(group, kinds)):
        held[node].append(tuple(on[unit]))
    alike: dict[tuple[object, ...], list[int]] = {}
    for node in among:
        alike.setdefault(tuple(held[node]), []).append(node)
    some = islice(_of_each(list(alike.values()), count), MOST_CHOICES)
    return sorted(tuple(sorted(nodes)) for nodes in some)


def _of_each(alike: Sequence[Sequence[int]], count: int) -> Iterator[tuple[int, ...]]:
    """`count` nodes, of each list its first ones."""
    if not alike:
        if count == 0:
            yield ()
        return
    room = sum(map(len, alike[1:]))
    for taken in range(min(len(alike[0]), count), max(0, count - room) - 1, -1):
        for rest in _of_each(alike[1:], count - taken):
            yield (*alike[0][:taken], *rest)


def pinned(
    group: Group,
    name: str,
    ways: tuple[int, int],
    rollout_nodes: Iterable[int],
    train_nodes: Iterable[int],
    kinds: Mapping[str, NodeKind],
) -> Group:
    """The group with job `name` pinned to all slots of these nodes, its rollout and training by these `ways`."""
    node = node_of_units(group, kinds)
    on_rollout, on_train = set(rollout_nodes), set(train_nodes)
    pin = Pin(
        name,
        ways[0],
        tuple(u for u, at in enumerate(node) if at in on_rollout),
        ways[1],
        tuple(u for u, at in enumerate(node) if at in on_train),
    )
    return Group(group.nodes, tuple(sorted((*group.pins, pin), key=lambda p: p.job)))


def alone(job: GroupJob, kinds: Mapping[str, NodeKind], ways: tuple[int, int] = (0, 0)) -> Group:
    """A group of the job's own: nodes for its rollout, and nodes for its training unless both ways are of one pool."""
    rollout, train = job.rollout[ways[0]], job.train[ways[1]]
    empty = Group((), ())
    if rollout.pool == train.pool:
        group, nodes = grow(empty, [train.pool] * max(rollout.nodes, train.nodes), kinds)
        return pinned(group, job.name, ways, nodes[: rollout.nodes], nodes[: train.nodes], kinds)
    group, nodes = grow(empty, [rollout.pool] * rollout.nodes + [train.pool] * train.nodes, kinds)
    on_rollout = [at for at in nodes if group.nodes[at] == rollout.pool]
    return pinned(group, job.name, ways, on_rollout, set(nodes) - set(on_rollout), kinds)


def resident_bytes(group: Group, jobs: Mapping[str, GroupJob], kinds: Mapping[str, NodeKind]) -> list[float]:
    """Host memory that the states of all members take, per node of the group."""
    node = node_of_units(group, kinds)
    total = [0.0] * len(group.nodes)
    for pin in group.pins:
        job = jobs[pin.job]
        for way, units in (
            (job.rollout[pin.rollout], pin.rollout_units),
            (job.train[pin.train], pin.train_units),
        ):
            for at in {node[u] for u in units}:
                total[at] += way.state_bytes
    return total


def resident(group: Group, jobs: Mapping[str, GroupJob], kinds: Mapping[str, NodeKind]) -> bool:
    """Whether every node's host memory holds the states pinned to it (refs/rollmux.md 2)."""
    return all(
        used < kinds[pool].host_memory_bytes
        for used, pool in zip(resident_bytes(group, jobs, kinds), group.nodes, strict=True)
    )


def load_s(group: Group, jobs: Mapping[str, GroupJob]) -> float:
    """T_load: seconds that the most loaded unit is held if each member does one iteration (refs/rollmux.md 3.2)."""
    load: dict[int, float] = {}
    for pin in group.pins:
        job = jobs[pin.job]
        for u in pin.rollout_units:
            load[u] = load.get(u, 0.0) + job.rollout[pin.rollout].mean_s
        for u in pin.train_units:
            load[u] = load.get(u, 0.0) + job.train[pin.train].mean_s
    return max(load.values())


def cycle_s(group: Group, jobs: Mapping[str, GroupJob]) -> float:
    """T_cycle: an iteration alone of the longest member (refs/rollmux.md 3.2)."""
    return max(jobs[pin.job].solo_s for pin in group.pins)


def keeps_bounds(group: Group, jobs: Mapping[str, GroupJob], rules: Rules) -> bool:
    """Whether the group is within the group cap and every member keeps its bound under `rules`."""
    return len(group.pins) <= rules.group_cap and feasible(group, jobs, rules)
