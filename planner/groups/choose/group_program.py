"""The group program: every job in one co-execution group, at the least price, with a bound on what is left.

Set partitioning by column generation. The linear master prices jobs; `pricing.price` finds groups that are worth more
than they cost by conditions that every feasible group meets; those are simulated, feasible ones become columns, the
others become known structures. When nothing is left above a tolerance, the master's value over 1 + tolerance is a lower
bound of the price of any choice of groups in the universe (Farley's bound: the duals, scaled down, price no group above
its cost). The integer program over the columns gives the groups.

Universe of the proof: connected groups of at most `group_cap` jobs, in modes of `columns.modes`, on whole nodes or the
slots that `columns.attach` gives, feasible by simulation. Above `Effort.exact_jobs` jobs a group must also be
robust: every two and every three of its members that share nodes must be feasible without the others, so that a
departure that leaves them alone breaks nothing. Up to `exact_jobs` there is no such clause, and the answer is the
optimum.

Warm start: Algorithm 1's groups and the previous plan's are columns, and the choice of these alone is an upper limit.
Limits are of work, never of seconds, so that the same inputs give the same groups.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations

import numpy as np

from ....plans.errors import Infeasible
from ....plans.workload import Objective
from ..inputs.capacity import modes_within, node_limits, nodes_short
from ..inputs.group_model import Group, GroupJob, NodeKind, Rules
from ..place.assemble import resident
from ..place.greedy import Algorithm1
from ..place.placing import State
from ..simulate.permit_seats import bound as slo_bound
from ..simulate.slowdowns import units_per_hour
from .group_columns import FULL, Column, built, lone, unit_shares
from .group_solution import PLAN, ColumnKey, Effort, GroupSolution, Memory, fluid_bound
from .master_program import Relaxation, choose, nearest
from .pricing import Found, Members, Table, connected, price, table, word_of
from .unit_price import RatioSearch

ROUNDING = 1e-7
_BATCH = 64
_QUOTA = 24


def solve_groups(
    jobs: Sequence[GroupJob],
    kinds: Mapping[str, NodeKind],
    rules: Rules,
    *,
    previous: Sequence[Group] = (),
    effort: Effort = PLAN,
    memory: Memory | None = None,
    objective: Objective = "usd_per_hour",
    notify: Callable[[str], None] = lambda text: None,
) -> GroupSolution:
    """Group jobs at the least price. Raises Infeasible, naming what does not fit and what would make it fit.

    Args:
        previous: groups of the running plan; of equally cheap choices the one that keeps most of them is taken.
        memory: of earlier solves under the same rules and kinds.
        objective: USD per hour, or USD per unit of training (unit_price.py), of which both are always reported.
        notify: is told what is being done.
    """
    solve = Solve(jobs, kinds, rules, effort, memory or Memory(rules))
    notify("Algorithm 1")
    solve.start(previous)
    bound = solve.generate(notify)
    notify("choosing groups")
    return solve.finish(bound, previous, objective)


class Solve:
    """One run: columns by the jobs that they hold, the cheapest group of each set of jobs."""

    def __init__(
        self, jobs: Sequence[GroupJob], kinds: Mapping[str, NodeKind], rules: Rules, effort: Effort, memory: Memory
    ) -> None:
        self.jobs = {job.name: job for job in sorted(jobs, key=lambda job: job.name)}
        assert len(self.jobs) == len(jobs), "job names are unique"
        self.kinds, self.rules, self.effort = kinds, rules, effort
        memory.see(self.jobs)
        self.memory, self.checker = memory, memory.checker
        self.names = list(self.jobs)
        self.modes_of = {name: modes_within(job, kinds, rules) for name, job in self.jobs.items()}
        self.table: Table = table(self.modes_of, kinds)
        self.limits = node_limits(kinds)
        self.usd = {pool: kind.usd_per_hour for pool, kind in kinds.items()}
        self.exact = len(jobs) <= effort.exact_jobs
        self.top = self.proven_cap = min(rules.group_cap, len(jobs))
        self.master = Relaxation(self.names, self.limits)
        self.simulated = 0
        self.warm: set[Group] = set()
        self.greedy_usd = math.inf
        for column in self.columns.values():
            self.master.add(column)

    @property
    def columns(self) -> dict[ColumnKey, Column]:
        return self.memory.columns

    def _key(self, group: Group) -> ColumnKey:
        """The jobs, and the nodes where some are scarce: then a dearer group of the same jobs may be what fits."""
        return tuple(pin.job for pin in group.pins), group.nodes if self.limits else ()

    def held(self, group: Group) -> bool:
        """Whether there is a column for the same jobs that is as cheap."""
        held = self.columns.get(self._key(group))
        return held is not None and held.usd_per_hour <= group.usd_per_hour(self.kinds) + ROUNDING

    def add(self, group: Group) -> bool:
        """Make a feasible group a column, unless its jobs have a cheaper or equal one."""
        column = Column(group, group.usd_per_hour(self.kinds))
        if self.held(group):
            return False
        self.columns[self._key(group)] = column
        self.master.add(column)
        return True

    def fits(self, group: Group) -> bool:
        """Whether a group of elsewhere is one of ours: members known, cap, loads, memory, bounds."""
        if len(group.pins) > self.rules.group_cap or any(pin.job not in self.jobs for pin in group.pins):
            return False
        for pin in group.pins:
            job = self.jobs[pin.job]
            if pin.rollout >= len(job.rollout) or pin.train >= len(job.train):
                return False
        return (
            max(unit_shares(group, self.jobs, self.rules, self.kinds)) <= FULL
            and resident(group, self.jobs, self.kinds)
            and self.checker.holds(group, self.jobs)
        )

    def start(self, previous: Sequence[Group]) -> None:
        """Columns of single jobs, of Algorithm 1 and of the previous plan."""
        for name in self.names:
            alone = [lone(mode, self.kinds) for mode in self.modes_of[name]]
            for group in sorted(alone, key=lambda g: g.usd_per_hour(self.kinds)):
                if self.checker.keeps([group], self.jobs)[0]:
                    self.add(group)
                    break
            else:
                raise Infeasible(
                    f"job {name} does not keep its bound of {self.jobs[name].slo:g} even alone; raise its slo"
                )
        state = State()
        greedy = Algorithm1(self.kinds, self.rules)
        for job in self.jobs.values() if self.effort.greedy else ():
            state = greedy.arrive(state, job)
        self.greedy_usd = state.usd_per_hour(self.kinds) if self.effort.greedy else math.inf
        for group in [*state.groups.values(), *previous]:
            if self.fits(group):
                self.add(group)
                self.warm.add(group)

    def generate(self, notify: Callable[[str], None] = lambda text: None) -> float:
        """Columns until nothing is left above the tolerance, or the limits of work are met; the lower bound.

        The bound is of groups of at most `proven_cap` jobs: the largest cap whose search came to its end. If none did
        it is the fluid bound, which holds for all.
        """
        effort = self.effort
        bound = fluid_bound(self.modes_of, self.usd)
        top = self.top
        proven: dict[int, float] = {}
        ended: list[int] = []
        # Small groups first: they are many of the columns, quickly searched, and their prices guide what follows.
        for cap in sorted({min(2, top), min(3, top), top}) if effort.small_first else [top]:
            notify(f"groups of up to {cap} jobs")
            tolerance = 0.0 if self.exact else effort.first_tolerance
            cut_short = 0
            for _ in range(effort.rounds):
                _, values, premium = self.master.solve()
                usd = np.array([self.usd[pool] + premium.get(pool, 0.0) for pool in self.table.pools])
                scaled = values / (1.0 + tolerance)
                found = price(
                    self.table,
                    scaled,
                    usd,
                    cap,
                    ROUNDING,
                    self.memory.known,
                    not self.exact,
                    effort.found,
                    effort.steps,
                )
                added, untested = self._try(found.found)
                cut_short += math.isinf(found.floor)
                if cut_short > effort.cut_short:
                    break
                if added:
                    continue
                if untested or found.floor > ROUNDING:
                    if self.simulated >= effort.simulated or math.isinf(found.floor):
                        break
                    continue
                # Scaled duals price no group above its cost; node premiums are paid up to the limits.
                paid = sum(premium[pool] * limit for pool, limit in self.limits.items())
                proven[cap] = max(proven.get(cap, 0.0), float(scaled.sum()) - paid)
                if tolerance <= self.last_tolerance:
                    ended.append(cap)
                    break
                tolerance = max(self.last_tolerance, tolerance / 2)
        self.proven_cap = max(ended, default=top)
        return max(bound, proven.get(self.proven_cap, 0.0))

    @property
    def last_tolerance(self) -> float:
        return 0.0 if self.exact else self.effort.gap / 2

    def _try(self, found: Sequence[Found]) -> tuple[int, int]:
        """Simulate what was found, the most profitable first; (columns added, candidates left untested)."""
        added, untested, seen = 0, 0, dict.fromkeys(self.names, 0)
        for at in range(0, len(found), _BATCH):
            batch = []
            for one in found[at : at + _BATCH]:
                names = [self.table.modes[m].job for m, _, _ in one.members]
                # Many alike above the floor teach little: the best of each job first, then new prices.
                quota = math.inf if self.exact else _QUOTA
                if self.simulated >= self.effort.simulated or min(seen[name] for name in names) >= quota:
                    untested += 1
                    continue
                batch.append(one)
                for name in names:
                    seen[name] += 1
            for one, group in self.robust(batch):
                if self.held(group):
                    continue
                self.simulated += 1
                # A proof needs every column to be sound; otherwise only those that are chosen.
                sound = (
                    self.checker.holds(group, self.jobs) if self.exact else self.checker.keeps([group], self.jobs)[0]
                )
                if sound:
                    added += self.add(group)
                elif len(one.members) > 1:
                    self.memory.known.add(one.word)
        return added, untested

    def robust(self, found: Sequence[Found]) -> list[tuple[Found, Group]]:
        """Candidates whose every two and three members that share nodes are feasible alone; others become known."""
        for size in () if self.exact else (2, 3):
            parts: dict[int, Group] = {}
            of: list[list[int]] = []
            for one in found:
                of.append([])
                if len(one.members) <= size:
                    continue
                for some in combinations(one.members, size):
                    if connected(some):
                        word = word_of(self.table, some)
                        of[-1].append(word)
                        if word not in self.memory.sound and word not in self.memory.known:
                            parts[word] = self._group(some, one.pools)
            self.simulated += len(parts)
            for word, keeps in zip(parts, self.checker.keeps(list(parts.values()), self.jobs), strict=True):
                if keeps:
                    self.memory.sound.add(word)
                else:
                    self.memory.known.add(word)
            found = [
                one for one, words in zip(found, of, strict=True) if all(word in self.memory.sound for word in words)
            ]
        return [(one, self._group(one.members, one.pools)) for one in found]

    def _group(self, members: Members, pools: Sequence[str]) -> Group:
        """Some members of a candidate on the nodes that they use."""
        used = sorted({n for _, a, b in members for n in (*a, *b)})
        place = {old: new for new, old in enumerate(used)}
        return built(
            [(self.table.modes[m], [place[n] for n in a], [place[n] for n in b]) for m, a, b in members],
            [pools[n] for n in used],
            self.kinds,
        )

    def close(self, bound: float, price_usd: float) -> bool:
        """Add every column that a choice cheaper than `price_usd` could use; whether all of them are there now.

        A column whose reduced cost exceeds the gap is in no better choice.
        """
        objective, values, premium = self.master.solve()
        floor = -max(0.0, price_usd - objective) - 1e-6
        usd = np.array([self.usd[pool] + premium.get(pool, 0.0) for pool in self.table.pools])
        cap = min(self.rules.group_cap, len(self.names))
        found = price(self.table, values, usd, cap, floor, self.memory.known, False, 60_000, self.effort.steps)
        return found.floor <= floor and not self._try(found.found)[1]

    def shortlist(self) -> list[Column]:
        """The columns that can matter by the master's prices; the rest would only slow the branch and bound down."""
        columns = sorted(self.columns.values(), key=lambda c: (c.usd_per_hour, c.jobs))
        if self.exact:
            return columns
        _, values, premium = self.master.solve()
        return nearest(columns, self.names, values, premium, self.effort.columns, self.warm)[0]

    def choice(self, previous: Sequence[Group]) -> tuple[list[Column], bool]:
        """The cheapest choice of columns, and whether it was proven.

        Ties go to groups of the previous plan, then to more training and smaller groups, then to a stable order.
        """
        columns = self.shortlist()
        # Asked before the program, since each of its runs costs more than to ask them all.
        while unsound := [c for c in columns if not self.checker.holds(c.group, self.jobs)]:
            for column in unsound:
                self.columns.pop(self._key(column.group), None)
            columns = self.shortlist()
        running = set(previous)
        rank = [
            (0.0 if c.group in running else float(len(c.jobs))) + 0.5 * self._regret(c) + at * 1e-6 / len(columns)
            for at, c in enumerate(columns if self.exact else ())
        ]
        gap = 0.0 if self.exact else 0.75 * self.effort.gap
        chosen, proof, short = choose(
            columns, self.names, self.limits, gap, self.effort.nodes, rank if self.exact else None
        )
        if any(short.values()):
            raise nodes_short(len(self.names), short, self.limits)
        return chosen, proof.proven

    def _regret(self, column: Column) -> float:
        """What makes a group worse than another of the same price, in 0 to 1: training lost, and jobs that depend on
        each other. A plan of small groups is easier to run, and is taken where it trains at most a few percent less.
        """
        alone = sum(job.solo_usd_per_hour(self.kinds) for job in self.jobs.values())
        lost = self.checker.lost(column.group, self.jobs, self.kinds) / max(alone, 1e-9)
        pairs = len(column.jobs) * (len(column.jobs) - 1) / len(self.names) ** 2
        return 0.9 * lost + 0.1 * pairs

    def least_units(self) -> float:
        """Units of training an hour that the jobs do at their bounds; any choice of groups does more."""
        return sum(job.solo_usd_per_hour(self.kinds) / slo_bound(job, self.rules) for job in self.jobs.values())

    def finish(self, bound: float, previous: Sequence[Group], objective: Objective) -> GroupSolution:
        """The integer program over the columns, and its account."""
        chosen, proven = self.choice(previous)
        if self.exact and proven and self.close(bound, sum(c.usd_per_hour for c in chosen)):
            chosen, proven = self.choice(previous)
            if proven:
                bound = math.inf
        bound = min(sum(c.usd_per_hour for c in chosen), max(bound, 0.0))
        unit = RatioSearch(self).best(chosen) if objective == "usd_per_unit" else None
        chosen = chosen if unit is None else list(unit.columns)
        groups = tuple(sorted((c.group for c in chosen), key=lambda g: g.pins[0].job))
        usd = sum(group.usd_per_hour(self.kinds) for group in groups)
        slow = {name: s for group in groups for name, s in self.checker.slowdowns(group, self.jobs).items()}
        per_unit = usd / units_per_hour(slow, self.jobs, self.kinds)
        reached, least = (usd, bound) if unit is None else (per_unit, min(unit.bound, per_unit))
        gap = 0.0 if reached - least <= ROUNDING * reached else (reached - least) / reached
        universe = (
            f"groups of at most {self.proven_cap if self.proven_cap < self.top else self.rules.group_cap} jobs"
            + ("" if self.exact else ", feasible also in every two and three of their members")
        )
        status = (
            "optimal"
            if gap == 0.0 and self.proven_cap == self.top
            else "gap"
            if gap <= 2 * self.effort.gap
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
            columns=len(self.columns) if unit is None else unit.tried,
            simulated=self.simulated,
            status=status,
            universe=universe,
            greedy_usd_per_hour=self.greedy_usd,
            fluid_usd_per_hour=fluid_bound(self.modes_of, self.usd),
        )
