"""The group program: every job in one co-execution group, at the least price, with a bound on what is left.

Set partitioning by column generation. The linear master prices jobs; `pricing.price` lists groups that are worth more
than they cost by conditions that every feasible group meets; those are simulated, feasible ones become columns, the
others join the infeasible set. When nothing is left above a tolerance, the master's value over 1 + tolerance is a lower
bound of the price of any choice of groups in the universe (Farley's bound: the duals, scaled down, price no group above
its cost). The integer program over the columns gives the groups.

Universe of the proof: connected groups of at most `group_cap` jobs, in placements of `group_columns.job_placements`,
on whole nodes or the slots that `group_columns.attach` gives, feasible by simulation. Above `SearchEffort.exact_jobs`
jobs, or where a job has several points, a group must also be robust: every two and every three of its members that
share nodes must be feasible without the others, so that a departure that leaves them alone breaks nothing. Up to
`exact_jobs` there is no such clause, and the solution is the optimum.

Warm start: Algorithm 1's groups and the previous plan's are columns, and the choice of these alone is an upper limit.
Where jobs have points and none runs, so are the groups of the jobs at their references: the choice is never dearer.
Limits are of work, never of seconds, so that the same inputs give the same groups.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ....plans.schema.workload import Objective
from ....plans.yaml.errors import Infeasible
from ..inputs.group_model import Group, GroupJob, NodeTypes, Rules, nodes_short, slowdown_bound
from ..simulate.slowdowns import training_per_hour
from .group_columns import GroupColumn, fluid_bound, placed_solo
from .group_search import ROUNDING, GroupSearch, Relaxation, choose, nearest
from .group_solution import PLAN, GroupSolution, SearchEffort, SolveMemory
from .pricing import PricedGroup

# USD per unit of training: the choice of groups with the least ratio of price to training done.
#
# A unit of training is what one USD buys if each job has its own nodes, so a job does solo_usd / slowdown units an
# hour. The ratio of two sums over the chosen groups is minimised by Dinkelbach's iteration ("On nonlinear fractional
# programming", Management Science 13(7), 1967): at a guess `rate` of the ratio, set partitioning by
#
#     price + rate * (training that the group's members do less than solo)
#
# whose minimum is rate * (training of all jobs solo) exactly if no choice has a lower ratio; else its choice has one,
# which is the next guess. The guesses fall, from the choice of least USD per hour on, so the answer is never worse.
#
# Groups are generated for each guess as for USD per hour, with the job values of this program; pricing.price does not
# know the training that a group loses before the group is simulated, and assumes the least possible, so that nothing
# is missed. If the search ended within its limits, the bound holds for the whole universe; else for the groups tried
# only, and `PerUnit.complete` is false.

_GUESSES = 12
_ROUNDS = 300
_EPS = 1e-7
_BATCH = 200
"""Groups simulated between two solves of the linear program, the most promising ones."""
_FIRST, _MOST = 2_000, 60_000
"""Candidates of one search; only where few are left and jobs are few are all of them looked at."""
_PART = 10
"""Share of the work of a plan by USD per hour that a search above `SearchEffort.exact_jobs` jobs may take."""


@dataclass(frozen=True)
class PerUnit:
    """The choice of least USD per unit."""

    columns: tuple[GroupColumn, ...]
    usd_per_unit: float
    bound: float
    """Lower bound of the ratio."""
    complete: bool
    """Whether the bound holds for the universe; else for the groups tried only."""
    tried: int
    """Feasible groups from which the choice was made."""


class RatioSearch:
    """The search for the choice of least USD per unit, after the search for USD per hour (`search`) has ended."""

    def __init__(self, search: GroupSearch) -> None:
        self.search = search
        self.solo = {name: job.solo_usd_per_hour(search.node_types) for name, job in search.jobs.items()}
        self.total = sum(self.solo.values())
        self.least = sum(self.solo[name] / slowdown_bound(job, search.rules) for name, job in search.jobs.items())
        """Units an hour that the jobs do at their bounds; any choice does more."""
        self.gain = np.array([self._gain(name) for name in search.names])
        self.simulated: set[int] = set()
        """Structure hashes of the groups that were simulated."""
        self.most: dict[int, float] = {}
        """Units an hour that a group gains at most, by structure hash."""
        self.lost: dict[Group, float] = {}
        """Units an hour that the members of each feasible group do less than solo."""
        self.budget = search.simulated + search.effort.simulations // (1 if search.exact else _PART)
        solo = [placed_solo(p, search.node_types) for name in search.names for p in search.placements_of[name]]
        for group in [*(c.group for c in search.columns.values()), *sorted(search.warm, key=repr), *solo]:
            self._add(group)

    def best(self, chosen: Sequence[GroupColumn]) -> PerUnit:
        """The choice of least ratio, `chosen` or better."""
        best, rate = list(chosen), self.ratio(chosen)
        for _ in range(_GUESSES):
            floor, complete = self.generate(rate)
            # Where durations spread, a simulated mean may by its draws be lower than the least that the search assumes.
            jobs = self.search.jobs.values()
            complete = complete and not any(job.spread_at(r) for job in jobs for r, _ in job.pairs())
            columns, least = self.choice(rate)
            if complete and self._close(rate, floor, columns):
                columns, floor = self.choice(rate)
            ratio = self.ratio(columns)
            # The least that a choice costs beyond rate * its training.
            short = min(0.0, (floor if complete else least) - rate * self.total)
            lowest = rate + short / self.least
            if ratio >= rate * (1.0 - _EPS):
                break
            best, rate = columns, ratio
        return PerUnit(tuple(best), rate, min(rate, max(0.0, lowest)), complete, len(self.lost))

    def ratio(self, columns: Sequence[GroupColumn]) -> float:
        """USD per unit of a choice."""
        for column in columns:
            self._add(column.group)
        done = self.total - sum(self.lost[column.group] for column in columns)
        return sum(column.group.usd_per_hour(self.search.node_types) for column in columns) / done

    def _at_rate(self, group: Group, rate: float) -> GroupColumn:
        """A feasible group at its price and `rate` for each unit that its members do less than solo."""
        return GroupColumn(group, group.usd_per_hour(self.search.node_types) + rate * self.lost[group])

    def priced(self, rate: float) -> list[GroupColumn]:
        """Feasible groups at `rate`, the cheapest first."""
        columns = [self._at_rate(group, rate) for group in self.lost]
        return sorted(columns, key=lambda c: (c.usd_per_hour, c.jobs))

    def generate(self, rate: float) -> tuple[float, bool]:
        """Add groups until none is worth more than it costs; (least that any choice costs, whether it was proven)."""
        search = self.search
        master, wide = self._master(rate), False
        for _ in range(_ROUNDS):
            _, values, premium = master.solve()
            before = len(self.lost)
            simulated, listed = self._simulate(rate, values, premium, _EPS, _BATCH, _MOST if wide else _FIRST)
            for group in list(self.lost)[before:]:
                master.add(self._at_rate(group, rate))
            if simulated:
                continue
            if listed or wide or not search.exact:
                paid = sum(premium[pool] * limit for pool, limit in search.limits.items())
                return float(values.sum()) - paid - len(search.names) * _EPS, listed
            wide = True
        return 0.0, False

    def choice(self, rate: float) -> tuple[list[GroupColumn], float]:
        """The cheapest choice of the groups tried, and the least that any choice of them costs."""
        search = self.search
        columns = self.priced(rate)
        lowest, values, premium = self._master(rate).solve()
        near, cut = nearest(columns, search.names, values, premium, search.effort.columns, search.warm)
        gap = 0.0 if search.exact else search.effort.gap / 4
        chosen, proof, short = choose(near, search.names, search.limits, gap, search.effort.nodes)
        if any(short.values()):
            raise nodes_short(len(search.names), short, search.limits)
        least = min(proof.bound, proof.objective)
        return chosen, least if len(near) == len(columns) else min(least, lowest + cut)

    def _close(self, rate: float, floor: float, chosen: Sequence[GroupColumn]) -> bool:
        """Add every group that a choice cheaper than `chosen` could use; whether all of them are there now."""
        price_usd = sum(column.usd_per_hour for column in chosen)
        _, values, premium = self._master(rate).solve()
        return self._simulate(rate, values, premium, -max(0.0, price_usd - floor) - 1e-6, _MOST, _MOST)[1]

    def _master(self, rate: float) -> Relaxation:
        master = Relaxation(self.search.names, self.search.limits)
        for column in self.priced(rate):
            master.add(column)
        return master

    def _simulate(
        self, rate: float, values: NDArray[np.float64], premium: dict[str, float], floor: float, batch: int, most: int
    ) -> tuple[int, bool]:
        """Simulate groups whose profit could be above `floor`, the best first; (how many, whether that was all)."""
        search, effort = self.search, self.search.effort
        steps = effort.steps if search.exact else effort.steps // _PART
        pricing = search.priced(values + rate * self.gain, premium, search.top, floor, not search.exact, most, steps)
        gain = dict(zip(search.names, self.gain, strict=True))
        candidates: list[tuple[float, int, PricedGroup]] = []
        for order, group in enumerate(pricing.groups):
            if len(group.members) > 1 and group.structure_hash not in self.simulated:
                if group.structure_hash not in self.most:
                    self.most[group.structure_hash] = self._most_gain(group)
                hoped = sum(gain[search.table.placements[m].job] for m, _, _ in group.members)
                profit = group.profit - rate * (hoped - self.most[group.structure_hash])
                if profit > floor:
                    candidates.append((-profit, order, group))
        candidates.sort(key=lambda row: row[:2])
        tried = [group for _, _, group in candidates[: min(batch, max(0, self.budget - search.simulated))]]
        for _, feasible in search.robust(tried):
            search.simulated += 1
            if search.checker.holds(feasible, search.jobs):
                self._add(feasible, sure=True)
        self.simulated |= {group.structure_hash for group in tried}
        return len(tried), pricing.floor <= floor and len(tried) == len(candidates)

    def _most_gain(self, group: PricedGroup) -> float:
        """Units an hour that a group can do more than its jobs solo, at most (negative: it does less).

        An iteration takes no less than solo in its ways; and no node is busy for more than all the time, whoever of its
        jobs goes first: a fractional knapsack, and the tightest node counts.
        """
        table, jobs, rules = self.search.table, self.search.jobs, self.search.rules
        members, nodes = [], 1 + max(n for _, a, b in group.members for n in (*a, *b))
        for m, a, b in group.members:
            placement = table.placements[m]
            job = jobs[placement.job]
            fastest_s = job.rollout[placement.options[0]].mean_s + job.train[placement.options[1]].mean_s
            pace_s = slowdown_bound(job, rules) * job.solo_s
            busy_s = [pace_s * (placement.share[0] * (n in a) + placement.share[1] * (n in b)) for n in range(nodes)]
            members.append((self.solo[placement.job] * job.solo_s, fastest_s, busy_s))
        least = math.inf
        for n in range(nodes):
            left, units = 1.0, 0.0
            # Jobs that earn most with the node's time first; a job that does not use the node takes none of its time.
            for worth, fastest_s, busy_s in sorted(members, key=lambda x: x[2][n] / x[0]):
                rate = 1.0 / fastest_s if busy_s[n] == 0 else min(1.0 / fastest_s, left / busy_s[n])
                left = max(0.0, left - rate * busy_s[n])
                units += worth * rate
            least = min(least, units)
        return least * (1 + 1e-6) - sum(self.solo[table.placements[m].job] for m, _, _ in group.members)

    def _add(self, group: Group, sure: bool = False) -> None:
        if group in self.lost or not (sure or self.search.fits(group)):
            return
        self.lost[group] = self.search.checker.lost(group, self.search.jobs, self.search.node_types)

    def _gain(self, name: str) -> float:
        """Units an hour that the job's fastest ways do more than its reference, which no group can beat."""
        job = self.search.jobs[name]
        fastest_s = min(
            job.rollout[p.options[0]].mean_s + job.train[p.options[1]].mean_s for p in self.search.placements_of[name]
        )
        return self.solo[name] * max(0.0, job.solo_s / fastest_s - 1.0)


