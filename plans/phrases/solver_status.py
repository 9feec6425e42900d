"""What the solver proved of a plan, in a few words: the same from `solve`, in `show` and on the plan's page."""

from __future__ import annotations

from ..schema.groups_plan import GroupsPlan
from ..schema.plan import Plan, Solver
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
    if given_up := _given_up(solver):
        best = f"best {among}" if proven else f"best found {among}"
        text = f"{percent(given_up)} {worse} than the {best}; chosen because it is simpler"
    text += ", by enumeration" * (solver.method == "enumeration")
    return text + (f"; one up to {percent(solver.gap, 2)} {better} may exist" if solver.gap >= 5e-5 else "")


def proof_word(solver: Solver) -> str:
    """Return `solver_status` in a word: edited, simplest (of tied schedules), optimal or not proven."""
    if solver.refreshed:
        return "edited"
    return "simplest" if _given_up(solver) else "optimal" if solver.status == "optimal" else "not proven"


def _given_up(solver: Solver) -> float:
    """Share by which a plan costs more than the best schedule; 0 where it would be shown as 0.0 %."""
    share = solver.given_up or 0.0
    return share if share >= 0.0005 else 0.0


LITTLE = 0.05
"""Gain over plain rounds below which a plan's first line is about that."""


def little_gained(plan: Plan) -> str | None:
    """Return a line on a plan that is less than `LITTLE` faster than plain rounds; None if it is faster."""
    rounds, predicted, solver = plan.job.rounds, plan.predicted, plan.solver
    gain = predicted.speedup - 1
    if gain >= LITTLE:
        return None
    levers = [kind.rollout for kind in (rounds.short, rounds.long) if kind is not None]
    if plan.job.bias.mode == "sync" and not any(each.drafts or each.balance for each in levers):
        if solver.refreshed or solver.forced_mode:
            return f"plain rounds, as {'the plan was edited' if solver.refreshed else '--mode sync asks'}"
        unit = "cheaper" if solver.objective == "usd_per_sample" else "faster"
        return f"plain rounds are planned: no other schedule that solve may choose is {LITTLE:.0%} {unit}"
    if gain >= 0:
        more = f"{percent(gain)} more samples per second" if gain else "no more samples per second"
        return f"little is gained: {more} than plain rounds give, which are simpler"
    slower = f"slower than plain rounds: {percent(-gain)} fewer samples per second"
    if predicted.baseline.keeps_slo is False:
        return f"{slower}, but plain ones break slo.step_p95_s"
    return f"{slower}; rlplan solve --mode sync plans those"
