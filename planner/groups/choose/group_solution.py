"""Inputs and results of the group program beside jobs: limits of work, the memory of earlier solves, the solution."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ....plans.schema.workload import Objective
from ..inputs.group_model import Group, GroupJob, Jobs, NodeTypes, Rules, Slowdown, slowdown_bound
from ..simulate.slowdowns import feasible_many, slowdowns
from .group_columns import GroupColumn
from .pricing_kernel import InfeasibleSet

# Feasibility and slowdowns of groups in the group program, each group simulated once.
#
# Results are kept by content: which jobs (by identity: a job whose durations changed is another object), in which
# ways, and which jobs share units (with tails, also which units). The permit machine depends on nothing else, so that
# re-solves and renumbered nodes find the same entry.

_ENTRIES = 1_000_000


_ROUNDING = 1e-9


class GroupChecker:
    """Feasibility and slowdowns of groups under one set of rules, each group simulated once."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.simulated = 0
        self._numbers: dict[int, tuple[GroupJob, int]] = {}
        self._keeps: dict[tuple[object, ...], bool] = {}
        self._slow: dict[tuple[object, ...], dict[str, Slowdown]] = {}

    def keeps(self, groups: Sequence[Group], jobs: Jobs) -> list[bool]:
        """Whether every member of each group keeps its bound; the caller checks loads and residency.

        A verdict falls before a period is found, and a few in a thousand are wrong by some tenths of a percent: chosen
        groups must also pass `holds`.
        """
        keys = [self._key(group, jobs) for group in groups]
        unknown = {key: group for key, group in zip(keys, groups, strict=True) if key not in self._keeps}
        if unknown:
            if len(self._keeps) > _ENTRIES:
                self._keeps.clear()
            self.simulated += len(unknown)
            verdicts = feasible_many(list(unknown.values()), jobs, self.rules)
            self._keeps.update(zip(unknown, verdicts, strict=True))
            if any(key not in self._keeps for key in keys):
                return self.keeps(groups, jobs)
        return [self._keeps[key] for key in keys]

    def holds(self, group: Group, jobs: Jobs) -> bool:
        """Whether the group keeps all bounds by its long-run means too; `keeps` returns this verdict from now on."""
        held = self.keeps([group], jobs)[0] and (
            len(group.pins) == 1
            or all(
                slow.mean <= slowdown_bound(jobs[name], self.rules) + _ROUNDING
                for name, slow in self.slowdowns(group, jobs).items()
            )
        )
        self._keeps[self._key(group, jobs)] = held
        return held

    def lost(self, group: Group, jobs: Jobs, node_types: NodeTypes) -> float:
        """Units of training an hour that the members do less than solo (a unit is what one USD buys there)."""
        slow = self.slowdowns(group, jobs)
        return math.fsum(jobs[name].solo_usd_per_hour(node_types) * (1.0 - 1.0 / s.mean) for name, s in slow.items())

    def slowdowns(self, group: Group, jobs: Jobs) -> dict[str, Slowdown]:
        """Slowdown of every member."""
        key = self._key(group, jobs)
        if key not in self._slow:
            if len(self._slow) > _ENTRIES // 10:
                self._slow.clear()
            self._slow[key] = slowdowns(group, jobs, self.rules)
        return self._slow[key]

    def _key(self, group: Group, jobs: Jobs) -> tuple[object, ...]:
        """Members with their ways, then the distinct sets of phases that share a unit."""
        members = []
        occupants: dict[int, int] = {}
        for member, pin in enumerate(group.pins):
            members.append((self._number(jobs[pin.job]), pin.rollout, pin.train))
            for phase, units in enumerate((pin.rollout_units, pin.train_units)):
                bit = 1 << (2 * member + phase)
                for unit in units:
                    occupants[unit] = occupants.get(unit, 0) | bit
        if self.rules.tail_keep:
            # A tail keeps the first of its units: it counts how many are shared, and which.
            return (*members, *(occupants[unit] for unit in sorted(occupants)))
        return (*members, *sorted(set(occupants.values())))

    def _number(self, job: GroupJob) -> int:
        # Keep the job alive, so that no other object gets its id.
        return self._numbers.setdefault(id(job), (job, len(self._numbers)))[1]


