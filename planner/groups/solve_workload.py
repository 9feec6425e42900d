"""From a workload document to a plan of co-execution groups: the library call behind `rlplan solve WORKLOAD`."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from ...plans.errors import Infeasible
from ...plans.groups_plan import GroupsInputs, GroupsPlan, GroupsSolver, Move, SolverStatus
from ...plans.origin import Volatile
from ...plans.workload import Workload
from .columns import Checker
from .from_plans import Problem
from .limits import excess, shortages
from .place import BestFit
from .policy import State
from .program import GroupSolution, solve_groups
from .running import running_state
from .transition import Transition, named, transition
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
    if previous is None:
        solution = solve_groups(list(problem.jobs.values()), problem.kinds, problem.rules)
        found = Transition(State(problem.jobs, named(solution.groups, {})), ())
        solver = _solver(solution, solution.usd_per_hour)
    else:
        running = running_state(*previous, problem.jobs, problem.kinds)
        found, solver = _from_running(problem, running, moving)
    planned = [
        Move(
            job=move.job,
            from_group=_group_in(previous, move.job),
            to_group=found.state.group_of(move.job),
            price_usd=move.usd,
            price_s=move.seconds,
            together=move.together,
            saves_usd_per_hour=move.saves_usd_per_hour,
            needed=move.needed,
        )
        for move in found.moves
    ]
    volatile = Volatile(solved_at=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), solve_s=time.perf_counter() - began)
    return write_plan(problem, workload, found.state, solver, planned, inputs, volatile)


def _from_running(problem: Problem, running: State, moving: bool) -> tuple[Transition, GroupsSolver]:
    """Running jobs with the new ones: beside them, or with the moves that pay."""
    kinds, rules = problem.kinds, problem.rules
    checker = Checker(rules)
    beside = BestFit(kinds, rules, checker=checker, robust=not moving)
    placed = running
    for name in sorted(set(problem.jobs) - set(running.jobs)):
        placed = beside.arrive(placed, problem.jobs[name])
    missing = excess(placed.groups.values(), kinds)
    if moving:
        solution = solve_groups(list(problem.jobs.values()), kinds, rules, previous=tuple(placed.groups.values()))
        found = transition(running, placed, solution.groups, kinds, rules, problem.remaining_s, bool(missing))
        return found, _solver(solution, found.state.usd_per_hour(kinds))
    if missing:
        parts = " and ".join(f"{taken} nodes of pool '{pool}', which has {limit}" for pool, taken, limit in missing)
        raise Infeasible(f"if running jobs stay, the new ones take it to {parts}; solve without --no-moves")
    return Transition(State(placed.jobs, named(placed.groups.values(), running.groups)), ()), GroupsSolver(
        name="incremental placement",
        status="placed",
        bound_usd_per_hour=None,
        gap=None,
        universe="running jobs stay",
        columns=len(placed.groups),
        simulated=checker.simulated,
        fluid_usd_per_hour=None,
    )


def _group_in(previous: tuple[GroupsPlan, Path] | None, job: str) -> str:
    assert previous is not None, "nothing moves without a running plan"
    return next(key for key, group in previous[0].groups.items() if job in group.jobs)


_STATUS: dict[str, SolverStatus] = {"optimal": "optimal", "gap": "gap", "limit": "limit"}


def _solver(solution: GroupSolution, usd_per_hour: float) -> GroupsSolver:
    """What was proven, about a plan of this price: moves that do not pay may leave it above the program's."""
    optimal = usd_per_hour <= solution.usd_per_hour * (1 + 1e-9)
    return GroupsSolver(
        name=f"HiGHS {version('highspy')}",
        status=_STATUS[solution.status] if optimal else "gap",
        bound_usd_per_hour=solution.bound_usd_per_hour,
        gap=solution.gap if optimal else 1 - solution.bound_usd_per_hour / usd_per_hour,
        universe=solution.universe,
        columns=solution.columns,
        simulated=solution.simulated,
        fluid_usd_per_hour=solution.fluid_usd_per_hour,
    )
