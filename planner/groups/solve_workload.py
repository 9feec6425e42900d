"""From a workload document to a plan of co-execution groups: the library call behind `rlplan solve WORKLOAD`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path

from ...plans.schema.groups_plan import DeclinedMoves, GroupsInputs, GroupsPlan, GroupsSolver, Move, SolverStatus
from ...plans.schema.workload import Objective, Workload
from ...plans.yaml.errors import Infeasible
from ..write_plan import volatile
from .choose.group_program import solve_groups
from .choose.group_solution import Effort, GroupSolution
from .inputs.capacity import NodesShort, excess, shortages
from .inputs.running_plan import running_state
from .inputs.workload_jobs import Problem
from .place.one_arrival import BestFit
from .place.placing import State
from .replan.declined_moves import declined
from .replan.move_savings import attributed, renumbered
from .replan.moves import Patience, Replanner
from .replan.remedies import without_room
from .write.plan_writer import figures, write_plan


def solve_workload(
    workload: Workload,
    problem: Problem,
    inputs: GroupsInputs,
    previous: tuple[GroupsPlan, Path] | None = None,
    moving: bool = True,
    notify: Callable[[str], None] = lambda text: None,
) -> GroupsPlan:
    """The plan for `problem`, which `workload` states.

    `previous`: the running plan and its file; its jobs stay where they are unless a move pays for itself, and with
    `moving` false they stay in any case. Raises Infeasible where the cluster's limits leave no room, InputError where
    the running plan's nodes are none of the cluster's.
    """
    began = time.perf_counter()
    short = shortages(problem.jobs, problem.kinds, problem.rules)
    if short:
        raise without_room(problem.jobs, problem.kinds, problem.rules, short)
    moves: list[Move] = []
    spared: DeclinedMoves | None = None
    try:
        if previous is None:
            solution = solve_groups(
                list(problem.jobs.values()),
                problem.kinds,
                problem.rules,
                objective=workload.rules.objective,
                notify=notify,
            )
            groups = renumbered({str(at): group for at, group in enumerate(solution.groups)})
            state = State(problem.jobs, groups)
            solver = _solver(solution, state, problem)
        else:
            running = running_state(*previous, problem.jobs, problem.kinds)
            if moving:
                state, solver, moves, spared = _moved(problem, previous[0], running, workload.rules.objective, notify)
            else:
                state, solver = _placed(problem, running)
    except NodesShort:
        raise without_room(problem.jobs, problem.kinds, problem.rules) from None
    return write_plan(problem, workload, state, solver, moves, spared, inputs, volatile(began))


def change_every_h(remaining_s: Mapping[str, float]) -> float:
    """Hours until one of the jobs that say how long they stay is expected to leave, each at a constant rate; a plan is
    thought over then, so that a move must pay before. Without such jobs, what Patience assumes."""
    rate = sum(3600 / seconds for _, seconds in sorted(remaining_s.items()))
    return 1 / rate if rate else Patience().change_every_h


def _moved(
    problem: Problem, previous: GroupsPlan, running: State, objective: Objective, notify: Callable[[str], None]
) -> tuple[State, GroupsSolver, list[Move], DeclinedMoves | None]:
    """New jobs beside the running ones, the moves that pay or that a bound needs, and those that do not pay."""
    kinds, rules = problem.kinds, problem.rules
    planner = Replanner(kinds, rules, Patience(change_every_h(problem.remaining_s)), Effort())
    planner.credit_s = {name: problem.ahead_s.get(name, math.inf) for name in running.jobs}
    new = sorted(set(problem.jobs) - set(running.jobs))
    placed = running
    for name in new:
        placed = planner.place.arrive(placed, problem.jobs[name])
    solution = solve_groups(
        list(problem.jobs.values()),
        kinds,
        rules,
        previous=tuple(placed.groups.values()),
        memory=planner.memory,
        objective=objective,
        notify=notify,
    )
    notify("which moves pay")
    # Training that is done later is worth what the best plan pays for it.
    planner.usd_per_unit = solution.usd_per_unit if objective == "usd_per_unit" else 0.0
    found = planner.replan(placed, new, solution.groups)
    state = State(problem.jobs, renumbered(found.state.groups, running.groups))
    moves = attributed(found.moves, previous, placed, state, kinds, rules)
    spared = declined(planner, found.state, solution.groups, new)
    return state, _solver(solution, state, problem), moves, spared


def _placed(problem: Problem, running: State) -> tuple[State, GroupsSolver]:
    """New jobs beside the running ones, who stay."""
    kinds = problem.kinds
    place = BestFit(kinds, problem.rules)
    placed = running
    for name in sorted(set(problem.jobs) - set(running.jobs)):
        placed = place.arrive(placed, problem.jobs[name])
    for groups, whose in ((running.groups, "they hold"), (placed.groups, "with the new ones they take")):
        missing = excess(groups.values(), kinds)
        if missing:
            parts = " and ".join(f"{taken} nodes of pool '{pool}', which has {limit}" for pool, taken, limit in missing)
            raise Infeasible(f"running jobs cannot all stay: {whose} {parts}; solve without --no-moves")
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
    return State(problem.jobs, renumbered(placed.groups, running.groups)), solver


_STATUS: dict[str, SolverStatus] = {"optimal": "optimal", "gap": "gap", "limit": "limit"}


def _solver(solution: GroupSolution, state: State, problem: Problem) -> GroupsSolver:
    """What was proven, about this plan: moves that do not pay may leave it above the program's."""
    if solution.objective == "usd_per_hour":
        price, best, bound = state.usd_per_hour(problem.kinds), solution.usd_per_hour, solution.bound_usd_per_hour
    else:
        assert solution.bound_usd_per_unit is not None, "it is the objective"
        price, best, bound = figures(state, problem).usd_per_unit, solution.usd_per_unit, solution.bound_usd_per_unit
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