ColumnKey = tuple[tuple[str, ...], tuple[str, ...]]
"""The jobs of a column, and its nodes where pools have limits."""


@dataclass(frozen=True)
class SearchEffort:
    """Limits of work, the same on every machine."""

    exact_jobs: int = 10
    """Jobs up to which all groups are searched; above, only robust groups (group_program.py)."""
    gap: float = 0.01
    """Relative gap at which pricing and integer program may stop, above `exact_jobs`."""
    first_tolerance: float = 0.32
    """By how much job values are scaled down at first, so that the best groups are generated before many good ones."""
    small_first: bool = True
    """Whether groups of two, then of three are priced to the end before larger ones."""
    greedy: bool = True
    """Whether Algorithm 1 is run for its groups."""
    simulations: int = 60_000
    """Groups simulated for columns."""
    simulations_of_points: int = 2_500
    """The same where jobs have points: alike ones make many groups, of which few are much better than the first."""
    groups_per_search: int = 4_000
    """Groups that a pricing search returns at most, the most profitable."""
    steps: int = 20_000_000
    """Placements tried in one pricing search."""
    rounds: int = 400
    """Pricing searches for each group cap."""
    cut_short: int = 2
    """Searches that may meet the limit of steps before a group cap is given up, since no proof would result."""
    columns: int = 1_500
    """Columns that the integer program chooses from, those of least reduced cost."""
    nodes: int = 300
    """Nodes of the branch and bound."""


PLAN = SearchEffort()
"""For a plan that people wait a minute for."""

QUICK = SearchEffort(
    exact_jobs=0,
    gap=0.04,
    first_tolerance=0.04,
    small_first=False,
    greedy=False,
    simulations=800,
    groups_per_search=1_000,
    steps=600_000,
    rounds=4,
    columns=250,
)
"""For every arrival and departure: the solve memory grows over re-solves."""


class SolveMemory:
    """Results of solves under one set of rules that later solves reuse: simulations, infeasible structures, columns."""

    def __init__(self, rules: Rules) -> None:
        self.checker = GroupChecker(rules)
        self.infeasible = InfeasibleSet()
        self.sound: set[int] = set()
        """Structure hashes of parts that are feasible."""
        self.columns: dict[ColumnKey, GroupColumn] = {}
        """The cheapest feasible group of each key."""
        self._jobs: dict[str, GroupJob] = {}

    def keep(self, jobs: Jobs) -> None:
        """Forget columns of jobs that are gone, and everything about a job whose durations changed."""
        changed = {name for name, job in jobs.items() if name in self._jobs and self._jobs[name] is not job}
        if changed:
            # A structure hash does not say which jobs it is of.
            self.infeasible, self.sound = InfeasibleSet(), set()
        self.columns = {
            key: column
            for key, column in self.columns.items()
            if all(name in jobs and name not in changed for name in key[0])
        }
        self._jobs = dict(jobs)


@dataclass(frozen=True)
class GroupSolution:
    """The chosen groups, their price, and what was proven. Prices are USD per hour."""

    groups: tuple[Group, ...]
    objective: Objective
    usd_per_hour: float
    usd_per_unit: float
    """USD for the training that one USD buys if every job has its own nodes (Solo-D)."""
    bound_usd_per_hour: float
    """Lower bound of any choice of groups, whatever the objective."""
    bound_usd_per_unit: float | None
    """Lower bound of any choice of groups in `universe`; None: not the objective."""
    gap: float
    """(reached - bound) / reached, of the objective."""
    slowdowns: Mapping[str, Slowdown]
    columns: int
    """Feasible groups that the program chose from."""
    simulated: int
    status: str
    """`optimal`, `gap` (pricing or integer program ended at its tolerance) or `limit` (work ran out)."""
    universe: str
    """The set of groups that the gap is valid for."""
    greedy_usd_per_hour: float
    fluid_usd_per_hour: float