def solve_groups(
    jobs: Sequence[GroupJob],
    node_types: NodeTypes,
    rules: Rules,
    *,
    previous: Sequence[Group] = (),
    effort: SearchEffort = PLAN,
    memory: SolveMemory | None = None,
    objective: Objective = "usd_per_hour",
    notify: Callable[[str], None] = lambda text: None,
) -> GroupSolution:
    """The groups of least price that hold all jobs. Raises Infeasible, naming what does not fit and what would help.

    Args:
        previous: groups of the running plan; of equally cheap choices the one that keeps most of them is taken.
        memory: of earlier solves under the same rules and node types.
        objective: USD per hour, or USD per unit of training, of which both are always reported.
        notify: is called with a text at each stage of the solve.
    """
    if any(job.points[1:] for job in jobs) and not previous:
        notify("each job as it would run alone")
        alone = [job.at_reference() if job.points else job for job in jobs]
        # Without room for these the points may still have some.
        with suppress(Infeasible):
            previous = solve_groups(alone, node_types, rules, effort=effort).groups
    search = GroupSearch(jobs, node_types, rules, effort, memory or SolveMemory(rules))
    notify("Algorithm 1")
    search.start(previous)
    bound = search.generate(notify)
    notify("choosing groups")
    return _finish(search, bound, previous, objective)


