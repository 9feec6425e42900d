"""Re-planning from a running placement: which jobs to move, each with its price and what it saves.

A move stops a job: it loses the iteration in progress (half of one on average; nothing if it waits for the boundary)
and starts cold on its new nodes while its old ones may still be held. Its price in USD is that time on the nodes that
it would have alone, held twice for the cold start. A plan's saving in USD per hour lasts until the next change near
it undoes it: with arrivals and departures every `change_every_h` hours in the cluster, a plan saves for about that
long before it is thought over again, and what is still good then stays. So moves are chosen by

    min  USD per hour of all groups + (1 + hysteresis) / change_every_h * sum of the prices of the moves

as set partitioning over the columns of group_program.py, where a column may *inherit* one running group: members that
find there the nodes they had, shared with the same jobs, do not move. A group is inherited at most once.

A job that moves falls behind by the outage, and nobody knows how long it will stay. So a move is paid out of credit:
the seconds by which the job is ahead of its bound so far (`observe` counts). Without that much credit it moves only
to repair a bound: when its running group no longer keeps all of them (a member left, durations drifted). New groups
are taken only if they keep all bounds whoever leaves, so that departures seldom need a repair.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pulp

from ...highs import minimise
from ..choose.group_columns import Column
from ..choose.group_search import GroupSearch
from ..choose.group_solution import Effort, Memory
from ..choose.master_program import choose
from ..inputs.capacity import node_limits, nodes_short
from ..inputs.group_model import Group, GroupJob, NodeKind, Rules
from ..place.assemble import resident
from ..place.one_arrival import BestFit, lasts
from ..place.placing import State, depart_in_place, moves, next_id, staying
from ..simulate.slowdowns import slowdowns

QUICK = Effort(
    exact_jobs=0,
    gap=0.04,
    first_tolerance=0.04,
    small_first=False,
    greedy=False,
    simulated=800,
    found=1_000,
    steps=600_000,
    rounds=4,
    columns=250,
)
"""For every arrival and departure: what is learnt adds up over re-solves."""


_LOOKS = 6


@dataclass(frozen=True)
class Move:
    """One job that changes nodes."""

    job: str
    from_group: str
    to_group: str
    outage_s: float
    """Cold start and work done again."""
    price_usd: float


@dataclass(frozen=True)
class Replan:
    """The next placement and how to get there."""

    state: State
    moves: tuple[Move, ...]
    """In the order in which they are to be made: into groups that get nodes of their own first."""
    saves_usd_per_hour: float
    """Against staying; negative where bounds had to be repaired."""


@dataclass(frozen=True)
class Patience:
    """When a move pays."""

    change_every_h: float = 1.0
    hysteresis: float = 0.25
    wait_for_boundary: bool = False
    """Moves are made between iterations: no work is lost, the old nodes are held until then."""


class Replanner:
    """Ours with moves: every arrival is placed, every departure taken, and then moves are made that pay."""

    def __init__(
        self,
        kinds: Mapping[str, NodeKind],
        rules: Rules,
        patience: Patience = Patience(),
        effort: Effort = QUICK,
    ) -> None:
        self.kinds, self.rules, self.patience, self.effort = kinds, rules, patience, effort
        self.memory = Memory(rules)
        self.place = BestFit(kinds, rules, checker=self.memory.checker)
        self.credit_s: dict[str, float] = {}
        """Seconds that each job is ahead of its bound."""
        self.usd_per_unit = 0.0
        """Price of a unit of training that members do less than alone (unit_price.py); 0: USD per hour counts alone."""

    def observe(self, elapsed_s: float, done_s: Mapping[str, float], jobs: Mapping[str, GroupJob]) -> None:
        """What every job did since the last call: `done_s` seconds' worth of iterations as they would take it alone."""
        for name, done in done_s.items():
            self.credit_s[name] = self.credit_s.get(name, 0.0) + jobs[name].slo * done - elapsed_s

    def arrive(self, state: State, job: GroupJob) -> State:
        """The state with `job`, and with every move that pays now."""
        placed = self.place.arrive(state, job)
        return self.replan(placed, new=(job.name,)).state

    def depart(self, state: State, name: str) -> State:
        """The state without the job; bounds that this breaks are repaired, and moves that pay are made."""
        return self.replan(depart_in_place(state, name, self.kinds)).state

    def at_risk(self, state: State, jobs: Mapping[str, GroupJob], look_s: float) -> list[str]:
        """Groups, by id, in which a job as it is now is beyond its bound and cannot stay so for `look_s` seconds more.

        A job that is ahead of its bound may be slow for a while: to move it for that would cost it what it has.
        """
        found = []
        for key, group in state.groups.items():
            for name, got in slowdowns(group, jobs, self.rules).items():
                job = jobs[name]
                loses_s = (1.0 - job.slo / got.mean) * look_s
                if loses_s > 0 and self.credit_s.get(name, 0.0) < loses_s + self.longest_outage_s(job, got.mean):
                    found.append(key)
                    break
        return found

    def drifted(self, state: State, jobs: Mapping[str, GroupJob]) -> State:
        """The state with jobs as they are now (other durations); bounds that broke are repaired."""
        now = {name: jobs.get(name, job) for name, job in state.jobs.items()}
        return self.replan(State(now, state.groups)).state

    def replan(self, state: State, new: Sequence[str] = (), wished: Sequence[Group] = ()) -> Replan:
        """The best next placement from `state`; jobs in `new` have not started and move for nothing.

        `wished`: feasible groups that are worth a thought beside those found here. Raises Infeasible if jobs need more
        nodes than there are, wherever they go.
        """
        if not state.jobs:
            return Replan(state, (), 0.0)
        solve = GroupSearch(list(state.jobs.values()), self.kinds, self.rules, self.effort, self.memory)
        solve.start(list(state.groups.values()))
        solve.generate()
        columns = solve.shortlist()
        # A running group may have a cheaper rival of the same jobs, which they would have to move into.
        listed = {column.group for column in columns}
        running = [group for group in state.groups.values() if resident(group, state.jobs, self.kinds)]
        columns += [
            Column(group, group.usd_per_hour(self.kinds))
            for group in dict.fromkeys((*running, *wished))
            if group not in listed
        ]
        found = _choose(state, columns, set(new), self, set(running) - solve.warm)
        before, after = state.usd_per_hour(self.kinds), found.usd_per_hour(self.kinds)
        made = [self.move(state, found, name) for name in moves(state, found, self.kinds) if name not in new]
        crowd = {key: len(group.pins) for key, group in found.groups.items()}
        made.sort(key=lambda m: (m.to_group in state.groups, crowd[m.to_group], m.job))
        return Replan(found, tuple(made), before - after)

    def outage_s(self, job: GroupJob, slowdown: float) -> float:
        """Seconds that a move takes from a job that now runs at this slowdown."""
        lost = 0.0 if self.patience.wait_for_boundary else 0.5 * slowdown * job.solo_s
        return job.cold_s + lost

    def longest_outage_s(self, job: GroupJob, slowdown: float) -> float:
        """The same if the move comes at the worst moment of an iteration."""
        return self.outage_s(job, slowdown) + (0.0 if self.patience.wait_for_boundary else 0.5 * slowdown * job.solo_s)

    def price_usd(self, job: GroupJob, slowdown: float) -> float:
        """Of a move: the outage on the job's own nodes, and the cold start on the old ones too."""
        return (self.outage_s(job, slowdown) + job.cold_s) / 3600.0 * job.solo_usd_per_hour(self.kinds)

    def worth(self, column: Column, state: State) -> Column:
        """The column at what counts: its price, and that of the training that its members do less than alone."""
        if not self.usd_per_unit:
            return column
        lost = self.memory.checker.lost(column.group, state.jobs, self.kinds)
        return replace(column, usd_per_hour=column.usd_per_hour + self.usd_per_unit * lost)

    def move(self, before: State, after: State, name: str) -> Move:
        """A job's way from its group in one state to that in the other."""
        job, key = before.jobs[name], before.group_of(name)
        slow = self.memory.checker.slowdowns(before.groups[key], before.jobs)[name].mean
        return Move(name, key, after.group_of(name), self.outage_s(job, slow), self.price_usd(job, slow))


