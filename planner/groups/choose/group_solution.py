"""Inputs and results of the group program beside jobs: limits of work, the memory of earlier solves, the solution."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ....plans.schema.workload import Objective
from ..inputs.group_model import Group, GroupJob, Jobs, Rules, Slowdown
from .group_checker import Checker
from .group_columns import Column
from .structure_hash import InfeasibleSet

ColumnKey = tuple[tuple[str, ...], tuple[str, ...]]
"""The jobs of a column, and its nodes where pools have limits."""


@dataclass(frozen=True)
class Effort:
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


PLAN = Effort()
"""For a plan that people wait a minute for."""

QUICK = Effort(
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
        self.checker = Checker(rules)
        self.infeasible = InfeasibleSet()
        self.sound: set[int] = set()
        """Structure hashes of parts that are feasible."""
        self.columns: dict[ColumnKey, Column] = {}
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
