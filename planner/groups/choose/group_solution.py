"""What the group program is given beside jobs, and what it answers: limits of work, what it learnt, the solution."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ....plans.schema.workload import Objective
from ..inputs.group_model import Group, GroupJob, Rules, Slowdown
from .group_columns import Checker, Column, Mode
from .pricing import Known

ColumnKey = tuple[tuple[str, ...], tuple[str, ...]]
"""The jobs of a column, and its nodes where pools have limits."""


@dataclass(frozen=True)
class Effort:
    """Limits of work, the same on every machine."""

    exact_jobs: int = 10
    """Jobs up to which all groups are searched without the clause of robustness."""
    gap: float = 0.01
    """Relative gap at which pricing and integer program may stop, above `exact_jobs`."""
    first_tolerance: float = 0.32
    """By how much job values are scaled down at first, so that the best groups are found before many good ones."""
    small_first: bool = True
    """Whether groups of two, then of three are priced to the end before larger ones."""
    greedy: bool = True
    """Whether Algorithm 1 is run for its groups."""
    simulated: int = 60_000
    """Groups simulated for columns."""
    found: int = 4_000
    """Groups that a search returns, the most profitable."""
    steps: int = 20_000_000
    """Placements tried in one search."""
    rounds: int = 400
    """Searches for each group cap."""
    cut_short: int = 2
    """Searches that may meet the limit of steps before a group cap is given up: no proof would come of it."""
    columns: int = 1_500
    """That the integer program chooses from, the ones of least reduced cost."""
    nodes: int = 300
    """Of the branch and bound."""


PLAN = Effort()
"""For a plan that people wait a minute for."""


class Memory:
    """What solves under one set of rules learn and later solves use: simulations, structures that are out, columns."""

    def __init__(self, rules: Rules) -> None:
        self.checker = Checker(rules)
        self.known = Known()
        self.sound: set[int] = set()
        """Words of parts that are feasible."""
        self.columns: dict[ColumnKey, Column] = {}
        """The cheapest feasible group of each key."""
        self._jobs: dict[str, GroupJob] = {}

    def see(self, jobs: Mapping[str, GroupJob]) -> None:
        """Forget what holds a job that is gone, and all that was learnt of one whose durations changed."""
        changed = {name for name, job in jobs.items() if name in self._jobs and self._jobs[name] is not job}
        if changed:
            # A word does not say which jobs it is of.
            self.known, self.sound = Known(), set()
        self.columns = {
            key: column
            for key, column in self.columns.items()
            if all(name in jobs and name not in changed for name in key[0])
        }
        self._jobs = dict(jobs)


@dataclass(frozen=True)
class GroupSolution:
    """Groups, what they cost, and what was proven. Prices are USD per hour."""

    groups: tuple[Group, ...]
    objective: Objective
    usd_per_hour: float
    usd_per_unit: float
    """USD for the training that one USD buys if every job has its own nodes (Solo-D)."""
    bound_usd_per_hour: float
    """Of any choice of groups, whatever the objective."""
    bound_usd_per_unit: float | None
    """Of any choice of groups in `universe`; None: not the objective."""
    gap: float
    """(reached - bound) / reached, of the objective."""
    slowdowns: Mapping[str, Slowdown]
    columns: int
    """Feasible groups that the program chose from."""
    simulated: int
    status: str
    """`optimal`, `gap` (pricing or integer program ended at its tolerance) or `limit` (work ran out)."""
    universe: str
    """What the gap is valid for."""
    greedy_usd_per_hour: float
    fluid_usd_per_hour: float


def fluid_bound(modes_of: Mapping[str, Sequence[Mode]], usd_per_hour: Mapping[str, float]) -> float:
    """USD per hour that any plan costs: nodes always busy, every job at its bound (refs/rollmux.md 9)."""
    return sum(min(mode.fluid_usd_per_hour(usd_per_hour) for mode in found) for found in modes_of.values())
