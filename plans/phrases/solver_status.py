"""What the solver proved of a plan, in a few words: the same from `solve`, in `show` and on the plan's page."""

from __future__ import annotations

from ..schema.groups_plan import GroupsPlan
from ..schema.sections.origin import Solver
from .numbers import count, percent
from .sentences import one_line


def groups_status(plan: GroupsPlan) -> str:
    """Return what the solver proved of a plan of groups: `optimal of 31 candidate groups in USD per hour`."""
    solver = plan.solver
    found = {"optimal": "optimal", "gap": "near the optimum", "limit": "best found", "placed": "placed"}[solver.status]
    among = f"{found} of {count(solver.columns, 'candidate group')}"
    if solver.gap is None:
        return f"{among}, nothing is proven"
    bound = f", at most {percent(solver.gap, 2)} from the optimum" if solver.gap >= 5e-5 else ""
    over = f" over {one_line(solver.universe)}" if solver.status == "limit" else ""
    return f"{among} in {plan.rules.objective.replace('_', ' ').replace('usd', 'USD')}{bound}{over}"


def solver_status(solver: Solver) -> str:
    """Return where a plan stands among the solver's schedules: `optimal of 90 schedules`, or `1.3% slower than the best
    of 90 schedules; …`.

    Why a slower plan is simpler, `job.why.ties` says. Where a limit ended the search, the best schedule is only the
    best found. A plan that was edited is none of them. The gap is told where it is not 0.
    """
    worse, better = ("slower", "faster") if solver.objective == "seconds_per_sample" else ("dearer", "cheaper")
    if solver.refreshed:
        return f"edited by hand and refreshed, {percent(solver.gap, 2)} {worse} than the solver's bound"
    proven = solver.status == "optimal"
    among = f"of {count(solver.candidates, 'schedule')}"
    text = f"optimal {among}" if proven else f"best found {among}, not proven"
    if solver.given_up is not None and solver.given_up >= 0.0005:
        best = f"best {among}" if proven else f"best found {among}"
        text = f"{percent(solver.given_up)} {worse} than the {best}; chosen because it is simpler"
    return text + (f"; one up to {percent(solver.gap, 2)} {better} may exist" if solver.gap >= 5e-5 else "")
