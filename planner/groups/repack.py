"""Re-planning at every arrival and departure out of a standing pool of columns, moves priced; fast enough to replay.

    min  horizon_h * USD per hour of all groups + sum of the prices of all moves

over the pool's best columns, what is left of the running groups, and running groups without some of their members. A
column may *inherit* one running group: members that `policy.moved_within` finds on their old nodes do not move. Every
job is in one column, a running group is inherited at most once. A move costs the cold start and half an iteration, on the
nodes that the job would have alone. A job that may not move (`may_move`) moves only where a bound is broken anyway and
nothing else is left.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import pulp

from ..highs import minimise
from .assemble import alone
from .columns import Checker
from .model import Group, GroupJob, NodeKind, Pin, Rules
from .policy import State, depart_in_place, moved_within, next_id, node_of_units, without_idle_nodes
from .pool import Pool

_NEAR = 250
"""Columns of the pool that a re-plan chooses from; with all of them a replay costs the same within 0.3 %."""
_GAP, _NODES = 5e-3, 100


@dataclass(frozen=True)
class _Variant:
    group: Group
    inherits: str
    """Id of a running group; "": none."""
    usd: float
    forced: int
    """Members that move though they may not."""


class Repack:
    """Ours with moves: all groups are thought over whenever a job comes or goes."""

    def __init__(
        self,
        kinds: Mapping[str, NodeKind],
        rules: Rules,
        may_move: Callable[[str], bool] = lambda name: True,
        horizon_h: float = 3.0,
        most_jobs: int = 3,
    ) -> None:
        """
        Args:
            may_move: whether a job, by name, is so far ahead of its bound that it can bear a move now.
            horizon_h: hours that a saving is taken to last.
            most_jobs: of a group that is formed anew.
        """
        if any(kind.limit is not None or kind.slots != 1 for kind in kinds.values()):
            raise ValueError("Repack plans whole nodes of pools without a limit; program.py knows the others")
        self.kinds, self.rules, self.may_move, self.horizon_h = kinds, rules, may_move, horizon_h
        self._pool = Pool(kinds, rules, most_jobs)
        self._checker = Checker(rules)
        self._fits: dict[tuple[int, int], tuple[Group, Group, Group, frozenset[str]]] = {}

    def arrive(self, state: State, job: GroupJob) -> State:
        """The state with `job`, and with every move that pays now."""
        return self.replan(State({**state.jobs, job.name: job}, state.groups))

    def depart(self, state: State, name: str) -> State:
        """The state without the job; broken bounds are repaired, and moves that pay are made."""
        return self.replan(depart_in_place(state, name, self.kinds))

    def replan(self, state: State) -> State:
        """The best next placement; jobs of the state that no group holds are new, others count as they are now."""
        if not state.jobs:
            return State()
        self._pool.update(state.jobs)
        home = {pin.job: key for key, group in state.groups.items() for pin in group.pins}
        stuck = {name for name in home if not self.may_move(name)}
        price = {name: self._move_usd(state.jobs[name]) for name in home}
        variants = [
            variant
            for group in self._groups(state, home)
            for variant in self._variants(group, state, home, stuck, price)
        ]
        names = sorted(state.jobs)
        chosen = _partition([v for v in variants if not v.forced], names) or _partition(variants, names)
        assert chosen is not None, "each job has a group of its own"
        groups = {v.inherits: v.group for v in chosen if v.inherits}
        kept = {key: groups[key] for key in state.groups if key in groups}
        taken = {**state.groups, **kept}
        for variant in chosen:
            if not variant.inherits:
                key = next_id(taken)
                kept[key] = taken[key] = variant.group
        return State(state.jobs, {k: state.groups[k] if state.groups.get(k) == g else g for k, g in kept.items()})

    def _move_usd(self, job: GroupJob) -> float:
        return (job.cold_s + 0.5 * job.solo_s) / 3600.0 * job.solo_usd_per_hour(self.kinds)

    def _groups(self, state: State, home: Mapping[str, str]) -> list[Group]:
        """What may be chosen: the pool's best, running groups with fewer members, running and lone groups."""
        found = [column.group for column in self._pool.near(_NEAR)]
        found += [alone(job, self.kinds) for name, job in state.jobs.items() if name not in home]
        less = [
            without_idle_nodes(Group(group.nodes, some), self.kinds)
            for group in state.groups.values()
            for size in range(1, len(group.pins) + 1)
            for some in combinations(group.pins, size)
        ]
        keeps = self._checker.keeps(less, state.jobs)
        return found + [group for group, kept in zip(less, keeps, strict=True) if kept or len(group.pins) == 1]

    def _variants(
        self, group: Group, state: State, home: Mapping[str, str], stuck: set[str], price: Mapping[str, float]
    ) -> list[_Variant]:
        """The group in place of each running group that it shares jobs with, and in place of none."""
        running = [pin.job for pin in group.pins if pin.job in home]
        usd = group.usd_per_hour(self.kinds) * self.horizon_h
        found = []
        for key in sorted({home[name] for name in running}):
            in_place, stay = self._fit(state.groups[key], group)
            if stay:
                moved = [name for name in running if name not in stay]
                total = usd + sum(price[name] for name in moved)
                found.append(_Variant(in_place, key, total, sum(name in stuck for name in moved)))
        total = usd + sum(price[name] for name in running)
        found.append(_Variant(group, "", total, sum(name in stuck for name in running)))
        return found

    def _fit(self, old: Group, new: Group) -> tuple[Group, frozenset[str]]:
        """`new` with its nodes in the order of the nodes of `old` that they are, and the jobs that stay there."""
        key = (id(old), id(new))
        known = self._fits.get(key)
        if known is None:
            placed = _aligned(old, new, self.kinds)
            both = {pin.job for pin in old.pins} & {pin.job for pin in new.pins}
            stay = frozenset(both.difference(moved_within(old, placed, self.kinds)))
            if len(self._fits) > 100_000:
                self._fits.clear()
            # Both groups are held, so that their ids stay theirs.
            known = self._fits[key] = (old, new, placed, stay)
        return known[2], known[3]


