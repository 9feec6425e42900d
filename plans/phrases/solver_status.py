"""What the solver proved of a plan, in a few words: the same from `solve`, in `show` and on the plan's page."""

from __future__ import annotations

from ..schema.plan import Plan
from ..schema.sections.origin import Solver
from .numbers import percent


def solver_status(solver: Solver) -> str:
    """Return where a plan stands among the solver's schedules: `optimal`, or `tied with the best (+1.3%)`.

    A tied plan costs that share more than the best schedule, and is simpler to run (`job.why.ties` says how). Where a
    limit ended the search, the best schedule is only the best found. A plan that was edited is none of them.
    """
    if solver.refreshed:
        return "edited by hand and refreshed"
    proven = solver.status == "optimal"
    if solver.given_up:
        more = percent(solver.given_up)
        return f"tied with the best (+{more})" if proven else f"tied with the best found (+{more}, not proven)"
    return "optimal" if proven else "best found (not proven)"


LITTLE = 0.05
"""Gain over plain synchronous rounds below which a plan's first line is about that."""


def little_gained(plan: Plan) -> str | None:
    """Return a line on a plan that is less than `LITTLE` faster than plain synchronous rounds; None if it is faster."""
    rounds, predicted, solver = plan.job.rounds, plan.predicted, plan.solver
    gain = predicted.speedup - 1
    if gain >= LITTLE:
        return None
    levers = [kind.rollout for kind in (rounds.short, rounds.long) if kind is not None]
    if plan.job.bias.mode == "sync" and not any(each.drafts or each.balance for each in levers):
        if solver.refreshed or solver.forced_mode:
            return f"plain synchronous rounds, as {'the plan was edited' if solver.refreshed else '--mode sync asks'}"
        unit = "cheaper" if solver.objective == "usd_per_sample" else "faster"
        return f"plain synchronous rounds are planned: no other schedule that solve may choose is {LITTLE:.0%} {unit}"
    if gain >= 0:
        more = f"{percent(gain)} more samples per second" if gain else "no more samples per second"
        return f"little is gained: {more} than plain synchronous rounds give, which are simpler"
    slower = f"slower than plain synchronous rounds: {percent(-gain)} fewer samples per second"
    if predicted.baseline.keeps_slo is False:
        return f"{slower}, but plain ones break slo.step_p95_s"
    return f"{slower}; rlplan solve --mode sync plans those"
