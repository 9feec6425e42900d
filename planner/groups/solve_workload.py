"""From a workload document to a plan of co-execution groups: the library call behind `rlplan solve WORKLOAD`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from ...plans.schema.groups_plan import DeclinedMoves, GroupsInputs, GroupsPlan, GroupsSolver, Move, SolverStatus
from ...plans.schema.workload import Workload
from ...plans.yaml.errors import Infeasible
from ..write_plan import volatile
from .choose.group_program import solve_groups
from .choose.group_solution import Effort, GroupSolution
from .choose.remedies import without_room
from .inputs.capacity import NodesShort, excess, shortages
from .inputs.groups_state import GroupsState
from .inputs.running_plan import running_state
from .inputs.workload_jobs import Problem
from .place.best_fit import BestFit
from .replan.declined_moves import declined_moves
from .replan.move_prices import Patience
from .replan.move_savings import planned_moves, renumbered
from .replan.replanner import Replanner
from .write.plan_writer import cost_figures, write_plan

Notify = Callable[[str], None]


@dataclass(frozen=True)
class _Solved:
    """Groups of all jobs, the solver's account of them, and the moves to them."""

    state: GroupsState
    solver: GroupsSolver
    moves: tuple[Move, ...] = ()
    declined: DeclinedMoves | None = None


def solve_workload(
    workload: Workload,
    problem: Problem,
    inputs: GroupsInputs,
    previous: tuple[GroupsPlan, Path] | None = None,
    moving: bool = True,
    notify: Notify = lambda text: None,
) -> GroupsPlan:
    """The plan for `problem`, which `workload` states.

    `previous`: the running plan and its file; its jobs stay where they are unless a move pays for itself, and with
    `moving` false they stay in any case. Raises Infeasible where the cluster's limits leave no room, InputError where
    the running plan's nodes are none of the cluster's.
    """
    began = time.perf_counter()
    short = shortages(problem.jobs, problem.node_types, problem.rules)
    if short:
        raise without_room(problem.jobs, problem.node_types, problem.rules, short)
    try:
        if previous is None:
            solved = _grouped_anew(problem, workload, notify)
        else:
            running = running_state(*previous, problem.jobs, problem.node_types)
            if moving:
                solved = _replanned(problem, workload, previous[0], running, notify)
            else:
                solved = _placed_beside(problem, running)
    except NodesShort:
        raise without_room(problem.jobs, problem.node_types, problem.rules) from None
    return write_plan(
        problem, workload, solved.state, solved.solver, solved.moves, solved.declined, inputs, volatile(began)
    )


def change_every_h(remaining_s: Mapping[str, float]) -> float:
    """Hours until one of the jobs that say how long they stay is expected to leave, each at a constant rate.

    The plan is solved again then, so a move must pay before. Without such jobs, the default of `Patience`.
    """
    rate = sum(3600 / seconds for _, seconds in sorted(remaining_s.items()))
    return 1 / rate if rate else Patience().change_every_h


def _grouped_anew(problem: Problem, workload: Workload, notify: Notify) -> _Solved:
    """The groups of least price, with no job running yet."""
    solution = solve_groups(
        list(problem.jobs.values()),
        problem.node_types,
        problem.rules,
        objective=workload.rules.objective,
        notify=notify,
    )
    groups = renumbered({str(index): group for index, group in enumerate(solution.groups)})
    state = GroupsState(problem.jobs, groups)
    return _Solved(state, _solver(solution, state, problem))


def _replanned(
    problem: Problem, workload: Workload, previous: GroupsPlan, running: GroupsState, notify: Notify
) -> _Solved:
    """New jobs beside the running ones, with the moves that pay or that a bound needs, and those that do not pay."""
    node_types, rules, objective = problem.node_types, problem.rules, workload.rules.objective
    # `rlplan apply` has a job stop at the end of its step, with a checkpoint: no work is lost.
    patience = Patience(change_every_h(problem.remaining_s), wait_for_boundary=True)
    replanner = Replanner(node_types, rules, patience, Effort())
    replanner.prices.credit_s = {name: problem.ahead_s.get(name, math.inf) for name in running.jobs}
    new = sorted(set(problem.jobs) - set(running.jobs))
    placed = running
    for name in new:
        placed = replanner.place.arrive(placed, problem.jobs[name])
    solution = solve_groups(
        list(problem.jobs.values()),
        node_types,
        rules,
        previous=tuple(placed.groups.values()),
        memory=replanner.memory,
        objective=objective,
        notify=notify,
    )
    notify("which moves pay")
    # Training that is done later is worth what the best plan pays for it.
    replanner.prices.usd_per_unit = solution.usd_per_unit if objective == "usd_per_unit" else 0.0
    replan = replanner.replan(placed, new, solution.groups)
    state = GroupsState(problem.jobs, renumbered(replan.state.groups, running.groups))
    return _Solved(
        state,
        _solver(solution, state, problem),
        tuple(planned_moves(replan.moves, previous, placed, state, node_types, rules)),
        declined_moves(replanner.prices, replan.state, solution.groups, new),
    )


def _placed_beside(problem: Problem, running: GroupsState) -> _Solved:
    """New jobs beside the running jobs, which all stay. Raises Infeasible if the nodes do not suffice."""
    node_types = problem.node_types
    place = BestFit(node_types, problem.rules)
    placed = running
    for name in sorted(set(problem.jobs) - set(running.jobs)):
        placed = place.arrive(placed, problem.jobs[name])
    for groups, subject in ((running.groups, "they hold"), (placed.groups, "with the new ones they take")):
        missing = excess(groups.values(), node_types)
        if missing:
            nodes = " and ".join(f"{taken} nodes of pool '{pool}', which has {limit}" for pool, taken, limit in missing)
            raise Infeasible(f"running jobs cannot all stay: {subject} {nodes}; solve without --no-moves")
    solver = GroupsSolver(
        name="incremental placement",
        status="placed",
        bound_usd_per_hour=None,
        bound_usd_per_unit=None,
        gap=None,
        universe="running jobs stay",
        columns=len(placed.groups),
        simulated=place.checker.simulated,
        fluid_usd_per_hour=None,
    )
    return _Solved(GroupsState(problem.jobs, renumbered(placed.groups, running.groups)), solver)


_STATUS: dict[str, SolverStatus] = {"optimal": "optimal", "gap": "gap", "limit": "limit"}


def _solver(solution: GroupSolution, state: GroupsState, problem: Problem) -> GroupsSolver:
    """The solver's account of this plan: moves that do not pay may leave its price above that of the solution."""
    if solution.objective == "usd_per_hour":
        price, best, bound = state.usd_per_hour(problem.node_types), solution.usd_per_hour, solution.bound_usd_per_hour
    else:
        assert solution.bound_usd_per_unit is not None, "it is the objective"
        price, best, bound = (
            cost_figures(state, problem).usd_per_unit,
            solution.usd_per_unit,
            solution.bound_usd_per_unit,
        )
    reached = price <= best * (1 + 1e-9)
    return GroupsSolver(
        name=f"HiGHS {version('highspy')}",
        status=_STATUS[solution.status] if reached or solution.status == "limit" else "gap",
        bound_usd_per_hour=solution.bound_usd_per_hour,
        bound_usd_per_unit=solution.bound_usd_per_unit,
        gap=solution.gap if reached else 1 - bound / price,
        universe=solution.universe,
        columns=solution.columns,
        simulated=solution.simulated,
        fluid_usd_per_hour=solution.fluid_usd_per_hour,
    )
