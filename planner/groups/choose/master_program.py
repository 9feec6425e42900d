"""The master of the group program: which columns, so that every job is in one group and node limits hold.

    min  sum price_g x_g    each job in (at least) one group, nodes of pool p in use <= limit_p

- `Relaxation`: the linear program that grows by columns; its duals price jobs and nodes. It is stated in highspy
  itself, because PuLP builds a new model for each solve: with highspy an added column keeps the basis, and the next
  solve takes a few simplex steps instead of all. It is the one model of the planner that is not stated in PuLP.
- `choose`: the integer program, in PuLP (planner/highs.py has the solver discipline).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import highspy
import numpy as np
import pulp
from numpy.typing import NDArray

from ...highs import Minimum, minimise
from ..inputs.group_model import Group
from .group_columns import Column

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

    def add(self, column: Column) -> None:
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
    columns: Sequence[Column],
    names: Sequence[str],
    values: NDArray[np.float64],
    premium: Mapping[str, float],
    most: int,
    always: Collection[Group],
) -> tuple[list[Column], float]:
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
    columns: Sequence[Column],
    names: Sequence[str],
    limits: Mapping[str, int],
    gap: float,
    max_nodes: int,
    rank: Sequence[float] | None = None,
) -> tuple[list[Column], Minimum, dict[str, int]]:
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