@dataclass(frozen=True)
class _Variant:
    """A column that inherits a running group, or none."""

    column: Column
    inherits: str
    price_usd: float
    owed: int
    """Members that move without the credit for it, 1 more if the group is new and might not outlive a departure, and
    more than all that if it does not keep its bounds."""


def _choose(state: State, columns: Sequence[Column], new: set[str], planner: Replanner, broken: set[Group]) -> State:
    """The cheapest choice of columns, moves included, as a state; `broken` ones, which no longer keep their bounds,
    only where nothing else fits into the nodes that there are."""
    checker, patience, kinds = planner.memory.checker, planner.patience, planner.kinds
    now = {
        pin.job: (key, checker.slowdowns(group, state.jobs)[pin.job].mean)
        for key, group in state.groups.items()
        for pin in group.pins
    }
    price = {name: planner.price_usd(state.jobs[name], slow) for name, (_, slow) in now.items()}
    variants, running = [], set(state.groups.values())
    last_resort = 2 * (planner.rules.group_cap + 1)
    for column in columns:
        homes = sorted({now[name][0] for name in column.jobs})
        for home in [*homes, ""]:
            stay = _stay(state.groups[home], column.group, kinds, price) if home else frozenset()
            if home and not stay:
                continue
            moved = [name for name in column.jobs if name not in stay and name not in new]
            owed = sum(
                planner.credit_s.get(name, 0.0) < planner.longest_outage_s(state.jobs[name], now[name][1])
                for name in moved
            )
            owed += last_resort * (column.group in broken)
            variants.append(_Variant(planner.worth(column, state), home, sum(price[name] for name in moved), owed))
    chosen = _partition(variants, sorted(state.jobs), patience, kinds)
    looks = 0
    while True:
        # Only what is chosen is asked whether it holds in the long run and outlives departures: many simulations.
        fresh = {v.column.group for v in chosen if v.column.group not in running}
        unsound = {group for group in fresh if not checker.holds(group, state.jobs)}
        fragile = {g for g in fresh - unsound if looks < _LOOKS and not lasts(g, state.jobs, kinds, checker)}
        if not unsound and not fragile:
            break
        looks += 1
        variants = [
            replace(v, owed=v.owed + 1) if v.column.group in fragile else v
            for v in variants
            if v.column.group not in unsound
        ]
        chosen = _partition(variants, sorted(state.jobs), patience, kinds)
    groups = {v.inherits: v.column.group for v in chosen if v.inherits}
    kept = {key: groups[key] for key in state.groups if key in groups}
    taken: dict[str, Group] = {**state.groups, **kept}
    for v in chosen:
        if not v.inherits:
            key = next_id(taken)
            kept[key] = taken[key] = v.column.group
    # A group that stays as it was is the same object, which is how others know that nothing changed.
    return State(state.jobs, {key: state.groups[key] if state.groups.get(key) == g else g for key, g in kept.items()})


