"""What the solver proved of a plan, in a few words: the same from `solve`, in `show` and on the plan's page."""

from __future__ import annotations

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
