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
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .columns import Column, lone
from .limits import nodes_short
from .master import Relaxation, choose
from .model import Group
from .pricing import price

if TYPE_CHECKING:
    from .program import Solve

_GUESSES = 12
_ROUNDS = 40
_EPS = 1e-7
_MOST = 60_000
_MOST_OF_MANY = 2_000
"""Candidates of one search; above `Effort.exact_jobs` jobs, where the search is not exhausted anyway."""
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

    def __init__(self, solve: Solve) -> None:
        self.solve = solve
        self.solo = {name: job.solo_usd_per_hour(solve.kinds) for name, job in solve.jobs.items()}
        self.total = sum(self.solo.values())
        self.least = solve.least_units()
        """What any choice does at least."""
        self.gain = np.array([self._gain(name) for name in solve.names])
        self.words: set[int] = set()
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
            if complete and self._close(rate, floor):
                found, floor = self.choice(rate)
            now = self.ratio(found)
            # What a choice costs beyond rate * its training; none is below this.
            short = min(0.0, (floor if complete else least) - rate * self.total)
            bound = rate + short / self.least
            if now >= rate * (1.0 - _EPS):
                break
            best, rate = found, now
        return PerUnit(tuple(best), rate, min(rate, max(0.0, bound)), complete, len(self.lost))

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
        master = Relaxation(solve.names, solve.limits)
        known = set(self.lost)
        for column in self.priced(rate):
            master.add(column)
        for _ in range(_ROUNDS):
            _, values, premium = master.solve()
            fresh, listed = self._search(rate, values, premium, _EPS)
            for group in [group for group in self.lost if group not in known]:
                known.add(group)
                master.add(Column(group, group.usd_per_hour(solve.kinds) + rate * self.lost[group]))
            if not fresh:
                paid = sum(premium[pool] * limit for pool, limit in solve.limits.items())
                return float(values.sum()) - paid - len(solve.names) * _EPS, listed
        return 0.0, False

    def choice(self, rate: float) -> tuple[list[Column], float]:
        """The cheapest choice of the groups tried, and what it costs at least."""
        solve = self.solve
        columns = self._near(rate)
        gap = 0.0 if solve.exact else solve.effort.gap / 4
        found, proof, short = choose(columns, solve.names, solve.limits, gap, solve.effort.nodes)
        if any(short.values()):
            raise nodes_short(len(solve.names), short, solve.limits)
        return found, min(proof.bound, proof.objective)

    def _near(self, rate: float) -> list[Column]:
        """As many columns as the integer program can choose from, those of least reduced cost."""
        solve = self.solve
        columns = self.priced(rate)
        if solve.exact or len(columns) <= solve.effort.columns:
            return columns
        master = Relaxation(solve.names, solve.limits)
        for column in columns:
            master.add(column)
        _, values, premium = master.solve()
        of = dict(zip(solve.names, values, strict=True))
        extra = [
            c.usd_per_hour + sum(premium.get(pool, 0.0) for pool in c.group.nodes) - sum(of[name] for name in c.jobs)
            for c in columns
        ]
        limit = sorted(extra)[solve.effort.columns - 1]
        return [
            c for c, e in zip(columns, extra, strict=True) if e <= limit or len(c.jobs) == 1 or c.group in solve.warm
        ]

    def _close(self, rate: float, floor: float) -> bool:
        """Add every group that a cheaper choice than the best so far could use; whether all of them are there now."""
        solve = self.solve
        found, _ = self.choice(rate)
        price_usd = sum(column.usd_per_hour for column in found)
        master = Relaxation(solve.names, solve.limits)
        for column in self.priced(rate):
            master.add(column)
        _, values, premium = master.solve()
        _, listed = self._search(rate, values, premium, -max(0.0, price_usd - floor) - 1e-6)
        return listed

    def _search(
        self, rate: float, values: NDArray[np.float64], premium: dict[str, float], floor: float
    ) -> tuple[int, bool]:
        """Simulate what could have a profit above `floor`; (groups tried for the first time, whether that was all)."""
        solve, effort = self.solve, self.solve.effort
        usd = np.array([solve.usd[pool] + premium.get(pool, 0.0) for pool in solve.table.pools])
        cap = min(solve.rules.group_cap, len(solve.names))
        most, steps = (_MOST, effort.steps) if solve.exact else (_MOST_OF_MANY, effort.steps // _PART)
        found = price(
            solve.table,
            values + rate * self.gain,
            usd,
            cap,
            floor,
            solve.memory.known,
            not solve.exact,
            most,
            steps,
        )
        fresh = [one for one in found.found if len(one.members) > 1 and one.word not in self.words]
        left = max(0, self.budget - solve.simulated)
        for _, group in solve.robust(fresh[:left]):
            solve.simulated += 1
            if solve.checker.holds(group, solve.jobs):
                self._add(group, sure=True)
        self.words |= {one.word for one in fresh[:left]}
        return min(left, len(fresh)), found.floor <= floor and len(fresh) <= left

    def _add(self, group: Group, sure: bool = False) -> None:
        if group in self.lost or not (sure or self.solve.fits(group)):
            return
        slow = self.solve.checker.slowdowns(group, self.solve.jobs)
        self.lost[group] = math.fsum(self.solo[name] * (1.0 - 1.0 / s.mean) for name, s in slow.items())

    def _gain(self, name: str) -> float:
        """Units an hour that the job's fastest ways do more than its reference, which no group can beat."""
        job = self.solve.jobs[name]
        modes = self.solve.modes_of[name]
        fastest_s = min(job.rollout[m.ways[0]].mean_s + job.train[m.ways[1]].mean_s for m in modes)
        return self.solo[name] * max(0.0, job.solo_s / fastest_s - 1.0)
