"""From a workload document to a plan of co-execution groups: the library call behind `rlplan solve WORKLOAD`."""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

from ...plans.schema.groups_plan import DeclinedMoves, GroupsInputs, GroupsPlan, GroupsSolver, Move, SolverStatus
from ...plans.schema.workload import Workload
from ...plans.yaml.errors import Infeasible
from ..write_plan import volatile
from .choose.group_program import solve_groups
from .choose.group_solution import QUICK, GroupSolution, SearchEffort
from .choose.placers import BestFit
from .inputs.group_model import (
    GroupsState,
    Jobs,
    NodesShort,
    NodeTypes,
    Rules,
    Shortage,
    excess,
    node_limits,
    nodes_taken,
    shortages,
)
from .inputs.running_plan import running_state
from .inputs.workload_jobs import Problem
from .moves import MovePatience, declined_moves, planned_moves, renumbered
from .replanner import Replanner
from .write_groups import cost_figures, write_plan

# Remedies for a workload that does not fit its nodes: more nodes, looser bounds, more host memory, larger groups.
#
# Every remedy that the error names was tried: the group program placed all jobs with it.

_FACTORS = (1.02, 1.05, 1.1, 1.15, 1.2, 1.3, 1.4, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 5.0, 7.5, 10.0)
"""Factors of bounds, or of host memory, that are tried."""

_EFFORT = replace(QUICK, greedy=True)
_DEAR = 1000.0


def without_room(jobs: Jobs, node_types: NodeTypes, rules: Rules, short: Sequence[Shortage] = ()) -> Infeasible:
    """The error that the jobs do not fit into the nodes: the proven shortages, if any, and remedies."""
    remedies = [_more_nodes(jobs, node_types, rules, [s.pool for s in short])]

    def fits_looser(factor: float) -> bool:
        return bool(_nodes({n: replace(job, slo=job.slo * factor) for n, job in jobs.items()}, node_types, rules))

    def fits_roomier(factor: float) -> bool:
        larger = {p: replace(k, host_memory_bytes=k.host_memory_bytes * factor) for p, k in node_types.items()}
        return bool(_nodes(jobs, larger, rules))

    for fits, text in (
        (fits_looser, "with every slo {:g} times as loose"),
        (fits_roomier, "with {:g} times the host memory on every node"),
    ):
        factor = _least_factor(fits)
        if factor is not None:
            remedies.append(text.format(factor))
    if _nodes(jobs, node_types, replace(rules, group_cap=rules.group_cap + 1)):
        remedies.append(f"with group_cap {rules.group_cap + 1}")
    there = ", ".join(f"{limit} of pool '{pool}'" for pool, limit in node_limits(node_types).items())
    cause = "; ".join(map(str, short)) or f"no way to share the nodes ({there}) holds all {len(jobs)} jobs"
    return Infeasible(f"{cause}; they fit " + ", or ".join(text for text in remedies if text))


def _more_nodes(jobs: Jobs, node_types: NodeTypes, rules: Rules, first: Sequence[str]) -> str:
    """The remedy of more nodes of one pool, a pool in `first` if one will do, else of several pools."""
    limited = list(dict.fromkeys([*first, *node_limits(node_types)]))
    for lifted in [*({pool} for pool in limited), set(limited)]:
        # Whatever the prices are: as few nodes as can be of the pools that are too small.
        unlimited = {
            pool: replace(node_type, usd_per_hour=_DEAR, limit=None)
            if pool in lifted
            else replace(node_type, usd_per_hour=1.0)
            for pool, node_type in node_types.items()
        }
        taken = _nodes(jobs, unlimited, rules)
        if taken:
            more = [f"{taken[p]} nodes of pool '{p}'" for p in sorted(lifted) if taken[p] > (node_types[p].limit or 0)]
            return "with " + " and ".join(more) if more else ""
    return ""


def _least_factor(fits: Callable[[float], bool]) -> float | None:
    """The least factor with which the jobs fit, if they fit with all larger ones too; None: not with the largest."""
    if not fits(_FACTORS[-1]):
        return None
    return _FACTORS[bisect_left(_FACTORS, True, hi=len(_FACTORS) - 1, key=fits)]


def _nodes(jobs: Jobs, node_types: NodeTypes, rules: Rules) -> dict[str, int] | None:
    """Nodes by pool of a solution within the limits; None if a quick search has none."""
    try:
        solution = solve_groups(list(jobs.values()), node_types, rules, effort=_EFFORT)
    except Infeasible:
        return None
    return nodes_taken(solution.groups, node_types)


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

    The plan is solved again then, so a move must pay before. Without such jobs, the default of `MovePatience`.
    """
    rate = sum(3600 / seconds for _, seconds in sorted(remaining_s.items()))
    return 1 / rate if rate else MovePatience().change_every_h


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
    patience = MovePatience(change_every_h(problem.remaining_s), wait_for_boundary=True)
    replanner = Replanner(node_types, rules, patience, SearchEffort())
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