def _finish(search: GroupSearch, bound: float, previous: Sequence[Group], objective: Objective) -> GroupSolution:
    """The solution of the integer program over the columns, with its bound, gap and status."""
    chosen, proven = search.choice(previous)
    if search.exact and proven and search.close(sum(c.usd_per_hour for c in chosen)):
        chosen, proven = search.choice(previous)
        if proven:
            bound = math.inf
    bound = min(sum(c.usd_per_hour for c in chosen), max(bound, 0.0))
    unit = RatioSearch(search).best(chosen) if objective == "usd_per_unit" else None
    chosen = chosen if unit is None else list(unit.columns)
    groups = tuple(sorted((c.group for c in chosen), key=lambda g: g.pins[0].job))
    usd = sum(group.usd_per_hour(search.node_types) for group in groups)
    slow = {name: s for group in groups for name, s in search.checker.slowdowns(group, search.jobs).items()}
    per_unit = usd / training_per_hour(slow, search.jobs, search.node_types)
    reached, least = (usd, bound) if unit is None else (per_unit, min(unit.bound, per_unit))
    gap = 0.0 if reached - least <= ROUNDING * reached else (reached - least) / reached
    universe = (
        f"groups of at most {search.proven_cap if search.proven_cap < search.top else search.rules.group_cap} jobs"
        + (", of the points that are planned" if any(job.points for job in search.jobs.values()) else "")
        + ("" if search.exact else ", feasible also in every two and three of their members")
    )
    status = (
        "optimal"
        if gap == 0.0 and search.proven_cap == search.top
        else "gap"
        if gap <= 2 * search.effort.gap
        else "limit"
    )
    if unit is not None and not unit.complete:
        status = "limit"
        universe = f"the {unit.tried} groups that were tried, of all {universe}"
    return GroupSolution(
        groups=groups,
        objective=objective,
        usd_per_hour=usd,
        usd_per_unit=per_unit,
        bound_usd_per_hour=bound,
        bound_usd_per_unit=None if unit is None else least,
        gap=gap,
        slowdowns=slow,
        columns=len(search.columns) if unit is None else unit.tried,
        simulated=search.simulated,
        status=status,
        universe=universe,
        greedy_usd_per_hour=search.greedy_usd,
        fluid_usd_per_hour=fluid_bound(search.placements_of, search.usd),
    )
