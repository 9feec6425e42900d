"""Column generation of the group program: the search for groups that are worth their price.

group_program.py says what is minimised and what is proven. Here are the columns that the linear master chooses from,
the generation of new ones by pricing and simulation, and the shortlist that the integer program is given.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import highspy
import numpy as np
import pulp
from numpy.typing import NDArray

from ....plans.yaml.errors import Infeasible
from ...choose.highs import Minimum, minimise
from ..inputs.group_model import Group, GroupJob, NodeTypes, Rules, node_limits, nodes_short
from .group_columns import FULL, GroupColumn, fluid_bound, placed_solo, placements_within, unit_shares
from .group_nodes import placed_in_turn, resident, solo_group
from .group_solution import ColumnKey, SearchEffort, SolveMemory
from .placers import Algorithm1
from .pricing import PricedGroup, Pricing, connected, group_of, placement_table, price, structure_hash_of

# The master of the group program: which columns, so that every job is in one group and node limits hold.
#
#     min  sum price_g x_g    each job in (at least) one group, nodes of pool p in use <= limit_p
#
# - `Relaxation`: the linear program that grows by columns; its duals price jobs and nodes. It is stated in highspy
# itself, because PuLP builds a new model for each solve: with highspy an added column keeps the basis, and the next
# solve takes a few simplex steps instead of all. It is the one model of the planner that is not stated in PuLP. -
# `choose`: the integer program, in PuLP (planner/choose/highs.py has the solver discipline).

SHORT_USD_PER_HOUR = 1e5
"""Price of a node beyond a pool's limit, far above any node's, so that a plan short of nodes says how many."""


class Relaxation:
    """The linear program over the columns so far; jobs may be covered more than once, which only lowers it."""

    def __init__(self, names: Sequence[str], limits: Mapping[str, int]) -> None:
        self._row = {name: row for row, name in enumerate(names)}
        self._pools = sorted(limits)
        self._highs: Any = highspy.Highs()  # type: ignore[no-untyped-call]
        for option, value in (("output_flag", False), ("threads", 1), ("random_seed", 1)):
            self._highs.setOptionValue(option, value)
        for _ in names:
            self._highs.addRow(1.0, highspy.kHighsInf, 0, np.zeros(0, np.int32), np.zeros(0))
        for index, pool in enumerate(self._pools):
            self._highs.addRow(-highspy.kHighsInf, float(limits[pool]), 0, np.zeros(0, np.int32), np.zeros(0))
            row = np.array([len(names) + index], np.int32)
            self._highs.addCol(SHORT_USD_PER_HOUR, 0.0, highspy.kHighsInf, 1, row, np.array([-1.0]))

    def add(self, column: GroupColumn) -> None:
        """Add a column."""
        rows = [self._row[name] for name in column.jobs]
        numbers = [1.0] * len(rows)
        for index, pool in enumerate(self._pools):
            nodes = column.group.nodes.count(pool)
            if nodes:
                rows.append(len(self._row) + index)
                numbers.append(float(nodes))
        self._highs.addCol(
            column.usd_per_hour, 0.0, highspy.kHighsInf, len(rows), np.array(rows, np.int32), np.array(numbers)
        )

    def solve(self) -> tuple[float, NDArray[np.float64], dict[str, float]]:
        """(objective, value of each job >= 0, premium on a node of each limited pool >= 0)."""
        self._highs.run()
        status = self._highs.getModelStatus()
        if status != highspy.HighsModelStatus.kOptimal:
            raise RuntimeError(f"HiGHS ended with status {self._highs.modelStatusToString(status)}")
        duals = np.array(self._highs.getSolution().row_dual)
        jobs = len(self._row)
        premium = {pool: max(0.0, -float(duals[jobs + index])) for index, pool in enumerate(self._pools)}
        return float(self._highs.getInfo().objective_function_value), np.maximum(duals[:jobs], 0.0), premium


def nearest(
    columns: Sequence[GroupColumn],
    names: Sequence[str],
    values: NDArray[np.float64],
    premium: Mapping[str, float],
    most: int,
    always: Collection[Group],
) -> tuple[list[GroupColumn], float]:
    """The `most` columns of least reduced cost by the master's prices, in the order given; their greatest reduced cost.

    Columns of one job and of the groups `always` are kept beside them. Any choice with a column that is left out is
    dearer than the relaxation by more than the returned reduced cost.
    """
    value = dict(zip(names, values, strict=True))
    reduced = [
        c.usd_per_hour + sum(premium.get(pool, 0.0) for pool in c.group.nodes) - sum(value[name] for name in c.jobs)
        for c in columns
    ]
    cut = sorted(reduced)[min(len(reduced), most) - 1]
    return [c for c, e in zip(columns, reduced, strict=True) if e <= cut or len(c.jobs) == 1 or c.group in always], cut


def choose(
    columns: Sequence[GroupColumn],
    names: Sequence[str],
    limits: Mapping[str, int],
    gap: float,
    max_nodes: int,
    rank: Sequence[float] | None = None,
) -> tuple[list[GroupColumn], Minimum, dict[str, int]]:
    """Columns that hold every job once, at the least price; the solver's proof; nodes short of each pool's limit.

    Args:
        gap: relative, at which the search may end.
        rank: of each column; of all choices at the least price the one with the least sum is taken (needs gap 0).
    """
    pulp.set_v4_migration_warnings(False)
    problem: Any = pulp.LpProblem("groups", pulp.LpMinimize)
    x = [pulp.LpVariable(f"x_{index:06d}", cat=pulp.LpBinary) for index in range(len(columns))]
    short = {
        pool: pulp.LpVariable(f"short_{index:02d}", 0, cat=pulp.LpInteger) for index, pool in enumerate(sorted(limits))
    }
    of_job: dict[str, list[Any]] = {name: [] for name in names}
    for variable, column in zip(x, columns, strict=True):
        for name in column.jobs:
            of_job[name].append(variable)
    for index, name in enumerate(names):
        problem += pulp.lpSum(of_job[name]) == 1, f"job_{index:05d}"
    for index, pool in enumerate(sorted(limits)):
        nodes = [(column.group.nodes.count(pool), v) for v, column in zip(x, columns, strict=True)]
        problem += pulp.lpSum([n * v for n, v in nodes if n]) - short[pool] <= limits[pool], f"limit_{index:02d}"
    price = pulp.lpSum([c.usd_per_hour * v for v, c in zip(x, columns, strict=True)])
    objective = price + SHORT_USD_PER_HOUR * pulp.lpSum(short.values())
    first = minimise(problem, objective, max_nodes, gap)
    if first is None or not np.isfinite(first.objective):
        raise RuntimeError("no choice of columns holds every job, though each job has a column of its own")
    if rank is not None and first.proven:
        problem += objective <= first.objective * (1 + 1e-7), "keep_the_optimum"
        second = minimise(problem, pulp.lpSum([r * v for v, r in zip(x, rank, strict=True)]), max_nodes)
        if second is None or not np.isfinite(second.objective):
            raise RuntimeError("the optimum of the first phase is not found in the second")
    chosen = [column for variable, column in zip(x, columns, strict=True) if variable.value() > 0.5]
    return chosen, first, {pool: round(v.value() or 0) for pool, v in short.items()}


ROUNDING = 1e-7
_BATCH = 64
_QUOTA = 24


class GroupSearch:
    """One run of column generation: the cheapest group of each set of jobs is a column."""

    def __init__(
        self, jobs: Sequence[GroupJob], node_types: NodeTypes, rules: Rules, effort: SearchEffort, memory: SolveMemory
    ) -> None:
        self.jobs = {job.name: job for job in sorted(jobs, key=lambda job: job.name)}
        assert len(self.jobs) == len(jobs), "job names are unique"
        self.node_types, self.rules, self.effort = node_types, rules, effort
        memory.keep(self.jobs)
        self.memory, self.checker = memory, memory.checker
        self.names = list(self.jobs)
        self.placements_of = {name: placements_within(job, node_types, rules) for name, job in self.jobs.items()}
        self.table = placement_table(self.placements_of, node_types)
        self.limits = node_limits(node_types)
        self.usd = {pool: node_type.usd_per_hour for pool, node_type in node_types.items()}
        # A job with points multiplies the groups: those with a part that is not feasible are then left out, too.
        of_points = any(job.points[1:] for job in jobs)
        self.exact = len(jobs) <= effort.exact_jobs and not of_points
        if of_points:
            self.effort = replace(effort, simulations=min(effort.simulations, effort.simulations_of_points))
        self.top = self.proven_cap = min(rules.group_cap, len(jobs))
        self.master = Relaxation(self.names, self.limits)
        self.simulated = 0
        self.warm: set[Group] = set()
        self.displaced: list[Group] = []
        self.greedy_usd = math.inf
        for column in self.columns.values():
            self.master.add(column)

    @property
    def columns(self) -> dict[ColumnKey, GroupColumn]:
        return self.memory.columns

    def _key(self, group: Group) -> ColumnKey:
        """The jobs, and the nodes where some are scarce: then a dearer group of the same jobs may be what fits."""
        return tuple(pin.job for pin in group.pins), group.nodes if self.limits else ()

    def has_column(self, group: Group) -> bool:
        """Whether there is a column for the same jobs that is as cheap."""
        column = self.columns.get(self._key(group))
        return column is not None and column.usd_per_hour <= group.usd_per_hour(self.node_types) + ROUNDING

    def add(self, group: Group) -> bool:
        """Make a feasible group a column, unless its jobs have a cheaper or equal one."""
        column = GroupColumn(group, group.usd_per_hour(self.node_types))
        if self.has_column(group):
            return False
        displaced = self.columns.get(self._key(group))
        if displaced is not None:
            self.displaced.append(displaced.group)
        self.columns[self._key(group)] = column
        self.master.add(column)
        return True

    def fits(self, group: Group) -> bool:
        """Whether a given group may be a column: its jobs are here, and cap, loads, memory and bounds allow it."""
        if len(group.pins) > self.rules.group_cap or any(pin.job not in self.jobs for pin in group.pins):
            return False
        for pin in group.pins:
            job = self.jobs[pin.job]
            if pin.rollout >= len(job.rollout) or pin.train >= len(job.train):
                return False
        return (
            max(unit_shares(group, self.jobs, self.rules, self.node_types)) <= FULL
            and resident(group, self.jobs, self.node_types)
            and self.checker.holds(group, self.jobs)
        )

    def start(self, previous: Sequence[Group]) -> None:
        """Add the columns of single jobs, of Algorithm 1 and of the previous plan."""
        for name in self.names:
            solo = [placed_solo(placement, self.node_types) for placement in self.placements_of[name]]
            for group in sorted(solo, key=lambda g: g.usd_per_hour(self.node_types)):
                if self.checker.keeps([group], self.jobs)[0]:
                    self.add(group)
                    break
            else:
                raise Infeasible(
                    f"job {name} does not keep its bound of {self.jobs[name].slo:g} even alone; raise its slo"
                )
        if self.effort.greedy:
            greedy = placed_in_turn(Algorithm1(self.node_types, self.rules), self.jobs)
            self.greedy_usd = 0.0
            for group in greedy.groups.values():
                if self._start_from(group):
                    self.greedy_usd += group.usd_per_hour(self.node_types)
                else:  # its long-run mean is just above a bound, which Algorithm 1's quick verdict may miss
                    solo = [solo_group(self.jobs[pin.job], self.node_types) for pin in group.pins]
                    self.greedy_usd += sum(group.usd_per_hour(self.node_types) for group in solo)
        for group in previous:
            self._start_from(group)

    def _start_from(self, group: Group) -> bool:
        """Make a given group a column of the warm start, if it fits; whether it does."""
        fits = self.fits(group)
        if fits:
            self.add(group)
            self.warm.add(group)
        return fits

    def generate(self, notify: Callable[[str], None] = lambda text: None) -> float:
        """Add columns until nothing is left above the tolerance, or work runs out; returns the lower bound.

        The bound holds for groups of at most `proven_cap` jobs: the largest cap whose search came to its end. If no
        search did, it is the fluid bound, which holds for all groups.
        """
        effort = self.effort
        top = self.top
        last_tolerance = 0.0 if self.exact else effort.gap / 2
        proven: dict[int, float] = {}
        ended: list[int] = []
        # Small groups first: they are many of the columns, quickly searched, and their prices guide what follows.
        for cap in sorted({min(2, top), min(3, top), top}) if effort.small_first else [top]:
            notify(f"groups of up to {cap} jobs")
            tolerance = 0.0 if self.exact else effort.first_tolerance
            cut_short = 0
            for _ in range(effort.rounds):
                _, values, premium = self.master.solve()
                # Where nodes are short, values are of the shortage: a small share of them is more than a group's price.
                scarce = max(premium.values(), default=0.0) >= SHORT_USD_PER_HOUR / 2
                tolerance = tolerance if scarce else max(tolerance, last_tolerance)
                scaled = values / (1.0 + tolerance)
                pricing = self.priced(
                    scaled, premium, cap, ROUNDING, not self.exact, effort.groups_per_search, effort.steps
                )
                added, untested = self._add_feasible(pricing.groups)
                cut_short += math.isinf(pricing.floor)
                if cut_short > effort.cut_short:
                    break
                if added:
                    continue
                if untested or pricing.floor > ROUNDING:
                    if self.simulated >= effort.simulations or math.isinf(pricing.floor):
                        break
                    continue
                # Scaled duals price no group above its cost; node premiums are paid up to the limits.
                paid = sum(premium[pool] * limit for pool, limit in self.limits.items())
                proven[cap] = max(proven.get(cap, 0.0), float(scaled.sum()) - paid)
                if tolerance <= (0.0 if scarce else last_tolerance):
                    ended.append(cap)
                    break
                tolerance = max(last_tolerance, tolerance / 2) if tolerance > last_tolerance else 0.0
        self.proven_cap = max(ended, default=top)
        return max(fluid_bound(self.placements_of, self.usd), proven.get(self.proven_cap, 0.0))

    def priced(
        self,
        values: NDArray[np.float64],
        premium: Mapping[str, float],
        cap: int,
        floor: float,
        prune_parts: bool,
        most_groups: int,
        max_steps: int,
    ) -> Pricing:
        """Groups with a profit above `floor` at these job values and node premiums (pricing.price)."""
        usd = np.array([self.usd[pool] + premium.get(pool, 0.0) for pool in self.table.pools])
        infeasible = self.memory.infeasible
        return price(self.table, values, usd, cap, floor, infeasible, prune_parts, most_groups, max_steps)

    def _add_feasible(self, candidates: Sequence[PricedGroup]) -> tuple[int, int]:
        """Simulate candidates, the most profitable first; (columns added, candidates left untested)."""
        added, untested, seen = 0, 0, dict.fromkeys(self.names, 0)
        for first in range(0, len(candidates), _BATCH):
            batch = []
            for candidate in candidates[first : first + _BATCH]:
                names = [self.table.placements[m].job for m, _, _ in candidate.members]
                # Many alike above the floor teach little: the best of each job first, then new prices.
                quota = math.inf if self.exact else _QUOTA
                if self.simulated >= self.effort.simulations or min(seen[name] for name in names) >= quota:
                    untested += 1
                    continue
                batch.append(candidate)
                for name in names:
                    seen[name] += 1
            for candidate, group in self.robust(batch):
                if self.has_column(group):
                    continue
                self.simulated += 1
                # A proof needs every column to be sound; otherwise only those that are chosen.
                sound = (
                    self.checker.holds(group, self.jobs) if self.exact else self.checker.keeps([group], self.jobs)[0]
                )
                if sound:
                    added += self.add(group)
                elif len(candidate.members) > 1:
                    self.memory.infeasible.add(candidate.structure_hash)
        return added, untested

    def robust(self, candidates: Sequence[PricedGroup]) -> list[tuple[PricedGroup, Group]]:
        """The robust candidates and their groups: every two and every three of their members that share nodes are
        feasible without the others. Parts that are not feasible are added to the infeasible set."""
        memory = self.memory
        for size in () if self.exact else (2, 3):
            untested: dict[int, Group] = {}
            parts_of: list[list[int]] = []
            for candidate in candidates:
                parts_of.append([])
                if len(candidate.members) <= size:
                    continue
                for part in combinations(candidate.members, size):
                    if connected(part):
                        part_hash = structure_hash_of(self.table, part)
                        parts_of[-1].append(part_hash)
                        if part_hash not in memory.sound and part_hash not in memory.infeasible:
                            untested[part_hash] = group_of(self.table, part, candidate.pools, self.node_types)
            self.simulated += len(untested)
            for part_hash, keeps in zip(untested, self.checker.keeps(list(untested.values()), self.jobs), strict=True):
                (memory.sound if keeps else memory.infeasible).add(part_hash)
            candidates = [
                candidate
                for candidate, part_hashes in zip(candidates, parts_of, strict=True)
                if all(part_hash in memory.sound for part_hash in part_hashes)
            ]
        return [
            (candidate, group_of(self.table, candidate.members, candidate.pools, self.node_types))
            for candidate in candidates
        ]

    def close(self, price_usd: float) -> bool:
        """Add every column that a choice cheaper than `price_usd` could use; whether all of them are there now.

        A column whose reduced cost exceeds the gap is in no better choice.
        """
        objective, values, premium = self.master.solve()
        floor = -max(0.0, price_usd - objective) - 1e-6
        pricing = self.priced(values, premium, self.top, floor, False, 60_000, self.effort.steps)
        return pricing.floor <= floor and not self._add_feasible(pricing.groups)[1]

    def shortlist(self) -> list[GroupColumn]:
        """The columns that can matter by the master's prices; the rest would only slow the branch and bound down."""
        columns = sorted(self.columns.values(), key=lambda c: (c.usd_per_hour, c.jobs))
        if self.exact:
            return columns
        _, values, premium = self.master.solve()
        return nearest(columns, self.names, values, premium, self.effort.columns, self.warm)[0]

    def choice(self, previous: Sequence[Group]) -> tuple[list[GroupColumn], bool]:
        """The cheapest choice of columns, and whether it was proven.

        Ties go to groups of the previous plan, then to more training and smaller groups, then to a stable order.
        """
        columns = self.shortlist()
        # Checked before the integer program, since each of its runs costs more than to check them all.
        while unsound := [c for c in columns if not self.checker.holds(c.group, self.jobs)]:
            for column in unsound:
                self.columns.pop(self._key(column.group), None)
            # A dropped column may have displaced, or kept out, a dearer group of the same jobs that is feasible.
            for group in [*self.displaced, *sorted(self.warm, key=repr)]:
                if self.checker.holds(group, self.jobs):
                    self.add(group)
            columns = self.shortlist()
        running = set(previous)
        rank = [
            (0.0 if c.group in running else float(len(c.jobs))) + 0.5 * self._regret(c) + index * 1e-6 / len(columns)
            for index, c in enumerate(columns if self.exact else ())
        ]
        gap = 0.0 if self.exact else 0.75 * self.effort.gap
        chosen, proof, short = choose(
            columns, self.names, self.limits, gap, self.effort.nodes, rank if self.exact else None
        )
        if any(short.values()):
            raise nodes_short(len(self.names), short, self.limits)
        return chosen, proof.proven

    def _regret(self, column: GroupColumn) -> float:
        """How much worse a group is than another of the same price, in 0 to 1: training lost, and jobs that depend on
        each other. A plan of small groups is easier to run, and is taken where it trains at most a few percent less.
        """
        solo = sum(job.solo_usd_per_hour(self.node_types) for job in self.jobs.values())
        lost = self.checker.lost(column.group, self.jobs, self.node_types) / max(solo, 1e-9)
        pairs = len(column.jobs) * (len(column.jobs) - 1) / len(self.names) ** 2
        return 0.9 * lost + 0.1 * pairs
