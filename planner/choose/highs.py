"""How integer programs are solved: PuLP models, HiGHS in this process, the same answer everywhere.

Discipline: one thread, a fixed seed, a limit of nodes and never of seconds; HiGHS's own status and
bound are read, because on a limit PuLP's plain status still says Optimal.
"""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass
from typing import Any

import highspy
import pulp

from .candidates.solve_options import MAX_NODES

_SEED = 1


@dataclass(frozen=True, slots=True)
class Minimum:
    """The minimum of a program: `objective` is infinite if the limit came before any solution; variables hold its
    values."""

    objective: float
    bound: float
    proven: bool


class _Highs(pulp.HiGHS):  # type: ignore[misc]
    """PuLP's HiGHS solver with a node limit: at that limit PuLP 3.3 reads the values and then fails on the status."""

    def findSolutionValues(self, lp: Any) -> tuple[int, int]:
        if lp.solverModel.getModelStatus() != highspy.HighsModelStatus.kSolutionLimit:
            status: tuple[int, int] = super().findSolutionValues(lp)
            return status
        with contextlib.suppress(KeyError):
            super().findSolutionValues(lp)
        if math.isfinite(lp.solverModel.getObjectiveValue()):
            return pulp.LpStatusOptimal, pulp.LpSolutionIntegerFeasible
        return pulp.LpStatusNotSolved, pulp.LpSolutionNoSolutionFound


def minimise(problem: Any, objective: Any, max_nodes: int = MAX_NODES, gap: float = 0.0) -> Minimum | None:
    """Minimise over a PuLP problem; None if it is infeasible. Raises RuntimeError if HiGHS fails.

    Args:
        gap: relative, at which the search may end; the bound says what was proven.
    """
    problem.setObjective(objective)
    # At so tight a tolerance presolve now and then takes a feasible program for an infeasible one (1 in 300 of
    # benchmarks.round_optimality), so before reporting infeasibility, solve again without presolve.
    for presolve in ("on", "off"):
        problem.solve(
            _Highs(
                msg=False,
                threads=1,
                gapRel=gap,
                random_seed=_SEED,
                mip_max_nodes=max_nodes,
                mip_feasibility_tolerance=1e-9,
                presolve=presolve,
            )
        )
        if pulp.LpStatusInfeasible not in (problem.status, problem.sol_status):
            break
    else:
        return None
    highs = problem.solverModel
    info, status = highs.getInfo(), highs.getModelStatus()
    if status not in (highspy.HighsModelStatus.kOptimal, highspy.HighsModelStatus.kSolutionLimit):
        raise RuntimeError(f"HiGHS ended with status {highs.modelStatusToString(status)}")
    proven = status == highspy.HighsModelStatus.kOptimal
    has_solution = proven or problem.sol_status == pulp.LpSolutionIntegerFeasible
    return Minimum(
        float(pulp.value(problem.objective)) if has_solution else math.inf, float(info.mip_dual_bound), proven
    )
