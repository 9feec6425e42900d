"""The search of the group program for groups that are worth their price: one run of column generation.

group_program.py says what is minimised and what is proven; here are the columns that the linear master chooses from,
how new ones are found, and which of them the integer program is given.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations

import numpy as np

from ....plans.yaml.errors import Infeasible
from ..inputs.capacity import modes_within, node_limits, nodes_short
from ..inputs.group_model import Group, GroupJob, NodeKind, Rules
from ..place.assemble import alone, resident
from ..place.greedy import Algorithm1
from ..place.placing import State
from ..simulate.permit_seats import bound as slo_bound
from .group_columns import FULL, Column, built, lone, unit_shares
from .group_solution import ColumnKey, Effort, Memory, fluid_bound
from .master_program import Relaxation, choose, nearest
from .pricing import Found, Members, Table, connected, price, table, word_of

ROUNDING = 1e-7
_BATCH = 64
_QUOTA = 24


class GroupSearch:
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
        self.displaced: list[Group] = []
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
        displaced = self.columns.get(self._key(group))
        if displaced is not None:
            self.displaced.append(displaced.group)
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
            solo = [lone(mode, self.kinds) for mode in self.modes_of[name]]
            for group in sorted(solo, key=lambda g: g.usd_per_hour(self.kinds)):
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
        self.greedy_usd = 0.0 if self.effort.greedy else math.inf
        for group in state.groups.values():
            if self.fits(group):
                self.greedy_usd += group.usd_per_hour(self.kinds)
                self.add(group)
                self.warm.add(group)
            else:  # its long-run mean is just above a bound, which Algorithm 1's quick verdict may miss
                self.greedy_usd += sum(
                    alone(self.jobs[pin.job], self.kinds).usd_per_hour(self.kinds) for pin in group.pins
                )
        for group in previous:
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
            # A dropped column may have displaced, or kept out, a dearer group of the same jobs that is feasible.
            for group in [*self.displaced, *sorted(self.warm, key=repr)]:
                if self.checker.holds(group, self.jobs):
                    self.add(group)
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
        solo = sum(job.solo_usd_per_hour(self.kinds) for job in self.jobs.values())
        lost = self.checker.lost(column.group, self.jobs, self.kinds) / max(solo, 1e-9)
        pairs = len(column.jobs) * (len(column.jobs) - 1) / len(self.names) ** 2
        return 0.9 * lost + 0.1 * pairs

    def least_units(self) -> float:
        """Units of training an hour that the jobs do at their bounds; any choice of groups does more."""
        return sum(job.solo_usd_per_hour(self.kinds) / slo_bound(job, self.rules) for job in self.jobs.values())
