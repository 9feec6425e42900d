"""USD per unit of training: the choice of groups with the least ratio of price to training done.

A unit of training is what one USD buys if each job has its own nodes, so a job does solo_usd / slowdown units an hour.
The ratio of two sums over the chosen groups is minimised by Dinkelbach's iteration ("On nonlinear fractional
programming", Management Science 13(7), 1967): at a guess `rate` of the ratio, set partitioning by

    price + rate * (training that the group's members do less than alone)

whose minimum is rate * (training of all jobs alone) exactly if no choice has a lower ratio; else its choice has one,
which is the next guess. The guesses fall, from the choice of least USD per hour on, so the answer is never worse.

Groups are generated for each guess as for USD per hour, with job values of this program; pricing.price does not know
what a group loses before it is simulated, and takes the least that it could, so that nothing is missed. If the search
ended within its limits, the bound holds for the whole universe; else for the groups tried only, and the answer says so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..inputs.capacity import nodes_short
from ..inputs.group_model import Group
from ..simulate.permit_seats import bound
from .group_columns import Column, lone
from .group_search import GroupSearch
from .master_program import Relaxation, choose, nearest
from .pricing import Found, price

_GUESSES = 12
_ROUNDS = 300
_EPS = 1e-7
_BATCH = 200
"""Groups simulated between two solves of the linear program, the most promising ones."""
_FIRST, _MOST = 2_000, 60_000
"""Candidates of one search; only where few are left and jobs are few are all of them looked at."""
_PART = 10
"""Share of the work of a plan by USD per hour that a search above `Effort.exact_jobs` jobs may take."""


@dataclass(frozen=True)
class PerUnit:
    """The choice of least USD per unit."""

    columns: tuple[Column, ...]
    usd_per_unit: float
    bound: float
    """Lower bound of the ratio."""
    complete: bool
    """Whether the bound holds for the universe; else for the groups tried only."""
    tried: int
    """Feasible groups from which the choice was made."""


class RatioSearch:
    """One search; `solve` has ended its own."""

    def __init__(self, solve: GroupSearch) -> None:
        self.solve = solve
        self.solo = {name: job.solo_usd_per_hour(solve.kinds) for name, job in solve.jobs.items()}
        self.total = sum(self.solo.values())
        self.least = solve.least_units()
        """What any choice does at least."""
        self.gain = np.array([self._gain(name) for name in solve.names])
        self.words: set[int] = set()
        """Of the structures that were simulated."""
        self.most: dict[int, float] = {}
        """By word, what a structure gains at most."""
        self.lost: dict[Group, float] = {}
        """Units an hour that the members of each feasible group do less than alone."""
        self.budget = solve.simulated + solve.effort.simulated // (1 if solve.exact else _PART)
        alone = [lone(mode, solve.kinds) for name in solve.names for mode in solve.modes_of[name]]
        for group in [*(c.group for c in solve.columns.values()), *sorted(solve.warm, key=repr), *alone]:
            self._add(group)

    def best(self, chosen: Sequence[Column]) -> PerUnit:
        """The choice of least ratio, `chosen` or better."""
        best, rate = list(chosen), self.ratio(chosen)
        for _ in range(_GUESSES):
            floor, complete = self.generate(rate)
            # Where durations spread, luck can make a simulated mean lower than what the search takes for the least.
            complete = complete and not any(job.spread for job in self.solve.jobs.values())
            found, least = self.choice(rate)
            if complete and self._close(rate, floor, found):
                found, floor = self.choice(rate)
            now = self.ratio(found)
            # What a choice costs beyond rate * its training; none is below this.
            short = min(0.0, (floor if complete else least) - rate * self.total)
            lowest = rate + short / self.least
            if now >= rate * (1.0 - _EPS):
                break
            best, rate = found, now
        return PerUnit(tuple(best), rate, min(rate, max(0.0, lowest)), complete, len(self.lost))

    def ratio(self, columns: Sequence[Column]) -> float:
        """USD per unit of a choice."""
        for column in columns:
            self._add(column.group)
        done = self.total - sum(self.lost[column.group] for column in columns)
        return sum(column.group.usd_per_hour(self.solve.kinds) for column in columns) / done

    def priced(self, rate: float) -> list[Column]:
        """Feasible groups at their price and what they lose, a unit at `rate`; the cheapest of each kind first."""
        solve = self.solve
        columns = [Column(group, group.usd_per_hour(solve.kinds) + rate * lost) for group, lost in self.lost.items()]
        return sorted(columns, key=lambda c: (c.usd_per_hour, c.jobs))

    def generate(self, rate: float) -> tuple[float, bool]:
        """Groups until none is worth more than it costs; (least that any choice costs, whether that was proven)."""
        solve = self.solve
        master, wide = self._master(rate), False
        for _ in range(_ROUNDS):
            _, values, premium = master.solve()
            before = len(self.lost)
            simulated, listed = self._search(rate, values, premium, _EPS, _BATCH, _MOST if wide else _FIRST)
            for group, lost in list(self.lost.items())[before:]:
                master.add(Column(group, group.usd_per_hour(solve.kinds) + rate * lost))
            if simulated:
                continue
            if listed or wide or not solve.exact:
                paid = sum(premium[pool] * limit for pool, limit in solve.limits.items())
                return float(values.sum()) - paid - len(solve.names) * _EPS, listed
            wide = True
        return 0.0, False

    def choice(self, rate: float) -> tuple[list[Column], float]:
        """The cheapest choice of the groups tried, and what any choice of them costs at least."""
        solve = self.solve
        columns = self.priced(rate)
        lowest, values, premium = self._master(rate).solve()
        near, cut = nearest(columns, solve.names, values, premium, solve.effort.columns, solve.warm)
        gap = 0.0 if solve.exact else solve.effort.gap / 4
        found, proof, short = choose(near, solve.names, solve.limits, gap, solve.effort.nodes)
        if any(short.values()):
            raise nodes_short(len(solve.names), short, solve.limits)
        least = min(proof.bound, proof.objective)
        return found, least if len(near) == len(columns) else min(least, lowest + cut)

    def _close(self, rate: float, floor: float, found: Sequence[Column]) -> bool:
        """Add every group that a choice cheaper than `found` could use; whether all of them are there now."""
        price_usd = sum(column.usd_per_hour for column in found)
        _, values, premium = self._master(rate).solve()
        return self._search(rate, values, premium, -max(0.0, price_usd - floor) - 1e-6, _MOST, _MOST)[1]

    def _master(self, rate: float) -> Relaxation:
        master = Relaxation(self.solve.names, self.solve.limits)
        for column in self.priced(rate):
            master.add(column)
        return master

    def _search(
        self, rate: float, values: NDArray[np.float64], premium: dict[str, float], floor: float, batch: int, most: int
    ) -> tuple[int, bool]:
        """Simulate what could have a profit above `floor`, the best first; (how many, whether that was all)."""
        solve, effort = self.solve, self.solve.effort
        usd = np.array([solve.usd[pool] + premium.get(pool, 0.0) for pool in solve.table.pools])
        found = price(
            solve.table,
            values + rate * self.gain,
            usd,
            min(solve.rules.group_cap, len(solve.names)),
            floor,
            solve.memory.known,
            not solve.exact,
            most,
            effort.steps if solve.exact else effort.steps // _PART,
        )
        gain = dict(zip(solve.names, self.gain, strict=True))
        worth: list[tuple[float, int, Found]] = []
        for at, one in enumerate(found.found):
            if len(one.members) > 1 and one.word not in self.words:
                if one.word not in self.most:
                    self.most[one.word] = self._most_gain(one)
                hoped = sum(gain[solve.table.modes[m].job] for m, _, _ in one.members)
                profit = one.profit - rate * (hoped - self.most[one.word])
                if profit > floor:
                    worth.append((-profit, at, one))
        worth.sort(key=lambda row: row[:2])
        some = [one for _, _, one in worth[: min(batch, max(0, self.budget - solve.simulated))]]
        for _, group in solve.robust(some):
            solve.simulated += 1
            if solve.checker.holds(group, solve.jobs):
                self._add(group, sure=True)
        self.words |= {one.word for one in some}
        return len(some), found.floor <= floor and len(some) == len(worth)

    def _most_gain(self, one: Found) -> float:
        """Units an hour that a group can do more than its jobs alone, at most (negative: it does less).

        An iteration takes no less than alone in its ways; and no node is busy for more than all the time, whoever of
        those on it goes first: a fractional knapsack, and the tightest node counts.
        """
        table, jobs, rules = self.solve.table, self.solve.jobs, self.solve.rules
        members, nodes = [], 1 + max(n for _, a, b in one.members for n in (*a, *b))
        for m, a, b in one.members:
            mode = table.modes[m]
            job = jobs[mode.job]
            alone_s = job.rollout[mode.ways[0]].mean_s + job.train[mode.ways[1]].mean_s
            pace_s = bound(job, rules) * job.solo_s
            busy_s = [pace_s * (mode.share[0] * (n in a) + mode.share[1] * (n in b)) for n in range(nodes)]
            members.append((self.solo[mode.job] * job.solo_s, alone_s, busy_s))
        least = math.inf
        for n in range(nodes):
            left, units = 1.0, 0.0
            # Those that earn most with the node's time first; who does not use it takes none.
            for worth, alone_s, busy_s in sorted(members, key=lambda x: x[2][n] / x[0]):
                rate = 1.0 / alone_s if busy_s[n] == 0 else min(1.0 / alone_s, left / busy_s[n])
                left = max(0.0, left - rate * busy_s[n])
                units += worth * rate
            least = min(least, units)
        return least * (1 + 1e-6) - sum(self.solo[table.modes[m].job] for m, _, _ in one.members)

    def _add(self, group: Group, sure: bool = False) -> None:
        if group in self.lost or not (sure or self.solve.fits(group)):
            return
        self.lost[group] = self.solve.checker.lost(group, self.solve.jobs, self.solve.kinds)

    def _gain(self, name: str) -> float:
        """Units an hour that the job's fastest ways do more than its reference, which no group can beat."""
        job = self.solve.jobs[name]
        modes = self.solve.modes_of[name]
        fastest_s = min(job.rollout[m.ways[0]].mean_s + job.train[m.ways[1]].mean_s for m in modes)
        return self.solo[name] * max(0.0, job.solo_s / fastest_s - 1.0)
