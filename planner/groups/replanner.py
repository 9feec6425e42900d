"""Re-planning from running groups: an arrival or a departure, then the moves that pay or that repair a bound.

A placement saves USD per hour until it is planned anew: with arrivals and departures every `change_every_h` hours, for
about that long. So moves are chosen by

    min  USD per hour of all groups + (1 + hysteresis) / change_every_h * sum of the prices of the moves

over the columns of group_program.py (moves.py has the prices). Without enough credit a job moves only to repair a
bound: when its running group no longer keeps all bounds (a member left, durations drifted). New groups are chosen only
if they keep all bounds whichever job leaves, so that departures seldom need a repair.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pulp

from ..choose.highs import minimise
from .choose.group_columns import GroupColumn
from .choose.group_nodes import depart_in_place, resident
from .choose.group_search import GroupSearch, choose
from .choose.group_solution import QUICK, SearchEffort, SolveMemory
from .choose.placers import BestFit, lasts
from .inputs.group_model import Group, GroupJob, GroupsState, Jobs, NodeTypes, Rules, next_id, node_limits, nodes_short
from .moves import MovePatience, MovePrices, PricedMove, moved_jobs, staying
from .simulate.slowdowns import slowdowns

# The integer program of moves is set partitioning over the columns of group_program.py, where a column may *inherit*
# one running group: members that keep their nodes there, shared with the same jobs, do not move. A running group is
# inherited at most once.

_DEPARTURE_CHECKS = 6
"""Solves after which chosen groups are no longer checked for keeping their bounds after departures."""


@dataclass(frozen=True)
class _Variant:
    """A column that inherits a running group, or none (`inherits` empty)."""

    column: GroupColumn
    inherits: str
    price_usd: float
    """Of the moves of its members."""
    penalties: int
    """Number of members that move without the credit for it; 1 more if the group is new and breaks a bound when a job
    leaves; more than all of that if the group does not keep its bounds now."""


def cheapest_state(
    state: GroupsState,
    columns: Sequence[GroupColumn],
    new: set[str],
    prices: MovePrices,
    broken: set[Group],
    group_cap: int,
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
    state: GroupsState,
    columns: Sequence[GroupColumn],
    new: set[str],
    prices: MovePrices,
    broken: set[Group],
    group_cap: int,
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
    variants: Sequence[_Variant], names: Sequence[str], patience: MovePatience, node_types: NodeTypes
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
    options = {pin.job: (pin.rollout, pin.train) for pin in old.pins}
    common = [pin.job for pin in new.pins if options.get(pin.job) == (pin.rollout, pin.train)]
    return staying(old, new, common, node_types, price)


@dataclass(frozen=True)
class Replan:
    """The next placement and the moves that lead to it."""

    state: GroupsState
    moves: tuple[PricedMove, ...]
    """In the order in which they are to be made: into groups that get nodes of their own first."""
    saves_usd_per_hour: float
    """Against staying; negative where bounds had to be repaired."""


class Replanner:
    """The placer with moves: every arrival and departure is placed, and then the moves are made that pay."""

    def __init__(
        self, node_types: NodeTypes, rules: Rules, patience: MovePatience | None = None, effort: SearchEffort = QUICK
    ) -> None:
        self.node_types, self.rules, self.effort = node_types, rules, effort
        self.memory = SolveMemory(rules)
        self.place = BestFit(node_types, rules, checker=self.memory.checker)
        self.prices = MovePrices(node_types, patience or MovePatience(), self.memory.checker)

    def observe(self, elapsed_s: float, done_s: Mapping[str, float], jobs: Jobs) -> None:
        """Count credit: in `elapsed_s` seconds each job did iterations that take it `done_s` seconds solo."""
        credit_s = self.prices.credit_s
        for name, done in done_s.items():
            credit_s[name] = credit_s.get(name, 0.0) + jobs[name].slo * done - elapsed_s

    def arrive(self, state: GroupsState, job: GroupJob) -> GroupsState:
        """The state with `job`, after every move that pays now."""
        return self.replan(self.place.arrive(state, job), new=(job.name,)).state

    def depart(self, state: GroupsState, name: str) -> GroupsState:
        """The state without the job, after repairs of the bounds that its departure breaks and moves that pay."""
        return self.replan(depart_in_place(state, name, self.node_types)).state

    def at_risk(self, state: GroupsState, jobs: Jobs, look_s: float) -> list[str]:
        """Ids of groups in which a job as it is now exceeds its bound and cannot afford that for `look_s` seconds more.

        A job that is ahead of its bound may be slow for a while: moving it would cost its credit.
        """

        def in_danger(name: str, mean: float) -> bool:
            loses_s = (1.0 - jobs[name].slo / mean) * look_s
            return loses_s > 0 and self.prices.lacks_credit(jobs[name], mean, loses_s)

        return [
            key
            for key, group in state.groups.items()
            if any(in_danger(name, slow.mean) for name, slow in slowdowns(group, jobs, self.rules).items())
        ]

    def drifted(self, state: GroupsState, jobs: Jobs) -> GroupsState:
        """The state with jobs as they are now (other durations), after repairs of the bounds that broke."""
        now = {name: jobs.get(name, job) for name, job in state.jobs.items()}
        return self.replan(GroupsState(now, state.groups)).state

    def replan(self, state: GroupsState, new: Sequence[str] = (), wished: Sequence[Group] = ()) -> Replan:
        """The best next placement from `state`; jobs in `new` have not started, so their moves cost nothing.

        `wished`: feasible groups to consider beside the groups that the search generates. Raises Infeasible if the jobs
        need more nodes than there are, wherever they go.
        """
        if not state.jobs:
            return Replan(state, (), 0.0)
        search = GroupSearch(list(state.jobs.values()), self.node_types, self.rules, self.effort, self.memory)
        search.start(list(state.groups.values()))
        search.generate()
        columns = search.shortlist()
        # A running group may have a cheaper rival of the same jobs, which they would have to move into.
        listed = {column.group for column in columns}
        running = [group for group in state.groups.values() if resident(group, state.jobs, self.node_types)]
        columns += [
            GroupColumn(group, group.usd_per_hour(self.node_types))
            for group in dict.fromkeys((*running, *wished))
            if group not in listed
        ]
        after = cheapest_state(state, columns, set(new), self.prices, set(running) - search.warm, self.rules.group_cap)
        moves = [
            self.prices.move(state, after, name)
            for name in moved_jobs(state, after, self.node_types)
            if name not in new
        ]
        members = {key: len(group.pins) for key, group in after.groups.items()}
        moves.sort(key=lambda move: (move.to_group in state.groups, members[move.to_group], move.job))
        saves = state.usd_per_hour(self.node_types) - after.usd_per_hour(self.node_types)
        return Replan(after, tuple(moves), saves)
