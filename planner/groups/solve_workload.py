"""From a workload document to a plan of co-execution groups: the library call behind `rlplan solve WORKLOAD`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from ...plans.errors import Infeasible
from ...plans.groups_plan import GroupsInputs, GroupsPlan, GroupsSolver, SolverStatus
from ...plans.origin import Volatile
from ...plans.workload import Workload
from .from_plans import Problem
from .limits import shortages
from .model import Group
from .policy import State
from .program import GroupSolution, solve_groups
from .running import running_state
from .write import write_plan


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
    running = State()
    if previous is not None:
        running = running_state(*previous, problem.jobs, problem.kinds)
    solution = solve_groups(
        list(problem.jobs.values()), problem.kinds, problem.rules, previous=tuple(running.groups.values())
    )
    state = State(problem.jobs, named(solution.groups, running.groups))
    volatile = Volatile(solved_at=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), solve_s=time.perf_counter() - began)
    return write_plan(problem, workload, state, _solver(solution), (), inputs, volatile)


def named(groups: Iterable[Group], running: Mapping[str, Group]) -> dict[str, Group]:
    """Ids for groups: that of the running group with which most jobs are shared, each id once, else a new one."""
    jobs = {key: {pin.job for pin in group.pins} for key, group in running.items()}
    listed = sorted(groups, key=lambda group: [pin.job for pin in group.pins])
    pairs = [
        (-len(jobs[key] & {pin.job for pin in group.pins}), key, at)
        for at, group in enumerate(listed)
        for key in jobs
        if jobs[key] & {pin.job for pin in group.pins}
    ]
    key_of: dict[int, str] = {}
    for _, key, at in sorted(pairs):
        if at not in key_of and key not in key_of.values():
            key_of[at] = key
    fresh = (key for number in range(1, 10**6) if (key := f"g{number}") not in running)
    return {key_of[at] if at in key_of else next(fresh): group for at, group in enumerate(listed)}


_STATUS: dict[str, SolverStatus] = {"optimal": "optimal", "gap": "gap", "limit": "limit"}


def _solver(solution: GroupSolution) -> GroupsSolver:
    return GroupsSolver(
        name=f"HiGHS {version('highspy')}",
        status=_STATUS[solution.status],
        bound_usd_per_hour=solution.bound_usd_per_hour,
        gap=solution.gap,
        universe=solution.universe,
        columns=solution.columns,
        simulated=solution.simulated,
        fluid_usd_per_hour=solution.fluid_usd_per_hour,
    )