def _aligned(old: Group, new: Group, kinds: Mapping[str, NodeKind]) -> Group:
    """`new` with the nodes of each pool in the order of the old nodes whose jobs they have most of; slots are whole."""
    was, now = node_of_units(old, kinds), node_of_units(new, kinds)
    before = {(pin.job, phase): {was[u] for u in units} for pin in old.pins for phase, units in enumerate(_held(pin))}
    shared: dict[int, dict[int, int]] = {}
    for pin in new.pins:
        for phase, units in enumerate(_held(pin)):
            for node in {now[u] for u in units}:
                for at in before.get((pin.job, phase), ()):
                    count = shared.setdefault(node, {})
                    count[at] = count.get(at, 0) + 1

    def rank(node: int) -> tuple[str, float, int]:
        best = max(shared.get(node, {}).items(), key=lambda item: (item[1], -item[0]), default=(math.inf, 0))
        return new.nodes[node], best[0], node

    place = {node: at for at, node in enumerate(sorted(range(len(new.nodes)), key=rank))}
    pins = tuple(
        Pin(
            pin.job,
            pin.rollout,
            tuple(sorted(place[u] for u in pin.rollout_units)),
            pin.train,
            tuple(sorted(place[u] for u in pin.train_units)),
        )
        for pin in new.pins
    )
    return Group(new.nodes, pins)


def _held(pin: Pin) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return pin.rollout_units, pin.train_units


def _partition(variants: Sequence[_Variant], names: Sequence[str]) -> list[_Variant] | None:
    """The cheapest choice with every job once and every running group inherited at most once; None: there is none."""
    if {pin.job for v in variants for pin in v.group.pins} != set(names):
        return None
    pulp.set_v4_migration_warnings(False)
    problem: Any = pulp.LpProblem("repack", pulp.LpMinimize)
    x = [pulp.LpVariable(f"x_{at:06d}", cat=pulp.LpBinary) for at in range(len(variants))]
    of_job: dict[str, list[Any]] = {name: [] for name in names}
    of_home: dict[str, list[Any]] = {}
    for v, variable in zip(variants, x, strict=True):
        for pin in v.group.pins:
            of_job[pin.job].append(variable)
        if v.inherits:
            of_home.setdefault(v.inherits, []).append(variable)
    for at, name in enumerate(names):
        problem += pulp.lpSum(of_job[name]) == 1, f"job_{at:05d}"
    for at, home in enumerate(sorted(of_home)):
        problem += pulp.lpSum(of_home[home]) <= 1, f"home_{at:05d}"
    # A move that may not be is worth avoiding at the price of any group.
    dear = 3.0 * max(v.usd for v in variants)
    cost = pulp.lpSum([(v.usd + dear * v.forced) * variable for v, variable in zip(variants, x, strict=True)])
    found = minimise(problem, cost, _NODES, _GAP)
    if found is None or not math.isfinite(found.objective):
        return None
    return [v for v, variable in zip(variants, x, strict=True) if variable.value() > 0.5]
