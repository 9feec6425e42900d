"""The integer program of moves: which groups run next, moves included in the price.

Set partitioning over the columns of group_program.py, where a column may *inherit* one running group: members that find
there the nodes they had, shared with the same jobs, do not move. A running group is inherited at most once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pulp

from ...highs import minimise
from ..choose.group_columns import Column
from ..choose.master_program import choose
from ..inputs.capacity import node_limits, nodes_short
from ..inputs.group_model import Group, NodeTypes
from ..inputs.groups_state import GroupsState, next_id
from ..place.best_fit import lasts
from .move_prices import MovePrices, Patience
from .moved_jobs import staying

_DEPARTURE_CHECKS = 6
"""Solves after which chosen groups are no longer checked for keeping their bounds after departures."""


@dataclass(frozen=True)
class _Variant:
    """A column that inherits a running group, or none (`inherits` empty)."""

    column: Column
    inherits: str
    price_usd: float
    """Of the moves of its members."""
    penalties: int
    """Members that move without the credit for it, 1 more if the group is new and breaks a bound when a job leaves,
    and more than all of that if the group does not keep its bounds now."""


def cheapest_state(
    state: GroupsState, columns: Sequence[Column], new: set[str], prices: MovePrices, broken: set[Group], group_cap: int
) -> GroupsState:
    """The state after the cheapest choice of columns, moves included.

    `broken` groups no longer keep their bounds: they are chosen only where nothing else fits into the nodes. Jobs in
    `new` move for nothing.
    """
    checker, node_types, names = prices.checker, prices.node_types, sorted(state.jobs)
    variants, running = _variants(state, columns, new, prices, broken, group_cap), set(state.groups.values())
    chosen = _partition(variants, names, prices.patience, node_types)
    solves = 0
    while True:
        # Only chosen groups are checked for the long run and for departures: each check is many simulations.
        fresh = {v.column.group for v in chosen if v.column.group not in running}
        unsound = {group for group in fresh if not checker.holds(group, state.jobs)}
        fragile = {
            group
            for group in fresh - unsound
            if solves < _DEPARTURE_CHECKS and not lasts(group, state.jobs, node_types, checker)
        }
        if not unsound and not fragile:
            break
        solves += 1
        variants = [
            replace(v, penalties=v.penalties + 1) if v.column.group in fragile else v
            for v in variants
            if v.column.group not in unsound
        ]
        chosen = _partition(variants, names, prices.patience, node_types)
    inherited = {v.inherits: v.column.group for v in chosen if v.inherits}
    groups = {key: inherited[key] for key in state.groups if key in inherited}
    taken: dict[str, Group] = {**state.groups, **groups}
    for v in chosen:
        if not v.inherits:
            key = next_id(taken)
            groups[key] = taken[key] = v.column.group
    # A group that stays as it was is the same object, which is how callers know that nothing changed.
    return GroupsState(
        state.jobs, {key: state.groups[key] if state.groups.get(key) == g else g for key, g in groups.items()}
    )


def _variants(
    state: GroupsState, columns: Sequence[Column], new: set[str], prices: MovePrices, broken: set[Group], group_cap: int
) -> list[_Variant]:
    now = {
        pin.job: (key, prices.checker.slowdowns(group, state.jobs)[pin.job].mean)
        for key, group in state.groups.items()
        for pin in group.pins
    }
    price = {name: prices.price_usd(state.jobs[name], slow) for name, (_, slow) in now.items()}
    last_resort = 2 * (group_cap + 1)
    variants = []
    for column in columns:
        for home in [*sorted({now[name][0] for name in column.jobs}), ""]:
            stay = _stay(state.groups[home], column.group, prices.node_types, price) if home else frozenset()
            if home and not stay:
                continue
            moved = [name for name in column.jobs if name not in stay and name not in new]
            penalties = sum(prices.lacks_credit(state.jobs[name], now[name][1]) for name in moved)
            penalties += last_resort * (column.group in broken)
            moves_usd = sum(price[name] for name in moved)
            variants.append(_Variant(prices.with_lost_training(column, state), home, moves_usd, penalties))
    return variants


def _partition(
    variants: Sequence[_Variant], names: Sequence[str], patience: Patience, node_types: NodeTypes
) -> list[_Variant]:
    """The cheapest variants that hold every job once. Raises NodesShort if none keep to the limits of nodes."""
    pulp.set_v4_migration_warnings(False)
    problem: Any = pulp.LpProblem("moves", pulp.LpMinimize)
    x = [pulp.LpVariable(f"x_{index:06d}", cat=pulp.LpBinary) for index in range(len(variants))]
    of_job: dict[str, list[Any]] = {name: [] for name in names}
    of_home: dict[str, list[Any]] = {}
    for v, variable in zip(variants, x, strict=True):
        for name in v.column.jobs:
            of_job[name].append(variable)
        if v.inherits:
            of_home.setdefault(v.inherits, []).append(variable)
    for index, name in enumerate(names):
        problem += pulp.lpSum(of_job[name]) == 1, f"job_{index:05d}"
    for index, home in enumerate(sorted(of_home)):
        problem += pulp.lpSum(of_home[home]) <= 1, f"home_{index:05d}"
    limits = node_limits(node_types)
    for pool, limit in limits.items():
        used = [v.column.group.nodes.count(pool) * variable for v, variable in zip(variants, x, strict=True)]
        problem += pulp.lpSum(used) <= limit, f"limit_{pool}"
    per_move = patience.usd_per_hour_of_a_usd
    dear = 10.0 * max(v.column.usd_per_hour for v in variants)
    cost = pulp.lpSum(
        [
            # The first by order among equals.
            (v.column.usd_per_hour + per_move * v.price_usd + dear * v.penalties + 1e-7 * index) * variable
            for index, (v, variable) in enumerate(zip(variants, x, strict=True))
        ]
    )
    minimum = minimise(problem, cost, 500, 1e-4)
    if minimum is not None and not math.isfinite(minimum.objective):
        minimum = minimise(problem, cost, gap=1e-4)  # few choices fit: search until there is one
    if minimum is None:
        _, _, short = choose([v.column for v in variants if not v.inherits], names, limits, 0.0, 2_000)
        raise nodes_short(len(names), short, limits)
    return [v for v, variable in zip(variants, x, strict=True) if variable.value() > 0.5]


def _stay(old: Group, new: Group, node_types: NodeTypes, price: Mapping[str, float]) -> frozenset[str]:
    """The members that can keep their nodes, chosen so that the moves that are saved cost most."""
    ways = {pin.job: (pin.rollout, pin.train) for pin in old.pins}
    common = [pin.job for pin in new.pins if ways.get(pin.job) == (pin.rollout, pin.train)]
    return staying(old, new, common, node_types, price)
