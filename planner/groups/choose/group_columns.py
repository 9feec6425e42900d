"""Candidate columns of the group program: which jobs, in which ways, on which nodes.

A *mode* is one rollout way with one train way of a job. Its *share* of a node is the part of all time (times the
part of the node's slots) that a phase must hold the node for the job to keep its bound. No unit is held more than all
of the time under any policy, so that shares of at most 1 are a necessary condition, and in dollars they are the least
that a job can cost (the fluid bound of refs/rollmux.md 9). What passes is feasible if `rates.feasible_many` says so.

`Checker` keeps what was simulated, by content: which jobs (by identity: a job whose durations changed is another
object), in which ways, and who shares units with whom (with tails, on which units). The permit machine knows no more
of it, so that re-solves and renumbered nodes find the same entry.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..inputs.group_model import Group, GroupJob, NodeKind, Pin, Rules, Slowdown
from ..place.assemble import choices, grow, resident
from ..place.placing import node_of_units
from ..simulate.permit_seats import bound
from ..simulate.slowdowns import feasible_many, slowdowns

FULL = 1.0 + 1e-6
"""Share of the time that a unit can be held."""

_ENTRIES = 1_000_000
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Mode:
    """One way for each phase of a job. Pairs are (rollout, train)."""

    job: str
    ways: tuple[int, int]
    pools: tuple[str, str]
    nodes: tuple[int, int]
    slots: tuple[int, int]
    share: tuple[float, float]
    """Of each of its nodes."""
    state_bytes: tuple[float, float]
    """On each of its nodes."""

    def fluid_usd_per_hour(self, usd_per_hour: Mapping[str, float]) -> float:
        """Price of the time and slots that it must hold, at these prices of a node."""
        return sum(usd_per_hour[p] * n * s for p, n, s in zip(self.pools, self.nodes, self.share, strict=True))


@dataclass(frozen=True, slots=True)
class Column:
    """A feasible group and its price."""

    group: Group
    usd_per_hour: float

    @property
    def jobs(self) -> tuple[str, ...]:
        return tuple(pin.job for pin in self.group.pins)


def modes(job: GroupJob, kinds: Mapping[str, NodeKind], rules: Rules) -> list[Mode]:
    """Modes of a job that host memory holds and that keep the bound when alone, the cheapest in fluid price first.

    A mode is left out if another holds no more nodes, slots, seconds and bytes of the same pools in both phases.
    """
    pace = bound(job, rules) * job.solo_s
    found = []
    for r, rollout in enumerate(job.rollout):
        for t, train in enumerate(job.train):
            ways = (rollout, train)
            if (r or t) and rollout.mean_s + train.mean_s > pace:
                continue
            if any(way.state_bytes >= kinds[way.pool].host_memory_bytes for way in ways):
                continue
            # Units of a rollout that its tail can do without are certainly held only until then.
            held = (1.0 - job.tail_share if rules.tail_keep else 1.0, 1.0)
            share = [
                h * way.mean_s / pace * way.slots / kinds[way.pool].slots for h, way in zip(held, ways, strict=True)
            ]
            found.append(
                Mode(
                    job.name,
                    (r, t),
                    (rollout.pool, train.pool),
                    (rollout.nodes, train.nodes),
                    (rollout.slots, train.slots),
                    (share[0], share[1]),
                    (rollout.state_bytes, train.state_bytes),
                )
            )
    kept = [m for m in found if not any(_dominates(other, m) for other in found if other is not m)]
    price = {pool: kind.usd_per_hour for pool, kind in kinds.items()}
    return sorted(kept, key=lambda m: (m.fluid_usd_per_hour(price), m.ways))


def _dominates(a: Mode, b: Mode) -> bool:
    def needs(mode: Mode) -> tuple[float, ...]:
        seconds = tuple(share / slots for share, slots in zip(mode.share, mode.slots, strict=True))
        return (*mode.nodes, *mode.slots, *seconds, *mode.state_bytes)

    less = all(x <= y for x, y in zip(needs(a), needs(b), strict=True))
    return a.pools == b.pools and less and (needs(a) != needs(b) or a.ways < b.ways)


def unit_shares(group: Group, jobs: Mapping[str, GroupJob], rules: Rules, kinds: Mapping[str, NodeKind]) -> list[float]:
    """Share of the time that each unit of the group must be held."""
    held = [0.0] * len(node_of_units(group, kinds))
    for pin in group.pins:
        job = jobs[pin.job]
        pace = bound(job, rules) * job.solo_s
        rollout_s = job.rollout[pin.rollout].mean_s * (1.0 - job.tail_share if rules.tail_keep else 1.0)
        for seconds, units in ((rollout_s, pin.rollout_units), (job.train[pin.train].mean_s, pin.train_units)):
            for unit in units:
                held[unit] += seconds / pace
    return held


def attach(
    group: Group,
    mode: Mode,
    on: tuple[Sequence[int], Sequence[int]],
    held: Sequence[float],
    kinds: Mapping[str, NodeKind],
) -> Group:
    """The group with a job pinned to nodes `on` (rollout, train); of a node cut into slots it takes the least held.

    Args:
        held: share of each unit held by others, by unit; which slots a job takes is this rule and no choice.
    """
    node = node_of_units(group, kinds)
    taken: list[tuple[int, ...]] = []
    for nodes, slots in zip(on, mode.slots, strict=True):
        units: list[int] = []
        for at in nodes:
            here = [u for u, n in enumerate(node) if n == at]
            # Its own other phase never runs at the same time: slots that it has anyway come first.
            own = set(taken[0]) if taken else set()
            units += sorted(here, key=lambda u: (held[u], u not in own, u))[:slots]
        taken.append(tuple(sorted(units)))
    pin = Pin(mode.job, mode.ways[0], taken[0], mode.ways[1], taken[1])
    return Group(group.nodes, tuple(sorted((*group.pins, pin), key=lambda p: p.job)))


def built(
    members: Sequence[tuple[Mode, Sequence[int], Sequence[int]]],
    pools: Sequence[str],
    kinds: Mapping[str, NodeKind],
) -> Group:
    """A group of members (mode, rollout nodes, train nodes); nodes are indices into `pools`, which need no order."""
    order = sorted(range(len(pools)), key=lambda at: (pools[at], at))
    place = {at: new for new, at in enumerate(order)}
    group = Group(tuple(pools[at] for at in order), ())
    node = node_of_units(group, kinds)
    held = [0.0] * len(node)
    # The longest first, so that slots fill evenly.
    for mode, on_rollout, on_train in sorted(members, key=lambda m: (-sum(m[0].share), m[0].job)):
        group = attach(group, mode, ([place[at] for at in on_rollout], [place[at] for at in on_train]), held, kinds)
        pin = next(p for p in group.pins if p.job == mode.job)
        for units, share, phase in ((pin.rollout_units, mode.share[0], 0), (pin.train_units, mode.share[1], 1)):
            for unit in units:
                held[unit] += share * kinds[mode.pools[phase]].slots / mode.slots[phase]
    return group


def lone(mode: Mode, kinds: Mapping[str, NodeKind]) -> Group:
    """A job on nodes of its own; phases of one pool share nodes."""
    r, t = mode.nodes
    if mode.pools[0] == mode.pools[1]:
        return built([(mode, range(r), range(t))], [mode.pools[0]] * max(r, t), kinds)
    return built([(mode, range(r), range(r, r + t))], [mode.pools[0]] * r + [mode.pools[1]] * t, kinds)


def extensions(
    group: Group,
    mode: Mode,
    jobs: Mapping[str, GroupJob],
    kinds: Mapping[str, NodeKind],
    rules: Rules,
) -> Iterator[tuple[float, Group]]:
    """(added USD per hour, group with the job of `mode`) for every choice of nodes that load and host memory allow.

    Args:
        jobs: all members and the new job, by name.
    """
    for grown, on_rollout, _ in _choices(group, mode.pools[0], mode.nodes[0], (), kinds):
        for last, on_train, kept in _choices(grown, mode.pools[1], mode.nodes[1], on_rollout, kinds):
            held = unit_shares(last, jobs, rules, kinds)
            candidate = attach(last, mode, (kept, on_train), held, kinds)
            if max(unit_shares(candidate, jobs, rules, kinds)) <= FULL and resident(candidate, jobs, kinds):
                yield candidate.usd_per_hour(kinds) - group.usd_per_hour(kinds), candidate


def _choices(
    group: Group, pool: str, count: int, keep: Sequence[int], kinds: Mapping[str, NodeKind]
) -> Iterator[tuple[Group, tuple[int, ...], tuple[int, ...]]]:
    """The group, grown if need be, `count` of its nodes of the pool, and where the nodes `keep` are now."""
    for new in range(count + 1):
        grown, added = grow(group, [pool] * new, kinds)
        old = [at for at in range(len(grown.nodes)) if at not in added]
        for some in choices(grown, [at for at in old if grown.nodes[at] == pool], count - new, kinds):
            yield grown, (*some, *added), tuple(old[at] for at in keep)


class Checker:
    """Feasibility and slowdowns of groups under one set of rules, each simulated once."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.simulated = 0
        self._tokens: dict[int, tuple[GroupJob, int]] = {}
        self._keeps: dict[tuple[object, ...], bool] = {}
        self._slow: dict[tuple[object, ...], dict[str, Slowdown]] = {}

    def keeps(self, groups: Sequence[Group], jobs: Mapping[str, GroupJob]) -> list[bool]:
        """Whether every member of each group keeps its bound; loads and residency are the caller's to check.

        A verdict falls before a period is found, and a few in a thousand are wrong by some tenths of a percent: what is
        chosen has to be asked by `holds`.
        """
        keys = [self._key(group, jobs) for group in groups]
        unknown = {key: group for key, group in zip(keys, groups, strict=True) if key not in self._keeps}
        if unknown:
            if len(self._keeps) > _ENTRIES:
                self._keeps.clear()
            self.simulated += len(unknown)
            found = feasible_many(list(unknown.values()), jobs, self.rules)
            self._keeps.update(zip(unknown, found, strict=True))
            if any(key not in self._keeps for key in keys):
                return self.keeps(groups, jobs)
        return [self._keeps[key] for key in keys]

    def holds(self, group: Group, jobs: Mapping[str, GroupJob]) -> bool:
        """Whether the group keeps all bounds by its long-run means too; if not, `keeps` knows it from now on."""
        held = self.keeps([group], jobs)[0] and (
            len(group.pins) == 1
            or all(
                slow.mean <= bound(jobs[name], self.rules) + _ROUNDING
                for name, slow in self.slowdowns(group, jobs).items()
            )
        )
        self._keeps[self._key(group, jobs)] = held
        return held

    def lost(self, group: Group, jobs: Mapping[str, GroupJob], kinds: Mapping[str, NodeKind]) -> float:
        """Units of training an hour that the members do less than alone (a unit is what one USD buys there)."""
        slow = self.slowdowns(group, jobs)
        return math.fsum(jobs[name].solo_usd_per_hour(kinds) * (1.0 - 1.0 / s.mean) for name, s in slow.items())

    def slowdowns(self, group: Group, jobs: Mapping[str, GroupJob]) -> dict[str, Slowdown]:
        """Of every member."""
        key = self._key(group, jobs)
        if key not in self._slow:
            if len(self._slow) > _ENTRIES // 10:
                self._slow.clear()
            self._slow[key] = slowdowns(group, jobs, self.rules)
        return self._slow[key]

    def _key(self, group: Group, jobs: Mapping[str, GroupJob]) -> tuple[object, ...]:
        """Members with their ways, then the distinct sets of phases that share a unit."""
        members = []
        occupants: dict[int, int] = {}
        for at, pin in enumerate(group.pins):
            members.append((self._token(jobs[pin.job]), pin.rollout, pin.train))
            for phase, units in enumerate((pin.rollout_units, pin.train_units)):
                bit = 1 << (2 * at + phase)
                for unit in units:
                    occupants[unit] = occupants.get(unit, 0) | bit
        if self.rules.tail_keep:
            # A tail keeps so many of its units, the first ones: how many are shared counts, and which.
            return (*members, *(occupants[unit] for unit in sorted(occupants)))
        return (*members, *sorted(set(occupants.values())))

    def _token(self, job: GroupJob) -> int:
        known = self._tokens.get(id(job))
        if known is None:
            # The job is held, so that its id stays its own.
            known = self._tokens[id(job)] = (job, len(self._tokens))
        return known[1]