def _partition(
    variants: Sequence[_Variant], names: Sequence[str], patience: Patience, kinds: Mapping[str, NodeKind]
) -> list[_Variant]:
    pulp.set_v4_migration_warnings(False)
    problem: Any = pulp.LpProblem("moves", pulp.LpMinimize)
    x = [pulp.LpVariable(f"x_{at:06d}", cat=pulp.LpBinary) for at in range(len(variants))]
    of_job: dict[str, list[Any]] = {name: [] for name in names}
    of_home: dict[str, list[Any]] = {}
    for v, variable in zip(variants, x, strict=True):
        for name in v.column.jobs:
            of_job[name].append(variable)
        if v.inherits:
            of_home.setdefault(v.inherits, []).append(variable)
    for at, name in enumerate(names):
        problem += pulp.lpSum(of_job[name]) == 1, f"job_{at:05d}"
    for at, home in enumerate(sorted(of_home)):
        problem += pulp.lpSum(of_home[home]) <= 1, f"home_{at:05d}"
    limits = node_limits(kinds)
    for pool, limit in limits.items():
        used = [v.column.group.nodes.count(pool) * variable for v, variable in zip(variants, x, strict=True)]
        problem += pulp.lpSum(used) <= limit, f"limit_{pool}"
    per_move = (1.0 + patience.hysteresis) / patience.change_every_h
    dear = 10.0 * max(v.column.usd_per_hour for v in variants)
    cost = pulp.lpSum(
        [
            # The first by order among equals.
            (v.column.usd_per_hour + per_move * v.price_usd + dear * v.owed + 1e-7 * at) * variable
            for at, (v, variable) in enumerate(zip(variants, x, strict=True))
        ]
    )
    found = minimise(problem, cost, 500, 1e-4)
    if found is not None and not math.isfinite(found.objective):
        found = minimise(problem, cost, gap=1e-4)  # few choices fit: search until there is one
    if found is None:
        _, _, short = choose([v.column for v in variants if not v.inherits], names, limits, 0.0, 2_000)
        raise nodes_short(len(names), short, limits)
    return [v for v, variable in zip(variants, x, strict=True) if variable.value() > 0.5]


def _stay(old: Group, new: Group, kinds: Mapping[str, NodeKind], price: Mapping[str, float]) -> frozenset[str]:
    """Members of `new` that can keep the nodes they have in `old`: the dearest to move that fit together."""
    ways = {pin.job: (pin.rollout, pin.train) for pin in old.pins}
    common = [pin.job for pin in new.pins if ways.get(pin.job) == (pin.rollout, pin.train)]
    return staying(old, new, common, kinds, price)
