"""The group program: every job in one co-execution group, at the least price, with a bound on what is left.

Set partitioning by column generation. The linear master prices jobs; `pricing.price` lists groups that are worth more
than they cost by conditions that every feasible group meets; those are simulated, feasible ones become columns, the
others join the infeasible set. When nothing is left above a tolerance, the master's value over 1 + tolerance is a lower
bound of the price of any choice of groups in the universe (Farley's bound: the duals, scaled down, price no group above
its cost). The integer program over the columns gives the groups.

Universe of the proof: connected groups of at most `group_cap` jobs, in placements of `placements.job_placements`, on
whole nodes or the slots that `group_columns.attach` gives, feasible by simulation. Above `Effort.exact_jobs` jobs, or
where a job has several points, a group must also be robust: every two and every three of its members that share nodes
must be feasible without the others, so that a departure that leaves them alone breaks nothing. Up to `exact_jobs` there
is no such clause, and the solution is the optimum.

Warm start: Algorithm 1's groups and the previous plan's are columns, and the choice of these alone is an upper limit.
Where jobs have points and none runs, so are the groups of the jobs at their references: the choice is never dearer.
Limits are of work, never of seconds, so that the same inputs give the same groups.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress

from ....plans.schema.workload import Objective
from ....plans.yaml.errors import Infeasible
from ..inputs.group_model import Group, GroupJob, NodeTypes, Rules
from ..simulate.slowdowns import units_per_hour
from .group_search import ROUNDING, GroupSearch
from .group_solution import PLAN, Effort, GroupSolution, SolveMemory
from .placements import fluid_bound
from .unit_price import RatioSearch


def solve_groups(
    jobs: Sequence[GroupJob],
    node_types: NodeTypes,
    rules: Rules,
    *,
    previous: Sequence[Group] = (),
    effort: Effort = PLAN,
    memory: SolveMemory | None = None,
    objective: Objective = "usd_per_hour",
    notify: Callable[[str], None] = lambda text: None,
) -> GroupSolution:
    """The groups of least price that hold all jobs. Raises Infeasible, naming what does not fit and what would help.

    Args:
        previous: groups of the running plan; of equally cheap choices the one that keeps most of them is taken.
        memory: of earlier solves under the same rules and node types.
        objective: USD per hour, or USD per unit of training (unit_price.py), of which both are always reported.
        notify: is called with a text at each stage of the solve.
    """
    if any(job.points[1:] for job in jobs) and not previous:
        notify("each job as it would run alone")
        alone = [job.at_reference() if job.points else job for job in jobs]
        # Without room for these the points may still have some.
        with suppress(Infeasible):
            previous = solve_groups(alone, node_types, rules, effort=effort).groups
    search = GroupSearch(jobs, node_types, rules, effort, memory or SolveMemory(rules))
    notify("Algorithm 1")
    search.start(previous)
    bound = search.generate(notify)
    notify("choosing groups")
    return _finish(search, bound, previous, objective)


def _finish(search: GroupSearch, bound: float, previous: Sequence[Group], objective: Objective) -> GroupSolution:
    """The solution of the integer program over the columns, with its bound, gap and status."""
    chosen, proven = search.choice(previous)
    if search.exact and proven and search.close(sum(c.usd_per_hour for c in chosen)):
        chosen, proven = search.choice(previous)
        if proven:
            bound = math.inf
    bound = min(sum(c.usd_per_hour for c in chosen), max(bound, 0.0))
    unit = RatioSearch(search).best(chosen) if objective == "usd_per_unit" else None
    chosen = chosen if unit is None else list(unit.columns)
    groups = tuple(sorted((c.group for c in chosen), key=lambda g: g.pins[0].job))
    usd = sum(group.usd_per_hour(search.node_types) for group in groups)
    slow = {name: s for group in groups for name, s in search.checker.slowdowns(group, search.jobs).items()}
    per_unit = usd / units_per_hour(slow, search.jobs, search.node_types)
    reached, least = (usd, bound) if unit is None else (per_unit, min(unit.bound, per_unit))
    gap = 0.0 if reached - least <= ROUNDING * reached else (reached - least) / reached
    universe = (
        f"groups of at most {search.proven_cap if search.proven_cap < search.top else search.rules.group_cap} jobs"
        + (", of the points that are planned" if any(job.points for job in search.jobs.values()) else "")
        + ("" if search.exact else ", feasible also in every two and three of their members")
    )
    status = (
        "optimal"
        if gap == 0.0 and search.proven_cap == search.top
        else "gap"
        if gap <= 2 * search.effort.gap
        else "limit"
    )
    if unit is not None and not unit.complete:
        status = "limit"
        universe = f"the {unit.tried} groups that were tried, of all {universe}"
    return GroupSolution(
        groups=groups,
        objective=objective,
        usd_per_hour=usd,
        usd_per_unit=per_unit,
        bound_usd_per_hour=bound,
        bound_usd_per_unit=None if unit is None else least,
        gap=gap,
        slowdowns=slow,
        columns=len(search.columns) if unit is None else unit.tried,
        simulated=search.simulated,
        status=status,
        universe=universe,
        greedy_usd_per_hour=search.greedy_usd,
        fluid_usd_per_hour=fluid_bound(search.placements_of, search.usd),
    )
